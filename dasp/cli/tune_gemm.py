"""The search for tile sizes of dense products on a GPU: enumerate, prune, compile, check, time, keep.

Sets of sizes that cannot run are pruned before anything is compiled (`find_problem`). Each set that is left
is compiled, by several threads, and must give a right product, whose sizes are no whole tiles, before it is
timed. Beyond 2048 only the sets that are fastest at 2048 are timed. The fastest few at a size are timed again
with other numbers of parts and other groups of blocks. The winner of each rung and size class goes into the
table, with cuBLAS's time beside it.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasp.cli.timing import products_in, replays
from dasp.dense.gemm import cuda, rungs_cuda
from dasp.dense.gemm.ladder import HALF, DenseProduct, error_bound
from dasp.dense.gemm.rungs_cuda import (
    ARRAYS,
    BY_NAME,
    ITEM,
    LAST,
    OperandLayout,
    Rung,
    TileSizes,
    launches,
)
from dasp.dense.launch_cuda import STATIC_LIMIT, KernelCall, PreparedCalls, processors
from dasp.io.files import replacing
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.launch import address
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.types import Array

CHECK = (200, 264, 136)
"""m, n, k of the product that checks a set of sizes: whole pieces of 16 bytes, but no whole tiles."""
TOGETHER = 64
"""Sets of sizes that are compiled together, by several threads."""
FINALISTS = 6
LARGE, SURVIVORS = 2048, 32
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
GROUPS = (4, 8, 16)
GRAPH_US = 2000.0
"""Microseconds of a sample: a graph of as many products as take this long, 40 at most."""


# ---- the sets of sizes -----------------------------------------------------------------------------------

SHARED_LIMIT = {False: STATIC_LIMIT, True: 227 * 1024}
"""Bytes of shared memory that a block may have, by whether its rung is staged. A staged rung asks for them at
the launch; its limit is that of sm_90 (sm_80 has 163 KiB)."""

REGISTERS = 65536
"""Registers of a multiprocessor, of 4 bytes each; a thread has 255 of them at most."""

RESULTS, SIDES, WARP_SIDES = (4, 8, 16), (32, 64, 128, 256), (16, 32, 64, 128)
BY_LANES = {"bm": SIDES, "bn": SIDES, "bk": (8, 16), "tm": RESULTS, "tn": RESULTS}
SPACES: dict[str, dict[str, tuple[int, ...]]] = {
    "tuned": BY_LANES,
    "split": {**BY_LANES, "wm": WARP_SIDES, "wn": WARP_SIDES, "stages": (3, 4, 5)},
    "tensor": {
        "bm": SIDES,
        "bn": SIDES[:3],
        "bk": (16, 32),
        "wm": WARP_SIDES[:3],
        "wn": WARP_SIDES[:3],
        "stages": (3, 4),
        "mma_k": (0, 4, 8),
    },
    "tensor_half": {
        "bm": SIDES[1:],
        "bn": SIDES[1:],
        "bk": (32, 64),
        "wm": WARP_SIDES[1:3],
        "wn": WARP_SIDES[1:],
        "stages": (3, 4),
    },
}
"""The rungs that are searched, and the values of each size, all of which are combined."""


def list_candidates(rung: Rung, dtype: str) -> list[TileSizes]:
    """Return every set of tile sizes that is tried: it can run, and has the rung's usual parts and group."""
    space, found = SPACES[rung.name], []
    for values in itertools.product(*space.values()):
        setting = replace(rung.default(dtype), **dict(zip(space, values, strict=True)))
        if find_problem(rung, setting, dtype) is None and 64 <= rung.tiles.threads(setting) <= 512:
            found.append(setting)
    return found


def find_problem(rung: Rung, setting: TileSizes, dtype: str) -> str | None:
    """Return why a set of tile sizes cannot run, or None if it can."""
    threads, shared = rung.tiles.threads(setting), count_shared_bytes(rung, setting, dtype)
    if not 32 <= threads <= 1024 or threads % 32:
        return f"{threads} threads in a block"
    if shared > SHARED_LIMIT[rung.tiles.staged]:
        return f"{shared} bytes of shared memory; the limit is {SHARED_LIMIT[rung.tiles.staged]}"
    refuse = {"tuned": _find_piece_problem, "split": _find_stage_problem}.get(rung.name, _find_tensor_problem)
    return refuse(setting, dtype, threads)


def count_shared_bytes(rung: Rung, setting: TileSizes, dtype: str) -> int:
    """Return the bytes of shared memory of a block, for the operand layout that needs most."""
    item, shared = ITEM[dtype], rung.tiles.shared
    if shared is None:
        return setting.bk * (setting.bm + setting.bn) * item
    return max(shared(setting, item, a, b) for a, b in itertools.product((False, True), repeat=2))


def _find_register_problem(each: int, threads: int) -> str | None:
    if each > 255 or each * threads > REGISTERS:
        return f"about {each} registers in each of {threads} threads"
    return None


def _find_piece_problem(s: TileSizes, dtype: str, threads: int) -> str | None:
    """Return why threads cannot read and keep whole pieces of 16 bytes, or None if they can."""
    width, words = 16 // ITEM[dtype], ITEM[dtype] // 4
    if s.tm % width or s.tn % width or s.bk % width or s.bm % s.tm or s.bn % s.tn:
        return "the tiles are not made of whole pieces of 16 bytes"
    return _find_register_problem(s.tm * s.tn * words + 2 * (s.tm + s.tn) + 24, threads)


def _find_stage_problem(s: TileSizes, dtype: str, threads: int) -> str | None:
    """Return why a warp's lanes cannot form a rectangle, or share a tile's copies, or None if they can."""
    width, words = 16 // ITEM[dtype], ITEM[dtype] // 4
    if s.bm % s.wm or s.bn % s.wn:
        return "a block is not made of whole warp tiles"
    if s.wm % s.tm or s.wn % s.tn or s.wm // s.tm * (s.wn // s.tn) != 32:
        return "a warp tile is not 32 lanes' results"
    if s.wm == s.tm or s.wn == s.tn:
        return "a warp's lanes form no rectangle"
    if s.tm % width or s.tn % width:
        return "a lane's results are not whole pieces of 16 bytes"
    if s.bk % 8 or any(threads % (side // width) or side % (threads // 8) for side in (s.bm, s.bn)):
        return "the threads do not share a tile's copies evenly"
    return _find_register_problem((s.tm * s.tn + 2 * (s.tm + s.tn)) * words + 30, threads)


def _find_tensor_problem(s: TileSizes, dtype: str, threads: int) -> str | None:
    """Return why warps cannot multiply by whole instructions, or None if they can.

    The instructions are m8n8k4, or m16n8 with k of `mma_k`, for float64, and m16n16k16 for half precision.
    """
    half = dtype in HALF
    deep, tall, across = (16, 16, 16) if half else (max(s.mma_k, 4), 16 if s.mma_k else 8, 8)
    if s.bm % s.wm or s.bn % s.wn:
        return "a block is not made of whole warp tiles"
    if s.wm % tall or s.wn % across or s.bk % 16 or s.bk % (2 * deep):
        return "a warp tile is not whole instructions, or a tile not an even number of them deep"
    if any(threads % (inner * ITEM[dtype] // 16) for inner in (s.bm, s.bn, s.bk)):
        return "the threads do not share a tile's copies evenly"
    fragments = (s.wm + s.wn) // 8 * (1 if half else deep // 4)
    words = 1 if half else 2
    return _find_register_problem((s.wm * s.wn // 32 + 2 * fragments) * words + 40, threads)


# ---- the search ------------------------------------------------------------------------------------------


class TileSearch:
    """The search for the tile sizes of one rung and dtype.

    Parameters
    ----------
    rung : Rung
    dtype : str
    seconds : float
        Time after which compiling and timing stop; the best until then counts.
    say : function of a str
        Takes lines of progress.
    """

    def __init__(self, rung: Rung, dtype: str, seconds: float, say: Callable[[str], None]) -> None:
        import cupy

        self.rung, self.dtype, self._say = rung, dtype, say
        self._cupy = cupy
        if dtype == "bfloat16":
            importlib.import_module("ml_dtypes")  # teaches NumPy the name
        self._deadline = time.monotonic() + seconds
        self._device = int(cupy.cuda.Device().id)
        self._processors = processors(self._device)
        self._fastest: list[TileSizes] = []

    def prepare(self, candidates: Sequence[TileSizes]) -> list[TileSizes]:
        """Compile candidates for row-major operands and return those whose product of CHECK is right."""
        a, b, want, bound = self._operands(*CHECK, seed=1)
        right: list[TileSizes] = []
        for start in range(0, len(candidates), TOGETHER):
            if time.monotonic() > self._deadline:
                break
            some = candidates[start : start + TOGETHER]
            steps = [step for each in some for step in self._launches(replace(each, parts=2), CHECK)]
            wanted = {(step.source, step.defines) for step in steps}
            _source.begin_loading([(source, dict(defines)) for source, defines in wanted])
            right += [each for each in some if self._is_right(each, a, b, want, bound)]
        self._say(
            f"{self.rung.name} {self.dtype}: {len(candidates)} candidates, {len(right)} compiled and right"
        )
        return right

    def best(self, candidates: Iterable[TileSizes], size: int) -> tuple[TileSizes, float] | None:
        """Return the fastest right candidate for square products of `size` and its microseconds, or None."""
        a, b, want, bound = self._operands(size, size, size, seed=size)
        out = self._cupy.empty_like(want, dtype=a.dtype)
        timed = []
        for candidate in self._fastest if size > LARGE and self._fastest else candidates:
            if time.monotonic() > self._deadline:
                break
            usual = replace(candidate, parts=candidate.parts_for((size, size, size), self._processors))
            timed.append((self._time(usual, a, b, out, samples=2), usual))
        timed.sort(key=lambda pair: pair[0])
        if size == LARGE:
            self._fastest = [each for _, each in timed[:SURVIVORS]]
        finals = [
            (self._time(each, a, b, out, samples=5), each)
            for _, usual in timed[:FINALISTS]
            for each in self._variants(usual, size)
        ]
        finals.sort(key=lambda pair: pair[0])
        for microseconds, each in finals:
            if self._is_right(each, a, b, want, bound):
                return each, microseconds
        return None

    def vendor(self, size: int) -> float:
        """Return the microseconds of cuBLAS for square products of `size`."""
        a, b, want, _ = self._operands(size, size, size, seed=size)
        out = self._cupy.empty_like(want, dtype=a.dtype)
        product = DenseProduct(a, b, None, out, 1.0, 0.0)
        return self._time_run(lambda: cuda.VENDOR.run(product), samples=5)

    def _variants(self, usual: TileSizes, size: int) -> Iterator[TileSizes]:
        """Yield tile sizes with other numbers of parts and groups of blocks."""
        for parts in PARTS if self.rung.in_parts else (1,):
            few = usual.blocks(size, size) * parts <= 2048 and size // parts >= usual.bk * 2
            if parts == 1 or few:
                for group in GROUPS if self.rung.tiles.staged else (usual.group,):
                    yield replace(usual, parts=parts, group=group)

    def _operands(self, m: int, n: int, k: int, seed: int) -> tuple[Any, Any, Any, Any]:
        """Return A, B, the float64 product, and the bound of each result's error."""
        cupy = self._cupy
        random = cupy.random.default_rng(seed)
        a = random.standard_normal((m, k), dtype=np.float32).astype(self.dtype)
        b = random.standard_normal((k, n), dtype=np.float32).astype(self.dtype)
        wide = a.astype("float64"), b.astype("float64")
        want, scale = wide[0] @ wide[1], cupy.abs(wide[0]) @ cupy.abs(wide[1])
        return a, b, want, error_bound(self.dtype, k, want, scale)

    def _launches(self, setting: TileSizes, sizes: tuple[int, int, int]) -> tuple[KernelCall, ...]:
        m, n, k = sizes
        return launches(self.rung, self.dtype, OperandLayout(m, n, k, k, n, n, n), setting, 1.0, 0.0)

    def _make_run(self, setting: TileSizes, a: Array, b: Array, out: Array) -> Callable[[], None]:
        """Return a function that runs the product with these sizes; RuntimeError if they do not compile."""
        steps = self._launches(setting, (*out.shape, a.shape[1]))
        launch = PreparedCalls(steps, self._device, ARRAYS)
        arrays = a, b, out, out, self._cupy.empty(max(steps[0].sums, 1), out.dtype)
        stream = self._cupy.cuda.get_current_stream
        return lambda: launch(stream().ptr, *map(address, arrays))

    def _is_right(self, setting: TileSizes, a: Array, b: Array, want: Array, bound: Array) -> bool:
        out = self._cupy.full(want.shape, self._cupy.nan, a.dtype)
        try:
            self._make_run(setting, a, b, out)()
            self._cupy.cuda.get_current_stream().synchronize()
        except RuntimeError as error:
            self._say(f"left out: {setting}: {str(error).splitlines()[0]}")
            return False
        right = bool((self._cupy.abs(out.astype("float64") - want) <= bound).all())
        if not right:
            self._say(f"WRONG: {self.rung.name} {self.dtype} {setting}")
        return right

    def _time(self, setting: TileSizes, a: Array, b: Array, out: Array, samples: int) -> float:
        try:
            run = self._make_run(setting, a, b, out)
        except RuntimeError:
            return math.inf
        return self._time_run(run, samples)

    def _time_run(self, run: Callable[[], None], samples: int) -> float:
        """Return the microseconds of a product: the best of some replays of a graph of products."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        self._cupy.cuda.Device().synchronize()
        with on_stream(stream):
            products = products_in(GRAPH_US, run, stream, most=40)
            return min(replays(run, stream, samples, products)[0])


def tune(dtypes: Sequence[str], path: Path, *, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Search for every dtype and size class, and write the table after each size.

    Parameters
    ----------
    dtypes : names of dtypes
    path : the JSON file to write; its lines for other GPUs, dtypes and sizes stay
    seconds : time for each rung of each dtype
    say : takes lines of progress

    Returns
    -------
    The whole table as it was written.
    """
    table = rungs_cuda.read_table(path)
    lines_of = table.setdefault(cuda.device_name(), {})
    for dtype in dtypes:
        for rung in (BY_NAME[name] for name in (LAST[dtype], "tuned")):
            if dtype not in rung.dtypes:
                continue
            search = TileSearch(rung, dtype, seconds, say)
            checked = search.prepare(list_candidates(rung, dtype))
            for size in rungs_cuda.SIZES:
                found = search.best(checked, size)
                if found is None:
                    continue
                line = lines_of.setdefault(dtype, {}).setdefault(str(size), {})
                _keep(line, rung, dtype, found, search.vendor(size))
                say(f"{dtype} {size} {rung.name}: {found[1]:.1f} us of {line['microseconds']}; {found[0]}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as file:
                    file.write(json.dumps(table, indent=1, sort_keys=True).encode() + b"\n")
    return table


def _keep(
    line: dict[str, Any], rung: Rung, dtype: str, found: tuple[TileSizes, float], vendor: float
) -> None:
    """Put a winner into the table's line; the last rung of the dtype decides which kernel "auto" runs."""
    setting, microseconds = found
    line.setdefault("settings", {})[rung.name] = asdict(setting)
    line.setdefault("microseconds", {}).update(
        {rung.name: round(microseconds, 2), "vendor": round(vendor, 2)}
    )
    if rung.name == LAST[dtype]:
        line["kernel"] = rung.name if microseconds <= vendor else "vendor"
