"""Products over GF(2^8) on the GPU: the ladder of kernels, their launches, and columns that fill no word.

What a rung launches is data (`Launch`), made without CuPy, so that the emulator runs exactly what the GPU
runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasp import _source
from dasp.dense.gf256.field import EXP, LOG, Bytes

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
"""From how many bytes of data on, and up to how many coefficients, a code's encoder is compiled for them."""


@dataclass(frozen=True)
class Sizes:
    """What a launch depends on: m, k, n, the bytes from row to row, and the GPU's multiprocessors."""

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
    defines : dict of str to str
        Its compile-time constants.
    kernel : str
        The entry point.
    grid, block : tuple of int
    arguments : tuple
        In order: NumPy scalars, and for arrays the names "a", "b", "out", "logs" and "powers".
    shared_bytes : int
        Dynamic shared memory of a block.
    first_row : int
        The row of out at which the pointer "out" begins.
    """

    source: str
    defines: dict[str, str]
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    first_row: int = 0


@dataclass(frozen=True)
class CudaKernel:
    """One rung of the CUDA ladder.

    Attributes
    ----------
    name, summary, needs : str
        As `dasp.dense.gf256.Kernel`.
    word_bytes : int
        Adjacent bytes that a thread loads at once: rows must be aligned to it.
    reads_coefficients : bool
        Whether the launches depend on the values of a.
    launches : callable
        Takes the Sizes and, if `reads_coefficients`, a on the host; yields the launches.
    """

    name: str
    summary: str
    needs: str
    word_bytes: int
    reads_coefficients: bool
    launches: Callable[[Sizes, Bytes | None], Iterator[Launch]] = field(repr=False)


def _up(count: int, unit: int) -> int:
    return -(-count // unit)


def _naive(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    numbers = (np.int32(s.k), np.int64(s.n), np.int64(s.b_stride), np.int64(s.out_stride))
    arguments = ("a", "b", "out", *numbers)
    yield Launch("dense/gf256_naive.cu", {}, "dasp_gf256_naive", (_up(s.n, 256), s.m), (256, 1), arguments)


def _square_tiles(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    numbers = (np.int32(s.m), np.int32(s.k), np.int64(s.n), np.int64(s.b_stride), np.int64(s.out_stride))
    arguments = ("a", "b", "out", "logs", "powers", *numbers)
    grid = (min(_up(s.n, 16), RESIDENT_BLOCKS * s.processors), _up(s.m, 16))
    yield Launch("dense/gf256_square_tiles.cu", {}, "dasp_gf256_square_tiles", grid, (16, 16), arguments)


def _tiled_arguments(s: Sizes, columns: int) -> tuple[Any, ...]:
    numbers = (np.int32(s.m), np.int32(s.k), np.int64(columns), np.int64(s.b_stride), np.int64(s.out_stride))
    return ("a", "b", "out", *numbers)


def _general_tiles(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    groups = _up(s.m, 8)
    rows = _up(s.m, groups)
    depth = min(s.k, SHARED_BYTES // (256 * rows))
    arguments = (*_tiled_arguments(s, s.n), np.int32(rows), np.int32(depth))
    grid = (min(_up(s.n, 256), RESIDENT_BLOCKS * s.processors), groups)
    name = "dasp_gf256_general_tiles"
    yield Launch("dense/gf256_general_tiles.cu", {}, name, grid, (256, 1), arguments, 256 * rows * depth)


def _packed(word_bytes: int) -> Callable[[Sizes, Bytes | None], Iterator[Launch]]:
    def launches(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
        vectors = s.n // word_bytes
        depth = min(s.k, SHARED_BYTES // 128)
        arguments = (*_tiled_arguments(s, vectors), np.int32(depth))
        grid = (min(_up(vectors, 256), QUICK_BLOCKS * s.processors), _up(s.m, 4))
        defines = {"DASP_BYTES": str(word_bytes)}
        yield Launch(
            "dense/gf256_packed.cu", defines, "dasp_gf256_packed", grid, (256, 1), arguments, 128 * depth
        )

    return launches


def _byte_permute(s: Sizes, _: Bytes | None) -> Iterator[Launch]:
    vectors = s.n // 16
    pairs = min(_up(s.k, 2), SHARED_BYTES // 160)
    arguments = (*_tiled_arguments(s, vectors), np.int32(2 * pairs))
    grid = (min(_up(vectors, 256), QUICK_BLOCKS * s.processors), _up(s.m, 4))
    name = "dasp_gf256_byte_permute"
    yield Launch("dense/gf256_byte_permute.cu", {}, name, grid, (256, 1), arguments, 160 * pairs)


def _schedule(s: Sizes, coefficients: Bytes | None) -> Iterator[Launch]:
    if coefficients is None:
        raise ValueError("no coefficients were given; this kernel is compiled for their values")
    vectors = s.n // 16
    groups = _up(s.m, SCHEDULE_ROWS)
    rows = _up(s.m, groups)
    step = _up(s.k, _up(s.k, SCHEDULE_STEP))
    arguments = ("b", "out", np.int64(vectors), np.int64(s.b_stride), np.int64(s.out_stride))
    for first in range(0, s.m, rows):
        part = coefficients[first : first + rows]
        defines = {
            "DASP_ROWS": str(part.shape[0]),
            "DASP_DEPTH": str(s.k),
            "DASP_STEP": str(step),
            "DASP_COEFFICIENTS": ",".join(map(str, part.ravel().tolist())),
        }
        grid = (_up(vectors, 256), 1)
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
        _packed(4),
    ),
    CudaKernel("packed_8", "the same with 8 bytes a thread", "any GPU", 8, False, _packed(8)),
    CudaKernel("packed_16", "the same with 16 bytes a thread", "any GPU", 16, False, _packed(16)),
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


def best(a: Any, b: Any) -> CudaKernel:
    """Return the fastest rung that takes any coefficients without compiling for them."""
    return _rung("byte_permute")


def best_for_many(matrix: Bytes, d: Any) -> str:
    """Return the name of the fastest rung for a matrix that will multiply again and again."""
    worth = d.nbytes >= WORTH_COMPILING and 0 < matrix.size <= MOST_SCHEDULED
    return "schedule" if worth else "byte_permute"


Execute = Callable[[Launch, Any, Any, Any], None]
"""Runs a launch on a, b and out, the last from the launch's first row on."""


def multiply(
    library: Any,
    kernel: CudaKernel,
    a: Any,
    coefficients: Bytes | None,
    b: Any,
    out: Any,
    processors: int,
    execute: Execute,
) -> None:
    """Compute `out = a b` with one rung.

    Parameters
    ----------
    library : module
        `cupy`, or `numpy` for the emulator: allocates what is staged.
    kernel : CudaKernel
    a : uint8, shape (m, k), rows adjacent
    coefficients : the same on the host, or None if the rung does not read them
    b, out : uint8, shape (k, n) and (m, n), columns adjacent
    processors : int
        Multiprocessors of the GPU.
    execute : callable

    Notes
    -----
    Columns that do not fill a word, and rows that are not aligned to it, go through aligned copies, some at
    a time.
    """
    (m, k), n = a.shape, b.shape[1]
    if m == 0 or n == 0:
        return
    if k == 0:
        out[...] = 0
        return
    word = kernel.word_bytes
    aligned = all(address(x) % word == 0 and x.strides[0] % word == 0 for x in (b, out))
    whole = n // word * word if aligned else 0

    def launch_all(columns: int, b: Any, out: Any) -> None:
        for top in range(0, m, MOST_GRID_ROWS):
            rows = slice(top, min(m, top + MOST_GRID_ROWS))
            sizes = Sizes(rows.stop - top, k, columns, b.strides[0], out.strides[0], processors)
            host = None if coefficients is None else coefficients[rows]
            for launch in kernel.launches(sizes, host):
                execute(launch, a[rows], b, out[top + launch.first_row :])

    if whole:
        launch_all(whole, b, out)
    for start in range(whole, n, STAGED_COLUMNS):
        count = min(STAGED_COLUMNS, n - start)
        staged = library.zeros((k, _up(count, 16) * 16), np.uint8)
        staged[:, :count] = b[:, start : start + count]
        result = library.empty((m, staged.shape[1]), np.uint8)
        launch_all(staged.shape[1], staged, result)
        out[:, start : start + count] = result[:, :count]


def address(array: Any) -> int:
    """Return where an array of NumPy or CuPy begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@functools.cache
def _processors(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


@functools.lru_cache(maxsize=64)
def _uploaded(device: int, shape: tuple[int, ...], content: bytes) -> Any:
    """Return a small array on the current device, `device`, copied there once and ready for any stream."""
    import cupy

    array = cupy.asarray(np.frombuffer(content, np.uint8).reshape(shape))
    cupy.cuda.get_current_stream().synchronize()
    return array


def _upload(device: int, array: Bytes) -> Any:
    return _uploaded(device, array.shape, array.tobytes())


def _may_share(cupy: Any, out: Any, a: Any) -> bool:
    return isinstance(a, cupy.ndarray) and bool(cupy.may_share_memory(out, a))


def matmul(a: Any, b: Any, out: Any, kernel: CudaKernel) -> Any:
    """Compute the product on the device of `b`, in the current stream; arguments have been checked.

    A rung that reads coefficients waits for `a` if it is on the GPU; another rung copies `a` there if it is
    not, once for the same values. Aligned rows need no memory but `out`, so the call can be captured in a
    CUDA graph after it ran once.
    """
    import cupy

    with b.device:
        if b.shape[1] > 1 and b.strides[1] != 1:
            b = cupy.ascontiguousarray(b)
        coefficients = cupy.asnumpy(a) if kernel.reads_coefficients else None
        device = b.device.id
        if coefficients is not None:
            a = coefficients
        else:
            a = cupy.ascontiguousarray(a) if isinstance(a, cupy.ndarray) else _upload(device, a)
        target = out
        strided = out is not None and out.shape[1] > 1 and out.strides[1] != 1
        if out is None or strided or cupy.may_share_memory(out, b) or _may_share(cupy, out, a):
            target = cupy.empty((a.shape[0], b.shape[1]), np.uint8)

        def execute(launch: Launch, a: Any, b: Any, out: Any) -> None:
            arrays = {"a": a, "b": b, "out": out}
            if "logs" in launch.arguments:
                arrays |= {"logs": _upload(device, LOG), "powers": _upload(device, EXP)}
            arguments = tuple(arrays[x] if isinstance(x, str) else x for x in launch.arguments)
            function = _source.load(launch.source, launch.defines).get_function(launch.kernel)
            function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)

        multiply(cupy, kernel, a, coefficients, b, target, _processors(device), execute)
        if out is None:
            return target
        if target is not out:
            out[...] = target
        return out
