"""Tile sizes of the CUDA rungs, and the table that `dasp tune gemm` keeps of the best ones on a GPU.

The table is a file in the user's cache folder: {GPU's name: {dtype: {size class: {"kernel", "microseconds":
{kernel: ...}, "settings": {rung: {...}}}}}}.
"""

from __future__ import annotations

import functools
import json
import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dasp.runtime.sizes import ceil_div

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)


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

        The last tiles to run leave some multiprocessors idle, and those over C's edge do work for nothing.
        """
        turns = ceil_div(self.blocks(m, n) * self.parts, processors)
        return m * n * self.parts / (turns * processors * self.bm * self.bn)


@dataclass(frozen=True)
class Entry:
    """A line of the table: the fastest kernel of one size class, the measured times, and tile sizes."""

    size: int
    kernel: str
    microseconds: dict[str, float] = field(default_factory=dict)
    settings: dict[str, TileSizes] = field(default_factory=dict)

    def why(self, machine: str, dtype: str) -> str:
        """Say why this kernel was chosen."""
        times = " and ".join(f"{name} {time:.5g} us" for name, time in self.microseconds.items())
        return f"{machine}'s autotuned table for {dtype}, size class {self.size}: {times or self.kernel}"


def nearest(known: list[int], sizes: tuple[int, int, int]) -> int:
    """Return the size class nearest to the cube root of m n k, in ratio."""
    side = max(1.0, float(sizes[0]) * sizes[1] * sizes[2]) ** (1 / 3)
    return min(known, key=lambda size: abs(math.log(size / side)))


def user_table() -> Path:
    """Return the file of `dasp tune gemm`: DASP_TUNED, or tuned.json in the cache folder."""
    given = os.environ.get("DASP_TUNED")
    if given:
        return Path(given)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dasp" / "tuned.json"


@functools.cache
def _read_table() -> dict[str, Any]:
    path = user_table()
    table: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return table


@functools.lru_cache(maxsize=4096)
def entry(gpu: str, dtype: str, sizes: tuple[int, int, int]) -> Entry | None:
    """Return the table's line for a product, or None where this GPU and dtype have none."""
    dtypes = _read_table().get(gpu, {})
    # The two half precisions run the same instructions, so one's findings serve the other.
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
