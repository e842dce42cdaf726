"""Slices on the CPU: whole runs of slices for each thread of the team, the 32 lanes in vector registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp import _threads
from dasp._dtypes import BFLOAT16, TABLE, sum_type
from dasp.backends.cpu.emitter import product_of_slices, store_long_complex
from dasp.backends.cpu.published import store_long
from dasp.backends.cpu.team import CHUNKS, Job, multiply_alone, team
from dasp.formats.array import WARP, Plan
from dasp.formats.sliced.pattern import Coding, Values, shape_fields

Vector = np.ndarray[Any, Any]

SLICE_STEPS = 3
"""What finding, reducing and storing a slice costs, in steps."""

SLOT_SECONDS = 3e-10
"""What a slot of a slice costs in the cache, about."""

LEAST_SECONDS = 4e-6
"""A product that takes less is left to one thread."""

_NO_PARTIALS = {sum_type(row.dtype): np.empty(0, row.sum) for row in TABLE.values()}


class Kernel:
    """A plan of slices, ready for a team of threads."""

    def __init__(self, plan: Plan) -> None:
        pattern, values = plan.pattern, plan.values
        steps = shape_fields(pattern.headers[:, 3].astype(np.int64))[0]
        self._pattern, self._values, self._shape = pattern, values, plan.shape
        table = values.table if len(values.table) else np.zeros(1, plan.dtype)
        # Numba knows no numbers in half precision; a table of them is small.
        self._table = table.astype(np.float32) if plan.dtype.itemsize == 2 else table
        self._costs = np.concatenate([[0], np.cumsum(WARP * (steps + SLICE_STEPS))])
        self._seconds = SLOT_SECONDS * int(self._costs[-1])
        self._is_tiny = not pattern.segments and self._seconds <= LEAST_SECONDS
        self._jobs: dict[tuple[int, Any, Any], Job] = {}

    def multiply(self, x: Vector, y: Vector, alpha: Any, beta: Any) -> None:
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
        if pattern.segments and y.dtype.kind == "c":
            store_long_complex(pattern.long_rows, pattern.segment_offsets, partials, y, alpha, beta)
        elif pattern.segments:
            store_long(pattern.long_rows, pattern.segment_offsets, partials, x, y, alpha, beta)

    def _prepare(self, parts: int, x: np.dtype[Any], total: np.dtype[Any]) -> Job:
        """Compile and keep the job that so many parts make with x and sums of these types."""
        pattern, values = self._pattern, self._values
        coded = None if values.coding == Coding.EQUAL else _plain_codes(values).dtype
        goals = self._costs[-1] * np.arange(CHUNKS * parts + 1) / (CHUNKS * parts)
        cuts = np.searchsorted(self._costs, goals).astype(np.int64)
        function = product_of_slices(coded, self._table.dtype, pattern.index_dtype, x, total)
        job = self._jobs[parts, x, total] = Job(
            function,
            cuts,
            (pattern.segments, *reversed(self._shape)),
            headers=pattern.headers,
            bases=pattern.bases,
            deltas=pattern.deltas,
            values=_plain_codes(values),
            table=self._table,
            rows=pattern.rows,
            positions=pattern.positions,
            segments=pattern.segments,
        )
        return job


def _plain_codes(values: Values) -> Vector:
    """Return the codes in a type that Numba knows: the bits of float16 unsigned, of bfloat16 signed."""
    codes: Vector = values.codes
    bits = {np.dtype(np.float16): np.uint16, BFLOAT16: np.int16}.get(codes.dtype)
    return codes if bits is None else codes.view(bits)
