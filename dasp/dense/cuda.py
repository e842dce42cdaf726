"""The CUDA ladder: which source each rung is, how it is launched, and with which tiles.

`launches` is pure and needs no GPU: the emulator in the tests runs exactly what it returns. Only `run` and
`run_vendor` import CuPy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dasp import _source
from dasp.dense import cublas_cuda, settings
from dasp.dense.ladder import HALF, REAL, Kernel, Product
from dasp.dense.settings import Setting, ceil_div

LOOPS_32 = ("naive", "coalesced", "shared", "linear", "conflict_free")
TWO_DIMENSIONAL = ("naive", "coalesced", "shared")
EITHER_ORDER = ("async", "split", "tensor", "tensor_half")
IN_PARTS = ("split", "tensor")
SOURCES = {
    "column_4": "dense/gemm_column.cu",
    "column_8": "dense/gemm_column.cu",
    "square_4": "dense/gemm_square.cu",
    "square_8": "dense/gemm_square.cu",
    "tuned": "dense/gemm_vector.cu",
    "tensor": "dense/gemm_tensor_f64.cu",
}


@dataclass(frozen=True)
class Layout:
    """How the operands of one product lie in memory, all strides in elements, C and D row-major.

    `along_a` (`along_b`) says that neighbours along k lie side by side in A (B); the leading dimension is the
    distance of neighbours in the other direction. `aligned` says that every address and leading dimension is
    a multiple of 16 bytes.
    """

    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    ldd: int
    along_a: bool = True
    along_b: bool = False
    aligned: bool = True

    def whole(self, dtype: str) -> bool:
        """Whether every row (column, where those are contiguous) is made of whole pieces of 16 bytes."""
        width = 2 if dtype == "float64" else 4
        lengths = (self.k if self.along_a else self.m, self.k if self.along_b else self.n, self.n)
        return all(length % width == 0 for length in lengths)


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `arguments` are NumPy scalars, and "a", "b", "c", "d", "sums" in the arrays'
    places."""

    source: str
    defines: tuple[tuple[str, str], ...]
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int
    sums: int = 0  # elements of the workspace "sums"


def source_of(rung: str) -> str:
    """The .cu file of a rung, below `kernels/`."""
    return SOURCES.get(rung, f"dense/gemm_{rung}.cu")


def launches(
    rung: str, dtype: str, layout: Layout, setting: Setting, alpha: float, beta: float
) -> tuple[Launch, ...]:
    """What to launch for a product that is not empty.

    The rungs before "async" need both operands row-major: along_a and not along_b.
    """
    m, n, k = layout.m, layout.n, layout.k
    real: Any = np.float64 if dtype == "float64" else np.float32
    defines = _defines(rung, dtype, layout, setting)
    if rung in LOOPS_32:
        rows, columns, threads = 32, 32, (32, 32) if rung in TWO_DIMENSIONAL else (1024, 1)
    else:
        rows, columns, threads = setting.bm, setting.bn, (setting.threads(rung), 1)
    blocks = ceil_div(m, rows) * ceil_div(n, columns)
    arguments: list[Any] = [np.int32(m), np.int32(n), np.int32(k), real(alpha), "a", np.int64(layout.lda)]
    arguments += ["b", np.int64(layout.ldb), real(beta), "c", np.int64(layout.ldc), "d", np.int64(layout.ldd)]
    shared = setting.shared_bytes(rung, dtype, layout.along_a, layout.along_b) if rung in EITHER_ORDER else 0
    if rung not in IN_PARTS:
        return (
            Launch(source_of(rung), defines, "dasp_gemm", (blocks, 1), threads, tuple(arguments), shared),
        )
    depth = ceil_div(ceil_div(k, setting.parts), setting.bk) * setting.bk
    parts = ceil_div(k, depth)
    width = 2 if dtype == "float64" else 4
    sums = parts * m * ceil_div(n, width) * width if parts > 1 else 0
    arguments += [np.int32(depth), "sums"]
    first = Launch(
        source_of(rung), defines, "dasp_gemm", (blocks, parts), threads, tuple(arguments), shared, sums
    )
    if parts == 1:
        return (first,)
    reduce = _reduction(layout, dtype, parts, real(alpha), real(beta), sums)
    return first, reduce


def _reduction(layout: Layout, dtype: str, parts: int, alpha: Any, beta: Any, sums: int) -> Launch:
    """The launch that adds the parts and updates D."""
    across = ceil_div(layout.n, 2 if dtype == "float64" else 4)
    arguments = (np.int32(layout.m), np.int32(layout.n), np.int32(parts), alpha, "sums", beta)
    return Launch(
        "dense/gemm_reduce.cu",
        _words({"REAL": _c_type(dtype), "ALIGNED": layout.aligned and layout.whole(dtype)}),
        "dasp_gemm_reduce",
        (ceil_div(layout.m * across, 256), 1),
        (256, 1),
        (*arguments, "c", np.int64(layout.ldc), "d", np.int64(layout.ldd)),
        0,
        sums,
    )


def _c_type(dtype: str) -> str:
    return "double" if dtype == "float64" else "float"


def _words(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((f"DASP_{name}", v if isinstance(v, str) else str(int(v))) for name, v in values.items())


def _defines(rung: str, dtype: str, layout: Layout, setting: Setting) -> tuple[tuple[str, str], ...]:
    """The compile-time constants of a rung's source."""
    values: dict[str, Any] = {}
    if rung not in ("tensor", "tensor_half"):
        values["REAL"] = _c_type(dtype)
    if rung in LOOPS_32:
        return _words(values)
    values |= {"BM": setting.bm, "BN": setting.bn, "BK": setting.bk}
    if rung not in ("tensor", "tensor_half"):
        values |= {"TM": setting.tm, "TN": setting.tn}
    if rung.startswith(("column", "square")):
        return _words({**values, "RESIDENT": setting.resident})
    values["ALIGNED"] = layout.aligned and (rung == "tensor_half" or layout.whole(dtype))
    if rung not in ("vector", "tuned"):
        values |= {"WM": setting.wm, "WN": setting.wn}
    if rung in EITHER_ORDER:
        values |= {"STAGES": setting.stages, "GROUP": setting.group}
        values |= {"ALONG_A": layout.along_a, "ALONG_B": layout.along_b}
    if rung == "tensor":
        values["MMA_K"] = setting.mma_k
    if rung == "tensor_half":
        values["BFLOAT16"] = dtype == "bfloat16"
    return _words(values)


def run(rung: str, product: Product, setting: Setting | None = None) -> None:
    """Compute a checked product on the current stream. A setting given here overrides the table's."""
    out = product.out
    if _unit(out, 1):
        _run_rows(rung, product, setting)
    elif _unit(out, 0):
        turned = None if product.c is None else product.c.T
        flipped = Product(product.b.T, product.a.T, turned, out.T, product.alpha, product.beta)
        _run_rows(rung, flipped, setting)
    else:
        straight = _cupy().empty(out.shape, out.dtype)
        _hold([straight])
        _run_rows(rung, replace(product, out=straight), setting)
        out[...] = straight


def _cupy() -> Any:
    import cupy

    return cupy


def _unit(array: Any, axis: int) -> bool:
    """Whether neighbours along `axis` lie side by side, and the other stride is whole elements."""
    step, other = array.strides[axis], array.strides[1 - axis]
    return bool((array.shape[axis] == 1 or step == array.itemsize) and other % array.itemsize == 0)


def _run_rows(rung: str, product: Product, setting: Setting | None) -> None:
    """A product whose result is row-major; operands that a rung cannot read are copied first."""
    cupy = _cupy()
    a, b, c, out = product.a, product.b, product.c, product.out
    either = rung in EITHER_ORDER
    if not (_unit(a, 1) or (either and _unit(a, 0))):
        a = cupy.ascontiguousarray(a)
    if not (_unit(b, 1) or (either and _unit(b, 0))):
        b = cupy.ascontiguousarray(b)
    c = out if c is None else c
    if not _unit(c, 1):
        c = cupy.ascontiguousarray(c)
    layout = _layout(a, b, c, out)
    dtype, device = str(out.dtype.name), cupy.cuda.Device().id
    if setting is None:
        setting = settings.find(rung, dtype, product.sizes, _name_of(device))
        if rung == "tensor" and setting.mma_k == 0 and _capability(device) >= (9, 0):
            setting = replace(setting, mma_k=4)
    steps = launches(rung, dtype, layout, setting, product.alpha, product.beta)
    arrays = {"a": a, "b": b, "c": c, "d": out, "sums": out}
    if steps[0].sums:
        arrays["sums"] = cupy.empty(steps[0].sums, out.dtype)
    given = {id(x) for x in (product.a, product.b, product.c, product.out)}
    _hold([x for x in arrays.values() if id(x) not in given])
    for step in steps:
        arguments = tuple(arrays[x] if isinstance(x, str) else x for x in step.arguments)
        _function(step)(step.grid, step.block, arguments, shared_mem=step.shared_bytes)


_held_by_graphs: list[tuple[Any, ...]] = []
"""What captured products work in: a graph is replayed later, when nobody else may have that memory."""


def _hold(arrays: list[Any]) -> None:
    """Keep arrays of ours allocated if the current stream records a graph."""
    if arrays and _capturing():
        _held_by_graphs.append(tuple(arrays))


def _capturing() -> bool:
    """Whether the current stream records a CUDA graph."""
    cupy = _cupy()
    return bool(cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr))


def _layout(a: Any, b: Any, c: Any, out: Any) -> Layout:
    size = out.itemsize
    along_a, along_b = _unit(a, 1), not _unit(b, 1)
    lda, ldb = _leading(a, along_a), _leading(b, not along_b)
    ldc, ldd = _leading(c, True), _leading(out, True)
    lds = (lda, ldb, ldc, ldd)
    aligned = all(x * size % 16 == 0 for x in lds) and all(x.data.ptr % 16 == 0 for x in (a, b, c, out))
    return Layout(a.shape[0], b.shape[1], a.shape[1], *lds, along_a, along_b, aligned)


def _leading(array: Any, by_rows: bool) -> int:
    """Elements from row to row (column to column); for a single one, any number of whole pieces will do."""
    axis = 0 if by_rows else 1
    if array.shape[axis] == 1:
        return int(ceil_div(array.shape[1 - axis], 8) * 8)
    return int(array.strides[axis] // array.itemsize)


def _function(step: Launch) -> Any:
    """The compiled kernel of a launch, allowed the shared memory that it asks for."""
    return _loaded(step.source, step.defines, step.kernel, step.shared_bytes, _cupy().cuda.Device().id)


@functools.cache
def _loaded(source: str, defines: tuple[tuple[str, str], ...], kernel: str, shared: int, device: int) -> Any:
    function = _source.load(source, dict(defines)).get_function(kernel)
    if shared > 48 * 1024:
        function.max_dynamic_shared_size_bytes = shared
    return function


def device_name() -> str:
    """The current GPU's name, as the autotuned table has it."""
    return _name_of(_cupy().cuda.Device().id)


@functools.cache
def _name_of(device: int) -> str:
    return str(_cupy().cuda.runtime.getDeviceProperties(device)["name"].decode())


@functools.cache
def _capability(device: int) -> tuple[int, int]:
    digits = str(_cupy().cuda.Device(device).compute_capability)
    return int(digits[:-1]), int(digits[-1])


def _rung(
    name: str, summary: str, dtypes: tuple[str, ...] = REAL, capability: tuple[int, int] = (5, 0)
) -> Kernel:
    def compute(product: Product) -> None:
        found = _capability(_cupy().cuda.Device().id)
        if found < capability:
            raise RuntimeError(
                f"this GPU is sm_{found[0]}{found[1]}; kernel {name!r} needs "
                f"sm_{capability[0]}{capability[1]}; pass kernel='vendor'"
            )
        run(name, product)

    return Kernel(name, summary, dtypes, compute, capability)


LADDER: tuple[Kernel, ...] = (
    _rung("naive", "One thread per result, neighbours in neighbouring rows: 2k scattered loads per result."),
    _rung("coalesced", "Neighbouring threads in neighbouring columns: a warp reads whole lines."),
    _rung("shared", "32 x 32 tiles in shared memory: 2k/32 global loads per result."),
    _rung("linear", "One thread index and two walking pointers: fewer registers and integer instructions."),
    _rung(
        "conflict_free",
        "B's tile by columns with a pad, lanes in rectangles: 16-byte reads, no bank conflict.",
    ),
    _rung("column_4", "Four results in a column per thread: each element of B serves four."),
    _rung("column_8", "Eight results in a column per thread: half the reads of B again."),
    _rung("square_4", "4 x 4 results per thread: k/2 shared loads per result."),
    _rung("square_8", "8 x 8 results per thread: k/4 shared loads per result."),
    _rung("vector", "16-byte loads, A turned over on its way into shared memory."),
    _rung("tuned", "The same with tile sizes found by search on this GPU."),
    _rung("warp", "A rectangle of results per warp: fewer shared reads, none in conflict."),
    _rung("double", "The next tiles travel through registers while the present ones are multiplied."),
    _rung(
        "async", "Asynchronous copies several stages deep; blocks ordered for the cache.", capability=(8, 0)
    ),
    _rung(
        "split", "Several blocks share the dot products where C is too small for the GPU.", capability=(8, 0)
    ),
    _rung("tensor", "float64 tensor cores.", ("float64",), (8, 0)),
    _rung("tensor_half", "float16 and bfloat16 tensor cores with float32 sums.", HALF, (8, 0)),
)

LAST = {"float32": "split", "float64": "tensor", "float16": "tensor_half", "bfloat16": "tensor_half"}


def choose(dtype: str, m: int, n: int, k: int) -> tuple[str, str]:
    """The kernel for C (m, n) with dot products of length k on the current GPU, and why, in words."""
    cupy = _cupy()
    if _capability(cupy.cuda.Device().id) < (8, 0):
        return "vendor", "our last rungs need sm_80"
    name = _name_of(cupy.cuda.Device().id)
    entry = settings.entry(name, dtype, (m, n, k))
    if entry is None:
        return LAST[
            dtype
        ], f"{name} has no autotuned table, so the last rung for {dtype} with its usual tiles"
    return entry.kernel, f"{name}'s autotuned table for {dtype}, size class {entry.size}: {entry.note}"


def empty(shape: tuple[int, int], dtype: Any) -> Any:
    """A new row-major array on the current GPU."""
    return _cupy().empty(shape, dtype)


def share_memory(x: Any, y: Any) -> bool:
    """Whether the bounds of two arrays on the GPU overlap; asks the GPU nothing, so a capture may go on."""
    return bool(_cupy().may_share_memory(x, y))


def run_vendor(product: Product) -> None:
    """The product by cuBLAS, in the dtype's own precision (true float32, never TF32)."""
    cupy = _cupy()
    if product.c is None and cublas_cuda.multiply(product.a, product.b, product.out, product.alpha):
        return
    if product.alpha == 1 and product.c is None:
        cupy.matmul(product.a, product.b, out=product.out)
        return
    product_ab = cupy.matmul(product.a, product.b)
    if product.alpha != 1:
        product_ab *= product_ab.dtype.type(product.alpha)
    if product.c is not None:
        product_ab += product.c.dtype.type(product.beta) * product.c
    product.out[...] = product_ab
