"""Launch a compiled kernel on NumPy arrays and turn what the emulator finds into `SimtError`."""

import ctypes
import math
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_one_at_a_time = threading.Lock()

MOST_TOGETHER = 16_384
"""Threads of a cooperative launch: each takes two mappings of memory, and a process may have 65,530."""


class _Stacks(ctypes.Structure):
    _fields_ = (("memory", ctypes.c_void_p), ("threads", ctypes.c_uint64))


_stacks = _Stacks()  # of every launch, whatever its library


class SimtError(RuntimeError):
    """A kernel did something forbidden.

    Attributes
    ----------
    kind : str
        "out of bounds", "uninitialised", "read-only", "misaligned", "race", "barrier", "warp", "deadlock",
        "arithmetic", "trap", "assumption" or "intrinsic".
    kernel : str
    block, thread : tuple of int
        (x, y, z) of the block and of the thread at fault.
    lane : int
        The thread's lane in its warp.
    argument, array, index
        Number and name of the kernel's parameter, and the (flat) element. If the address is in no argument,
        `argument` is None and `array` may name a shared array.
    where : str
        Source file and line, where known.
    """

    def __init__(self, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.kind: str = facts["kind"]
        self.kernel: str = facts["kernel"]
        self.block: tuple[int, int, int] = facts["block"]
        self.thread: tuple[int, int, int] = facts["thread"]
        self.lane: int = facts["lane"]
        self.argument: int | None = facts["argument"]
        self.array: str | None = facts["array"]
        self.index: int | None = facts["index"]
        self.where: str = facts["where"]


class poisoned:
    """An array whose elements count as never written: a kernel must not read them before it writes them.

    Keep the object and pass it to several launches: it remembers which elements were written.

    Attributes
    ----------
    array : numpy.ndarray
    written : numpy.ndarray of bool, shape of `array`
        True where every byte of the element was written.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._bytes = np.zeros(array.nbytes, dtype=np.uint8)

    @property
    def written(self) -> np.ndarray:
        shape = (*self.array.shape, self.array.itemsize)
        return self._bytes.reshape(shape).astype(bool).all(axis=-1)


class _Triple(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))

    def __iter__(self):
        return iter((self.x, self.y, self.z))


class _Parameter(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("pointer", "constant", "kind", "bytes"))


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.c_int),
        ("parameter", ctypes.POINTER(_Parameter)),
        ("most_threads", ctypes.c_int),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("host", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("alignment_offset", ctypes.c_uint64),
        ("written", ctypes.c_void_p),
        ("item_bytes", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
    )


class _Argument(ctypes.Structure):
    _fields_ = (
        ("array", ctypes.c_int),
        ("item_bytes", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("scalar", ctypes.c_void_p),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.POINTER(_Kernel)),
        ("stacks", ctypes.POINTER(_Stacks)),
        ("grid", _Triple),
        ("block", _Triple),
        ("shared_bytes", ctypes.c_uint64),
        ("seed", ctypes.c_longlong),
        ("blocks_in_order", ctypes.c_int),
        ("cooperative", ctypes.c_int),
        ("arrays", ctypes.c_int),
        ("arguments", ctypes.c_int),
        ("array", ctypes.POINTER(_Array)),
        ("argument", ctypes.POINTER(_Argument)),
        ("kind", ctypes.c_char * 32),
        ("text", ctypes.c_char * 1024),
        ("at_block", _Triple),
        ("at_thread", _Triple),
        ("at_argument", ctypes.c_int),
        ("at_element", ctypes.c_longlong),
        ("at_code", ctypes.c_uint64),
        ("accesses", ctypes.c_uint64),
    )


class Module:
    """The kernels of one compiled file.

    Attributes
    ----------
    kernels : dict
        The parameters' names by kernel.
    accesses : int
        Number of loads and stores that the last launch checked.
    """

    def __init__(self, library: Path, notes: dict[str, Any], title: str) -> None:
        self.title = title
        self.kernels: dict[str, list[str]] = notes["kernels"]
        self.accesses = 0
        self._shared: list[tuple[int, int, str]] = notes["shared"]
        self._path = library
        self._library = ctypes.CDLL(str(library))
        self._library.simt_static_shared.restype = ctypes.c_uint64
        self.static_shared_bytes = int(self._library.simt_static_shared())

    def set_symbol(self, name: str, value: np.ndarray) -> None:
        """Copy an array into a `__constant__` or `__device__` variable of file scope."""
        try:
            target = ctypes.c_char.in_dll(self._library, name)
        except ValueError:
            raise ValueError(
                f"{self.title} has no variable {name!r} (a static one has no name outside)"
            ) from None
        data = np.ascontiguousarray(value)
        ctypes.memmove(ctypes.addressof(target), data.ctypes.data, data.nbytes)

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
        seed: int | None = None,
        blocks_in_order: bool = False,
        cooperative: bool = False,
    ) -> None:
        """Run a kernel to its end.

        Parameters
        ----------
        name : str
        grid, block : int or up to three ints
            Blocks, and threads per block.
        args : sequence
            C-contiguous arrays (passed as pointers), `poisoned(array)`, None (a null pointer), or NumPy
            scalars of exactly the parameter's type. An array that is not writeable must not be written.
        shared_bytes : int
            Dynamic shared memory per block, in bytes.
        seed : int, optional
            Run blocks, warps and lanes in a random order; without it, in the order of their numbers.
        blocks_in_order : bool
            Start blocks in the order of their numbers whatever the seed, as GPUs do in practice, though CUDA
            does not promise it.
        cooperative : bool
            Let all blocks live at the same time, so that each may wait for any other, with MOST_TOGETHER
            threads at most; else blocks run one after another.

        Raises
        ------
        SimtError
            When the kernel does something forbidden. The arrays are then unchanged.
        TypeError, ValueError
            When the arguments do not fit the kernel's parameters, or the sizes do not fit a GPU.
        """
        if name not in self.kernels:
            raise ValueError(
                f"no kernel {name!r} in {self.title}; it has {', '.join(sorted(self.kernels)) or 'none'}"
            )
        kernel = _Kernel.in_dll(self._library, f"simt_kernel_{name}")
        grid3, block3 = _triple(grid, "grid"), _triple(block, "block")
        self._check_sizes(kernel, name, grid3, block3, shared_bytes)
        if cooperative and math.prod(grid3) * math.prod(block3) > MOST_TOGETHER:
            raise ValueError(
                f"grid {grid3} of blocks {block3} has {math.prod(grid3) * math.prod(block3)} threads; a "
                f"cooperative launch takes {MOST_TOGETHER}, which live at the same time"
            )
        arguments = _Arguments(name, self.kernels[name], kernel, args)
        launch = _Launch(
            kernel=ctypes.pointer(kernel),
            stacks=ctypes.pointer(_stacks),
            grid=_Triple(*grid3),
            block=_Triple(*block3),
            shared_bytes=shared_bytes,
            seed=-1 if seed is None else seed & (2**62 - 1),
            blocks_in_order=blocks_in_order,
            cooperative=cooperative,
            arrays=len(arguments.arrays),
            arguments=len(args),
            array=(_Array * max(1, len(arguments.arrays)))(*arguments.arrays),
            argument=(_Argument * max(1, len(args)))(*arguments.arguments),
        )
        with _one_at_a_time:
            failed = self._library.simt_launch(ctypes.byref(launch))
        self.accesses = launch.accesses
        if failed:
            raise self._error(name, launch, block3)

    def _check_sizes(
        self, kernel: _Kernel, name: str, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int
    ) -> None:
        threads = math.prod(block)
        if not 1 <= threads <= kernel.most_threads or block[2] > 64:
            raise ValueError(
                f"block {block} has {threads} threads; {name} takes 1 to {kernel.most_threads}, z up to 64"
            )
        if min(grid) < 1 or max(grid[1:]) > 65535 or math.prod(grid) >= 2**31:
            raise ValueError(f"grid {grid}; each size must be at least 1, y and z at most 65535")
        if not 0 <= shared_bytes <= 227 * 1024 - self.static_shared_bytes:
            raise ValueError(
                f"shared_bytes is {shared_bytes} beside {self.static_shared_bytes} static; "
                f"a block has {227 * 1024} in all"
            )

    def _error(self, name: str, launch: _Launch, block: tuple[int, int, int]) -> SimtError:
        kind, text = launch.kind.decode(), launch.text.decode()
        thread = tuple(launch.at_thread)
        lane = (thread[0] + block[0] * (thread[1] + block[1] * thread[2])) % 32
        argument = array = index = None
        place = ""
        if launch.at_argument >= 0:
            argument, index = launch.at_argument, launch.at_element
            array = self.kernels[name][argument]
            place = f", argument {argument} `{array}`, element {index}"
        elif launch.at_argument == -2:
            array, index = self._shared_array(launch.at_element)
            place = f", shared array `{array}`, byte {index}"
        elif launch.at_argument == -3:
            array, index = "dynamic shared memory", launch.at_element
            place = f", dynamic shared memory, byte {index}"
        elif launch.at_argument == -4:
            place = ", a __device__ or __constant__ variable"
        where = self._source_line(launch.at_code)
        message = (
            f"{kind}: kernel {name}, block {tuple(launch.at_block)}, thread {thread} (lane {lane}){place}: "
            + text
            + (f" [{where}]" if where else "")
        )
        return SimtError(
            message,
            kind=kind,
            kernel=name,
            block=tuple(launch.at_block),
            thread=thread,
            lane=lane,
            argument=argument,
            array=array,
            index=index,
            where=where,
        )

    def _shared_array(self, offset: int) -> tuple[str, int]:
        for start, size, name in self._shared:
            if start <= offset < start + size:
                return name, offset - start
        return "static shared memory", offset

    def _source_line(self, code: int) -> str:
        """Return the innermost line outside of the emulator's headers, from the debug information, or ""."""
        tool = shutil.which("addr2line")
        if not code or tool is None:
            return ""
        command = [tool, "-i", "-s", "-e", str(self._path), hex(code)]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        lines = [line.split(" ")[0] for line in lines if not line.startswith(("simt.h", "halves.h", "?"))]
        return " in ".join(lines)


def _triple(sizes: int | Sequence[int], what: str) -> tuple[int, int, int]:
    given = (sizes,) if isinstance(sizes, int | np.integer) else tuple(sizes)
    if not 1 <= len(given) <= 3:
        raise ValueError(f"{what} has {len(given)} sizes; 1 to 3 are needed")
    x, y, z = (int(n) for n in (*given, 1, 1)[:3])
    return x, y, z


class _Arguments:
    """The arguments of one launch as the runtime takes them; they keep the memory of their pointers alive."""

    def __init__(self, name: str, parameters: list[str], kernel: _Kernel, args: Sequence[Any]) -> None:
        if len(args) != kernel.parameters:
            raise TypeError(
                f"{name} takes {kernel.parameters} arguments ({', '.join(parameters)}); got {len(args)}"
            )
        self.arrays: list[_Array] = []
        self.arguments: list[_Argument] = []
        self._kept: list[Any] = []
        passed: list[tuple[int, np.ndarray, poisoned | None]] = []
        for i, given in enumerate(args):
            what = f"argument {i} (`{parameters[i]}`) of {name}"
            parameter = kernel.parameter[i]
            if not parameter.pointer:
                self.arguments.append(self._scalar(what, parameter, given))
                continue
            self.arguments.append(_Argument(array=-1))
            if given is None:
                continue
            marker = given if isinstance(given, poisoned) else None
            array = marker.array if marker else given
            _check_array(what, parameter, array)
            passed.append((i, array, marker))
        self._place(passed)

    def _scalar(self, what: str, parameter: _Parameter, given: Any) -> _Argument:
        if not isinstance(given, np.generic):
            raise TypeError(
                f"{what} is {type(given).__name__}; a NumPy scalar of the parameter's type is needed"
            )
        value = np.asarray(given)
        if not _fits(parameter, value.dtype):
            raise TypeError(f"{what} is {value.dtype}; the parameter is {_type_name(parameter)}")
        self._kept.append(value)
        return _Argument(array=-1, scalar=value.ctypes.data)

    def _place(self, passed: list[tuple[int, np.ndarray, poisoned | None]]) -> None:
        """Place the arrays: those that overlap share one copy, the others get their own, with gaps around."""
        groups: list[list[tuple[int, np.ndarray, poisoned | None]]] = []
        end = -1
        for entry in sorted(passed, key=lambda e: e[1].ctypes.data):
            low, size = entry[1].ctypes.data, entry[1].nbytes
            if groups and size and low < end:
                groups[-1].append(entry)
            else:
                groups.append([entry])
            end = max(end, low + size)
        for number, group in enumerate(groups):
            low = group[0][1].ctypes.data
            high = max(a.ctypes.data + a.nbytes for _, a, _ in group)
            markers = [m for _, _, m in group if m is not None]
            if markers and len(group) > 1:
                raise ValueError(
                    "a poisoned array overlaps another argument; pass arrays that share no memory"
                )
            for i, array, _ in group:
                argument = self.arguments[i]
                argument.array, argument.item_bytes = number, array.itemsize
                argument.offset, argument.bytes = array.ctypes.data - low, array.nbytes
            first = group[0][1]
            owner = first
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            self._kept.extend(array for _, array, _ in group)
            self.arrays.append(
                _Array(
                    host=low,
                    bytes=high - low,
                    # A GPU's allocations start at multiples of 256; a view starts where it does in its owner.
                    alignment_offset=(low - owner.ctypes.data) % 256,
                    written=markers[0]._bytes.ctypes.data if markers else None,
                    item_bytes=math.gcd(
                        *(a.itemsize for _, a, _ in group), *(a.ctypes.data - low for _, a, _ in group)
                    ),
                    writable=any(a.flags.writeable for _, a, _ in group),
                )
            )


def _fits(parameter: _Parameter, dtype: np.dtype) -> bool:
    kind = chr(parameter.kind)
    if kind == "V":
        return parameter.bytes in (0, dtype.itemsize)
    if kind in "hn":
        return dtype == (np.float16 if kind == "h" else np.uint16)
    return dtype.itemsize == parameter.bytes and dtype.kind == kind


def _type_name(parameter: _Parameter) -> str:
    kind = chr(parameter.kind)
    if kind in "Vhnb":
        return {"V": f"a struct of {parameter.bytes} bytes", "h": "half", "n": "bfloat16", "b": "bool"}[kind]
    return {"f": "float", "i": "int", "u": "uint"}[kind] + str(8 * parameter.bytes)


def _check_array(what: str, parameter: _Parameter, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"{what} is {type(array).__name__}; the parameter is a pointer, so a NumPy array is needed"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not C-contiguous; pass np.ascontiguousarray(...)")
    if chr(parameter.kind) == "V":  # a vector type or void: any elements will do
        return
    if not _fits(parameter, array.dtype):
        raise TypeError(f"{what} has dtype {array.dtype}; the parameter points to {_type_name(parameter)}")
