"""A plan on an NVIDIA GPU: one launch for each product by a vector."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache, cached_property
from sys import getrefcount
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from dasp import formats
from dasp.formats import diagonal_cuda as diagonal
from dasp.formats.dasp.cuda import product as published
from dasp.formats.dasp.pattern import NAME as PUBLISHED
from dasp.formats.plan import WARP, Plan, arrays_of, diagonal_rows, with_arrays
from dasp.formats.sell.cuda import beside, columns, dotted, sliced
from dasp.formats.sell.pattern import NAME as SLICES
from dasp.runtime.arrays import is_cupy
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.device import OVERLAPPING, primitives
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.cuda.scratch import (
    PER_THREAD_STREAM,
    THIS_THREAD,
    Scratch,
    captured_in,
    in_pool,
    keep,
    new_scratch,
)
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.dtypes import BFLOAT16, Arithmetic, into, real_type
from dasp.runtime.integers import ceil_div, round_up
from dasp.solvers.persistent import kernel as resident

KERNELS: dict[str, Any] = {SLICES: sliced, PUBLISHED: published}
"""What multiplies a plan of each format: a module with the functions of `sliced`."""

VARYING = "x", "y", "alpha", "beta"
"""Arguments that come with each product."""

BETWEEN = "x", "y"
"""Those that come with each plain product, of alpha 1 and beta 0."""

TENSOR_CORES = 80
"""Compute capability from which tensor cores multiply float64."""

OVERLAPPING_DRIVER = 12_030
"""CUDA version of the driver from which the start of a product may overlap the end of the kernel before it,
in a captured graph too."""

_HERE = nullcontext()
"""For work on a device that is the current one."""

MOST_KNOWN = 1024
"""Plans of other sizes of which it is known what to launch."""

MOST_STREAMS = 8
"""Streams of which a matrix with rows in segments knows, before it looks whether some have ended."""

ALONE = 2
"""Count of an object that only a dictionary holds, while it is counted."""

WORD_BYTES = 8
"""Of memory that is zeroed for nothing but the order of a stream."""

MADE_LATER = "_beside", "_columns"
"""Attributes of a product that are made when they are first used."""

T = TypeVar("T")

SETTLE = Signature("spmv/settle.cu", "dasp_settle", "")

ALIGNMENT = 256
"""Bytes to which each array of a plan is aligned in the plan's one block of device memory."""


class Product:
    """A plan, ready to be multiplied by vectors on one GPU.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays, which are copied to the GPU in one block, or with CuPy's there.
    device : str
        `cuda:N`.

    Raises
    ------
    RuntimeError
        If the plan wants float64 tensor cores and the GPU has none.
    """

    _cupy: Any
    _number: int
    _device: Any
    _capability: int
    _overlaps: bool
    _several: bool
    _eights: bool
    _kernel: Any
    _compiled: set[tuple[Any, ...]]
    _known: dict[Any, tuple[Any, ...]]
    _kinds: Arithmetic
    _plain: tuple[Any, ...]
    _dtype: np.dtype[Any]
    _strides: tuple[int]
    _char: Any
    _misaligned: int
    _ndarray: Any
    _current_device: Callable[[], int]
    _current_stream: Callable[[], Any]
    _is_capturing: Callable[[int], bool]

    def __init__(self, plan: Plan, device: str) -> None:
        self.__dict__.update(_shared(device, plan.format, plan.dtype))
        sizes = self._kernel.sizes(plan)
        known = self._known.get(sizes)
        if known is None:
            with self._device:
                plan, known = self._learn(plan, sizes)
        self.plan = plan
        self._threads, self._segments, self._blocks = known
        self._m, self._n = plan.shape
        self._begin()

    def _learn(self, plan: Plan, sizes: Any) -> tuple[Plan, tuple[Any, ...]]:
        """Return a plan here, compiled, and the threads, segments and blocks of its launches."""
        kernel = self._kernel
        threads, segments, _ = known = kernel.threads(plan), kernel.partials(plan), blocks(plan)
        compiled = kernel.traits(plan), threads, segments > 0
        if compiled not in self._compiled:
            _compile(plan, self._kinds, self._capability)  # so that an error comes now
            self._compiled.add(compiled)
        if not is_cupy(next(arrays_of(plan.values))):
            return _upload(plan), known
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[sizes] = known
        return plan, known

    def _begin(self) -> None:
        """Be a product that has launched nothing yet."""
        self._lock = threading.Lock()
        self._launches: dict[Arithmetic, dict[Any, Launch]] = defaultdict(dict)
        self._dotted: dict[tuple[Arithmetic, bool], tuple[Any, int]] = {}
        self._recipes: dict[tuple[np.dtype[Any], bool], resident.Recipe | None] = {}
        self._own = self._launches[self._kinds]
        self._captured: tuple[Any, Launch] | None = None
        self._streams: dict[int, Any] = {}
        self._quick: Callable[[int, int, int], None] | None = None
        self._fill: Callable[[Any, Callable[[], object]], bool] | None = None
        self._settled: Launch | None = None
        self._diagonal: Launch | None = None
        self._word: Any = None

    def of(self, plan: Plan) -> Product | None:
        """Return the product of a plan here with the same pattern; None if its values are of another kind."""
        mine = self.plan
        if plan.dtype != mine.dtype or kind_of_values(plan) != kind_of_values(mine):
            return None
        known = self.__dict__.copy()
        for name in MADE_LATER:
            known.pop(name, None)
        other = object.__new__(Product)
        other.__dict__.update(known, plan=plan)
        other._begin()
        return other

    # What follows is made when it is first used: a plan takes long enough without it. Threads that use it at
    # the same time all get what one of them made.

    @cached_property
    def _beside(self) -> beside.Beside | None:
        """Octets, where tensor cores multiply by them."""
        return self._one_of("_beside", beside.Beside(self.plan) if self._eights else None)

    @cached_property
    def _columns(self) -> columns.Columns:
        """Products of slices by several columns."""
        others = None if self._beside is None else self._beside.kernels
        made = columns.Columns(self.plan, columns.SLICES, self._overlaps, others)
        return self._one_of("_columns", made)

    def _one_of(self, name: str, made: T) -> T:
        """Return what an attribute is, or what it becomes if it is not there yet."""
        one: T = self.__dict__.setdefault(name, made)
        return one

    def wait(self) -> None:
        """Wait for what the current stream has to do on the matrix's device."""
        if self._current_device() == self._number:
            self._current_stream().synchronize()
        else:
            with self._device:
                self._current_stream().synchronize()

    def quick(self, x: Any, out: Any = None, scale: tuple[float, float] | None = None) -> Any | None:
        """Return A x, in `out` if that is given, if nothing has to be converted or refused; else None.

        Few instructions, because the kernels of many matrices take no longer than what the host does here.
        """
        if (
            type(x) is not self._ndarray
            or x.dtype is not self._dtype
            or x.size != self._n
            or x.strides != self._strides  # so it has one dimension
            or (self._several and not self._is_here(x))
        ):
            return None
        start, stream = x.data.ptr, self._current_stream().ptr
        if start & self._misaligned:
            return None
        if out is None:
            out = self._ndarray(self._m, self._char)
            result = out.data.ptr
        else:
            if (
                type(out) is not self._ndarray
                or out.dtype is not self._dtype
                or out.size != self._m
                or out.strides != self._strides
                or (self._several and not self._is_here(out))
            ):
                return None
            result = out.data.ptr
            if (start < result + out.nbytes and result < start + x.nbytes) or result & self._misaligned:
                return None
        if self._quick and scale is None:
            self._quick(stream, start, result)
        elif self._blocks:
            plain = self._plain if scale is None else numbers(self._kinds.sum, *scale)
            self._find(stream)(stream, start, result, *plain)
        return out

    def take_values(self, data: Any, slots: Any) -> bool:
        """Overwrite the plan's values if nothing of data has to be converted and its coding holds them.

        Few instructions, as in `quick`.
        """
        if (
            slots is None
            or type(data) is not self._ndarray
            or data.dtype is not self._dtype
            or data.size != self.plan.nnz
            or data.strides != self._strides  # so it has one dimension
            or data.data.ptr & self._misaligned
            or data.data.device_id != self._number
            or self._current_device() != self._number
        ):
            return False
        fill = self._fill
        if fill is None:
            fill = self._fill = self._new_fill(slots)
        follows = self._beside is not None and self._beside.nbytes
        written = bool(fill(data, _leave_all if follows else self._settle_behind))
        if written and follows:
            self.follow()
        return written

    def _settle_behind(self) -> None:
        """Do what must be behind launches that write values, before anybody waits for them."""
        stream = self._current_stream().ptr
        captured = self._is_capturing(stream)
        if captured and self._beside is not None:
            self.follow()
        else:
            self._settle(stream, captured)

    def _new_fill(self, slots: Any) -> Callable[[Any, Callable[[], object]], bool]:
        """Return what overwrites values and says whether it did; it calls what is to be behind it."""
        if self.plan.format != SLICES:
            return _leave
        fill = primitives(self._number).fill(slots, self.plan.values, self.plan.dtype)
        return _leave if fill is None else fill

    def _find(self, stream: int) -> Launch:
        """Return the launch of a product by vectors of the plan's own type on a stream."""
        launch = self._own.get(stream if self._segments else 0)
        if launch is None or (self._segments and self._is_capturing(stream)):
            launch = self._launch_on(stream, self._kinds)
        if self._quick is None and not self._segments:  # nothing of it belongs to a stream
            self._quick = self._new_launch(self._kinds, Scratch(None, None), plain=True).between()
        return launch

    def _is_here(self, vector: Any) -> bool:
        """Whether a vector lies on the matrix's device, and that is the current one."""
        return bool(vector.data.device_id == self._number == self._current_device())

    def multiply(self, x: Any, y: Any, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y on CuPy's current stream; y is not read if beta is 0.

        Parameters
        ----------
        x : cupy.ndarray, shape (n,) or (n, k)
            Any type that y's type holds.
        y : cupy.ndarray, shape (m,) or (m, k), a type of `dasp.runtime.dtypes.TABLE`
            Not overlapping x.
        alpha, beta : float, or complex for a complex y

        Raises
        ------
        TypeError
            If the plan's format has no product of these types.
        """
        formats.refuse_type(self.plan.format, y.dtype, "the product")
        if x.ndim == 2:
            self._multiply_columns(x, y, alpha, beta)
            return
        kinds = into(self.plan.dtype, x.dtype, y.dtype)
        with self._device:
            stream = self._current_stream().ptr
            captured = self._is_capturing(stream)
            with in_pool(self._cupy) if captured else _HERE:
                vector, result = self._plain_vector(x, kinds.x), self._plain_vector(y, kinds.y)
            self._launch(vector.data.ptr, result.data.ptr, kinds, alpha, beta)
            if result is not y:
                self._cupy.copyto(y, result)
            if captured and (vector is not x or result is not y):
                keep((vector, result), captured_in(stream)[1])

    def _plain_vector(self, vector: Any, dtype: np.dtype[Any]) -> Any:
        """Return a vector of a type, contiguous and aligned as kernels load it: itself or a copy."""
        plain = self._cupy.ascontiguousarray(vector, dtype)
        if plain.data.ptr % dtype.itemsize == 0:
            return plain
        return plain.view(real_type(dtype)).copy().view(dtype)  # CuPy's kernels load whole numbers, too

    def _multiply_columns(self, x: Any, y: Any, alpha: complex, beta: complex) -> None:
        """Multiply slices by several columns at once, and the published format by one after the other."""
        if x.shape[1] == 1 or self.plan.format != SLICES:
            for j in range(x.shape[1]):
                self.multiply(x[:, j], y[:, j], alpha, beta)
        elif self._blocks and x.shape[1]:
            kinds = into(self.plan.dtype, x.dtype, y.dtype)
            with self._device:
                self._columns.multiply(x, y, kinds, numbers(kinds.sum, alpha, beta), beta != 0)

    @property
    def nbytes(self) -> int:
        """Bytes of what products have made beside the plan."""
        return 0 if self._beside is None else self._beside.nbytes

    def follow(self) -> None:
        """Take over values that were written into the plan, on CuPy's current stream."""
        with _HERE if self._current_device() == self._number else self._device:
            stream = self._current_stream().ptr
            captured = self._is_capturing(stream)
            if self._beside is not None and (captured or self._beside.nbytes):
                # What is taken and given back inside a capture is memory of the graph, and nobody else's.
                cuda = self._cupy.cuda
                with cuda.using_allocator(cuda.malloc_async) if captured else _HERE:
                    self._beside.follow(captured)
            self._settle(stream, captured)

    def _settle(self, stream: int, captured: bool) -> None:
        """Let no product behind this on a stream read the plan before all that writes it has ended.

        A product may start before the kernel in front of it has ended, and reads the plan at once. What is
        no kernel has ended then, and so has all in front of that; in a graph a kernel that waits takes a
        fifth of its time, but it takes the host longer.
        """
        if not self._overlaps:
            return
        if captured:
            if self._settled is None:
                self._settled = Launch(compile_settling(), SETTLE, {}, {}, blocks=1, threads=1, overlaps=True)
            self._settled(stream)
        else:
            if self._word is None:
                self._word = self._cupy.cuda.alloc(WORD_BYTES)
            self._cupy.cuda.runtime.memsetAsync(self._word.ptr, 0, WORD_BYTES, stream)

    def diagonal(self, k: int) -> Any | None:
        """Return the k-th diagonal in the type of sums, on CuPy's current stream of the matrix's device.

        None if the matrix must be unpacked for it: where two segments of a row of slices have an entry there.
        That is read back only where rows are cut.
        """
        plan, cupy, (first, count) = self.plan, self._cupy, diagonal_rows(self.plan.shape, k)
        if not count or not self._blocks:
            return cupy.zeros(count, self._kinds.sum)
        launch = self._diagonal
        if launch is None:
            launch = self._diagonal = diagonal.prepare(plan, self._kinds)
        stream = self._current_stream().ptr
        if not self._segments or plan.format != SLICES:
            y = self._ndarray(count, self._kinds.sum)
            launch(stream, *(() if plan.format != SLICES else (0,)), k, first, count, y.data.ptr)
            return y
        cut = len(plan.pattern.long_rows)
        y, claims = cupy.zeros(count, self._kinds.sum), cupy.zeros(cut + 1, np.uint64)
        launch(stream, claims.data.ptr, k, first, count, y.data.ptr)
        return None if columns.on_host(claims)[cut] else y

    def prepare_with_dot(
        self, x: Any, y: Any, w: Any, *, square: bool = False, run: int = 0
    ) -> tuple[Callable[[], None], Any] | None:
        """Return what sets y = A x and leaves sums that make up w'y; None where no kernel does so quickly.

        Parameters
        ----------
        x, y, w : cupy.ndarray, float32 or float64, contiguous
            Kept, as is all else that the launch reads and writes; y overlaps neither of the others.
        square : bool
            Whether y'y is left too.
        run : int
            If not 0, slices that a warp takes one after the other: blocks come and go then, so that other
            kernels find room, and leave many sums.

        Returns
        -------
        call : callable
            Launches on CuPy's current stream; may be captured.
        sums : cupy.ndarray of float64
            Those of w'y, then as many of y'y.
        """
        plan, given = self.plan, (x, y, w)
        if plan.format != SLICES or x.dtype not in dotted.TYPES:
            return None
        if square and not run:
            return None  # whoever needs so many sums adds them up in each block: no faster than a pass
        if not self._blocks or not (not self._segments if run else dotted.pays(plan, self._blocks)):
            return None
        if any(one.dtype != x.dtype or not one.flags.c_contiguous for one in given):
            return None
        kinds = into(plan.dtype, x.dtype, y.dtype)
        if (kinds.x, kinds.y) != (x.dtype, x.dtype):
            return None
        with self._device:
            kernel, at_once = self._with_dot(kinds, square)
            blocks = self._blocks
            if run:
                blocks = ceil_div(blocks, run)
            elif blocks > dotted.MOST_BLOCKS:
                blocks = min(blocks, at_once)
            sums = self._cupy.zeros((1 + square) * blocks, np.float64)
            arguments = sliced.arguments(plan, self._scratch(kinds))
            arguments |= {"x": x, "y": y, "alpha": kinds.sum.type(1), "beta": kinds.sum.type(0)}
            arguments |= {"w": w, "sums": sums, "run": run}
            sizes = {"blocks": blocks, "threads": self._threads}
            known = types(plan, kinds)
            launch = Launch(kernel, dotted.SIGNATURE, known, arguments, **sizes, overlaps=self._overlaps)
        current = self._current_stream
        return lambda: launch(current().ptr), sums

    def _with_dot(self, kinds: Arithmetic, square: bool) -> tuple[Any, int]:
        """Return the kernel that leaves dot products too, and how many blocks of it run at the same time."""
        if (kinds, square) not in self._dotted:
            kernel = _compiled(self.plan, kinds, dotted.defines(self.plan, square=square))
            at_once = dotted.resident_blocks(kernel, self._threads, self._number)
            self._dotted[kinds, square] = kernel, at_once
        return self._dotted[kinds, square]

    def prepare_cg(self, dtype: np.dtype[Any], *, diagonal: bool) -> resident.Recipe | None:
        """Return what conjugate gradients in one launch take for vectors of a type; None if they do not pay.

        `diagonal` says whether there is a diagonal preconditioner. In float32 the recurrences of that form
        drift away so soon that it takes more iterations.
        """
        key = dtype, diagonal
        if key not in self._recipes:
            plan, kinds = self.plan, into(self.plan.dtype, dtype, dtype)
            found = None
            if plan.format == SLICES and dtype == np.float64 and kinds.sum == dtype:
                of_product = defines(plan, kinds), types(plan, kinds)
                found = resident.recipe(
                    plan, kinds, *of_product, resident.chip(self._number), diagonal=diagonal
                )
            self._recipes[key] = found
        return self._recipes[key]

    def _launch(self, x: int, y: int, kinds: Arithmetic, alpha: complex, beta: complex) -> None:
        """Launch on CuPy's current stream of the current device, which is the matrix's."""
        if self._blocks:
            stream = self._current_stream().ptr
            self._launch_on(stream, kinds)(stream, x, y, *numbers(kinds.sum, alpha, beta))

    def _launch_on(self, stream: int, kinds: Arithmetic) -> Launch:
        """Return a launch with scratch that nothing running at the time shares."""
        place: Any = 0
        if self._segments:
            if self._is_capturing(stream):
                return self._captured_launch(stream, kinds)
            place = (stream, THIS_THREAD.number) if stream == PER_THREAD_STREAM else stream
        launches = self._launches[kinds]
        if place not in launches:
            with self._lock:
                if place not in launches:
                    if self._segments:
                        self._hold(stream)
                    launches[place] = self._new_launch(kinds, self._scratch(kinds))
        return launches[place]

    def _hold(self, stream: int) -> None:
        """Keep CuPy's object of the current stream; let go of those that nobody else has and that are done.

        CUDA gives the handle of a stream that was destroyed to the next one, though work is left in the
        first: both would use the scratch that is known by it.
        """
        held = self._streams
        if len(held) >= MOST_STREAMS:
            for other in held.keys() - {stream}:
                if self._has_ended(other):
                    del held[other]
                    for launches in list(self._launches.values()):
                        launches.pop(other, None)
        held[stream] = self._current_stream()

    def _has_ended(self, stream: int) -> bool:
        """Whether nobody else has a stream's object, which owns its handle, and its work is done."""
        held = self._streams
        return (
            getrefcount(held[stream]) <= ALONE
            and not isinstance(held[stream], self._cupy.cuda.ExternalStream)
            and not self._is_capturing(stream)
            and bool(held[stream].done)
        )

    def _captured_launch(self, stream: int, kinds: Arithmetic) -> Launch:
        """Return a launch with scratch that ends with the graph; products captured on one stream share it."""
        number, graph = captured_in(stream)
        key = number, stream, threading.get_ident(), kinds
        latest = self._captured
        if latest is not None and latest[0] == key:
            return latest[1]
        scratch = self._scratch(kinds)
        keep(scratch, graph)
        launch = self._new_launch(kinds, scratch)
        self._captured = key, launch
        return launch

    def _scratch(self, kinds: Arithmetic) -> Scratch:
        """Return new scratch, filled on the current stream, or, if that is captured, before this returns.

        Without segments there is none.
        """
        if not self._segments:
            return Scratch(None, None)
        if not self._is_capturing(self._current_stream().ptr):
            return new_scratch(self._segments, kinds.sum, self._cupy)
        with on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            scratch = new_scratch(self._segments, kinds.sum, self._cupy)
            stream.synchronize()
        return scratch

    def _new_launch(self, kinds: Arithmetic, scratch: Scratch, *, plain: bool = False) -> Launch:
        kernel = kernel_of(self.plan)
        scale = {"alpha": kinds.sum.type(1), "beta": kinds.sum.type(0)} if plain else {}
        return Launch(
            _compiled(self.plan, kinds),
            kernel.SIGNATURE,
            types(self.plan, kinds),
            kernel.arguments(self.plan, scratch) | scale,
            BETWEEN if plain else VARYING,
            blocks=self._blocks,
            threads=self._threads,
            overlaps=self._overlaps,
        )


def _leave_all() -> None:
    """Leave what follows new values to come."""


def _leave(data: Any, behind: Callable[[], object]) -> bool:
    """Overwrite nothing."""
    return False


def kernel_of(plan: Plan) -> Any:
    """Return the module of the format's kernel.

    Raises
    ------
    RuntimeError
        If GPUs have no product for the plan's format.
    """
    return _kernel_of(plan.format)


def _kernel_of(layout: str) -> Any:
    if layout not in KERNELS:
        raise RuntimeError(f"the plan has format {layout!r}; GPUs multiply {', '.join(KERNELS)}")
    return KERNELS[layout]


def numbers(total: np.dtype[Any], alpha: complex, beta: complex) -> tuple[Any, ...]:
    """Return alpha and beta as a kernel with sums of a type takes them, complex ones as two numbers each.

    What a float32 cannot hold is infinite, as on the CPU.
    """
    pair = total.type(alpha), total.type(beta)
    return tuple(part for z in pair for part in (z.real, z.imag)) if total.kind == "c" else pair


def defines(plan: Plan, kinds: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants of the kernel for a plan and the types of a product."""
    kernel = kernel_of(plan)
    constants: dict[str, str] = kernel.defines(plan)
    if kinds.sum != np.float64:
        constants["DASP_MMA"] = "0"
    if kinds.x == kinds.y == plan.dtype:
        constants |= kernel.own_defines(plan)
    return constants | {
        **kinds.defines,
        "DASP_THREADS": str(kernel.threads(plan)),
        "DASP_TICKETS": str(int(kernel.partials(plan) > 0)),
    }


def types(plan: Plan, kinds: Arithmetic) -> dict[str, np.dtype[Any]]:
    """Return what the kernel's own names of types stand for."""
    known: dict[str, np.dtype[Any]] = kernel_of(plan).types(plan)
    known |= kinds.types
    return known | {"Bits": np.dtype(f"u{real_type(kinds.sum).itemsize}")}


def kind_of_values(plan: Plan) -> Any:
    """Return what the kernel must know of values beside their type: how they are coded."""
    return getattr(plan.values, "coding", None)


def blocks(plan: Plan) -> int:
    """Return the blocks of a launch."""
    kernel = kernel_of(plan)
    return int(ceil_div(kernel.warps(plan) * WARP, kernel.threads(plan)))


def _compile(plan: Plan, own: Arithmetic, capability: int) -> None:
    """Compile the product of a plan by vectors of its own type for the current GPU.

    Raises
    ------
    RuntimeError
        If the plan wants float64 tensor cores and the GPU has none.
    """
    constants = defines(plan, own)
    if constants["DASP_MMA"] == "1" and capability < TENSOR_CORES:
        raise RuntimeError(
            f"this GPU is sm_{capability}; float64 tensor cores need sm_80; pass Policy(mma=False)"
        )
    _source.load(kernel_of(plan).SIGNATURE.source, constants)


def _compiled(plan: Plan, kinds: Arithmetic, more: Mapping[str, str] = MappingProxyType({})) -> Any:
    signature = kernel_of(plan).SIGNATURE
    return _source.load(signature.source, {**defines(plan, kinds), **more}).get_function(signature.entry)


def compile_settling() -> Any:
    """Return the kernel that waits for those before it, for the current GPU."""
    return _source.load(SETTLE.source, {}).get_function(SETTLE.entry)


@cache
def _shared(device: str, layout: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return what all products of plans of a type on a GPU know, looked up once: a plan waits for each of it.

    Raises
    ------
    TypeError
        If the format has no matrices of the type.
    RuntimeError
        If GPUs have no product for the format.
    """
    import cupy

    formats.refuse_type(layout, dtype, "A")
    runtime, here, own = cupy.cuda.runtime, number(device), into(dtype, dtype, dtype)
    capability, exact = int(cupy.cuda.Device(here).compute_capability), np.dtype(dtype.type)
    return {
        "_cupy": cupy,
        "_number": here,
        "_device": cupy.cuda.Device(here),
        "_capability": capability,
        # Whether products may start early there, and whether there are other GPUs.
        "_overlaps": capability >= OVERLAPPING and runtime.driverGetVersion() >= OVERLAPPING_DRIVER,
        "_several": runtime.getDeviceCount() > 1,
        "_eights": layout == SLICES and capability >= TENSOR_CORES,
        "_kernel": _kernel_of(layout),
        # What decides the kernels of those that were compiled: sooner told than what they are compiled with.
        "_compiled": set(),
        # Threads, segments and blocks of those made here, by what decides them and their kernels.
        "_known": {},
        "_kinds": own,
        "_plain": numbers(own.sum, 1.0, 0.0),
        # What `quick` needs.
        "_dtype": exact,
        "_strides": (exact.itemsize,),
        # A letter is looked up sooner than a type, but CuPy knows none for bfloat16.
        "_char": exact if exact == BFLOAT16 else exact.char,
        # CuPy aligns a view to its numbers' parts, and a kernel loads a complex number at once.
        "_misaligned": exact.itemsize - 1 if exact.kind == "c" else 0,
        "_ndarray": cupy.ndarray,
        "_current_device": runtime.getDevice,
        "_current_stream": cupy.cuda.get_current_stream,
        "_is_capturing": runtime.streamIsCapturing,
    }


@cache
def number(device: str) -> int:
    """Return N of `cuda:N`."""
    return int(device.partition(":")[2])


def _upload(plan: Plan) -> Plan:
    """Copy a plan to the current GPU: one block of memory, one transfer, done when this returns."""
    import cupy

    arrays = list(arrays_of(plan))
    sizes = [round_up(array.nbytes, ALIGNMENT) for array in arrays]
    starts = np.cumsum([0, *sizes])
    host = np.empty(int(starts[-1]), np.uint8)
    for array, start in zip(arrays, starts, strict=False):
        host[start : start + array.nbytes] = array.ravel().view(np.uint8)
    block = cupy.asarray(host)
    cupy.cuda.get_current_stream().synchronize()
    views = [
        block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]
    uploaded: Plan = with_arrays(plan, iter(views))
    return uploaded
