"""Slices on the CPU: whole runs of slices for each thread of the team, the 32 lanes in vector registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats import product_cpu
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cpu.column_blocks import ColumnRange, cut_columns, product_of_columns, span_of
from dasp.formats.sell.cpu.slices import product_of_slices
from dasp.formats.sell.cpu.unpack import diagonal
from dasp.formats.sell.pattern import Coding, shape_fields
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.emitter import store_long
from dasp.runtime.cpu.halves import bits_of_halves
from dasp.runtime.cpu.job import CHUNKS, Job
from dasp.runtime.cpu.team import multiply_alone, team
from dasp.runtime.dtypes import TABLE, sum_type
from dasp.runtime.types import Number

Vector = np.ndarray[Any, Any]

SLICE_STEPS = 3
"""Cost of finding, reducing and storing a slice, in steps."""

SLOT_SECONDS = 3e-10
"""Seconds that a slot of a slice in the cache takes, about."""

COLUMNS_AT_ONCE = 4
"""Columns that take about as long together as a vector does."""

LEAST_SECONDS = 4e-6
"""A product that takes less is left to one thread."""

_NO_PARTIALS = {sum_type(row.dtype): np.empty(0, row.sum) for row in TABLE.values()}


class SellCpuProduct(product_cpu.CpuProduct):
    """A plan of slices, ready for a team of threads."""

    several = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        pattern, values = plan.pattern, plan.values
        steps = shape_fields(pattern.headers[:, 3].astype(np.int64))[0]
        self._pattern, self._values = pattern, values
        table = values.table if len(values.table) else np.zeros(1, plan.dtype)
        # Numba knows no numbers in half precision; a table of them is small.
        self._table = table.astype(np.float32) if plan.dtype.itemsize == 2 else table
        self._costs = np.concatenate([[0], np.cumsum(WARP * (steps + SLICE_STEPS))])
        self._seconds = SLOT_SECONDS * int(self._costs[-1])
        self._is_tiny = not pattern.segments and self._seconds <= LEAST_SECONDS
        self._jobs: dict[tuple[Any, ...], Job] = {}

    def follow(self) -> None:
        """Take over values that were written into the plan: the table of half precisions is a copy."""
        table = self._values.table
        if table.dtype != self._table.dtype:
            self._table[: len(table)] = table

    def diagonal(self, k: int) -> Vector | None:
        """Return the k-th diagonal in the type of sums; None if an entry of it occurs twice."""
        return diagonal(self.plan, k)

    def multiply_vector(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set y = alpha A x + beta y, for contiguous vectors, x read-only, of types of sums that fit."""
        if self._is_tiny:
            # Without the team, for the sake of matrices whose product takes a few microseconds.
            job = self._jobs.get((1, x.dtype, y.dtype)) or self._prepare(1, x.dtype, y.dtype)
            multiply_alone(job, _NO_PARTIALS[y.dtype], x, y, alpha, beta)
            return
        pattern, shared = self._pattern, team()
        partials = np.empty(pattern.segments, y.dtype)
        parts = min(_threads.get_num_threads(), shared.most) if self._seconds > LEAST_SECONDS else 1
        job = self._jobs.get((parts, x.dtype, y.dtype)) or self._prepare(parts, x.dtype, y.dtype)
        shared.multiply(parts, job, self._seconds, partials, x, y, alpha, beta)
        self._store_long(partials[:, None], 0, y[:, None], alpha, beta)

    def multiply_rows(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set Y = alpha A X + beta Y; see `dasp.formats.product_cpu.CpuProduct.multiply_rows`."""
        spans = span_of(x), span_of(y)
        for block in cut_columns(y.shape[1], y.itemsize):
            self._multiply_block(block, (x, y), spans, alpha, beta)

    def _multiply_block(
        self,
        block: ColumnRange,
        arrays: tuple[Vector, Vector],
        spans: tuple[Vector, Vector],
        alpha: Number,
        beta: Number,
    ) -> None:
        """Multiply by a block of X's columns, and leave those that are done."""
        (x, y), shared = arrays, team()
        seconds = self._seconds * block.columns / COLUMNS_AT_ONCE
        parts = min(_threads.get_num_threads(), shared.most) if seconds > LEAST_SECONDS else 1
        rest = y.shape[1] - block.begin - block.columns
        mine = [span[block.begin : len(span) - rest] for span in spans]
        key = parts, x.dtype, y.dtype, *block[1:], x.strides[0], y.strides[0]
        job = self._jobs.get(key) or self._prepare_block(key, [len(span) for span in mine])
        partials = np.empty((self._pattern.segments, block.columns), y.dtype)
        shared.multiply(parts, job, seconds, partials.reshape(-1), *mine, alpha, beta)
        if self._pattern.segments:
            columns = y[:, block.begin : block.begin + block.columns]
            self._store_long(partials, block.done, columns, alpha, beta)

    def _store_long(self, partials: Vector, done: int, y: Vector, alpha: Number, beta: Number) -> None:
        """Set the rows that come in segments."""
        pattern = self._pattern
        if pattern.segments:
            store_long(pattern.long_rows, pattern.segment_offsets, partials, done, y, alpha, beta)

    def _prepare(self, parts: int, x: np.dtype[Any], total: np.dtype[Any]) -> Job:
        """Compile and keep the job that so many parts make with x and sums of these types."""
        pattern = self._pattern
        job = self._jobs[parts, x, total] = Job(
            product_of_slices(*self._types(), x, total),
            self._cuts(parts),
            (pattern.segments, *reversed(self.plan.shape)),
            **self._arrays(),
            positions=pattern.positions,
            segments=pattern.segments,
        )
        return job

    def _prepare_block(self, key: tuple[Any, ...], sizes: list[int]) -> Job:
        """Compile and keep the job for `parts` threads, a column block, two types, and strides of rows."""
        pattern, (parts, x, total, columns, done, *strides) = self._pattern, key
        apart = (stride // kind.itemsize for stride, kind in zip(strides, (x, total), strict=True))
        job = self._jobs[key] = Job(
            product_of_columns(columns, *self._types(), x, total),
            self._cuts(parts),
            (columns * pattern.segments, *sizes),
            **self._arrays(),
            counts=np.array([pattern.positions, pattern.segments, *apart], np.int64),
            done=done,
        )
        return job

    def _cuts(self, parts: int) -> Vector:
        """Return the slices at which the chunks of so many parts begin and end."""
        goals = self._costs[-1] * np.arange(CHUNKS * parts + 1) / (CHUNKS * parts)
        cuts: Vector = np.searchsorted(self._costs, goals).astype(np.int64)
        return cuts

    def _types(self) -> tuple[Any, ...]:
        """Return the types of the plan that its functions are compiled for."""
        coded = None if self._values.coding == Coding.EQUAL else bits_of_halves(self._values.codes).dtype
        return coded, self._table.dtype, self._pattern.index_dtype

    def _arrays(self) -> dict[str, Vector]:
        """Return the plan's arrays that the compiled functions read."""
        pattern = self._pattern
        return {
            "headers": pattern.headers,
            "bases": pattern.bases,
            "deltas": pattern.deltas,
            "values": bits_of_halves(self._values.codes),
            "table": self._table,
            "rows": pattern.rows,
        }
