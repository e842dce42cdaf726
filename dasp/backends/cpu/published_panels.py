"""The published format by several columns on a CPU: rows of X, and of sums, in vector registers.

As in `dasp.formats.sell.cpu.panels`, an entry meets a run of neighbouring numbers, a row of X, and the sums
of a panel of columns stay in registers. Eight sums grow beside each other, because one alone would wait for
itself: those of the eight rows of a row block, or of eight neighbouring slots of a long row.

Sums are added in the order of the product by a vector, so that a column's bits are those of that product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

from dasp.formats.dasp.pattern import HALF_WARP, LONG_UNIT, TILE, TILE_COLUMNS, TILE_ROWS
from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.panels import (
    SUMS_BYTES,
    Rows,
    add_neighbours,
    at,
    bytes_of_real,
    copy_row,
    place_for_sums,
    scale_row,
    update_row,
)
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import I64
from dasp.runtime.cpu.terms import data_of, parts_at

intrinsic: Any = _intrinsic


class Functions(NamedTuple):
    """The compiled functions of one width of a panel, each for items `first` to `last` of a part.

    Attributes
    ----------
    segments, medium, short : callable
        Of long rows; of medium rows; of rows that lie in `width` slots each, or in two pieces of those.
    """

    segments: Callable[..., None]
    medium: Callable[..., None]
    short: Callable[..., None]


class _Slots:
    """Emits what slots add to rows of sums.

    Parameters
    ----------
    builder : LLVM's
    rows : Rows
    kind : numba type
        Of a value; see `parts_at`.
    columns, values, x : LLVM pointers
    row : LLVM value
        Numbers from a row of X to the next.
    """

    def __init__(self, builder: ir.IRBuilder, rows: Rows, kind: Any, *arrays: ir.Value) -> None:
        self.builder, self.rows, self.kind = builder, rows, kind
        self.columns, self.values, self.x, self.row = arrays
        whole = rows.parts == 1 or isinstance(self.x.type.pointee, ir.BaseStructType)
        self.of_x = rows.kind if whole else ir.VectorType(rows.real, rows.kind.count // 2)

    def column(self, slot: ir.Value) -> ir.Value:
        """The column of a slot, negative for a pad."""
        column = self.builder.load(self.builder.gep(self.columns, [slot]))
        return column if column.type == I64 else self.builder.sext(column, I64)

    def is_entry(self, slot: ir.Value) -> ir.Value:
        """Whether a slot is no pad."""
        return self.builder.icmp_signed(">=", self.column(slot), ir.Constant(I64, 0))

    def add(self, slot: ir.Value, before: ir.Value, masked: bool) -> ir.Value:
        """The sums with a slot's products added; `masked` if it may be a pad, which then reads row 0 of X."""
        builder, column = self.builder, self.column(slot)
        parts = parts_at(builder, self.kind, builder.gep(self.values, [slot]), self.rows.real)
        if masked:
            entry = builder.icmp_signed(">=", column, ir.Constant(I64, 0))
            column = builder.select(entry, column, ir.Constant(I64, 0))
        place = builder.gep(self.x, [builder.mul(column, self.row)])
        x = builder.load(builder.bitcast(place, self.of_x.as_pointer()), align=bytes_of_real(self.rows.real))
        total = self.rows.multiply_add([self.rows.spread(part) for part in parts], x, before)
        return builder.select(entry, total, before) if masked else total


def _slots_of(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> _Slots:
    """Return what emits the slots of an intrinsic: panel, sums, ..., columns, values, x, row."""
    panel, (_, sums, *_, columns, values, x, row) = signature.args[0], arguments
    arrays = (
        data_of(context, builder, *pair)
        for pair in zip(signature.args[-4:-2], (columns, values), strict=True)
    )
    rows = Rows(builder, sums.type.pointee, int(panel.literal_value))
    return _Slots(builder, rows, signature.args[-3].dtype, *arrays, x, row)


@intrinsic
def _pointer(typing_context, array):  # type: ignore[no-untyped-def]
    """Return a pointer to the first number of an array."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return data_of(context, builder, array, arguments[0])

    return types.CPointer(array.dtype)(array), generate


@intrinsic(prefer_literal=True)
def _sum_tiles(typing_context, panel, sums, first, last, columns, values, x, row):  # type: ignore[no-untyped-def]
    """Set `sums` to what each of eight rows adds up over tiles `first` to `last` in a panel of columns."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, sums, first, last, *_ = arguments
        slots = _slots_of(context, builder, signature, arguments)

        def add_tile(tile: ir.Value, mine: range, totals: list[ir.Value], masked: bool) -> None:
            for column in range(TILE_COLUMNS):
                for number, total in zip(mine, totals, strict=True):
                    slot = builder.add(
                        builder.mul(tile, ir.Constant(I64, TILE)),
                        ir.Constant(I64, TILE_COLUMNS * number + column),
                    )
                    builder.store(slots.add(slot, builder.load(total), masked), total)

        def add_tiles(mine: range, totals: list[ir.Value]) -> None:
            with cgutils.for_range(builder, last, first) as loop:
                end = builder.mul(builder.add(loop.index, ir.Constant(I64, 1)), ir.Constant(I64, TILE))
                # Rows never get longer inside a block: the last slot tells of all.
                full = slots.is_entry(builder.sub(end, ir.Constant(I64, 1)))
                with builder.if_else(full) as (whole, other):
                    with whole:
                        add_tile(loop.index, mine, totals, False)
                    with other:
                        add_tile(loop.index, mine, totals, True)

        _in_groups(builder, slots.rows, sums, add_tiles)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(panel, sums, whole, whole, columns, values, x, whole), generate


@intrinsic(prefer_literal=True)
def _sum_eighths(typing_context, panel, sums, first, last, columns, values, x, row):  # type: ignore[no-untyped-def]
    """Set row r of `sums` to what every eighth of slots `first` to `last` adds up, from the r-th on."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, sums, first, last, *_ = arguments
        slots = _slots_of(context, builder, signature, arguments)

        def add_slots(mine: range, totals: list[ir.Value]) -> None:
            with cgutils.for_range_slice(builder, first, last, ir.Constant(I64, TILE_ROWS)) as (start, _):
                for number, total in zip(mine, totals, strict=True):
                    slot = builder.add(start, ir.Constant(I64, number))
                    builder.store(slots.add(slot, builder.load(total), False), total)

        _in_groups(builder, slots.rows, sums, add_slots)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(panel, sums, whole, whole, columns, values, x, whole), generate


def _in_groups(
    builder: ir.IRBuilder, rows: Rows, sums: ir.Value, emit: Callable[[range, list[ir.Value]], None]
) -> None:
    """Emit `emit` for as many of eight rows of sums at a time as registers hold; they start at 0."""
    together = min(TILE_ROWS, SUMS_BYTES // (rows.kind.count * bytes_of_real(rows.real)))
    zero = ir.Constant(rows.kind, [0.0] * rows.kind.count)
    for first in range(0, TILE_ROWS, together):
        mine = range(first, first + together)
        totals = [cgutils.alloca_once(builder, rows.kind) for _ in mine]  # which become registers
        for total in totals:
            builder.store(zero, total)
        emit(mine, totals)
        for number, total in zip(mine, totals, strict=True):
            place = ir.Constant(I64, number * (rows.kind.count // rows.parts))
            rows.store(builder.load(total), builder.gep(sums, [place]))


@intrinsic(prefer_literal=True)
def _add_run(typing_context, panel, sums, fresh, first, last, columns, values, x, row):  # type: ignore[no-untyped-def]
    """Add slots `first` to `last`, of which some may be pads, to a row of sums, or to 0 if it is `fresh`."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, sums, _, first, last, *_ = arguments
        slots = _slots_of(context, builder, signature, arguments)
        rows = slots.rows
        zero = ir.Constant(rows.kind, [0.0] * rows.kind.count)
        total = cgutils.alloca_once(builder, rows.kind)
        builder.store(zero if fresh.literal_value else rows.load(sums), total)
        with cgutils.for_range(builder, last, first) as loop:
            builder.store(slots.add(loop.index, builder.load(total), True), total)
        rows.store(builder.load(total), sums)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(panel, sums, fresh, whole, whole, columns, values, x, whole), generate


@jit(nogil=True, forceinline=True)
def _store(panel, sums, alpha, beta, done, y):  # type: ignore[no-untyped-def]
    if beta == 0 and done == 0:
        scale_row(panel, sums, alpha, y)
    else:
        update_row(panel, sums, alpha, beta, done, y)


def _segments_of(panel: int) -> Callable[..., None]:
    """Return what sums segments of long rows, to be compiled."""

    def _sum_segments(  # type: ignore[no-untyped-def]
        first, last, segment, offsets, segment_offsets, segment_rows, columns, values,
        done, partials, x, y, x_row, y_row, alpha, beta,
    ):  # fmt: skip
        sums = place_for_sums(_pointer(partials), panel)
        for s in range(first, last):
            row = segment_rows[s]
            begin = np.int64(offsets[row] + (s - segment_offsets[row]) * segment)
            end = min(begin + segment, np.int64(offsets[row + 1]))
            pads_from = end if columns[end - 1] >= 0 else end - LONG_UNIT
            _sum_eighths(panel, sums, begin, pads_from, columns, values, _pointer(x), x_row)
            _add_run(panel, sums, 0, pads_from, end, columns, values, _pointer(x), x_row)
            add_neighbours(panel, sums, 4)
            add_neighbours(panel, sums, 2)
            add_neighbours(panel, sums, 1)
            copy_row(panel, sums, at(_pointer(partials), s * panel))

    return _sum_segments


def _medium_of(panel: int) -> Callable[..., None]:
    """Return what multiplies row blocks of medium rows, to be compiled."""

    def _multiply_medium(  # type: ignore[no-untyped-def]
        first, last, rows, tile_offsets, columns, values, tail_offsets, tail_columns, tail_values,
        done, partials, x, y, x_row, y_row, alpha, beta,
    ):  # fmt: skip
        sums = place_for_sums(_pointer(partials), panel)
        for block in range(first, last):
            begin, end = np.int64(tile_offsets[block]), np.int64(tile_offsets[block + 1])
            _sum_tiles(panel, sums, begin, end, columns, values, _pointer(x), x_row)
            row = TILE_ROWS * block
            if tail_offsets[row] != tail_offsets[row + TILE_ROWS]:
                for r in range(TILE_ROWS):
                    begin, end = np.int64(tail_offsets[row + r]), np.int64(tail_offsets[row + r + 1])
                    mine = at(sums, r * panel)
                    _add_run(panel, mine, 0, begin, end, tail_columns, tail_values, _pointer(x), x_row)
            for r in range(TILE_ROWS):
                if rows[row + r] >= 0:
                    _store(
                        panel, at(sums, r * panel), alpha, beta, done, at(_pointer(y), rows[row + r] * y_row)
                    )

    return _multiply_medium


def _short_of(panel: int) -> Callable[..., None]:
    """Return what multiplies rows of `width` slots, or of `split` and the rest, to be compiled."""

    def _multiply_short(  # type: ignore[no-untyped-def]
        first, last, rows, columns, values, split, width,
        done, partials, x, y, x_row, y_row, alpha, beta,
    ):  # fmt: skip
        sums = place_for_sums(_pointer(partials), panel)
        for tile_row in range(first, last):
            slot, place = width * tile_row, tile_row
            if split < width:
                # A warp lists its 16 first rows before the second ones.
                place = WARP * (tile_row // HALF_WARP) + tile_row % HALF_WARP
                if rows[place + HALF_WARP] >= 0:
                    _add_run(panel, sums, 1, slot + split, slot + width, columns, values, _pointer(x), x_row)
                    target = at(_pointer(y), rows[place + HALF_WARP] * y_row)
                    _store(panel, sums, alpha, beta, done, target)
            if rows[place] >= 0:
                _add_run(panel, sums, 1, slot, slot + split, columns, values, _pointer(x), x_row)
                _store(panel, sums, alpha, beta, done, at(_pointer(y), rows[place] * y_row))

    return _multiply_short


@functools.cache
def functions_of(panel: int) -> Functions:
    """Return the functions for panels of so many columns.

    Each takes first and last, the arrays of its part, how many leading columns are done before, the sums of
    segments, X and Y from the panel's first column on as vectors, the numbers from one row to the next of
    both, and alpha and beta.
    """
    made = (function_of(panel) for function_of in (_segments_of, _medium_of, _short_of))
    return Functions(*(jit(nogil=True)(function) for function in made))
