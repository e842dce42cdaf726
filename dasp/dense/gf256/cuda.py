"""Products over GF(2^8) on the GPU: the ladder of kernels, their launches, and columns of incomplete words.

The launches of a rung are data, made without CuPy, so that the emulator runs exactly what the GPU
runs. On the GPU the launches for a shape are prepared once; a call writes addresses into them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dasp.dense.gf256.field import EXP, LOG, Bytes, Kernel
from dasp.dense.launch_cuda import KernelCall, PreparedCalls, current_device, load_cupy, processors
from dasp.runtime import arrays as _arrays
from dasp.runtime.sizes import ceil_div, round_up
from dasp.runtime.types import Array

MOST_GRID_ROWS = 65535
SHARED_BYTES = 48 << 10
FEW_BLOCKS = 8
MANY_BLOCKS = 32
"""Blocks per multiprocessor; each walks over columns. As many as fit at once run where tables are slow to
build, and more where they are quick, so that the last ones to run leave little idle, however many fit."""
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


@dataclass(frozen=True, eq=False)
class CudaKernel(Kernel):
    """A rung of the CUDA ladder.

    Attributes
    ----------
    word_bytes : int
        Adjacent bytes that a thread loads at once: rows must be aligned to it.
    launches : callable
        Takes the Sizes and, if `reads_coefficients`, a on the host; yields the launches.
    reads_coefficients : bool
        True if the launches depend on the values of a.
    """

    word_bytes: int
    launches: Callable[[Sizes, Bytes | None], Iterator[KernelCall]] = field(repr=False)
    reads_coefficients: bool = False


def _launch_naive(s: Sizes, _: Bytes | None) -> Iterator[KernelCall]:
    numbers = (np.int32(s.k), np.int64(s.n), np.int64(s.b_stride), np.int64(s.out_stride))
    arguments = ("a", "b", "out", *numbers)
    grid = (ceil_div(s.n, 256), s.m)
    yield KernelCall("dense/gf256_bytes.cu", (), "dasp_gf256_naive", grid, (256, 1), arguments)


def _launch_square_tiles(s: Sizes, _: Bytes | None) -> Iterator[KernelCall]:
    numbers = (np.int32(s.m), np.int32(s.k), np.int64(s.n), np.int64(s.b_stride), np.int64(s.out_stride))
    arguments = ("a", "b", "out", "logs", "powers", *numbers)
    grid = (min(ceil_div(s.n, 16), FEW_BLOCKS * s.processors), ceil_div(s.m, 16))
    yield KernelCall("dense/gf256_bytes.cu", (), "dasp_gf256_square_tiles", grid, (16, 16), arguments)


def _arrange_arguments(s: Sizes, columns: int) -> tuple[Any, ...]:
    numbers = (np.int32(s.m), np.int32(s.k), np.int64(columns), np.int64(s.b_stride), np.int64(s.out_stride))
    return ("a", "b", "out", *numbers)


def _launch_general_tiles(s: Sizes, _: Bytes | None) -> Iterator[KernelCall]:
    groups = ceil_div(s.m, 8)
    rows = ceil_div(s.m, groups)
    depth = min(s.k, SHARED_BYTES // (256 * rows))
    arguments = (*_arrange_arguments(s, s.n), np.int32(rows), np.int32(depth))
    grid = (min(ceil_div(s.n, 256), FEW_BLOCKS * s.processors), groups)
    name = "dasp_gf256_general_tiles"
    yield KernelCall("dense/gf256_bytes.cu", (), name, grid, (256, 1), arguments, 256 * rows * depth)


def _launch_packed(word_bytes: int) -> Callable[[Sizes, Bytes | None], Iterator[KernelCall]]:
    def launches(s: Sizes, _: Bytes | None) -> Iterator[KernelCall]:
        vectors = s.n // word_bytes
        depth = min(s.k, SHARED_BYTES // 128)
        arguments = (*_arrange_arguments(s, vectors), np.int32(depth))
        grid = (min(ceil_div(vectors, 256), MANY_BLOCKS * s.processors), ceil_div(s.m, 4))
        defines = (("DASP_BYTES", str(word_bytes)),)
        yield KernelCall(
            "dense/gf256_packed.cu", defines, "dasp_gf256_packed", grid, (256, 1), arguments, 128 * depth
        )

    return launches


def _launch_byte_permute(s: Sizes, _: Bytes | None) -> Iterator[KernelCall]:
    vectors = s.n // 16
    pairs = min(ceil_div(s.k, 2), SHARED_BYTES // 160)
    arguments = (*_arrange_arguments(s, vectors), np.int32(2 * pairs))
    grid = (min(ceil_div(vectors, 256), MANY_BLOCKS * s.processors), ceil_div(s.m, 4))
    name = "dasp_gf256_byte_permute"
    yield KernelCall("dense/gf256_byte_permute.cu", (), name, grid, (256, 1), arguments, 160 * pairs)


def _launch_schedule(s: Sizes, coefficients: Bytes | None) -> Iterator[KernelCall]:
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
        yield KernelCall("dense/gf256_schedule.cu", defines, name, grid, (256, 1), arguments, first_row=first)


# fmt: off
LADDER = (
    CudaKernel("naive", "one thread per result; a product is eight shifts and adds", "any GPU", 1,
               _launch_naive),
    CudaKernel("square_tiles", "16 x 16 entries of a and of b in shared memory, as logs", "any GPU", 1,
               _launch_square_tiles),
    CudaKernel("general_tiles",
               "tiles sized at run time; a table of products per coefficient; b is loaded once", "any GPU",
               1, _launch_general_tiles),
    CudaKernel("packed_4", "4 bytes a thread: multiples by x^t kept by masks, no table", "any GPU", 4,
               _launch_packed(4)),
    CudaKernel("packed_8", "the same with 8 bytes a thread", "any GPU", 8, _launch_packed(8)),
    CudaKernel("packed_16", "the same with 16 bytes a thread", "any GPU", 16, _launch_packed(16)),
    CudaKernel("byte_permute", "tables of 8 entries in registers, four look-ups an instruction", "any GPU",
               16, _launch_byte_permute),
    CudaKernel("schedule",
               "compiled for the coefficients: exclusive ors by Horner's scheme, bound by memory",
               "any GPU, and half a second or more to compile for each a", 16, _launch_schedule, True),
)
# fmt: on
"""The rungs in order."""

BEST = next(kernel for kernel in LADDER if kernel.name == "byte_permute")
"""The fastest rung that takes any coefficients without compiling for them."""


def best_for_many(matrix: Bytes, d: Array) -> str:
    """Return the name of the fastest rung for a matrix that will multiply again and again."""
    worth = d.nbytes >= WORTH_COMPILING and 0 < matrix.size <= MOST_SCHEDULED
    return "schedule" if worth else BEST.name


def launches(kernel: CudaKernel, sizes: Sizes, coefficients: Bytes | None) -> list[KernelCall]:
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


LaunchAll = Callable[[int, Array, Array], None]
"""A function that launches a product: it takes the number of columns, and b and out, which are aligned."""


def launch_words(kernel: CudaKernel, b: Array, out: Array, launch_all: LaunchAll) -> None:
    """Compute `out = a b`, where columns need not fill words, nor rows be aligned to them.

    Parameters
    ----------
    kernel : CudaKernel
    b, out : uint8, shape (k, n) and (m, n), not empty, columns adjacent
        Of CuPy, or of NumPy for the emulator.
    launch_all : callable

    Notes
    -----
    Columns that do not fill a word, and rows that are not aligned to it, go through aligned copies, some at
    a time.
    """
    (k, n), library = b.shape, _arrays.namespace(b)
    word = kernel.word_bytes
    aligned = (address(b) | address(out) | b.strides[0] | out.strides[0]) % word == 0
    whole = n // word * word if aligned else 0
    if whole:
        launch_all(whole, b, out)
    for start in range(whole, n, STAGED_COLUMNS):
        count = min(STAGED_COLUMNS, n - start)
        staged = library.zeros((k, round_up(count, 16)), np.uint8)
        staged[:, :count] = b[:, start : start + count]
        result = library.empty((len(out), staged.shape[1]), np.uint8)
        launch_all(staged.shape[1], staged, result)
        out[:, start : start + count] = result[:, :count]


def address(array: Array) -> int:
    """Return the address at which an array of NumPy or CuPy begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@functools.lru_cache(maxsize=256)
def _upload_once(device: int, shape: tuple[int, ...], content: bytes) -> Any:
    """Return a small array on the current device, `device`, copied there once and ready for any stream."""
    cupy = load_cupy()
    array = cupy.asarray(np.frombuffer(content, np.uint8).reshape(shape))
    cupy.cuda.get_current_stream().synchronize()
    return array


def _upload(device: int, array: Bytes) -> Any:
    return _upload_once(device, array.shape, array.tobytes())


_ARRAYS = ("a", "b", "out", "logs", "powers")
"""The names of the arrays among the arguments of launches."""

_read_by_graphs: dict[int, Any] = {}
"""Coefficients that captured products read, by their address: a graph may be replayed at any later time."""


@functools.cache
def _upload_tables(device: int) -> tuple[Any, Any]:
    """Return logs and powers on the current device, `device`."""
    return _upload(device, LOG), _upload(device, EXP)


@functools.lru_cache(maxsize=1024)
def _prepare(device: int, kernel: CudaKernel, sizes: Sizes, coefficients: bytes | None) -> PreparedCalls:
    """Compile and load the kernels of a product, and lay out their arguments."""
    values = None
    if coefficients is not None:
        values = np.frombuffer(coefficients, np.uint8).reshape(sizes.m, sizes.k)
    row_bytes = {"a": sizes.k, "out": sizes.out_stride}
    return PreparedCalls(launches(kernel, sizes, values), device, _ARRAYS, row_bytes)


def multiply(kernel: CudaKernel, a: Array, b: Array, out: Array) -> None:
    """Compute `out = a b` on the current GPU, in the current stream.

    A rung that reads coefficients waits for `a` if that is on the GPU; other rungs copy `a` to the GPU if it
    is not there, once for the same values. Aligned rows need no memory but `out`, so the call can be captured
    in a CUDA graph after it ran once.

    Parameters
    ----------
    kernel : CudaKernel
    a : uint8, shape (m, k), of NumPy or CuPy, neither size 0
    b, out : uint8, shape (k, n) and (m, n), of CuPy, not empty, columns adjacent
        `out` shares no memory with a or b.
    """
    (m, k), cuda, device = a.shape, load_cupy().cuda, current_device()
    stream, coefficients, on_gpu = cuda.get_current_stream().ptr, None, None
    if kernel.reads_coefficients:
        coefficients = _arrays.to_host(a).tobytes()
    elif _arrays.is_cupy(a):
        on_gpu = load_cupy().ascontiguousarray(a)
    else:
        on_gpu = _upload(device, a)
        if cuda.runtime.streamIsCapturing(stream):
            _read_by_graphs[address(on_gpu)] = on_gpu
    first = 0 if on_gpu is None else address(on_gpu)
    tables = [address(table) for table in _upload_tables(device)]

    def launch_all(columns: int, b: Array, out: Array) -> None:
        sizes = Sizes(m, k, columns, b.strides[0], out.strides[0], processors(device))
        ready = _prepare(device, kernel, sizes, coefficients)
        ready(stream, first, address(b), address(out), *tables)

    launch_words(kernel, b, out, launch_all)
