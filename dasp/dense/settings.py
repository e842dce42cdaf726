"""Tile sizes of the CUDA rungs: what they are, which are valid, and the table of the ones found best.

The table is `tuned.json` beside this file, and one of the same form in the user's cache folder whose entries
go first (`dasp tune gemm` writes it): {GPU: {dtype: {size class: {"kernel", "note", "settings": {rung:
{...}}}}}}.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
SHARED_LIMIT = 227 * 1024  # bytes a block may have on sm_90; 163 KiB on sm_80


def ceil_div(a: int, b: int) -> int:
    """The least integer that is at least a / b."""
    return -(-a // b)


@dataclass(frozen=True)
class Setting:
    """Tile sizes of one rung, in elements.

    A block computes bm x bn results in steps of bk along k, a warp wm x wn of them, a thread tm x tn.
    `stages` tiles are in shared memory at once; `group` rows of blocks run together; `parts` blocks share
    each tile's dot products. `mma_k` is the depth of a float64 tensor-core instruction; 0 means m8n8k4.
    `resident` blocks must fit the registers of a multiprocessor.
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
    resident: int = 1

    def threads(self, rung: str) -> int:
        """Threads of a block."""
        if rung.startswith("column"):
            return self.bm * self.bn // self.tm
        if rung.startswith("square") or rung in ("vector", "tuned"):
            return self.bm * self.bn // (self.tm * self.tn)
        return self.bm // self.wm * (self.bn // self.wn) * 32

    def shared_bytes(self, rung: str, dtype: str, along_a: bool, along_b: bool) -> int:
        """Bytes of shared memory of a block, static or dynamic."""
        size = 8 if dtype == "float64" else 2 if rung == "tensor_half" else 4
        if rung in ("tensor", "tensor_half"):
            pad = 4 if rung == "tensor" else 8
            a = self.bm * (self.bk + pad) if along_a else self.bk * (self.bm + pad)
            b = self.bn * (self.bk + pad) if along_b else self.bk * (self.bn + pad)
            return self.stages * (a + b) * size
        if rung.startswith("column"):
            return (self.bm + self.bn) * (self.bk + 16 // size) * size
        pad = 0 if rung in ("square_4", "square_8", "vector", "tuned") else 16 // size
        copies = self.stages if rung in ("async", "split") else 2 if rung == "double" else 1
        return copies * self.bk * (self.bm + self.bn + 2 * pad) * size

    def problem(self, rung: str, dtype: str) -> str | None:
        """Why this set of tile sizes cannot run, or None if it can."""
        width = 2 if dtype == "float64" else 8 if rung == "tensor_half" else 4
        threads = self.threads(rung)
        if not 32 <= threads <= 1024 or threads % 32:
            return f"{threads} threads in a block"
        limit = SHARED_LIMIT if rung in ("async", "split", "tensor", "tensor_half") else 48 * 1024
        shared = max(self.shared_bytes(rung, dtype, a, b) for a in (False, True) for b in (False, True))
        if shared > limit:
            return f"{shared} bytes of shared memory; the limit is {limit}"
        if rung in ("vector", "tuned"):
            fits = self.tm % width == self.tn % width == self.bk % width == 0
            fits = fits and self.bm % self.tm == self.bn % self.tn == 0
            registers = self.tm * self.tn * (2 if width == 2 else 1) + 2 * (self.tm + self.tn) + 24
            return None if fits and registers * threads <= 65536 and registers <= 255 else "does not divide"
        if self.bm % self.wm or self.bn % self.wn:
            return "a block is not made of whole warp tiles"
        if rung in ("tensor", "tensor_half"):
            return self._tensor_problem(rung, threads)
        return self._lane_problem(rung, dtype, threads, width)

    def _lane_problem(self, rung: str, dtype: str, threads: int, width: int) -> str | None:
        if self.wm % self.tm or self.wn % self.tn or self.wm // self.tm * (self.wn // self.tn) != 32:
            return "a warp tile is not 32 lanes' results"
        if self.wm == self.tm or self.wn == self.tn:
            return "a warp's lanes form no rectangle"
        if self.tm % width or self.tn % width:
            return "a lane's results are not whole pieces of 16 bytes"
        words = 2 if dtype == "float64" else 1
        registers = (self.tm * self.tn + 2 * (self.tm + self.tn)) * words + 30
        if registers > 255 or registers * threads > 65536:
            return f"about {registers} registers in each of {threads} threads"
        if rung in ("async", "split"):
            for outer in (self.bm, self.bn):
                if threads % (outer // width) or outer % (threads // 8) or self.bk % 8:
                    return "the threads do not share a tile's copies evenly"
        return None

    def _tensor_problem(self, rung: str, threads: int) -> str | None:
        deep = max(self.mma_k, 4) if rung == "tensor" else 16
        tall = 16 if rung == "tensor_half" or self.mma_k else 8
        across = 16 if rung == "tensor_half" else 8
        if self.wm % tall or self.wn % across or self.bk % 16 or self.bk % (2 * deep):
            return "a warp tile is not whole instructions, or a tile not an even number of them deep"
        size = 2 if rung == "tensor" else 8
        if any(threads % (inner // size) for inner in (self.bm, self.bn, self.bk)):
            return "the threads do not share a tile's copies evenly"
        words = 2 if rung == "tensor" else 1
        fragments = (self.wm + self.wn) // 8 * (deep // 4 if rung == "tensor" else 1)
        registers = (self.wm * self.wn // 32 + 2 * fragments) * words + 40
        if registers > 255 or registers * threads > 65536:
            return f"about {registers} registers in each of {threads} threads"
        return None


DEFAULTS = {
    "column_4": Setting(32, 64, 8, tm=4, tn=1, resident=4),
    "column_8": Setting(64, 64, 8, tm=8, tn=1, resident=4),
    "square_4": Setting(64, 64, 32, tm=4, tn=4, resident=3),
    "square_8": Setting(64, 64, 16),
    "vector": Setting(128, 128, 16),
    "tuned": Setting(64, 128, 16, tm=8, tn=4),
    "warp": Setting(128, 128, 16),
    "double": Setting(128, 128, 8),
    "async": Setting(128, 128, 8, tm=8, tn=16, wm=64, wn=64, stages=4),
    "split": Setting(128, 128, 8, tm=8, tn=16, wm=64, wn=64, stages=4),
    "tensor": Setting(128, 128, 16, wm=64, wn=32, stages=3),
    "tensor_half": Setting(128, 128, 32, wm=64, wn=32, stages=4),
}
DOUBLE = {
    "column_4": Setting(32, 64, 8, tm=4, tn=1, resident=3),
    "column_8": Setting(64, 64, 8, tm=8, tn=1, resident=3),
    "square_4": Setting(64, 64, 16, tm=4, tn=4, resident=3),
    "square_8": Setting(64, 128, 8),
    "vector": Setting(128, 64, 8, tm=8, tn=4),
    "tuned": Setting(64, 128, 16, tm=8, tn=4),
    "warp": Setting(128, 64, 8, wm=32, wn=64),
    "double": Setting(128, 64, 8, wm=32, wn=64),
    "async": Setting(128, 64, 8, wm=64, wn=32),
    "split": Setting(128, 64, 8, wm=64, wn=32),
}


def default(rung: str, dtype: str) -> Setting:
    """The tile sizes of a rung where no table has better ones."""
    if dtype == "float64" and rung in DOUBLE:
        return DOUBLE[rung]
    return DEFAULTS.get(rung, Setting())


@dataclass(frozen=True)
class Entry:
    """A line of the table: the kernel for one size class, why, and the tile sizes of each rung there."""

    size: int
    kernel: str
    note: str
    settings: dict[str, Setting] = field(default_factory=dict)


def size_class(sizes: tuple[int, int, int]) -> int:
    """The member of SIZES nearest to the cube root of m n k, in ratio."""
    side = max(1.0, float(sizes[0]) * sizes[1] * sizes[2]) ** (1 / 3)
    return min(SIZES, key=lambda size: abs(math.log(size / side)))


def user_table() -> Path:
    """Where `dasp tune gemm` keeps its findings: DASP_TUNED, or tuned.json in the user's cache folder."""
    given = os.environ.get("DASP_TUNED")
    if given:
        return Path(given)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dasp" / "tuned.json"


@functools.cache
def _tables() -> tuple[dict[str, Any], ...]:
    found = []
    for path in (user_table(), Path(__file__).with_name("tuned.json")):
        if path.is_file():
            found.append(json.loads(path.read_text()))
    return tuple(found)


def forget() -> None:
    """Read the tables again at the next product."""
    _tables.cache_clear()
    entry.cache_clear()


@functools.lru_cache(maxsize=4096)
def entry(gpu: str, dtype: str, sizes: tuple[int, int, int]) -> Entry | None:
    """The table's line for a product, or None where this GPU and dtype have none."""
    size = size_class(sizes)
    for table in _tables():
        known_dtypes = table.get(gpu, {})
        # The two half precisions run the same instructions, so one's findings serve the other.
        lines = known_dtypes.get(dtype) or (known_dtypes.get("float16", {}) if dtype == "bfloat16" else {})
        line = lines.get(str(size))
        if line and "kernel" in line:
            known = {rung: Setting(**values) for rung, values in line["settings"].items()}
            return Entry(size, line["kernel"], line["note"], known)
    return None


def find(rung: str, dtype: str, sizes: tuple[int, int, int], gpu: str) -> Setting:
    """The tile sizes for a product: the table's, else the usual ones with k split to fill the GPU."""
    line = entry(gpu, dtype, sizes)
    if rung == "async" and line and rung not in line.settings and "split" in line.settings:
        return replace(line.settings["split"], parts=1)
    setting = line.settings[rung] if line and rung in line.settings else default(rung, dtype)
    if line and rung in line.settings and max(sizes) <= 2 * min(sizes):
        return setting
    return replace(setting, parts=parts_for(setting, sizes))


def parts_for(setting: Setting, sizes: tuple[int, int, int], blocks_wanted: int = 132) -> int:
    """How many blocks share a tile's dot products, so that about `blocks_wanted` run, each at least 64
    deep."""
    m, n, k = sizes
    blocks = ceil_div(m, setting.bm) * ceil_div(n, setting.bn)
    return max(1, min(blocks_wanted // blocks, k // max(64, 4 * setting.bk), 32))


def candidates(rung: str, dtype: str) -> Iterator[Setting]:
    """Every valid set of tile sizes that the search tries for a rung, parts and group as usual."""
    usual = default(rung, dtype)
    axes = _choices(rung)
    for values in product(*axes.values()):
        setting = replace(usual, **dict(zip(axes, values, strict=True)))
        if setting.problem(rung, dtype) is None and 64 <= setting.threads(rung) <= 512:
            yield setting


def _choices(rung: str) -> dict[str, tuple[int, ...]]:
    """The values that the search combines."""
    small, sides, warp_sides = (4, 8, 16), (32, 64, 128, 256), (16, 32, 64, 128)
    if rung in ("vector", "tuned"):
        return {"bm": sides, "bn": sides, "bk": (8, 16), "tm": small, "tn": small}
    if rung == "tensor":
        tiles = {"bm": sides, "bn": sides[:3], "bk": (16, 32), "stages": (3, 4), "mma_k": (0, 4, 8)}
        return {**tiles, "wm": warp_sides[:3], "wn": warp_sides[:3]}
    if rung == "tensor_half":
        tiles = {"bm": sides[1:], "bn": sides[1:], "bk": (32, 64), "stages": (3, 4)}
        return {**tiles, "wm": warp_sides[1:3], "wn": warp_sides[1:]}
    tiles = {"bm": sides, "bn": sides, "bk": (8, 16), "tm": small, "tn": small}
    stages: dict[str, tuple[int, ...]] = {"stages": (3, 4, 5)} if rung in ("async", "split") else {}
    return {**tiles, "wm": warp_sides, "wn": warp_sides, **stages}
