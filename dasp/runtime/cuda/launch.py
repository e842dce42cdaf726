"""Launches of compiled kernels: named arguments, compared once with what the source declares.

A `Signature` declares the parameters of a kernel. A `Launch` holds a kernel and its arguments as the driver
wants them, so that a launch writes the few that change and makes one call. CuPy's own launches convert every
argument every time, and do not offer the overlap below.

A kernel that overlaps reads its own constant data while the kernel before it in the stream still runs, and
waits for that kernel before it touches anything else (programmatic dependent launch, from compute capability
9.0). CUDA graphs keep the overlap.

Source: CUDA Driver API, cuLaunchKernelEx.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.driver import check, driver
from dasp.runtime.types import DeviceArray, KernelFunction

PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""CUlaunchAttributeID: the kernel may start before the one before it in the stream has ended."""

OVERLAPPING = 90
"""Compute capability from which a kernel may start before the one before it has ended."""

COOPERATIVE = 2
"""CUlaunchAttributeID: all blocks run at the same time, or the launch is refused."""

C_TYPES: dict[str, tuple[str, int]] = {
    "float": ("f4", 1),
    "double": ("f8", 1),
    "signed char": ("i1", 1),
    "int": ("i4", 1),
    "long long": ("i8", 1),
    "unsigned char": ("u1", 1),
    "unsigned short": ("u2", 1),
    "unsigned": ("u4", 1),
    "unsigned long long": ("u8", 1),
    "uint4": ("u4", 4),
}
"""The NumPy type of each type in a signature, and how many such numbers one element has."""

_CODES = {"f4": "f", "f8": "d", "i4": "i", "i8": "q", "u4": "I", "u8": "Q", "c8": "ff", "c16": "dd"}
"""The letter of a number's type for `struct`, or letters of a complex number's parts; `Q` is an address."""

PARAMETERS_AT, PARAMETER_BYTES_AT, PARAMETERS_END = 1, 2, 0
"""CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END: all parameters lie in one block."""


class KernelParameter(NamedTuple):
    """One parameter of a kernel.

    Attributes
    ----------
    type : str
        As in the source, without `__restrict__`: `const Index*`.
    name : str
    size : str
        Elements of an array: `4`, `rows`, `rows + 1` or `32 * steps`. The word is a number among the
        arguments, or the size of another array. Empty if any size will do, and for numbers.
    """

    type: str
    name: str
    size: str

    @property
    def is_array(self) -> bool:
        """True if the kernel takes an address."""
        return self.type.endswith("*")

    @property
    def element(self) -> str:
        """The type without `const` and `*`."""
        return self.type.removeprefix("const ").removesuffix("*")


class _Field(NamedTuple):
    """A parameter, the type and number of an element's parts, letters for `struct`, and offset in bytes."""

    parameter: KernelParameter
    dtype: np.dtype[Any]
    parts: int
    code: str
    place: int


class _Block(NamedTuple):
    """The parameters of a kernel as they lie in memory, and their bytes in all."""

    fields: tuple[_Field, ...]
    nbytes: int


class Signature:
    r"""The parameters of a kernel, as its source declares them, with the sizes of arrays.

    Parameters
    ----------
    source, entry : str
        Such as "spmv/slices.cu" and "dasp_slices".
    text : str
        One parameter a line, in the order of the source: type, name, and the size of an array in brackets.
    shared_words : str
        The parameter that gives a block's dynamic shared memory in words of 4 bytes, if there is one.

    Raises
    ------
    ValueError
        If a line declares no parameter, or a size has an unknown word.

    Examples
    --------
    >>> text = "const Value* x [n]\n Value* y [n]\n long long n"
    >>> scale = Signature("scale.cu", "dasp_scale", text)
    >>> [parameter.name for parameter in scale.parameters]
    ['x', 'y', 'n']
    """

    def __init__(self, source: str, entry: str, text: str, *, shared_words: str = "") -> None:
        self.source, self.entry, self._text, self.shared_words = source, entry, text, shared_words
        self.parameters = tuple(_parameter(line.strip()) for line in text.strip().splitlines())
        known = {p.name for p in self.parameters if not p.is_array}
        known |= {p.size for p in self.parameters if p.size.isidentifier()}
        for p in self.parameters:
            word = _size(p.size)[1]
            if word and word not in known:
                raise ValueError(f"{p.name} of {entry} has size {p.size}; nothing says what {word} is")
        self.names = tuple(p.name for p in self.parameters)
        self._blocks: dict[tuple[Any, ...], _Block] = {}

    def load(self, constants: Mapping[str, str]) -> KernelFunction:
        """Return the kernel for some compile-time constants, loaded on the current GPU; see `source.load`."""
        kernel: KernelFunction = _source.load(self.source, constants).get_function(self.entry).kernel
        return kernel

    def block(self, types: Mapping[str, np.dtype[Any]]) -> _Block:
        """Return the layout of the arguments in one block of memory, for the types that the source names."""
        key = tuple(types.items())
        if key not in self._blocks:
            fields: list[_Field] = []
            codes = "@"
            for p in self.parameters:
                name, parts = (types[p.element], 1) if p.element in types else C_TYPES[p.element]
                dtype = np.dtype(name)
                code = "Q" if p.is_array else _CODES[dtype.str[1:]]
                fields.append(_Field(p, dtype, parts, code, struct.calcsize(f"{codes}0{code[0]}")))
                codes += code
            self._blocks[key] = _Block(tuple(fields), struct.calcsize(codes))
        return self._blocks[key]

    def extended(self, text: str) -> Signature:
        """Return the signature of a kernel with more parameters after these."""
        longer = f"{self._text.rstrip()}\n{text.strip()}"
        return Signature(self.source, self.entry, longer, shared_words=self.shared_words)

    def ordered(
        self, types: Mapping[str, np.dtype[Any]], arguments: Mapping[str, Any], varying: Iterable[str] = ()
    ) -> list[Any]:
        """Return the arguments in the kernel's order, each compared with its declaration.

        Parameters
        ----------
        types : mapping of str to dtype
            The types that the source's own names, such as `Index`, stand for.
        arguments : mapping of str to array or number
            Arrays of NumPy or CuPy of exactly the declared type, C-contiguous, or None for no array; numbers
            that the type holds.
        varying : iterable of str
            Parameters that come with each launch; None takes their places.

        Raises
        ------
        TypeError
            If an argument is missing or is not declared, or an array has another type.
        ValueError
            If an array has another size or is not contiguous, or a number does not fit.
        """
        wanted = set(self.names).difference(varying)
        if arguments.keys() != wanted:
            wrong = ", ".join(sorted(arguments.keys() ^ wanted))
            raise TypeError(f"{wrong}: missing or unknown; {self.entry} takes {', '.join(sorted(wanted))}")
        fields = self.block(types).fields
        given = [(f, arguments[f.parameter.name]) for f in fields if f.parameter.name in wanted]
        sizes = {p.name: int(value) for (p, kind, *_), value in given if not p.is_array and kind.kind in "iu"}
        for f, value in given:
            if f.parameter.size.isidentifier() and value is not None:
                sizes.setdefault(f.parameter.size, value.size // f.parts)
        checked = {f.parameter.name: self._checked(f, sizes, value) for f, value in given}
        return [checked.get(name) for name in self.names]

    def _checked(self, f: _Field, sizes: Mapping[str, int], value: Any) -> Any:
        dtype, name, size = f.dtype, f"{f.parameter.name} of {self.entry}", f.parameter.size
        if not f.parameter.is_array:
            if dtype.kind in "iu" and not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max:
                raise ValueError(f"{name} is {value}; a number that {dtype} holds is needed")
            return dtype.type(value)
        if value is None:
            return None
        if value.dtype != dtype:
            raise TypeError(f"{name} is an array of {value.dtype}; {dtype} is needed")
        factor, word, more = _size(size)
        if size and (not word or word in sizes):  # else the word is a number that varies
            elements = f.parts * (factor * sizes.get(word, 0) + more)
            if value.size != elements:
                raise ValueError(f"{name} has {value.size} elements; {elements}, for [{size}], are needed")
        if not value.flags.c_contiguous:
            raise ValueError(f"{name} has strides {value.strides}; a contiguous array is needed")
        return value


class Launch:
    """A kernel and its arguments, to be launched again and again; several threads may share one.

    Parameters
    ----------
    kernel : KernelFunction
        Loaded on the current device.
    signature : Signature
    types, arguments : mapping
        As for `Signature.ordered`; arrays of CuPy on the current device, which are kept alive.
    varying : sequence of str
        Parameters that come with each launch. They follow each other in the kernel, and the first lies at a
        multiple of 8 bytes.
    blocks, threads : int
        Blocks of the grid, and threads of a block. Without `blocks` the grid comes with each launch.
    shared_bytes : int
        Dynamic shared memory of a block.
    overlaps : bool
        True if the kernel may start before the one before it has ended; it must then wait by itself.
    cooperative : bool
        True if all blocks must run at the same time, because they wait for each other; not with `overlaps`.

    Raises
    ------
    TypeError, ValueError
        If the arguments are not those of the signature.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        signature: Signature,
        types: Mapping[str, np.dtype[Any]],
        arguments: Mapping[str, Any],
        varying: Sequence[str] = (),
        *,
        blocks: int | None = None,
        threads: int = 1,
        shared_bytes: int = 0,
        overlaps: bool = False,
        cooperative: bool = False,
    ) -> None:
        ordered, (fields, nbytes) = signature.ordered(types, arguments, varying), signature.block(types)
        span = _span(signature.names, varying)
        place = fields[span.start].place if varying else 0
        if place % 8:
            raise ValueError(f"{varying[0]} has 4 bytes; a first parameter of 8 that varies is needed")
        attribute = _Attribute(id=COOPERATIVE if cooperative else PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[0] = 1
        block = bytearray(PARAMETERS_FROM + nbytes)
        config = _Config.from_buffer(block)
        config.attributes, config.attribute_count = ctypes.pointer(attribute), int(overlaps or cooperative)
        _GRID.pack_into(block, 0, blocks or 0, 1, 1, threads, 1, 1, shared_bytes)
        for f, value in zip(fields, ordered, strict=True):
            if value is not None:
                numbers = [address(value)] if f.parameter.is_array else _parts(value)
                struct.pack_into(f.code, block, PARAMETERS_FROM + f.place, *numbers)
        self._kept, self._takes_grid = (kernel, ordered, attribute), blocks is None
        self._block = bytes(block)
        self._varying = struct.Struct("@" + "".join(f.code for f in fields[span])), PARAMETERS_FROM + place
        self._free = [self._new_call()]

    def __call__(self, stream: int, *varying: float) -> None:
        """Launch on a stream of the current device.

        Parameters
        ----------
        stream : int
            CUDA's handle.
        *varying : int or float
            For each varying parameter in order: the address of an array, a number, or both parts of a complex
            number. If the grid comes with each launch, four ints stand before them: blocks along x and y,
            threads of a block, and bytes of its dynamic shared memory.

        Raises
        ------
        RuntimeError
            If the driver reports an error.
        """
        try:
            call = self._free.pop()  # faster than a lock, and threads do not wait for each other
        except IndexError:
            call = self._new_call()
        latest, config, write, launch = call
        if stream != latest:
            config.stream = call[0] = stream
        write(*varying)
        status = launch()
        self._free.append(call)
        if status:
            check(status, "the kernel was not launched")

    def _new_call(self) -> list[Any]:
        """Return the memory and functions with which one thread at a time launches.

        They are the stream of the latest launch, the driver's configuration, and two functions: one writes
        the varying numbers, one launches. The configuration begins the block of memory with the parameters.
        """
        block, (varying, place) = bytearray(self._block), self._varying
        config = _Config.from_buffer(block)
        extra = _Extra(PARAMETERS_AT, 0, PARAMETER_BYTES_AT, 0, PARAMETERS_END, len(block) - PARAMETERS_FROM)
        extra.parameters = ctypes.addressof(config) + PARAMETERS_FROM
        extra.bytes = ctypes.addressof(extra) + _Extra.size.offset
        write = partial(varying.pack_into, block, place)

        def write_grid(x: int, y: int, threads: int, shared_bytes: int, *varying: float) -> None:
            _GRID.pack_into(block, 0, x, y, 1, threads, 1, 1, shared_bytes)
            write(*varying)

        launch = partial(
            driver().cuLaunchKernelEx,
            *(ctypes.byref(config), ctypes.c_void_p(self._kept[0].ptr), None),
            ctypes.byref(extra) if len(block) > PARAMETERS_FROM else None,
        )
        return [0, config, write_grid if self._takes_grid else write, launch]


@dataclass(frozen=True, eq=False)
class Kinds:
    """The types and constants that a kernel is compiled for; each is made once, so its identity is a key.

    Attributes
    ----------
    types : dict of str to numpy.dtype
        By their names in the kernel's signature.
    constants : dict of str to str
        Defined for the source.
    """

    types: dict[str, np.dtype[Any]]
    constants: dict[str, str]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: 64 bytes of value, of which the attributes here use the first int."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


PARAMETERS_FROM = ctypes.sizeof(_Config)

_GRID = struct.Struct("@7I")
"""Blocks and threads along x, y and z, and bytes of shared memory: the beginning of `_Config`."""


class _Extra(ctypes.Structure):
    """A list that tells the driver of one block of parameters: names and pointers by turns, then its size."""

    _fields_ = (
        ("parameters_at", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("bytes_at", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
    )


_SIZE = re.compile(r"(?:(\d+) \* )?([a-z]\w*)?(?: \+ )?(\d+)?")
_PARAMETER = re.compile(r"(\S.*?)\s+(\w+)(?:\s+\[(.+)\])?")


def _parameter(line: str) -> KernelParameter:
    found = _PARAMETER.fullmatch(line)
    if found is None or (found[3] and not _SIZE.fullmatch(found[3])):
        raise ValueError(f"{line!r} is no parameter; `type name` or `type* name [size]` is needed")
    return KernelParameter(found[1], found[2], found[3] or "")


@cache
def _size(text: str) -> tuple[int, str, int]:
    """Return factor, word and summand of a size; the word is empty for a plain number."""
    found = _SIZE.fullmatch(text)
    assert found
    return (int(found[1] or 1) if found[2] else 0), found[2] or "", int(found[3] or 0)


def _parts(number: np.number[Any]) -> list[complex]:
    """Return a NumPy number as a list for `struct`: the number, or the two parts of a complex one."""
    parts = (number.real, number.imag) if number.dtype.kind == "c" else (number,)
    return [part.item() for part in parts]


def _span(names: tuple[str, ...], varying: Sequence[str]) -> slice:
    """Return the slice of `names` that holds the names of `varying`, which must follow each other."""
    first = names.index(varying[0]) if varying else 0
    span = slice(first, first + len(varying))
    if names[span] != tuple(varying):
        raise ValueError(f"{', '.join(varying)} vary; parameters that follow each other are needed")
    return span


def address(array: DeviceArray | None) -> int:
    """Return the address of a CuPy array, or 0 for None."""
    return 0 if array is None else int(array.data.ptr)
