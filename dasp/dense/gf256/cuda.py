"""Products over GF(2^8) on the GPU: the ladder of kernels, their launches, and columns that fill no word.

The launches of a rung are data (`Launch`), made without CuPy, so that the emulator runs exactly what the GPU
runs. On the GPU the launches for a shape are prepared once; a call writes addresses into them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dasp.dense.gemm.cuda import overlap, using
from dasp.dense.gemm.launch_cuda import Prepared
from dasp.dense.gf256.field import EXP, LOG, Bytes
from dasp.runtime import arrays as _arrays
from dasp.runtime.integers import ceil_div, round_up

MOST_GRID_ROWS = 65535
SHARED_BYTES = 48 << 10
RESIDENT_BLOCKS = 8
QUICK_BLOCKS = 32
"""Blocks per multiprocessor, each of which walks over columns: as many as fit at once where tables are slow
to build; more where they are quick, so that the last ones to run leave little idle, however many fit."""
STAGED_COLUMNS = 1 << 20
"""Columns copied at a time when rows are not aligned: few enough to stay in the second-level cache."""

SCHEDULE_ROWS = 8
SCHEDULE_STEP = 12
"""Rows of a and of b that the kernel of the last rung keeps in registers."""

WORTH_COMPILING = 4 << 20
MOST_SCHEDULED = 2048
"""Least bytes of data, and most coefficients, for which a code's encoder is compiled."""


class Sizes(NamedTuple):
    """The sizes of a launch: m, k, n, the bytes from row to row, and the GPU's multiprocessors."""

    m: int
    k: int
    n: int
    b_stride: int
    out_stride: int
    processors: int


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel.

    Attributes
    ----------
    source : str
        The file under kernels/.
    defines : pairs of str
        Its compile-time constants, and their values.
    kernel : str
        The entry point.
    grid, block : tuple of int
    arguments : tuple
        In order: NumPy scalars, and for arrays the names "a", "b", "out", "logs" and "powers".
    shared_bytes : int
        Dynamic shared memory of a block.
    first_row : int
        The row of a and of out at which the pointers "a" and "out" begin.
    """

    source: str
    defines: tuple[tuple[str, str], ...]
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    first_row: int = 0


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """One rung of the CUDA ladder.

    Attributes
    ----------
    name, summary, needs : str
        As `dasp.dense.gf256.Kernel`.
    word_bytes : int
        Adjacent bytes that a thread loads at once: rows must be aligned to it.
    reads_coefficients : bool
        True if the launches depend on the values of a.
    launches : callable
        Takes the Sizes and, if `reads_coefficients`, a on the host; yields the launches.
    """

    name: str
    summary: str
    needs: str
    word_bytes: int
    reads_coefficients: bool
    launches: Callable[[Sizes, Bytes | None], Iterator[Launch]] = field(repr=False)


def _naive(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    numbers = (np.int32(s.k), np.int64(s.n), np.int64(s.b_stride), np.int64(s.out_stride))
    arguments = ("a", "b", "out", *numbers)
    yield Launch(
        "dense/gf256_naive.cu", (), "dasp_gf256_naive", (ceil_div(s.n, 256), s.m), (256, 1), arguments
    )


def _square_tiles(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    numbers = (np.int32(s.m), np.int32(s.k), np.int64(s.n), np.int64(s.b_stride), np.int64(s.out_stride))
    arguments = ("a", "b", "out", "logs", "powers", *numbers)
    grid = (min(ceil_div(s.n, 16), RESIDENT_BLOCKS * s.processors), ceil_div(s.m, 16))
    yield Launch("dense/gf256_square_tiles.cu", (), "dasp_gf256_square_tiles", grid, (16, 16), arguments)


def _tiled_arguments(s: Sizes, columns: int) -> tuple[Any, ...]:
    numbers = (np.int32(s.m), np.int32(s.k), np.int64(columns), np.int64(s.b_stride), np.int64(s.out_stride))
    return ("a", "b", "out", *numbers)


def _general_tiles(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    groups = ceil_div(s.m, 8)
    rows = ceil_div(s.m, groups)
    depth = min(s.k, SHARED_BYTES // (256 * rows))
    arguments = (*_tiled_arguments(s, s.n), np.int32(rows), np.int32(depth))
    grid = (min(ceil_div(s.n, 256), RESIDENT_BLOCKS * s.processors), groups)
    name = "dasp_gf256_general_tiles"
    yield Launch("dense/gf256_general_tiles.cu", (), name, grid, (256, 1), arguments, 256 * rows * depth)


def _launch_packed(word_bytes: int) -> Callable[[Sizes, Bytes | None], Iterator[Launch]]:
    def launches(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
        vectors = s.n // word_bytes
        depth = min(s.k, SHARED_BYTES // 128)
        arguments = (*_tiled_arguments(s, vectors), np.int32(depth))
        grid = (min(ceil_div(vectors, 256), QUICK_BLOCKS * s.processors), ceil_div(s.m, 4))
        defines = (("DASP_BYTES", str(word_bytes)),)
        yield Launch(
            "dense/gf256_packed.cu", defines, "dasp_gf256_packed", grid, (256, 1), arguments, 128 * depth
        )

    return launches


def _byte_permute(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    vectors = s.n // 16
    pairs = min(ceil_div(s.k, 2), SHARED_BYTES // 160)
    arguments = (*_tiled_arguments(s, vectors), np.int32(2 * pairs))
    grid = (min(ceil_div(vectors, 256), QUICK_BLOCKS * s.processors), ceil_div(s.m, 4))
    name = "dasp_gf256_byte_permute"
    yield Launch("dense/gf256_byte_permute.cu", (), name, grid, (256, 1), arguments, 160 * pairs)


def _schedule(s: Sizes, coefficients: Bytes | None) -> Iterator[Launch]:
    if coefficients is None:
        raise ValueError("no coefficients were given; this kernel is compiled for their values")
    vectors = s.n // 16
    groups = ceil_div(s.m, SCHEDULE_ROWS)
    rows = ceil_div(s.m, groups)
    step = ceil_div(s.k, ceil_div(s.k, SCHEDULE_STEP))
    arguments = ("b", "out", np.int64(vectors), np.int64(s.b_stride), np.int64(s.out_stride))
    for first in range(0, s.m, rows):
        part = coefficients[first : first + rows]
        defines = (
            ("DASP_ROWS", str(part.shape[0])),
            ("DASP_DEPTH", str(s.k)),
            ("DASP_STEP", str(step)),
            ("DASP_COEFFICIENTS", ",".join(map(str, part.ravel().tolist()))),
        )
        grid = (ceil_div(vectors, 256), 1)
        name = "dasp_gf256_schedule"
        yield Launch("dense/gf256_schedule.cu", defines, name, grid, (256, 1), arguments, first_row=first)


_LADDER = (
    CudaKernel(
        "naive", "one thread per result; a product is eight shifts and adds", "any GPU", 1, False, _naive
    ),
    CudaKernel(
        "square_tiles",
        "16 x 16 entries of a and of b in shared memory, as logs",
        "any GPU",
        1,
        False,
        _square_tiles,
    ),
    CudaKernel(
        "general_tiles",
        "tiles sized at run time; a table of products per coefficient; b is loaded once",
        "any GPU",
        1,
        False,
        _general_tiles,
    ),
    CudaKernel(
        "packed_4",
        "4 bytes a thread: multiples by x^t kept by masks, no table",
        "any GPU",
        4,
        False,
        _launch_packed(4),
    ),
    CudaKernel("packed_8", "the same with 8 bytes a thread", "any GPU", 8, False, _launch_packed(8)),
    CudaKernel("packed_16", "the same with 16 bytes a thread", "any GPU", 16, False, _launch_packed(16)),
    CudaKernel(
        "byte_permute",
        "tables of 8 entries in registers, four look-ups an instruction",
        "any GPU",
        16,
        False,
        _byte_permute,
    ),
    CudaKernel(
        "schedule",
        "compiled for the coefficients: exclusive ors by Horner's scheme, bound by memory",
        "any GPU, and half a second or more to compile for each a",
        16,
        True,
        _schedule,
    ),
)


def ladder() -> tuple[CudaKernel, ...]:
    """Return the rungs in order."""
    return _LADDER


def _rung(name: str) -> CudaKernel:
    return next(kernel for kernel in _LADDER if kernel.name == name)


_BEST = _rung("byte_permute")


def best() -> CudaKernel:
    """Return the fastest rung that takes any coefficients without compiling for them."""
    return _BEST


def best_for_many(matrix: Bytes, d: Any) -> str:
    """Return the name of the fastest rung for a matrix that will multiply again and again."""
    worth = d.nbytes >= WORTH_COMPILING and 0 < matrix.size <= MOST_SCHEDULED
    return "schedule" if worth else _BEST.name


def launches(kernel: CudaKernel, sizes: Sizes, coefficients: Bytes | None) -> list[Launch]:
    """Return the launches of a product whose columns fill words.

    Parameters
    ----------
    kernel : CudaKernel
    sizes : Sizes
        None of m, k, n is 0.
    coefficients : uint8, shape (m, k)
        a on the host, or None if the rung does not read it.
    """
    found = []
    for top in range(0, sizes.m, MOST_GRID_ROWS):
        rows = min(MOST_GRID_ROWS, sizes.m - top)
        part = None if coefficients is None else coefficients[top : top + rows]
        for launch in kernel.launches(sizes._replace(m=rows), part):
            found.append(replace(launch, first_row=top + launch.first_row))
    return found


LaunchAll = Callable[[int, Any, Any], None]
"""Launches a product: takes how many columns, and b and out, which are aligned."""


def multiply(library: Any, kernel: CudaKernel, m: int, b: Any, out: Any, launch_all: LaunchAll) -> None:
    """Compute `out = a b` with one rung.

    Parameters
    ----------
    library : module
        `cupy`, or `numpy` for the emulator: allocates what is staged.
    kernel : CudaKernel
    m : int
        Rows of a.
    b, out : uint8, shape (k, n) and (m, n), columns adjacent
    launch_all : callable

    Notes
    -----
    Columns that do not fill a word, and rows that are not aligned to it, go through aligned copies, some at
    a time.
    """
    k, n = b.shape
    if m == 0 or n == 0:
        return
    if k == 0:
        out[...] = 0
        return
    word = kernel.word_bytes
    aligned = (address(b) | address(out) | b.strides[0] | out.strides[0]) % word == 0
    whole = n // word * word if aligned else 0
    if whole:
        launch_all(whole, b, out)
    for start in range(whole, n, STAGED_COLUMNS):
        count = min(STAGED_COLUMNS, n - start)
        staged = library.zeros((k, round_up(count, 16)), np.uint8)
        staged[:, :count] = b[:, start : start + count]
        result = library.empty((m, staged.shape[1]), np.uint8)
        launch_all(staged.shape[1], staged, result)
        out[:, start : start + count] = result[:, :count]


def address(array: Any) -> int:
    """Return the address at which an array of NumPy or CuPy begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@functools.cache
def _cupy() -> Any:
    import cupy

    return cupy


@functools.cache
def _processors(device: int) -> int:
    return int(_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@functools.lru_cache(maxsize=256)
def _uploaded(device: int, shape: tuple[int, ...], content: bytes) -> Any:
    """Return a small array on the current device, `device`, copied there once and ready for any stream."""
    cupy = _cupy()
    array = cupy.asarray(np.frombuffer(content, np.uint8).reshape(shape))
    cupy.cuda.get_current_stream().synchronize()
    return array


def _upload(device: int, array: Bytes) -> Any:
    return _uploaded(device, array.shape, array.tobytes())


_read_by_graphs: dict[int, Any] = {}
"""Coefficients that captured products read, by their address: a graph may be replayed at any later time."""


_ARRAYS = ("a", "b", "out", "logs", "powers")


class Ready(NamedTuple):
    """The launches of a product for one GPU.

    Attributes
    ----------
    launch : Prepared
    places : tuple of (int, int)
        The addresses that it takes: which of a, b, out, logs and powers, and how many bytes from its start.
    looks_up : bool
        True if it takes logs and powers.
    """

    launch: Prepared
    places: tuple[tuple[int, int], ...]
    looks_up: bool


@functools.lru_cache(maxsize=1024)
def _prepare(device: int, kernel: CudaKernel, sizes: Sizes, coefficients: bytes | None) -> Ready:
    """Compile and load the kernels of a product, and lay out their arguments."""
    values = None
    if coefficients is not None:
        values = np.frombuffer(coefficients, np.uint8).reshape(sizes.m, sizes.k)
    steps, places = [], {}
    for i, launch in enumerate(launches(kernel, sizes, values)):
        row_bytes = {"a": sizes.k, "out": sizes.out_stride}
        for word in launch.arguments:
            if isinstance(word, str):
                places[f"{word} {i}"] = _ARRAYS.index(word), launch.first_row * row_bytes.get(word, 0)
        arguments = tuple(f"{x} {i}" if isinstance(x, str) else x for x in launch.arguments)
        steps.append(replace(launch, arguments=arguments))
    looks_up = any(which >= _ARRAYS.index("logs") for which, _ in places.values())
    return Ready(Prepared(steps, device, tuple(places)), tuple(places.values()), looks_up)


def matmul(a: Any, b: Any, out: Any, kernel: CudaKernel) -> Any:
    """Compute the product on the device of `b`, in the current stream; arguments have been checked.

    A rung that reads coefficients waits for `a` if it is on the GPU; another rung copies `a` there if it is
    not, once for the same values. Aligned rows need no memory but `out`, so the call can be captured in a
    CUDA graph after it ran once.
    """
    cupy = _cupy()
    on_host = not _arrays.is_cupy(a)
    with using(b, out, None if on_host else a) as device:
        if b.shape[1] > 1 and b.strides[1] != 1:
            b = cupy.ascontiguousarray(b)
        target = out
        strided = out is not None and out.shape[1] > 1 and out.strides[1] != 1
        if out is None or strided or overlap(out, b) or (not on_host and overlap(out, a)):
            target = cupy.empty((a.shape[0], b.shape[1]), np.uint8)
        multiply(cupy, kernel, a.shape[0], b, target, _Launcher(a, kernel, device))
        if out is None:
            return target
        if target is not out:
            out[...] = target
        return out


class _Launcher:
    """Launches products of `a` by one rung on the current stream of the current device, `device`."""

    def __init__(self, a: Any, kernel: CudaKernel, device: int) -> None:
        cuda = _cupy().cuda
        self._kernel, self._device, (self._m, self._k) = kernel, device, a.shape
        self._stream = cuda.get_current_stream().ptr
        self._coefficients: bytes | None = None
        if kernel.reads_coefficients:
            self._coefficients, self._a = _arrays.to_host(a).tobytes(), None
        elif _arrays.is_cupy(a):
            self._a = _cupy().ascontiguousarray(a)
        else:
            self._a = _upload(device, a)
            if cuda.runtime.streamIsCapturing(self._stream):
                _read_by_graphs[self._a.data.ptr] = self._a

    def __call__(self, columns: int, b: Any, out: Any) -> None:
        processors = _processors(self._device)
        sizes = Sizes(self._m, self._k, columns, b.strides[0], out.strides[0], processors)
        ready = _prepare(self._device, self._kernel, sizes, self._coefficients)
        first = 0 if self._a is None else self._a.data.ptr
        tables = (_upload(self._device, table).data.ptr for table in (LOG, EXP)) if ready.looks_up else (0, 0)
        starts = first, b.data.ptr, out.data.ptr, *tables
        ready.launch(self._stream, *[starts[i] + offset for i, offset in ready.places])
