"""The plan on the CPU: one compiled function per part, run by several threads.

Where is a row multiplied? In a slice: sliced.py. In the published format, by its length: long rows
in `_sum_segments`, then `_store_long`; medium rows in `_multiply_medium`; rows of 1 to 4 in `_multiply_13`,
`_multiply_22`, `_multiply_fours` and `_multiply_singles`. Each function works on a range of its part, so
that threads can share a part, and every sum has one fixed order, so that the result does not depend on
their number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

from dasp import _check, _threads
from dasp._compile import jit
from dasp.backends.cpu.sliced import product_of_slices
from dasp.backends.cpu.team import CHUNKS, multiply_alone, team
from dasp.plan import (
    GROUP,
    MAX_SHORT,
    STEPS_MASK,
    TILE,
    TILE_COLUMNS,
    TILE_ROWS,
    WARP,
    Coding,
    Plan,
    plain_values,
)

Vector = np.ndarray[Any, Any]
HALF_WARP = WARP // 2

SERIAL_SLOTS = 150_000
"""Below this many slots, waking a second thread costs more than it saves."""

SLICE_STEPS = 3
"""What finding, reducing and storing a slice costs, in steps."""

SLOT_SECONDS = 3e-10
"""What a slot of a slice costs in the cache, about."""

LEAST_SECONDS = 4e-6
"""A product that takes less is left to one thread."""

ROW_SLOTS = 2
"""What finding, reducing and storing one row costs, in slots; used to share rows among threads."""


_NO_PARTIALS = {np.dtype(real): np.empty(0, real) for real in (np.float32, np.float64)}


def as_operand(x: Any, device: str) -> Vector:
    """Return x as a NumPy array.

    Raises
    ------
    TypeError
        If x is a GPU array, a sparse matrix, or not made of numbers.
    """
    if hasattr(x, "__cuda_array_interface__"):
        raise TypeError("x is on a GPU and A on the CPU; use A.to_device('cuda') or pass x.get()")
    if scipy.sparse.issparse(x):
        raise TypeError(f"x is a sparse {type(x).__name__}; a dense vector is needed; pass x.toarray()")
    return np.asarray(x)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Vector:
    """Return a new array for a result, columns contiguous."""
    return np.empty(shape, dtype, order="F")


def check_out(out: Any, x: Vector, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> None:
    """Hold that `out` is a NumPy array for this result that does not overlap x.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__} and A is on the CPU; a numpy.ndarray is needed")
    _check.out(out, shape, dtype)
    if not out.flags.writeable:
        raise ValueError("out is read-only; a writable array is needed")
    if np.may_share_memory(out, x):
        raise ValueError("out overlaps x; pass another array")


def to_host(plan: Plan) -> Plan:
    """Return the plan with NumPy arrays: itself."""
    return plan


def linear_operator(matrix: Any) -> Any:
    """Return a SciPy LinearOperator that multiplies by `matrix`."""
    from scipy.sparse.linalg import LinearOperator

    class PlannedOperator(LinearOperator):  # type: ignore[misc]
        """A planned matrix as SciPy's solvers take it."""

        def __init__(self) -> None:
            super().__init__(matrix.dtype, matrix.shape)

        def _matvec(self, x: Vector) -> Vector:
            return np.asarray(matrix.matvec(x))

        def _matmat(self, X: Vector) -> Vector:
            return np.asarray(matrix.matvec(X))

    return PlannedOperator()


class Product:
    """A plan, ready to be multiplied by vectors on the CPU.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.
    """

    def __init__(self, plan: Plan, device: str = "cpu") -> None:
        self.plan = plan
        self._slices = _Slices(plan)
        self._steps = _steps(plan)
        self._work = sum(int(step.costs[-1]) for step in self._steps)
        slices, long = plan.slices, plan.long
        self._segments = slices.segments + len(long.segment_rows)
        self._long_rows = (
            (slices.long_rows, slices.segment_offsets)
            if slices.segments
            else (long.rows, long.segment_offsets)
        )
        self._is_tiny = not self._segments and not self._steps and 0 < self._slices.seconds <= LEAST_SECONDS
        self._shares: dict[int, list[list[tuple[Any, ...]]]] = {}
        self._x_shape, self._m, self._dtype = (plan.shape[1],), plan.shape[0], plan.dtype
        self._one, self._zero = plan.dtype.type(1), plan.dtype.type(0)

    def quick(self, x: Any, out: Any = None) -> Vector | None:
        """Return A x if x and out are the plainest of vectors, else None; for the sake of small matrices."""
        if not _is_plain(x, self._x_shape, self._dtype):
            return None
        if out is None:
            out = np.empty(self._m, self._dtype)
        elif not _is_plain(out, (self._m,), self._dtype) or np.may_share_memory(out, x):
            return None
        if self._is_tiny:
            self._slices.multiply_alone(_NO_PARTIALS[self._dtype], _read_only(x), out, self._one, self._zero)
        else:
            self._multiply(_read_only(x), out, self._one, self._zero)
        result: Vector = out
        return result

    def __call__(self, x: Vector, y: Vector, alpha: float, beta: float) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0.

        Parameters
        ----------
        x : numpy.ndarray, shape (n,)
            Any real type that y's type holds.
        y : numpy.ndarray, shape (m,), float32 or float64
            Not overlapping x.
        alpha, beta : float
        """
        vector = x if x.dtype == y.dtype and x.flags.c_contiguous and x.flags.aligned else None
        vector = _read_only(np.require(x, y.dtype, ["C", "A"]) if vector is None else vector)
        result = y if y.flags.carray else np.require(y, None, ["C", "A"])
        self._multiply(vector, result, y.dtype.type(alpha), y.dtype.type(beta))
        if result is not y:
            y[:] = result

    def _multiply(self, *scale: Any) -> None:
        partials = np.empty(self._segments, scale[0].dtype)
        if self._slices.count:
            self._slices.multiply(partials, *scale)
        if self._steps:
            self._multiply_steps(partials, *scale)
        if self._segments:
            _store_long(*self._long_rows, partials, *scale)

    def _multiply_steps(self, partials: Vector, *scale: Any) -> None:
        threads = _threads.get_num_threads() if self._work >= SERIAL_SLOTS else 1
        shares = self._shares.get(threads) or self._share(threads)
        if threads == 1:
            _run_share(shares[0], scale, partials)
        else:
            _threads.run([partial(_run_share, share, scale, partials) for share in shares])

    def _share(self, threads: int) -> list[list[tuple[Any, ...]]]:
        """Find, for each thread, the calls (function, arrays, first, last) it makes, and keep them."""
        shares: list[list[tuple[Any, ...]]] = [[] for _ in range(threads)]
        for step in self._steps:
            goals = step.costs[-1] * np.arange(threads + 1) / threads
            cuts = np.searchsorted(step.costs, goals)
            for share, first, last in zip(shares, cuts[:-1], cuts[1:], strict=True):
                if first < last:
                    share.append((step.function, step.arrays, int(first), int(last)))
        self._shares[threads] = shares
        return shares


class _Slices:
    """The slices of a plan, ready for a team of threads."""

    def __init__(self, plan: Plan) -> None:
        part = plan.slices
        steps = (part.headers[:, 3] & STEPS_MASK).astype(np.int64)
        self.count = len(steps)
        self._part = part
        self._table = part.table if len(part.table) else np.zeros(1, plan.dtype)
        self._costs = np.concatenate([[0], np.cumsum(WARP * (steps + SLICE_STEPS))])
        self.seconds = SLOT_SECONDS * int(self._costs[-1])
        self._jobs: dict[tuple[int, Any], tuple[Vector, Vector]] = {}

    def multiply(self, partials: Vector, x: Vector, y: Vector, alpha: Any, beta: Any) -> None:
        """Set the rows of y that lie in whole slices, and the partials of segments."""
        crew = team()
        parts = min(_threads.get_num_threads(), crew.most) if self.seconds > LEAST_SECONDS else 1
        job, _ = self._jobs.get((parts, x.dtype)) or self._prepare(parts, x.dtype)
        crew.multiply(parts, job, self.seconds, partials, x, y, alpha, beta)

    def multiply_alone(self, partials: Vector, x: Vector, *others: Any) -> None:
        """Do the same without the team, for the sake of matrices whose product takes a few microseconds."""
        job, _ = self._jobs.get((1, x.dtype)) or self._prepare(1, x.dtype)
        multiply_alone(job, partials, x, *others)

    def _prepare(self, parts: int, real: np.dtype[Any]) -> tuple[Vector, Vector]:
        """Compile and keep the job that so many parts make with x of this type, and its cuts."""
        part = self._part
        coded = None if part.coding == Coding.EQUAL else plain_values(part).dtype
        goals = self._costs[-1] * np.arange(CHUNKS * parts + 1) / (CHUNKS * parts)
        cuts = np.searchsorted(self._costs, goals).astype(np.int64)
        function = product_of_slices(coded, self._table.dtype, part.bases.dtype, real)
        arrays = (cuts, part.headers, part.bases, part.deltas, part.values, self._table, part.rows)
        words = [array.ctypes.data if len(array) else 0 for array in arrays]
        job = np.array([function.address, self.count, *words, part.positions, part.segments], np.int64)
        self._jobs[parts, real] = job, cuts
        return job, cuts


class _Step:
    """A function of one part, its arrays, and the rising cost of its items in slots, from 0."""

    def __init__(self, function: Callable[..., None], arrays: tuple[Any, ...], costs: Vector) -> None:
        self.function = function
        self.arrays = arrays
        self.costs = costs


def _is_plain(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether this is a writable NumPy array, aligned and contiguous, of just this shape and type."""
    plain: bool = (
        type(array) is np.ndarray and array.dtype is dtype and array.shape == shape and array.flags.carray
    )
    return plain


def _read_only(x: Vector) -> Vector:
    """Return a view that is read-only, whatever x is, so that one compiled form serves all callers."""
    view = x.view()
    view.flags.writeable = False
    return view


def _run_share(share: list[tuple[Any, ...]], scale: tuple[Any, ...], partials: Vector) -> None:
    for function, arrays, first, last in share:
        function(first, last, *arrays, partials, *scale)


def _steps(plan: Plan) -> list[_Step]:
    """Return the functions that a product calls; parts without rows have none."""
    long, medium, short = plan.long, plan.medium, plan.short
    regular, irregular = medium.regular, medium.irregular
    block_costs = TILE * regular.offsets.astype(np.int64) + irregular.offsets[::TILE_ROWS]
    block_costs += TILE_ROWS * ROW_SLOTS * np.arange(len(block_costs))
    row_cuts = np.cumsum([2 * short.pairs_13, 2 * short.pairs_22, short.fours])
    slot_cuts = TILE_COLUMNS * np.cumsum([short.pairs_13, short.pairs_22, short.fours])
    pairs_13, pairs_22, fours, singles = zip(
        np.split(short.rows, row_cuts),
        np.split(short.columns, slot_cuts),
        np.split(short.values, slot_cuts),
        strict=True,
    )

    def even(count: int, cost: int) -> Vector:
        return cost * np.arange(count + 1)

    steps = [
        _Step(
            _sum_segments,
            (long.segment, long.offsets, long.segment_offsets, long.segment_rows, long.columns, long.values),
            even(len(long.segment_rows), long.segment),
        ),
        _Step(
            _multiply_medium,
            (
                medium.rows,
                regular.offsets,
                regular.columns,
                regular.values,
                irregular.offsets,
                irregular.columns,
                irregular.values,
            ),
            block_costs,
        ),
        _Step(_multiply_13, pairs_13, even(short.pairs_13, TILE_COLUMNS + 2 * ROW_SLOTS)),
        _Step(_multiply_22, pairs_22, even(short.pairs_22, TILE_COLUMNS + 2 * ROW_SLOTS)),
        _Step(_multiply_fours, fours, even(short.fours, TILE_COLUMNS + ROW_SLOTS)),
        _Step(_multiply_singles, singles, even(short.singles, 1 + ROW_SLOTS)),
        _Step(_clear_rows, (plan.empty_rows,), even(len(plan.empty_rows), 1)),
    ]
    return [step for step in steps if step.costs[-1] > 0]


# Products may fuse a multiplication and an addition into one rounding, and nothing else: sums keep
# their order, and NaN and Inf their meaning.
_compile = jit(nogil=True, fastmath={"contract"})
_inline = jit(nogil=True, fastmath={"contract"}, forceinline=True)


@_inline
def _term(columns, values, slot, x):  # type: ignore[no-untyped-def]
    # Unsigned positions, so that Numba does not look for those that count from the end.
    return values[np.uint64(slot)] * x[np.uint64(columns[np.uint64(slot)])]


@_inline
def _term_or_pad(columns, values, slot, x):  # type: ignore[no-untyped-def]
    if columns[np.uint64(slot)] < 0:
        return x.dtype.type(0)
    return _term(columns, values, slot, x)


@_inline
def _store(row, total, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    position = np.uint64(row)
    if beta == 0:
        y[position] = alpha * total
    else:
        y[position] = alpha * total + beta * y[position]


@_compile
def _sum_segments(  # type: ignore[no-untyped-def]
    first, last, segment, offsets, segment_offsets, segment_rows, columns, values, partials, x, y, alpha, beta
):
    for s in range(first, last):
        row = segment_rows[s]
        begin = offsets[row] + (s - segment_offsets[row]) * segment
        end = min(begin + segment, offsets[row + 1])
        pads_from = end if columns[end - 1] >= 0 else end - GROUP
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = x.dtype.type(0)
        for slot in range(begin, pads_from, 8):
            t0 += _term(columns, values, slot, x)
            t1 += _term(columns, values, slot + 1, x)
            t2 += _term(columns, values, slot + 2, x)
            t3 += _term(columns, values, slot + 3, x)
            t4 += _term(columns, values, slot + 4, x)
            t5 += _term(columns, values, slot + 5, x)
            t6 += _term(columns, values, slot + 6, x)
            t7 += _term(columns, values, slot + 7, x)
        for slot in range(pads_from, end):
            t0 += _term_or_pad(columns, values, slot, x)
        partials[s] = ((t0 + t1) + (t2 + t3)) + ((t4 + t5) + (t6 + t7))


@_compile
def _store_long(rows, segment_offsets, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(len(rows)):
        total = x.dtype.type(0)
        for s in range(segment_offsets[r], segment_offsets[r + 1]):
            total += partials[s]
        _store(rows[r], total, x, y, alpha, beta)


@_inline
def _tail(offsets, columns, values, row, x, total):  # type: ignore[no-untyped-def]
    for slot in range(offsets[np.uint64(row)], offsets[np.uint64(row + 1)]):
        total += _term(columns, values, slot, x)
    return total


@_compile
def _multiply_medium(  # type: ignore[no-untyped-def]
    first,
    last,
    rows,
    tile_offsets,
    columns,
    values,
    tail_offsets,
    tail_columns,
    tail_values,
    partials,
    x,
    y,
    alpha,
    beta,
):
    for block in range(first, last):
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = x.dtype.type(0)
        for tile in range(tile_offsets[block], tile_offsets[block + 1]):
            for slot in range(TILE * tile, TILE * tile + TILE_COLUMNS):
                # Rows never get longer inside a block: the last one tells of all, and so does the first.
                if columns[np.uint64(slot + TILE - TILE_COLUMNS)] >= 0:
                    t0 += _term(columns, values, slot, x)
                    t1 += _term(columns, values, slot + 4, x)
                    t2 += _term(columns, values, slot + 8, x)
                    t3 += _term(columns, values, slot + 12, x)
                    t4 += _term(columns, values, slot + 16, x)
                    t5 += _term(columns, values, slot + 20, x)
                    t6 += _term(columns, values, slot + 24, x)
                    t7 += _term(columns, values, slot + 28, x)
                elif columns[np.uint64(slot)] >= 0:
                    t0 += _term_or_pad(columns, values, slot, x)
                    t1 += _term_or_pad(columns, values, slot + 4, x)
                    t2 += _term_or_pad(columns, values, slot + 8, x)
                    t3 += _term_or_pad(columns, values, slot + 12, x)
                    t4 += _term_or_pad(columns, values, slot + 16, x)
                    t5 += _term_or_pad(columns, values, slot + 20, x)
                    t6 += _term_or_pad(columns, values, slot + 24, x)
        row = TILE_ROWS * block
        if tail_offsets[row] != tail_offsets[row + TILE_ROWS]:
            t0 = _tail(tail_offsets, tail_columns, tail_values, row, x, t0)
            t1 = _tail(tail_offsets, tail_columns, tail_values, row + 1, x, t1)
            t2 = _tail(tail_offsets, tail_columns, tail_values, row + 2, x, t2)
            t3 = _tail(tail_offsets, tail_columns, tail_values, row + 3, x, t3)
            t4 = _tail(tail_offsets, tail_columns, tail_values, row + 4, x, t4)
            t5 = _tail(tail_offsets, tail_columns, tail_values, row + 5, x, t5)
            t6 = _tail(tail_offsets, tail_columns, tail_values, row + 6, x, t6)
            t7 = _tail(tail_offsets, tail_columns, tail_values, row + 7, x, t7)
        for r, total in enumerate((t0, t1, t2, t3, t4, t5, t6, t7)):
            if rows[row + r] >= 0:
                _store(rows[row + r], total, x, y, alpha, beta)


@_compile
def _multiply_13(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    # A tile row holds a row of 1, then a row of 3; a warp lists its 16 rows of 1 before those of 3.
    for tile_row in range(first, last):
        slot = TILE_COLUMNS * tile_row
        place = WARP * (tile_row // HALF_WARP) + tile_row % HALF_WARP
        if rows[np.uint64(place)] >= 0:
            _store(rows[np.uint64(place)], _term(columns, values, slot, x), x, y, alpha, beta)
        if rows[np.uint64(place + HALF_WARP)] >= 0:
            total = (
                _term(columns, values, slot + 1, x)
                + _term(columns, values, slot + 2, x)
                + _term(columns, values, slot + 3, x)
            )
            _store(rows[np.uint64(place + HALF_WARP)], total, x, y, alpha, beta)


@_compile
def _multiply_22(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    # A tile row holds two rows of 2; a warp lists its 16 first ones before the second ones.
    for tile_row in range(first, last):
        slot = TILE_COLUMNS * tile_row
        place = WARP * (tile_row // HALF_WARP) + tile_row % HALF_WARP
        if rows[np.uint64(place)] >= 0:
            _store(
                rows[np.uint64(place)],
                _term(columns, values, slot, x) + _term(columns, values, slot + 1, x),
                x,
                y,
                alpha,
                beta,
            )
        if rows[np.uint64(place + HALF_WARP)] >= 0:
            total = _term(columns, values, slot + 2, x) + _term(columns, values, slot + 3, x)
            _store(rows[np.uint64(place + HALF_WARP)], total, x, y, alpha, beta)


@_compile
def _multiply_fours(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        if rows[r] >= 0:
            slot = TILE_COLUMNS * r
            total = x.dtype.type(0)
            for k in range(MAX_SHORT - 1):
                total += _term(columns, values, slot + k, x)
            total += _term_or_pad(columns, values, slot + MAX_SHORT - 1, x)
            _store(rows[r], total, x, y, alpha, beta)


@_compile
def _multiply_singles(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        _store(rows[r], _term(columns, values, r, x), x, y, alpha, beta)


@_compile
def _clear_rows(first, last, rows, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        _store(rows[r], x.dtype.type(0), x, y, alpha, beta)
