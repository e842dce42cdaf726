"""What packing into slices is written in, on a GPU: kernels/pack/, launched on arrays of the device.

`dasp.backends.protocols.Primitives` says what each function returns. Nothing here names an array library:
arrays and launches are the device's, which is a GPU with CuPy or, in the tests, the emulator with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from dasp import _check
from dasp._dtypes import BFLOAT16, C_NAMES, bits_type
from dasp._integers import ceil_div
from dasp._launch import Signature
from dasp.backends.cuda import pack_kernels as kernels
from dasp.formats.array import WARP, Array, Csr, Plan, narrowest
from dasp.formats.sliced.choose import SliceStatistics, ValueStatistics
from dasp.formats.sliced.layout import Cut, Layout, Survey, Tried
from dasp.formats.sliced.pattern import MOST_CODES, MOST_WARPS, Coding, Pattern, Values, code_type

COUNT = np.dtype(np.uint64)

FACTS = (
    "falls",
    "descents",
    "row_descents",
    "long_rows",
    "segments",
    "segment_steps",
    "segment_full",
    "rises",
    "longest_whole",
    "longest",
    "end",
    "most_column",
    "least_column_not",
)
"""Numbers of a matrix, in the order of `Fact` in kernels/pack/survey.cu."""

BIAS, ALL_BITS = 1 << 63, (1 << 64) - 1
"""Added to a signed number so that it compares as an unsigned one; and what flips every bit."""

NOT_BYTES, NOT_DICTIONARY, NOT_HALVES, NOT_SINGLES, NOT_REAL = (1 << bit for bit in range(5))
"""What values are not: `Dead` in kernels/pack/values.cu."""

KINDS = {"f": 1, "V": 1, "c": 2}
"""Kinds of values, by those of NumPy's types: `DASP_KIND` in kernels/pack/values.cuh. bfloat16 is V."""

SLOTS = 1024
"""Slots of the table of distinct values."""

BLOCKS = 528
"""Most blocks of a launch whose threads go through an array a grid apart: four to a multiprocessor."""

SORT_TILE, DIGIT_BITS, CHUNK, CHUNKS = 8192, 6, 128, 64
"""Elements that a block sorts at once, by six bits of a key: kernels/pack/order.cuh."""

CUT_TILE, ENTRIES = 2048, 32
"""Positions that a block cuts, and those at which a chain of slices can enter them: kernels/pack/cut.cuh."""

PLACES, SHARED_SLOTS = 24, 8192
"""Places in a sample, and words of a table in shared memory: kernels/pack/sectors.cu."""

LONG_TILE, SLICE_TILE, RUN, ROW_TILE = 2048, 64, 1024, 2048
"""Rows, slices, entries and rows of a block in segments.cu, columns.cu, sort_columns.cu and unpack.cu."""

TOTALS, SAMPLED = 3, 4
"""Numbers of a candidate: kernels/pack/candidates.cuh."""

ZEROS = 512
"""Zeroed words that a survey keeps for the steps after it: each fill of its own costs as much as a launch."""


ALWAYS = kernels.SURVEY, kernels.SORT_WINDOWS, kernels.CUT_TILES, kernels.COUNT_SECTORS, kernels.FILL_DELTAS
"""A kernel of each source that most matrices need and that knows their integers alone."""

Launches = Callable[[tuple[int, int], int, dict[str, Any]], None]
"""Launches a kernel: blocks of the grid along x and y, threads of a block, arguments by name."""


class Device(Protocol):
    """Arrays and launches; everything that is launched runs in order."""

    def empty(self, size: int, dtype: Any) -> Array:
        """Return a new array of any contents."""

    def zeros(self, size: int, dtype: Any) -> Array:
        """Return a new array of zeros."""

    def constant(self, numbers: tuple[int, ...]) -> Array:
        """Return an int64 array of these numbers that nobody writes to."""

    def reading(self, array: Array) -> Callable[[], np.ndarray[Any, Any]]:
        """Begin a copy to the host, of what was launched before; return what waits for it and returns it."""

    def kernel(
        self, signature: Signature, constants: Mapping[str, str], types: Mapping[str, np.dtype[Any]]
    ) -> Launches:
        """Return a compiled kernel; None among its arguments is a null pointer."""

    def load_all(self, wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Have sources compiled beside each other, each for some constants."""


class _Orders(NamedTuple):
    """Rows in the orders of several sort windows, and how they are cut.

    Attributes
    ----------
    windows : tuple of int
        0, or from 1 to m, rising, one for each candidate.
    arguments : dict
        What says to a kernel which row is at which position of each candidate.
    tiles : int
        Of an order.
    before : Array, shape (candidates * 2 * tiles,), uint64
        How the chain of slices comes to each tile.
    numbers : Array, shape (candidates * (TOTALS + SAMPLED),), uint64
        Slices, steps and full steps of every candidate; then what a sample of each reads.
    """

    windows: tuple[int, ...]
    arguments: dict[str, Any]
    tiles: int
    before: Array
    numbers: Array

    @property
    def totals(self) -> Array:
        """Slices, steps and full steps of every candidate."""
        return self.numbers[: TOTALS * len(self.windows)]


class _Found:
    """What a survey found and keeps.

    Attributes
    ----------
    facts : dict
        By name.
    distinct : Array or None
        The table of distinct values.
    long : tuple of Array, or None
        Rows too long for a slice, and the first segment of each, once they are listed.
    """

    def __init__(self, device: Device, facts: dict[str, int], distinct: Array | None, zeros: Array) -> None:
        self.facts, self.distinct = facts, distinct
        self.long: tuple[Array, Array] | None = None
        self._on, self._zeros, self._taken = device, zeros, 0

    def zeros(self, count: int) -> Array:
        """Return zeroed words that nobody else has."""
        first = self._taken
        if first + count > len(self._zeros):
            return self._on.zeros(count, COUNT)
        self._taken += count
        return self._zeros[first : first + count]


class _Pieces(NamedTuple):
    """Rows that are cut into segments; starts and lengths in the order in which segments are stored."""

    long_rows: Array
    offsets: Array
    rows: Array
    starts: Array | None
    lengths: Array | None


class _Placed(NamedTuple):
    """What a layout keeps for the steps that follow it."""

    pieces: _Pieces
    orders: _Orders


class Primitives:
    """The primitives of packing on one device.

    Parameters
    ----------
    device : Device
    """

    share, floor = 0.5, 8 << 20
    """Share of the bytes of a matrix, or bytes if more, in which windows are tried side by side."""

    def __init__(self, device: Device) -> None:
        self._on = device
        self._kernels: dict[Any, Launches] = {}
        self._readied: set[Any] = set()

    # ---- statistics ----------------------------------------------------------------------------------

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """See `Primitives`; also holds that the arrays are a matrix, as `dasp._check.compressed` does."""
        m, nnz = csr.shape[0], len(csr.indices)
        if csr.indptr.shape != (m + 1,):
            _check.compressed_facts("CSR", csr.shape, False, 0, (nnz, len(csr.data)), None)
        words = self._on.zeros(len(FACTS) + 2 + 2 * SLOTS + ZEROS, COUNT)
        arrays = {"indptr": csr.indptr, "indices": csr.indices, "m": m, "nnz": nnz}
        blocks = _share(max(m, nnz), 256, BLOCKS)
        self._launch(kernels.SURVEY, csr, blocks, 256, **arrays, **cut._asdict(), facts=words[: len(FACTS)])
        reading, values = self._on.reading(words[: len(FACTS)]), None
        if narrow and nnz and len(csr.data):
            self._count_values(csr.data, None, words[len(FACTS) : -ZEROS])
            values = self._statistics_of(len(csr.data), words[len(FACTS) : len(FACTS) + 2])
        facts = dict(zip(FACTS, reading().tolist(), strict=True))  # while the values are counted
        _hold(csr, facts)
        return Survey(
            columns_rise=facts["descents"] == facts["row_descents"],
            most_column=facts["most_column"] - BIAS if nnz else -1,
            values=values,
            long_rows=facts["long_rows"],
            rises=facts["rises"] > 0,
            detail=_Found(self._on, facts, words[len(FACTS) : -ZEROS] if values else None, words[-ZEROS:]),
        )

    def _statistics_of(self, count: int, facts: Array) -> Callable[[], ValueStatistics]:
        """Return what waits for the facts of values and returns what is asked of them."""
        reading = self._on.reading(facts)

        @cache
        def counted() -> ValueStatistics:
            return _value_statistics(count, *map(int, reading()))

        return counted

    def _count_values(self, data: Array, order: Array | None, words: Array) -> None:
        """Set facts of values, and the table of distinct ones; `words` are 0 before."""
        table = {"facts": words[:2], "claims": words[2 : 2 + SLOTS], "firsts": words[2 + SLOTS :]}
        blocks = _share(len(data), 1024, BLOCKS)
        self._launch_values(kernels.VALUE_FACTS, data, blocks, 256, order=order, count=len(data), **table)

    def sort_columns(self, csr: Csr, survey: Survey) -> tuple[Csr, Array]:
        """See `Primitives`: rows of up to 1024 entries in one pass, and then runs of 1024 merge by two."""
        nnz, rows = len(csr.indices), {"indptr": csr.indptr, "m": csr.shape[0]}
        kinds = {"to_columns": csr.indices.dtype, "to_order": narrowest(nnz)}
        to = {name: self._on.empty(nnz, kind) for name, kind in kinds.items()}
        blocks = ceil_div(nnz, RUN)
        self._launch(kernels.SORT_COLUMNS, csr, blocks, 256, indices=csr.indices, **rows, **to)
        width = RUN
        while width < survey.detail.facts["longest"]:
            runs = {"columns": to["to_columns"], "order": to["to_order"], "width": width, "nnz": nnz}
            to = {name: self._on.empty(nnz, kind) for name, kind in kinds.items()}
            self._launch(kernels.MERGE_COLUMNS, csr, blocks, 256, **rows, **runs, **to)
            width *= 2
        return csr._replace(indices=to["to_columns"]), to["to_order"]

    def try_windows(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        windows: tuple[int, ...],
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> Tried:
        """See `Primitives`; as many windows side by side as their share of the matrix's memory holds."""
        each = csr.shape[0] * (_index(csr).itemsize + 1)
        at_once = max(max(int(self.share * _bytes(csr)), self.floor) // max(each, 1), 1)
        found: dict[int, SliceStatistics] = {}
        orders = None
        for first in range(0, len(windows), at_once):
            orders = None  # gives its memory back before more is taken
            orders = self._cut_orders(csr, survey, cut, windows[first : first + at_once])
            sampled = orders.numbers[TOTALS * len(orders.windows) :]
            self._sample(csr, cut, orders, None, sector_columns, blocks, sampled)
            found |= _slice_statistics(orders.windows, self._on.reading(orders.numbers)())
        return Tried(found, orders)

    def slice_statistics(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        layout: Layout,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> SliceStatistics:
        """See `Primitives`."""
        counted = layout.slices, layout.steps, layout.full
        if not layout.slices or not any(blocks):
            return SliceStatistics(*counted, 0, 0, 0, 0)
        sampled = survey.detail.zeros(SAMPLED)
        self._sample(csr, cut, layout.detail.orders, layout, sector_columns, blocks, sampled)
        return SliceStatistics(*counted, *map(int, self._on.reading(sampled)()))

    def _sample(
        self,
        csr: Csr,
        cut: Cut,
        orders: _Orders,
        layout: Layout | None,
        sector_columns: int,
        blocks: tuple[int, int, int],
        sampled: Array,
    ) -> None:
        """Count the sectors that blocks of slices read, in all orders; of a layout with its segments too."""
        if not any(blocks):
            return
        segments = layout.segments if layout else 0
        longest = max(cut.steps, cut.segment_steps) if segments else cut.steps
        pieces = layout.detail.pieces if layout else _NO_PIECES
        entries = [min(size * WARP * longest, len(csr.indices)) for size in blocks]
        slots = [max(1 << (2 * count - 1).bit_length(), 64) if count else 0 for count in entries]
        units = sum(PLACES * ceil_div(MOST_WARPS, size) for size in blocks if size)
        tables, most = None, max(slots)
        if most > SHARED_SLOTS and csr.shape[1] // sector_columns >= 32 * SHARED_SLOTS:
            room = max(_bytes(csr) // 3, self.floor) // (4 * most * len(orders.windows))
            units = max(min(units, room), 1)
            tables = self._on.empty(units * most * len(orders.windows), np.uint32)
        self._launch(
            kernels.COUNT_SECTORS,
            csr,
            (units, len(orders.windows)),
            256,
            **orders.arguments,
            indices=csr.indices,
            steps=cut.steps,
            before=orders.before,
            segment_starts=pieces.starts,
            segment_lengths=pieces.lengths,
            segments=segments,
            sector_columns=sector_columns,
            by_slice=blocks[0],
            few=blocks[1],
            many=blocks[2],
            slots_by_slice=slots[0],
            slots_few=slots[1],
            slots_many=slots[2],
            totals=orders.totals,
            tables=tables,
            table_slots=most,
            sampled=sampled,
        )

    # ---- layout --------------------------------------------------------------------------------------

    def lay_out(
        self, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None, in_order: int
    ) -> Layout:
        """See `Primitives`."""
        m, facts = csr.shape[0], survey.detail.facts
        window, positions = min(window, m), m - survey.long_rows
        segments = facts["segments"]
        if tried and window in tried.detail.windows:
            orders = self._only(tried.detail, window)
            slices, steps, full = tried.statistics[window][:TOTALS]
        else:
            orders = self._cut_orders(csr, survey, cut, (window,))
            slices, steps, full = map(int, self._on.reading(orders.totals)())
        placed = None
        if tried and orders.arguments["rows"] is not None:  # which has more than these rows
            placed = self._on.empty(positions, _index(csr))
        headers = self._on.empty(4 * (segments + slices), np.uint32)
        pieces = self._cut_segments(csr, survey, cut, headers, sorts=segments + slices > in_order)
        if orders.tiles:
            chain = {"before": orders.before, "segments": segments, "segment_steps": facts["segment_steps"]}
            order = {"indptr": csr.indptr, "rows": orders.arguments["rows"], "positions": positions}
            made = {"headers": headers, "placed": placed}
            self._launch(
                kernels.CUT_HEADERS, csr, orders.tiles, 256, **order, **chain, **made, steps=cut.steps
            )
        if placed is not None:
            orders = orders._replace(arguments=orders.arguments | {"rows": placed})
        rows = orders.arguments["rows"]
        return Layout(
            positions=positions,
            segments=segments,
            slices=segments + slices,
            steps=facts["segment_steps"] + steps,
            full=facts["segment_full"] + full,
            rows=self._on.empty(0, _index(csr)) if rows is None else rows[:positions],
            headers=headers.reshape(-1, 4),
            long_rows=pieces.long_rows,
            segment_offsets=pieces.offsets,
            segment_rows=pieces.rows,
            detail=_Placed(pieces, orders),
        )

    def _only(self, orders: _Orders, window: int) -> _Orders:
        """Return one of several orders."""
        nth, m, rows = orders.windows.index(window), orders.arguments["stride"], orders.arguments["rows"]
        moves = rows is not None and (window or not orders.arguments["identity"])
        rows = rows[nth * m : (nth + 1) * m] if moves else None
        return orders._replace(
            windows=(window,),
            arguments=orders.arguments | self._windows((window,), m) | {"rows": rows},
            before=orders.before[2 * nth * orders.tiles : 2 * (nth + 1) * orders.tiles],
            numbers=orders.numbers[nth * TOTALS : (nth + 1) * TOTALS],
        )

    def _cut_orders(self, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...]) -> _Orders:
        """Sort rows in each of the windows, and cut them; nothing is read."""
        m, count = csr.shape[0], len(windows)
        arguments = {
            "indptr": csr.indptr,
            "rows": self._sort_rows(csr, survey, cut, windows),
            "stride": m,
            "positions": m - survey.long_rows,
            "identity": int(not survey.long_rows),
            **self._windows(windows, m),
        }
        tiles = ceil_div(arguments["positions"], CUT_TILE)
        numbers = survey.detail.zeros(count * (TOTALS + SAMPLED))
        orders = _Orders(windows, arguments, tiles, self._on.empty(2 * count * tiles, COUNT), numbers)
        if tiles:
            chain: dict[str, Any] = {
                "come": survey.detail.zeros(count),
                "passages": self._on.empty(count * tiles * ENTRIES, COUNT),
                "before": orders.before,
                "totals": orders.totals,
            }
            self._launch(kernels.CUT_TILES, csr, (tiles, count), 256, **arguments, **chain, steps=cut.steps)
        return orders

    def _windows(self, windows: tuple[int, ...], m: int) -> dict[str, Any]:
        """Return the arguments that say how wide the windows are; one of all rows goes unsaid."""
        narrower = tuple(window for window in windows if window < m)
        return {"windows": self._on.constant(narrower), "window_count": len(narrower)}

    def _sort_rows(self, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...]) -> Array | None:
        """Return the rows in slices in the order of each window, m apart; None if no row moves."""
        m, long_count = csr.shape[0], survey.long_rows
        if not m or (not long_count and not any(windows)):
            return None
        rows = self._on.empty(len(windows) * m, _index(csr))
        long_rows = self._list_long(csr, survey, cut)[0] if long_count else None
        longest, most = survey.detail.facts["longest_whole"], WARP * cut.steps
        bits = (longest + 1).bit_length()
        tiles = [_window_tiles(window or SORT_TILE, m) for window in windows if window <= SORT_TILE]
        if tiles:
            keys = {"most": most, "longest": longest, "bits": bits}
            long: dict[str, Any] = {"long_rows": long_rows, "long_count": long_count}
            order = {"indptr": csr.indptr, "m": m, "stride": m, "rows": rows, **self._windows(windows, m)}
            blocks = max(tiles), len(windows)
            self._launch(kernels.SORT_WINDOWS, csr, blocks, 512, **order, **keys, **long)
        for nth, window in enumerate(windows):
            if window > SORT_TILE:
                lengths = {"indptr": csr.indptr, "longest": longest, "most": most, "keys": None}
                to = rows[nth * m : (nth + 1) * m]
                zeros = survey.detail.zeros
                self._sort(csr, zeros, lengths, window, bits, to, long_rows, long_count)
        return rows

    def _sort(
        self,
        csr: Csr,
        zeros: Callable[[int], Array],
        keys: dict[str, Any],
        width: int,
        bits: int,
        to: Array,
        gone: Array | None = None,
        gone_count: int = 0,
    ) -> None:
        """Sort elements by their keys inside windows, stably; see kernels/pack/radix.cu."""
        elements, passes = len(to), ceil_div(max(bits, 1), DIGIT_BITS)
        tiles = ceil_div(elements, width) * ceil_div(width, SORT_TILE)
        counts = self._on.empty((tiles << DIGIT_BITS) + 1, COUNT)
        spare = self._on.empty(elements if passes > 1 else 0, to.dtype)
        source = None
        for nth in range(passes):
            target = to if (passes - nth) % 2 else spare
            order = {"from": source, "elements": elements, "width": width, "shift": nth * DIGIT_BITS}
            what: dict[str, Any] = {**keys, **order, "counts": counts}
            self._launch(kernels.COUNT_DIGITS, csr, tiles, 512, **what, come=zeros(1))
            left: dict[str, Any] = {"gone": gone, "gone_count": gone_count, "last": int(nth == passes - 1)}
            self._launch(kernels.MOVE_DIGITS, csr, tiles, 512, **what, **left, to=target)
            source = target

    def _list_long(self, csr: Csr, survey: Survey, cut: Cut) -> tuple[Array, Array]:
        """Return the rows too long for a slice, and the first segment of each, with that of the end."""
        if survey.detail.long is not None:
            found: tuple[Array, Array] = survey.detail.long
            return found
        m, index, count = csr.shape[0], _index(csr), survey.long_rows
        long_rows = self._on.empty(count, index)
        offsets = self._on.empty(count + 1, index) if count else self._on.zeros(1, index)
        if count:
            tiles = ceil_div(m, LONG_TILE)
            counts = self._on.empty(2 * (tiles + 1), COUNT)
            given = {"indptr": csr.indptr, "m": m, "tiles": tiles, "counts": counts, **cut._asdict()}
            self._launch(kernels.COUNT_LONG, csr, tiles, 256, **given, come=survey.detail.zeros(1))
            self._launch(kernels.LIST_LONG, csr, tiles, 256, **given, long_rows=long_rows, offsets=offsets)
        survey.detail.long = long_rows, offsets
        return long_rows, offsets

    def _cut_segments(self, csr: Csr, survey: Survey, cut: Cut, headers: Array, *, sorts: bool) -> _Pieces:
        """Cut long rows, and write the headers of the segments; if asked, in the order of their columns."""
        long_rows, offsets = self._list_long(csr, survey, cut)
        index, count = _index(csr), survey.detail.facts["segments"]
        rows = self._on.empty(count, index)
        if not count:
            return _Pieces(long_rows, offsets, rows, None, None)
        starts, lengths = self._on.empty(count, np.int64), self._on.empty(count, np.int64)
        given = {"indptr": csr.indptr, "long_rows": long_rows, "offsets": offsets, "starts": starts}
        given |= {"segments": count, "long_count": survey.long_rows, **cut._asdict()}
        in_turn = None
        if sorts:
            keys, in_turn = self._on.empty(count, np.uint32), self._on.empty(count, index)
            blocks = _share(count, 256, BLOCKS)
            self._launch(kernels.START_SEGMENTS, csr, blocks, 256, **given)
            columns = {"indices": csr.indices, "starts": starts, "count": count, "keys": keys}
            self._launch(kernels.COLUMN_KEYS, csr, blocks, 256, **columns)
            by_column = {"keys": keys, "indptr": None, "longest": 0, "most": 0}
            bits = survey.most_column.bit_length()
            self._sort(csr, survey.detail.zeros, by_column, count, bits, in_turn)
        placed = {"in_turn": in_turn, "lengths": lengths, "headers": headers, "segment_rows": rows}
        self._launch(kernels.PLACE_SEGMENTS, csr, 1, 1024, **given, **placed)
        return _Pieces(long_rows, offsets, rows, starts, lengths)

    # ---- fill ----------------------------------------------------------------------------------------

    def count_values(self, data: Array) -> tuple[ValueStatistics, Array]:
        """See `Primitives`; it keeps the facts of the values and the table of distinct ones."""
        words = self._value_facts(data, None)
        return self._statistics_of(len(data), words[:2])(), words

    def code_values(
        self,
        data: Array,
        slots: Array,
        total: int,
        coding: Coding,
        counted: tuple[ValueStatistics, Array] | None,
    ) -> Values:
        """See `Primitives`."""
        if coding == Coding.EQUAL:
            return Values(coding, self._on.empty(0, np.uint8), data[:1].copy())
        stored = self._on.zeros(total, code_type(coding, data.dtype))
        table = self._on.empty(0, data.dtype)
        keys = ranks = None
        if coding == Coding.DICTIONARY and counted:
            table = self._on.empty(counted[0].distinct, data.dtype)
            keys, ranks = self._dictionary(data, None, counted[1], table)
        self._encode(data, coding, stored, slots=slots, keys=keys, ranks=ranks)
        return Values(coding, stored, table)

    def recode_values(self, data: Array, slots: Array, values: Values) -> bool:
        """See `Primitives`."""
        coding, keys, ranks = values.coding, None, None
        if coding != Coding.PLAIN:
            words = self._value_facts(data, None)
            dead, distinct = map(int, self._on.reading(words[:2])())
            few = coding in (Coding.DICTIONARY, Coding.EQUAL)
            if dead & _NOT[coding] or (few and distinct > len(values.table)):
                return False
            if coding == Coding.DICTIONARY:
                keys, ranks = self._dictionary(data, None, words, values.table)
        if coding == Coding.EQUAL:
            self.overwrite(values.table, data[:1])
        else:
            self._encode(data, coding, values.codes, slots=slots, keys=keys, ranks=ranks)
        return True

    def _value_facts(self, data: Array, order: Array | None) -> Array:
        words = self._on.zeros(2 + 2 * SLOTS, COUNT)
        self._count_values(data, order, words)
        return words

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """See `Primitives`."""
        return self._on.zeros(count, dtype)

    def scatter(self, numbers: Array, slots: Array, stored: Array) -> None:
        """See `Primitives`."""
        self._encode(numbers, Coding.PLAIN, stored, slots=slots)

    def overwrite(self, array: Array, numbers: Array) -> None:
        """See `Primitives`."""
        self._encode(numbers, Coding.PLAIN, array)

    def _encode(
        self,
        data: Array,
        coding: Coding,
        codes: Array,
        *,
        order: Array | None = None,
        slots: Array | None = None,
        keys: Array | None = None,
        ranks: Array | None = None,
    ) -> None:
        """Write the codes of values in an order, one after another or into their slots."""
        if not len(data):
            return
        given = {"order": order, "slots": slots, "keys": keys, "ranks": ranks}
        given |= {"count": len(data), "codes": _bits(codes, coding)}
        blocks = _share(len(data), 1024, 2 * BLOCKS)
        self._launch_values(kernels.ENCODE, data, blocks, 256, coding=coding, **given)

    def store(
        self, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
    ) -> tuple[Values, Array, Array]:
        """See `Primitives`."""
        bases = self._on.empty(layout.steps, _index(csr))
        if not layout.slices:
            return self._store_values(csr, survey, order, layout, coding), bases, self._on.empty(0, np.uint8)
        tiles, blocks = ceil_div(layout.slices, SLICE_TILE), ceil_div(layout.slices, 8)
        sizes = survey.detail.zeros(tiles + 1)
        slices = _slices(csr, layout)
        given = {**slices, "indices": csr.indices, "bases": bases, "sizes": sizes}
        self._launch(kernels.MEASURE_COLUMNS, csr, blocks, 256, **given, come=survey.detail.zeros(1))
        reading = self._on.reading(sizes[tiles:])
        values = self._store_values(csr, survey, order, layout, coding, slices)  # meanwhile
        deltas = self._on.empty(WARP * int(reading()[0]), np.uint8)
        self._launch(kernels.FILL_DELTAS, csr, blocks, 256, **given, deltas=deltas)
        return values, bases, deltas

    def _store_values(
        self,
        csr: Csr,
        survey: Survey,
        order: Array | None,
        layout: Layout,
        coding: Coding,
        slices: Mapping[str, Any] = MappingProxyType({}),
    ) -> Values:
        """Return the values by slots."""
        data = csr.data
        if coding == Coding.EQUAL:
            return Values(coding, self._on.empty(0, np.uint8), data[:1].copy())
        codes, distinct = data, 0
        if coding == Coding.DICTIONARY and survey.values:
            distinct = survey.values().distinct
        table = self._on.empty(distinct, data.dtype)
        if coding != Coding.PLAIN:
            codes = self._on.empty(len(data), code_type(coding, data.dtype))
            keys = ranks = None
            if coding == Coding.DICTIONARY:
                # In another order values first appear elsewhere.
                words = survey.detail.distinct if order is None else self._value_facts(data, order)
                keys, ranks = self._dictionary(data, order, words, table)
            self._encode(data, coding, codes, order=order, keys=keys, ranks=ranks)
            order = None
        stored = self._on.empty(WARP * layout.steps if len(data) else 0, codes.dtype)
        if slices and len(data):
            bits = _plain(codes).dtype
            given = {"codes": _plain(codes), "order": order, "stored": _plain(stored)}
            blocks = ceil_div(layout.slices, 8)
            self._launch(kernels.FILL_CODES, csr, blocks, 256, code=bits, **given, **slices)
        return Values(coding, stored, table)

    def _dictionary(
        self, data: Array, order: Array | None, words: Array, table: Array
    ) -> tuple[Array, Array]:
        """Return values and codes by slots of the table of distinct values, and write values by codes."""
        keys, ranks = self._on.empty(SLOTS, _plain(data).dtype), self._on.empty(SLOTS, np.uint16)
        found = {"claims": words[2 : 2 + SLOTS], "firsts": words[2 + SLOTS :]}
        made = {"keys": keys, "ranks": ranks, "table": _plain(table)}
        self._launch_values(kernels.DICTIONARY, data, 1, SLOTS, order=order, **found, **made)
        return keys, ranks

    # ---- the way back --------------------------------------------------------------------------------

    def unpack(self, plan: Plan) -> tuple[Array, Array, Array]:
        """See `Primitives`."""
        count, values = plan.pattern.entries, plan.values
        indices, codes = self._on.empty(count, plan.pattern.index_dtype), None
        if values.coding != Coding.EQUAL:
            codes = self._on.empty(count, values.codes.dtype)
        starts = self._list_entries(plan, indices=indices, codes=codes)
        return starts.view(np.int64), indices, self._decode(values, codes, count, plan.dtype)

    def slots(self, plan: Plan) -> Array:
        """See `Primitives`."""
        slots = self._on.empty(plan.pattern.entries, _slot_type(plan))
        self._list_entries(plan, slots=slots)
        return slots

    def _list_entries(
        self,
        plan: Plan,
        *,
        indices: Array | None = None,
        codes: Array | None = None,
        slots: Array | None = None,
    ) -> Array:
        """Return where each row begins; write columns and codes row by row, and slots as entries came in."""
        pattern, m = plan.pattern, plan.shape[0]
        starts, pieces = self._on.zeros(m + 1, COUNT), self._on.empty(pattern.segments, COUNT)
        if not pattern.entries:
            return starts
        tiles, blocks = ceil_div(m, ROW_TILE), ceil_div(len(pattern.headers), 8)
        words = self._on.zeros(tiles + 2, COUNT)
        sums = {"come": words[:1], "sizes": words[1:], "tiles": tiles}
        given = {"starts": starts, "pieces": pieces, **_packed(pattern)}
        self._launch_plan(kernels.COUNT_ENTRIES, plan, blocks, **given, **sums)
        self._launch_plan(kernels.START_ROWS, plan, tiles, m=m, sizes=words[1:], starts=starts)
        given |= {"segment_offsets": pattern.segment_offsets, "bases": pattern.bases}
        given |= {"codes": None if codes is None else _plain(plan.values.codes), "order": plan.order}
        made = {"to_indices": indices, "to_codes": None if codes is None else _plain(codes), "slots": slots}
        self._launch_plan(kernels.FILL_ENTRIES, plan, blocks, **given, **made)
        return starts

    def _decode(self, values: Values, codes: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
        """Return the values that codes stand for; all are equal if there are none."""
        if codes is not None and values.coding == Coding.PLAIN:
            return codes
        data = self._on.empty(count, dtype)
        if count:
            coded = None if codes is None else _bits(codes, values.coding)
            given = {"codes": coded, "table": _plain(values.table), "count": count}
            blocks = _share(count, 256, BLOCKS)
            self._launch_values(kernels.DECODE, data, blocks, 256, coding=values.coding, **given)
        return data

    def transpose(self, csr: Csr) -> tuple[Csr, Array, bool]:
        """See `Primitives`: entries are sorted by column, six bits at a time, and then moved."""
        (m, n), nnz, words = csr.shape, len(csr.indices), self._on.zeros(ZEROS, COUNT)
        starts, order = self._on.zeros(n + 1, np.int64), self._on.empty(nnz, narrowest(nnz))
        made = Csr((n, m), starts, *(self._on.empty(nnz, array.dtype) for array in csr[2:]))
        if nnz:
            self._sort_entries(csr, order, words)
            differs = words[-1:] if m == n else None
            given = {"indptr": csr.indptr, "indices": csr.indices, "order": order, "nnz": nnz}
            moved = {
                "m": m,
                "data": _plain(csr.data),
                "to_data": _plain(made.data),
                "to_indices": made.indices,
            }
            blocks, code = (_share(count, 256, BLOCKS) for count in (nnz, n + 1)), _plain(csr.data).dtype
            for signature, arguments in (
                (kernels.TURN_ENTRIES, moved),
                (kernels.START_COLUMNS, {"n": n, "to_indptr": starts}),
            ):
                self._launch(
                    signature, csr, next(blocks), 256, code=code, **given, **arguments, differs=differs
                )
        return made, order, m == n and not int(self._on.reading(words[-1:])()[0])

    def _sort_entries(self, csr: Csr, order: Array, words: Array) -> None:
        """Sort the numbers of the entries by column, stably; `words` are 0 before."""
        nnz = len(order)
        if csr.indices.dtype.itemsize == 4:
            keys = csr.indices.view(np.uint32)
        else:
            keys, code = self._on.empty(nnz, np.uint32), _plain(csr.data).dtype
            blocks = _share(nnz, 256, BLOCKS)
            given = {"indices": csr.indices, "nnz": nnz, "keys": keys}
            self._launch(kernels.ENTRY_KEYS, csr, blocks, 256, code=code, **given)
        passes = iter(range(len(words)))

        def zeros(count: int) -> Array:
            first = next(passes)
            return words[first : first + count]

        # To the sort entries are what rows are elsewhere.
        by_column = {"keys": keys, "indptr": None, "longest": 0, "most": 0}
        bits = max(csr.shape[1] - 1, 0).bit_length()
        self._sort(csr._replace(shape=(nnz, nnz)), zeros, by_column, nnz, bits, order)

    def ready(self, csr: Csr) -> None:
        """Have the kernels that most matrices of these types need compiled beside each other, not in turn."""
        key = tuple(_integers(csr).values()), csr.data.dtype
        if key in self._readied:
            return
        self._readied.add(key)
        of_integers, plain = _defines(_integers(csr)), csr.data.dtype.itemsize
        of_values = _value_defines(csr.data, np.dtype(np.int32), Coding.PLAIN)
        self._on.load_all(
            [
                *((signature.source, of_integers) for signature in ALWAYS),
                (kernels.VALUE_FACTS.source, of_values),
                (kernels.FILL_CODES.source, of_integers | {"DASP_CODE_BYTES": str(plain)}),
            ]
        )

    # ---- launches ------------------------------------------------------------------------------------

    def _launch(
        self,
        signature: Signature,
        csr: Csr,
        blocks: int | tuple[int, int],
        threads: int,
        *,
        code: np.dtype[Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Launch a kernel that is compiled for the integers of a matrix, and perhaps for codes of a type."""
        wide = max(csr.shape) > _INT32, len(csr.indices) > _INT32
        key = signature, csr.indptr.dtype.char, csr.indices.dtype.char, wide, code
        launch = self._kernels.get(key)
        if launch is None:
            types = _integers(csr)
            constants = _defines(types)
            if code is not None:
                types["Code"], constants["DASP_CODE_BYTES"] = code, str(code.itemsize)
            launch = self._kernels[key] = self._on.kernel(signature, constants, types | {"Count": COUNT})
        launch(blocks if isinstance(blocks, tuple) else (blocks, 1), threads, arguments)

    def _launch_plan(self, signature: Signature, plan: Plan, blocks: int, **arguments: Any) -> None:
        """Launch a kernel that is compiled for the integers and the codes of a plan."""
        index, place, code = plan.pattern.index_dtype, _slot_type(plan), _plain(plan.values.codes).dtype
        order = place if plan.order is None else plan.order.dtype
        key = signature, index.char, place.char, order.char, code
        launch = self._kernels.get(key)
        if launch is None:
            types = {
                "Start": np.dtype(np.int64),
                "Column": index,
                "Index": index,
                "Place": place,
                "Order": order,
            }
            constants = _defines(types)
            constants["DASP_CODE_BYTES"] = str(code.itemsize)
            types |= {"Code": code, "Count": COUNT}
            launch = self._kernels[key] = self._on.kernel(signature, constants, types)
        launch((blocks, 1), 256, arguments)

    def _launch_values(
        self,
        signature: Signature,
        data: Array,
        blocks: int,
        threads: int,
        *,
        coding: Coding = Coding.PLAIN,
        **arguments: Any,
    ) -> None:
        """Launch a kernel that is compiled for the values of a matrix."""
        slots = arguments.get("slots")
        slot = np.dtype(np.int32) if slots is None else slots.dtype
        key = signature, data.dtype.char, len(data) > _INT32, coding, slot.char
        launch = self._kernels.get(key)
        if launch is None:
            place, bits = narrowest(len(data)), bits_type(data.dtype)
            types = {"Place": place, "Slot": slot, "Bits": bits, "Count": COUNT}
            types["Code"] = _code_bits(coding, data.dtype)
            constants = _value_defines(data, slot, coding)
            launch = self._kernels[key] = self._on.kernel(signature, constants, types)
        bits = bits_type(data.dtype)
        launch((blocks, 1), threads, {"data": data.view(bits), **arguments})


def _integers(csr: Csr) -> dict[str, np.dtype[Any]]:
    """Return the types of a matrix's integers by their names in the sources."""
    types = {"Start": csr.indptr.dtype, "Column": csr.indices.dtype, "Index": _index(csr)}
    return types | {"Place": narrowest(len(csr.indices))}


def _defines(types: Mapping[str, np.dtype[Any]]) -> dict[str, str]:
    return {f"DASP_{name.upper()}": C_NAMES[kind] for name, kind in types.items()}


def _value_defines(data: Array, slot: np.dtype[Any], coding: Coding) -> dict[str, str]:
    """Return the constants of kernels that are compiled for the values of a matrix."""
    size = data.dtype.itemsize
    return _ANY_TYPES | {
        "DASP_PLACE": C_NAMES[narrowest(len(data))],
        "DASP_SLOT": C_NAMES[slot],
        "DASP_VALUE_BYTES": str(size),
        "DASP_KIND": str(KINDS[data.dtype.kind]),
        "DASP_BFLOAT16": str(int(data.dtype == BFLOAT16)),
        "DASP_CODING": str(int(coding)),
    }


_INT32 = np.iinfo(np.int32).max

_ANY_TYPES = {"DASP_START": "int", "DASP_COLUMN": "int", "DASP_INDEX": "int"}
"""For kernels that know no matrix."""

_NO_PIECES = _Pieces(None, None, None, None, None)


def _index(csr: Csr) -> np.dtype[Any]:
    return narrowest(max(csr.shape))


def _bytes(csr: Csr) -> int:
    return int(csr.indptr.nbytes + csr.indices.nbytes + csr.data.nbytes)


def _share(count: int, each: int, most: int) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, each), most), 1)


def _window_tiles(window: int, m: int) -> int:
    """Return the blocks that sort rows inside windows that fit `SORT_TILE` rows: each has several."""
    window = min(window, m)
    return ceil_div(m, CHUNKS // ceil_div(window, CHUNK) * window)


def _code_bits(coding: Coding, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which kernels/pack/encode.cu writes a code."""
    kind = code_type(coding, dtype)
    return kind if coding == Coding.BYTE else bits_type(kind)


def _slot_type(plan: Plan) -> np.dtype[Any]:
    return narrowest(WARP * len(plan.pattern.bases))


def _plain(numbers: Array) -> Array:
    """Return numbers as their bits."""
    return numbers.view(bits_type(numbers.dtype))


def _packed(pattern: Pattern) -> dict[str, Any]:
    """Return the arguments that say which slots the rows of a pattern have."""
    return {
        "rows": pattern.rows if len(pattern.rows) else None,
        "positions": pattern.positions,
        "long_rows": pattern.long_rows,
        "segment_rows": pattern.segment_rows,
        "segments": pattern.segments,
        "slices": len(pattern.headers),
        "headers": pattern.headers.reshape(-1),
        "deltas": pattern.deltas,
    }


def _bits(codes: Array, coding: Coding) -> Array:
    return codes.view(_code_bits(coding, codes.dtype))


def _slices(csr: Csr, layout: Layout) -> dict[str, Any]:
    """Return the arguments that say which entries the slots of a layout hold."""
    placed: _Placed = layout.detail
    return {
        "indptr": csr.indptr,
        "rows": placed.orders.arguments["rows"],
        "positions": layout.positions,
        "segment_starts": placed.pieces.starts,
        "segment_lengths": placed.pieces.lengths,
        "segments": layout.segments,
        "slices": layout.slices,
        "headers": layout.headers.reshape(-1),
    }


_NOT = {
    Coding.EQUAL: NOT_DICTIONARY,
    Coding.BYTE: NOT_BYTES,
    Coding.DICTIONARY: NOT_DICTIONARY,
    Coding.HALF: NOT_HALVES,
    Coding.SINGLE: NOT_SINGLES,
    Coding.REAL: NOT_REAL,
    Coding.REAL_SINGLE: NOT_REAL | NOT_SINGLES,
}
"""Which of the facts of values says that a coding does not hold them."""


def _slice_statistics(windows: tuple[int, ...], numbers: np.ndarray[Any, Any]) -> dict[int, SliceStatistics]:
    """Return what was counted of each candidate."""
    counted, first = numbers.tolist(), TOTALS * len(windows)
    return {
        window: SliceStatistics(
            *counted[TOTALS * nth : TOTALS * (nth + 1)],
            *counted[first + SAMPLED * nth : first + SAMPLED * (nth + 1)],
        )
        for nth, window in enumerate(windows)
    }


def _value_statistics(count: int, dead: int, distinct: int) -> ValueStatistics:
    """Return what is asked of values; nothing is said that a narrower coding makes needless."""
    few = not dead & NOT_DICTIONARY
    if few and distinct == 1:
        return ValueStatistics(count, 1, False, False, False)
    if not dead & NOT_BYTES:
        return ValueStatistics(count, MOST_CODES + 1, True, False, False)
    if few:
        return ValueStatistics(count, distinct, False, False, False)
    halves = not dead & NOT_HALVES
    singles, real = not halves and not dead & NOT_SINGLES, not dead & NOT_REAL
    return ValueStatistics(count, MOST_CODES + 1, False, halves, singles, real)


def _hold(csr: Csr, facts: dict[str, int]) -> None:
    """Hold that arrays on the device are a matrix; see `dasp._check.compressed`."""
    given = len(csr.indices), len(csr.data)
    least = (facts["least_column_not"] ^ ALL_BITS) - BIAS
    columns = (least, facts["most_column"] - BIAS) if given[0] else None
    _check.compressed_facts("CSR", csr.shape, not facts["falls"], facts["end"] - BIAS, given, columns)
