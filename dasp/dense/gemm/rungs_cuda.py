"""The rungs of the CUDA ladder as rows, their tile sizes, and their launches for a product.

A rung is a row of `RUNGS`: its source, how it cuts C into tiles, the constants that it is compiled with, its
tile sizes, and its abilities. No other code asks a rung for its name. `launches` is pure and needs no GPU:
the emulator in the tests runs exactly what it returns.

`dasp tune gemm` keeps the best tile sizes on a GPU in a file in the user's cache folder: {GPU's name: {dtype:
{size class: {"kernel", "microseconds": {kernel: ...}, "settings": {rung: {...}}}}}}.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasp.dense.gemm.ladder import HALF, REAL
from dasp.dense.launch_cuda import KernelCall
from dasp.runtime.process import find_user_file
from dasp.runtime.sizes import ceil_div, round_up

# ---- tile sizes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileSizes:
    """Tile sizes of one rung, in elements.

    A block computes bm x bn results in steps of bk along k, a warp wm x wn of them, a thread tm x tn.
    `stages` tiles are in shared memory at once; `group` rows of blocks run together; `parts` blocks share
    each tile's dot products. `mma_k` is the depth of a float64 tensor-core instruction; 0 means m8n8k4.
    `min_blocks` blocks must fit the registers of a multiprocessor.
    """

    bm: int = 128
    bn: int = 128
    bk: int = 8
    tm: int = 8
    tn: int = 8
    wm: int = 64
    wn: int = 32
    stages: int = 3
    group: int = 8
    parts: int = 1
    mma_k: int = 0
    min_blocks: int = 1

    def blocks(self, m: int, n: int) -> int:
        """Return the number of tiles of C (m, n)."""
        return ceil_div(m, self.bm) * ceil_div(n, self.bn)

    def parts_for(self, sizes: tuple[int, int, int], processors: int) -> int:
        """Return how many blocks share a tile's dot products: one block for each multiprocessor, each at
        least 64 deep."""
        m, n, k = sizes
        return max(1, min(processors // max(1, self.blocks(m, n)), k // max(64, 4 * self.bk), 32))

    def busy(self, m: int, n: int, processors: int) -> float:
        """Return the share of their time that multiprocessors spend on results, if tiles take equally long.

        The last tiles to run leave some multiprocessors idle, and tiles over C's edge do useless work.
        """
        turns = ceil_div(self.blocks(m, n) * self.parts, processors)
        return m * n * self.parts / (turns * processors * self.bm * self.bn)


# ---- the table of the best kernels on a GPU --------------------------------------------------------------

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Entry:
    """A line of the table: the fastest kernel of one size class, the measured times, and tile sizes."""

    size: int
    kernel: str
    microseconds: dict[str, float] = field(default_factory=dict)
    settings: dict[str, TileSizes] = field(default_factory=dict)

    def why(self, machine: str, dtype: str) -> str:
        """Return in words why this kernel was chosen."""
        times = " and ".join(f"{name} {time:.5g} us" for name, time in self.microseconds.items())
        return f"{machine}'s autotuned table for {dtype}, size class {self.size}: {times or self.kernel}"


@functools.lru_cache(maxsize=4096)
def entry(gpu: str, dtype: str, sizes: tuple[int, int, int]) -> Entry | None:
    """Return the table's line for a product, or None if this GPU and dtype have none."""
    dtypes = _read_table().get(gpu, {})
    # The two half precisions run the same instructions, so what suits one suits the other.
    lines = dtypes.get(dtype) or (dtypes.get("float16", {}) if dtype == "bfloat16" else {})
    whole = {int(size): line for size, line in lines.items() if "kernel" in line}
    if not whole:
        return None
    size = nearest(list(whole), sizes)
    line = whole[size]
    names = {each.name for each in fields(TileSizes)}  # a table may be another version's
    known = {
        rung: TileSizes(**{name: value for name, value in values.items() if name in names})
        for rung, values in line.get("settings", {}).items()
    }
    return Entry(size, line["kernel"], line.get("microseconds", {}), known)


def nearest(known: list[int], sizes: tuple[int, int, int]) -> int:
    """Return the size class nearest to the cube root of m n k, in ratio."""
    side = max(1.0, float(sizes[0]) * sizes[1] * sizes[2]) ** (1 / 3)
    return min(known, key=lambda size: abs(math.log(size / side)))


def user_table() -> Path:
    """Return the file of `dasp tune gemm`: DASP_TUNED, or tuned.json in the cache folder."""
    return find_user_file("DASP_TUNED", "tuned.json")


def read_table(path: Path) -> dict[str, Any]:
    """Return the table in a file, or an empty one if there is no file.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds no table.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(table, dict):
            raise ValueError(f"it holds {table!r:.40}; an object of GPUs is needed")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is no table of tile sizes: {error}; `dasp tune gemm` writes one") from None
    return table


@functools.cache
def _read_table() -> dict[str, Any]:
    try:
        return read_table(user_table())
    except (OSError, RuntimeError):  # a home that cannot be read, or none
        return {}


# ---- how a rung cuts C into tiles ------------------------------------------------------------------------


def _threads_of_results(s: TileSizes) -> int:
    return s.bm * s.bn // (s.tm * s.tn)


def _threads_of_warps(s: TileSizes) -> int:
    return s.bm // s.wm * (s.bn // s.wn) * 32


def _padded_columns(s: TileSizes, item: int, along_a: bool, along_b: bool) -> int:
    return s.stages * s.bk * (s.bm + s.bn + 32 // item) * item


def _as_stored(pad: int) -> Callable[[TileSizes, int, bool, bool], int]:
    def shared(s: TileSizes, item: int, along_a: bool, along_b: bool) -> int:
        a = s.bm * (s.bk + pad) if along_a else s.bk * (s.bm + pad)
        b = s.bn * (s.bk + pad) if along_b else s.bk * (s.bn + pad)
        return s.stages * (a + b) * item

    return shared


@dataclass(frozen=True)
class Tiles:
    """A way to cut C into tiles, and the source that does so, with its constants.

    Attributes
    ----------
    file : what follows `gemm_` in the name of the source
    threads : threads of a block
    constants : compile-time constants of the source; RUNG where it has several rungs
    shared : bytes of shared memory that a launch asks for, by an element's size and whether A and B lie along
        k; None where the source declares its own
    by_pieces : True if fast copies need rows of whole 16-byte pieces
    block : the shape of a block of threads, if it is not a line
    """

    file: str
    threads: Callable[[TileSizes], int]
    constants: tuple[str, ...]
    shared: Callable[[TileSizes, int, bool, bool], int] | None = None
    by_pieces: bool = True
    block: tuple[int, int] | None = None

    @property
    def staged(self) -> bool:
        """True if A and B are read by rows or by columns, and copied asynchronously, which needs sm_80."""
        return self.shared is not None


BLOCK, THREAD, WARP = ("BM", "BN", "BK"), ("TM", "TN"), ("WM", "WN")
RESULTS = ("RUNG", "REAL", *BLOCK, *THREAD)
STAGED = ("ALIGNED", *WARP, "STAGES", "GROUP", "ALONG_A", "ALONG_B")
LINE_BLOCK = Tiles("single", lambda s: 1024, ("RUNG", "REAL"))
SQUARE_BLOCK = replace(LINE_BLOCK, block=(32, 32))
REGISTERED = Tiles("registers", _threads_of_results, (*RESULTS, "MIN_BLOCKS"))
VECTORS = Tiles("registers", _threads_of_results, (*RESULTS, "ALIGNED"))
WARPS = Tiles("warps", _threads_of_warps, (*RESULTS, "ALIGNED", *WARP))
PIPELINE = Tiles("warps", _threads_of_warps, (*RESULTS, *STAGED), _padded_columns)
TENSORS = Tiles("tensor_f64", _threads_of_warps, (*BLOCK, *STAGED, "MMA_K"), _as_stored(4))
HALF_TENSORS = Tiles(
    "tensor_half", _threads_of_warps, (*BLOCK, *STAGED, "BFLOAT16"), _as_stored(8), by_pieces=False
)


# ---- the rows --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rung:
    """One rung of the ladder.

    Attributes
    ----------
    name, summary : as `dasp.dense.gemm.ladder.GemmKernel`
    tiles : how C is cut
    usual : tile sizes where no table has better ones, the smallest first: for each of `dtypes`, in order
    dtypes : names of the dtypes that it multiplies
    in_parts : True if several blocks may share a tile's dot products
    deepest : the deepest `mma_k` that pays on sm_90
    """

    name: str
    summary: str
    tiles: Tiles
    usual: tuple[tuple[TileSizes, ...], ...] = ((TileSizes(32, 32),),) * 2
    dtypes: tuple[str, ...] = REAL
    in_parts: bool = False
    deepest: int = 0

    @property
    def source(self) -> str:
        """The .cu file, below `kernels/`."""
        return f"dense/gemm_{self.tiles.file}.cu"

    @property
    def capability(self) -> tuple[int, int]:
        """The least compute capability of the GPU."""
        return (8, 0) if self.tiles.staged else (5, 0)

    def default(self, dtype: str) -> TileSizes:
        """Return the tile sizes for large products where no table has better ones."""
        return self.usual[self.dtypes.index(dtype)][-1]

    def find(self, dtype: str, sizes: tuple[int, int, int], gpu: str, processors: int) -> TileSizes:
        """Return the tile sizes for a product.

        They are the table's, else the largest usual ones that give each multiprocessor about one tile; k is
        split where even the smallest give too few.
        """
        line = entry(gpu, dtype, sizes)
        setting = line.settings.get(self.name) if line else None
        if setting is not None and max(sizes) <= 2 * min(sizes):
            return setting
        if setting is None:
            usual = self.usual[self.dtypes.index(dtype)]
            large = [each for each in usual if each.blocks(*sizes[:2]) >= ENOUGH * processors]
            setting = large[-1] if large else usual[0]
        return replace(setting, parts=setting.parts_for(sizes, processors) if self.in_parts else 1)


ENOUGH = 0.9
"""Least tiles for each multiprocessor with which larger tiles than the smallest pay."""

TUNED_SINGLE = (TileSizes(32, 32, 16, tm=4, tn=4), TileSizes(64, 128, 16, tm=16, tn=4))
TUNED_DOUBLE = (TileSizes(32, 32, 16, tm=4, tn=4), TileSizes(64, 128, 8, tm=16, tn=4))
SPLIT_SINGLE = (
    TileSizes(32, 64, 16, tm=4, tn=4, wm=16, wn=32),
    TileSizes(64, 128, 16, tm=4, tn=16, wm=64, wn=32, stages=4, group=16),
    TileSizes(128, 256, 16, tm=16, tn=8, wm=64, wn=64, stages=5),
)
SPLIT_DOUBLE = (TileSizes(128, 64, 8, wm=64, wn=32),)
TENSOR_DOUBLE = (
    TileSizes(32, 32, 32, wm=16, wn=16, stages=4, group=4, mma_k=8),
    TileSizes(64, 64, 16, wm=64, wn=16, group=16, mma_k=8),
    TileSizes(128, 128, 16, wm=64, wn=32),
)
TENSOR_HALF = (
    TileSizes(64, 64, 64, wm=32, wn=32),
    TileSizes(128, 256, 64, wm=64, wn=64),
)
"""Tile sizes that `dasp tune gemm` found on an H200 for products of about 256, 1024 and 4096 cubed."""


def _give_one(*settings: TileSizes) -> tuple[tuple[TileSizes, ...], ...]:
    """Return one usual setting for each dtype."""
    return tuple((setting,) for setting in settings)


# fmt: off
RUNGS: tuple[Rung, ...] = (
    Rung("naive", "One thread per result, neighbours in neighbouring rows: 2k scattered loads per result.",
         SQUARE_BLOCK),
    Rung("coalesced", "Neighbouring threads in neighbouring columns: a warp reads whole lines.",
         SQUARE_BLOCK),
    Rung("shared", "32 x 32 tiles in shared memory: 2k/32 global loads per result.", SQUARE_BLOCK),
    Rung("linear", "One thread index and two walking pointers: fewer registers and integer instructions.",
         LINE_BLOCK),
    Rung("conflict_free",
         "B's tile by columns with a pad, lanes in rectangles: 16-byte reads, no bank conflict.", LINE_BLOCK),
    Rung("column_4", "Four results in a column per thread: each element of B serves four.", REGISTERED,
         _give_one(TileSizes(32, 64, 8, 4, 1, min_blocks=4), TileSizes(32, 64, 8, 4, 1, min_blocks=3))),
    Rung("column_8", "Eight results in a column per thread: half the reads of B again.", REGISTERED,
         _give_one(TileSizes(64, 64, 8, 8, 1, min_blocks=4), TileSizes(64, 64, 8, 8, 1, min_blocks=3))),
    Rung("square_4", "4 x 4 results per thread: k/2 shared loads per result.", REGISTERED,
         _give_one(TileSizes(64, 64, 32, 4, 4, min_blocks=3), TileSizes(64, 64, 16, 4, 4, min_blocks=3))),
    Rung("square_8", "8 x 8 results per thread: k/4 shared loads per result.", REGISTERED,
         _give_one(TileSizes(64, 64, 16), TileSizes(64, 128, 8))),
    Rung("vector", "16-byte loads, A turned over on its way into shared memory.", VECTORS,
         _give_one(TileSizes(128, 128, 16), TileSizes(128, 64, 8, tm=8, tn=4))),
    Rung("tuned", "The same with tile sizes found by search on this GPU.", VECTORS,
         (TUNED_SINGLE, TUNED_DOUBLE)),
    Rung("warp", "A rectangle of results per warp: fewer shared reads, none in conflict.", WARPS,
         _give_one(TileSizes(128, 128, 16), TileSizes(128, 64, 8, wm=32, wn=64))),
    Rung("double", "The next tiles travel through registers while the present ones are multiplied.", WARPS,
         _give_one(TileSizes(128, 128, 8), TileSizes(128, 64, 8, wm=32, wn=64))),
    Rung("async", "Asynchronous copies several stages deep; blocks ordered for the cache.", PIPELINE,
         _give_one(TileSizes(128, 128, 8, tm=8, tn=16, wm=64, wn=64, stages=4), *SPLIT_DOUBLE)),
    Rung("split", "Several blocks share the dot products where C is too small for the GPU.", PIPELINE,
         (SPLIT_SINGLE, SPLIT_DOUBLE), in_parts=True),
    Rung("tensor", "float64 tensor cores.", TENSORS, (TENSOR_DOUBLE,), dtypes=("float64",),
         in_parts=True, deepest=4),
    Rung("tensor_half", "float16 and bfloat16 tensor cores with float32 sums.", HALF_TENSORS,
         (TENSOR_HALF, TENSOR_HALF), dtypes=HALF),
)
# fmt: on
BY_NAME = {rung.name: rung for rung in RUNGS}

LAST = {dtype: [r.name for r in RUNGS if dtype in r.dtypes][-1] for dtype in (*REAL, *HALF)}
"""The last rung that multiplies each dtype."""


# ---- the launches of a rung ------------------------------------------------------------------------------

ARRAYS = ("a", "b", "c", "d", "sums")
"""The names of the arrays among the arguments of launches; "sums" is a workspace."""

ITEM = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class OperandLayout:
    """The places of one product's operands in memory, all strides in elements, C and D row-major.

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
        """Return True if every row (column, if those are contiguous) is made of whole pieces of 16 bytes."""
        lengths = (self.k if self.along_a else self.m, self.k if self.along_b else self.n, self.n)
        return all(length * ITEM[dtype] % 16 == 0 for length in lengths)


def launches(
    rung: Rung, dtype: str, layout: OperandLayout, setting: TileSizes, alpha: float, beta: float
) -> tuple[KernelCall, ...]:
    """Return the launches of a product that is not empty.

    A rung that reads only one memory order needs both operands row-major: along_a and not along_b.
    """
    m, n, k = layout.m, layout.n, layout.k
    real = np.float64 if dtype == "float64" else np.float32
    tiles = rung.tiles
    threads = tiles.block or (tiles.threads(setting), 1)
    arguments: list[Any] = [np.int32(m), np.int32(n), np.int32(k), real(alpha), "a", np.int64(layout.lda)]
    arguments += ["b", np.int64(layout.ldb), real(beta), "c", np.int64(layout.ldc), "d", np.int64(layout.ldd)]
    shared = tiles.shared(setting, ITEM[dtype], layout.along_a, layout.along_b) if tiles.shared else 0
    depth, parts = k, 1
    if rung.in_parts:
        depth = round_up(ceil_div(k, setting.parts), setting.bk)
        parts = ceil_div(k, depth)
        arguments += [np.int32(depth), "sums"]
    sums = parts * m * round_up(n, 16 // ITEM[dtype]) if parts > 1 else 0
    first = KernelCall(
        rung.source,
        _defines(rung, dtype, layout, setting),
        "dasp_gemm",
        (setting.blocks(m, n), parts),
        threads,
        tuple(arguments),
        shared,
        sums,
    )
    return (
        (first,)
        if parts == 1
        else (first, _reduce_parts(layout, dtype, parts, real(alpha), real(beta), sums))
    )


def _reduce_parts(
    layout: OperandLayout, dtype: str, parts: int, alpha: np.floating[Any], beta: np.floating[Any], sums: int
) -> KernelCall:
    """Return the launch that adds the parts and updates D."""
    across = ceil_div(layout.n * ITEM[dtype], 16)
    arguments = (np.int32(layout.m), np.int32(layout.n), np.int32(parts), alpha, "sums", beta)
    return KernelCall(
        "dense/gemm_reduce.cu",
        _format_defines({"REAL": _c_type(dtype), "ALIGNED": layout.aligned and layout.whole(dtype)}),
        "dasp_gemm_reduce",
        (ceil_div(layout.m * across, 256), 1),
        (256, 1),
        (*arguments, "c", np.int64(layout.ldc), "d", np.int64(layout.ldd)),
        0,
        sums,
    )


def _c_type(dtype: str) -> str:
    return "double" if dtype == "float64" else "float"


def _format_defines(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((f"DASP_{name}", v if isinstance(v, str) else str(int(v))) for name, v in values.items())


def _defines(
    rung: Rung, dtype: str, layout: OperandLayout, setting: TileSizes
) -> tuple[tuple[str, str], ...]:
    """Return the compile-time constants of a rung's source."""
    known = {name.upper(): value for name, value in vars(setting).items()}
    known |= {"RUNG": RUNGS.index(rung) + 1, "REAL": _c_type(dtype), "BFLOAT16": dtype == "bfloat16"}
    known |= {"ALONG_A": layout.along_a, "ALONG_B": layout.along_b}
    known["ALIGNED"] = layout.aligned and (not rung.tiles.by_pieces or layout.whole(dtype))
    return _format_defines({name: known[name] for name in rung.tiles.constants})
