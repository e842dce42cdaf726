"""The search for tile sizes of dense products on a GPU: enumerate, prune, compile, check, time, keep.

Sets of sizes that cannot run are pruned before anything is compiled (`Rung.problem`). Each one
that is left is compiled, by several threads, and must give a right product of odd sizes before it is timed.
Beyond 2048 only the fastest at 2048 are timed. The fastest few of a size are timed again with other numbers
of parts and other groups of blocks. The winner of each rung and size class goes into the table, with cuBLAS's
time beside it.
"""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dasp.cli.timing import products_in, replays
from dasp.dense.gemm import cuda, settings
from dasp.dense.gemm.ladder import DenseProduct, error_bound
from dasp.dense.gemm.launch_cuda import KernelCall, PreparedCalls
from dasp.dense.gemm.rungs_cuda import ARRAYS, BY_NAME, LAST, OperandLayout, Rung, launches
from dasp.dense.gemm.settings import TileSizes
from dasp.io.files import replacing
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.launch import address
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.types import Array

CHECK = (200, 264, 136)
"""m, n, k of the product that checks a set of sizes: whole pieces, no whole tiles."""
TOGETHER = 64
"""Sets of sizes that are compiled together, by several threads."""
FINALISTS = 6
LARGE, SURVIVORS = 2048, 32
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
GROUPS = (4, 8, 16)
GRAPH_US = 2000.0
"""A sample is a graph of as many products, 40 at most, as take so long."""


class TileSearch:
    """The search for the tile sizes of one rung and dtype.

    Parameters
    ----------
    rung : Rung
    dtype : str
    seconds : float
        Stop compiling and timing after so long; the best until then counts.
    say : function of a str
        Hears what happens.
    """

    def __init__(self, rung: Rung, dtype: str, seconds: float, say: Callable[[str], None]) -> None:
        import cupy

        self.rung, self.dtype, self._say = rung, dtype, say
        self._cupy = cupy
        if dtype == "bfloat16":
            importlib.import_module("ml_dtypes")  # teaches NumPy the name
        self._deadline = time.monotonic() + seconds
        self._device = int(cupy.cuda.Device().id)
        self._processors = cuda.processors(self._device)
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
            _source.load_all([(source, dict(defines)) for source, defines in wanted])
            right += [each for each in some if self._is_right(each, a, b, want, bound)]
        self._say(
            f"{self.rung.name} {self.dtype}: {len(candidates)} candidates, {len(right)} compiled and right"
        )
        return right

    def best(self, candidates: Iterable[TileSizes], size: int) -> tuple[TileSizes, float] | None:
        """Return the fastest of checked candidates for square products of `size`, and its microseconds."""
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
        return self._microseconds(lambda: cuda.VENDOR.run(product), samples=5)

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

    def _ready(self, setting: TileSizes, a: Array, b: Array, out: Array) -> Callable[[], None]:
        """Return the product with these sizes, to be run; RuntimeError if they do not compile."""
        steps = self._launches(setting, (*out.shape, a.shape[1]))
        launch = PreparedCalls(steps, self._device, ARRAYS)
        arrays = a, b, out, out, self._cupy.empty(max(steps[0].sums, 1), out.dtype)
        stream = self._cupy.cuda.get_current_stream
        return lambda: launch(stream().ptr, *map(address, arrays))

    def _is_right(self, setting: TileSizes, a: Array, b: Array, want: Array, bound: Array) -> bool:
        out = self._cupy.full(want.shape, self._cupy.nan, a.dtype)
        try:
            self._ready(setting, a, b, out)()
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
            run = self._ready(setting, a, b, out)
        except RuntimeError:
            return math.inf
        return self._microseconds(run, samples)

    def _microseconds(self, run: Callable[[], None], samples: int) -> float:
        """Return the best of some replays of a graph of products."""
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
    path : the JSON file to write; what it already holds of other GPUs, dtypes and sizes stays
    seconds : time for each rung of each dtype
    say : hears what happens

    Returns
    -------
    The whole table as it was written.
    """
    table: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    lines_of = table.setdefault(cuda.device_name(), {})
    for dtype in dtypes:
        for rung in (BY_NAME[name] for name in (LAST[dtype], "tuned")):
            if dtype not in rung.dtypes:
                continue
            search = TileSearch(rung, dtype, seconds, say)
            checked = search.prepare(list(rung.candidates(dtype)))
            for size in settings.SIZES:
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
