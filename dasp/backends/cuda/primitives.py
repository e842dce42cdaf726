"""What packing into slices is written in, on a GPU: kernels/pack/, launched on arrays of the device.

`dasp.backends.protocols.Primitives` says what each function returns. Nothing here names an array library:
arrays and launches are the device's, which is a GPU with CuPy or, in the tests, the emulator with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from dasp import _check
from dasp._dtypes import BFLOAT16, C_NAMES, bits_type
from dasp._integers import ceil_div
from dasp._launch import Launches, Signature
from dasp.backends.cuda import pack_kernels as kernels
from dasp.formats.array import WARP, Array, Csr, Plan, narrowest
from dasp.formats.sliced.choose import SliceStatistics, ValueStatistics
from dasp.formats.sliced.layout import Cut, Layout, Survey, Tried
from dasp.formats.sliced.pattern import MOST_CODES, Coding, Pattern, Values, code_type

COUNT, INT64, UINT32 = np.dtype(np.uint64), np.dtype(np.int64), np.dtype(np.uint32)


class Facts(NamedTuple):
    """Numbers of a matrix, in the order of `Fact` in kernels/pack/survey.cu, where they are explained."""

    falls: int
    descents: int
    row_descents: int
    long_rows: int
    segments: int
    segment_steps: int
    segment_full: int
    rises: int
    longest_whole: int
    longest: int
    end: int
    most_column: int
    least_column_not: int


BIAS, ALL_BITS = 1 << 63, (1 << 64) - 1
"""Added to a signed number so that it compares as an unsigned one; and what flips every bit."""

NOT_BYTES, NOT_DICTIONARY, NOT_HALVES, NOT_SINGLES, NOT_REAL = (1 << bit for bit in range(5))
"""What values are not: `Dead` in kernels/pack/values.cu."""

KINDS = {"f": 1, "V": 1, "c": 2}
"""Kinds of values, by those of NumPy's types: `DASP_KIND` in kernels/pack/values.cuh. bfloat16 is V."""

SLOTS, VALUE_THREADS = 2048, 1024
"""Most slots of the table of distinct values, and threads of a block that counts them."""

BLOCKS = 528
"""Most blocks of a launch whose threads go through an array a grid apart: four to a multiprocessor."""

VALUES_AT_ONCE = 4096
"""Values that such a block counts at once."""

SORT_TILE, DIGIT_BITS, CHUNK, CHUNKS = 8192, 6, 128, 64
"""Elements that a block sorts at once, by six bits of a key: kernels/pack/order.cuh."""

CUT_TILE, ENTRIES = 2048, 32
"""Positions that a block cuts, and those at which a chain of slices can enter them: kernels/pack/cut.cuh."""

MOST_SEGMENTS = SORT_TILE
"""Segments that one block sorts: kernels/pack/segments.cu."""

APART = 264
"""Blocks up to which each sorts a tile in a window of its own: two to a multiprocessor."""

PLACES, SHARED_SLOTS = 24, 8192
"""Places in a sample, and words of a table in shared memory: kernels/pack/sectors.cu."""

LONG_TILE, LONG_COUNTS = 2048, 3
"""Rows of a block in segments.cu, and what is counted of the long ones: kernels/pack/segments.cuh."""

SLICE_TILE, RUN, ROW_TILE = 64, 1024, 2048
"""Slices, entries and rows of a block in columns.cu, sort_columns.cu and unpack.cu."""

BESIDE = 1 << 17
"""Rows from which a sort over more than a tile of them runs beside those inside of tiles: fewer are sorted
before the host has launched it."""

TOTALS, SAMPLED = 3, 4
"""Numbers of a candidate: kernels/pack/candidates.cuh."""

ZEROS, ORDER_ZEROS, VALUES_AT, VALUE_WORDS = 512, 16, len(Facts._fields), 2 * SLOTS + 1
"""Zeroed words that a survey has for the steps after it, beside one for every 64 slices and some for every
tile of positions: each fill of its own costs as much as a launch. Where those of values are among them, and
words of the table of distinct values."""


ALWAYS = kernels.SURVEY, kernels.SORT_WINDOWS, kernels.CUT_TILES, kernels.COUNT_SECTORS, kernels.FILL_DELTAS
"""A kernel of each source that most matrices need and that knows their integers alone."""


class Device(Protocol):
    """Arrays and launches; everything that is launched runs in order."""

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of any contents."""

    def zeros(self, size: int, dtype: Any) -> Array:
        """Return a new array of zeros."""

    def scratch(self, *arrays: tuple[int, np.dtype[Any]]) -> list[Array]:
        """Return arrays of any contents, each of a size and a type, that kernels alone see."""

    def zeroed(self, count: int) -> Array:
        """Return words, 0 each, that kernels alone see."""

    def constant(self, numbers: tuple[int, ...]) -> Array:
        """Return an int64 array of these numbers that nobody writes to."""

    def question(self) -> Question:
        """Return words for a question that one kernel asks and the next acts on."""

    def aside(self) -> Aside:
        """Return what launches kernels that follow all that was launched, and run beside what comes next."""

    def word(self, value: Any) -> Any:
        """Return what launches take for an array, an int or None, the null pointer."""

    def first(self, numbers: Array) -> Array:
        """Return a new array with the first of some numbers."""

    def bits(self, numbers: Array, kind: np.dtype[Any]) -> Any:
        """Return what launches take for an array of numbers that kernels see as bits, of a type as wide."""

    def part(self, array: Array, first: int, count: int) -> Any:
        """Return what launches take for some of the numbers of an array, which it does not keep."""

    def reading(self, words: Array, first: int, count: int) -> Callable[[], list[int]]:
        """Begin to copy words to the host, after what was launched; return what waits and returns them."""

    def telling(self, count: int) -> tuple[Any, Callable[[], Callable[[], list[int]]]]:
        """Return what launches take for words that the host reads, and what to call once a kernel was told.

        That returns what waits for the kernel and returns the words; nobody else has them until then.
        """

    def kernel(
        self, signature: Signature, constants: Mapping[str, str], types: Mapping[str, np.dtype[Any]]
    ) -> Launches:
        """Return a compiled kernel."""

    def prepared(
        self,
        signature: Signature,
        constants: Mapping[str, str],
        types: Mapping[str, np.dtype[Any]],
        arguments: Mapping[str, Any],
        varying: Sequence[str],
        blocks: int,
        threads: int,
        overlaps: bool,
    ) -> Callable[..., None]:
        """Return a launch of a compiled kernel, to be given what varies in its order; it keeps the arrays.

        One that `overlaps` may start before the kernel in front of it has ended, and waits for it by itself.
        """

    def load_all(self, wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Have sources compiled beside each other, each for some constants."""


class Question(Protocol):
    """Words for a question that one kernel asks of many numbers and the next acts on; nobody else has them.

    Attributes
    ----------
    misfit, told : object
        What launches take for a word on the device, and for one that the host reads.
    turn : int
        What `misfit` becomes if some number does not fit; it holds less before.
    """

    misfit: Any
    told: Any
    turn: int

    def fits(self) -> bool:
        """Wait for what is told, and return whether that is 2, and not 1; the words are free then."""


class Aside(Protocol):
    """A place beside the launches of a device: what is launched `with` it runs at the same time as others.

    Memory that it works on must not be given back before it has joined them. Nothing is allocated in it.
    """

    def __enter__(self) -> Any:
        """Begin to launch beside."""

    def __exit__(self, *failure: Any) -> None:
        """Go on where launches run in order."""

    def join(self) -> None:
        """Have all that is launched from here on follow what was launched beside; nobody else has it then."""


class _Kernels(dict[Signature, Launches]):
    """Kernels by what they take, compiled at first use for what the names of types in their sources mean."""

    def __init__(self, device: Device, types: dict[str, np.dtype[Any]], constants: dict[str, str]) -> None:
        super().__init__()
        self._on, self._types, self._constants = device, types | {"Count": COUNT}, constants

    def __missing__(self, signature: Signature) -> Launches:
        launch = self[signature] = self._on.kernel(signature, self._constants, self._types)
        return launch

    def prepared(
        self,
        signature: Signature,
        arguments: dict[str, Any],
        varying: Sequence[str],
        blocks: int,
        threads: int = 256,
        *,
        overlaps: bool = False,
    ) -> Callable[..., None]:
        """Return a launch to be given what varies; see `Device`."""
        known = self._constants, self._types, arguments, varying
        return self._on.prepared(signature, *known, blocks, threads, overlaps)


class _Distinct(NamedTuple):
    """Words, and where facts of values and the table of distinct ones begin among them."""

    words: Array
    facts: int
    table: int


class _Work:
    """Launches on the same arrays: what one kernel is told, all that follow know. It keeps no array alive.

    Parameters
    ----------
    device : Device
    kernels : _Kernels
    words : Array
        0 before.
    **known : Array, int or None
        Arguments of kernels by name.

    Attributes
    ----------
    known : dict
        The same as launches take them. What every plan needs is put there at once: `tell` asks what each is.
    """

    def __init__(self, device: Device, kernels: _Kernels, words: Array = None, **known: Any) -> None:
        self._on, self._word, self._part, self._kernels = device, device.word, device.part, kernels
        self._words, self._taken, self._room = words, 0, 0 if words is None else len(words)
        self._full: list[Array] = []
        self.known: dict[str, Any] = {}
        if known:
            self.tell(**known)

    def tell(self, **more: Any) -> None:
        """Have the kernels that follow know arguments, in the place of others of the same names."""
        known, word = self.known, self._word
        for name, value in more.items():
            known[name] = value if type(value) is int else word(value)

    def launch(
        self,
        signature: Signature,
        blocks: int | tuple[int, int],
        threads: int = 256,
        kernels: Any = None,
        **more: Any,
    ) -> None:
        """Launch a kernel, perhaps one of other `_Kernels`, told more than is known."""
        known, word = self.known, self._word
        for name, value in more.items():
            known[name] = value if type(value) is int else word(value)
        launch = (self._kernels if kernels is None else kernels)[signature]
        launch((blocks, 1) if isinstance(blocks, int) else blocks, threads, known)

    def take(self, count: int) -> int:
        """Return where words begin that are 0 and that nobody else has."""
        if self._taken + count > self._room:
            self._full.append(self._words)
            self._words, self._taken, self._room = self._on.zeroed(count), 0, count
        self._taken += count
        return self._taken - count

    def words(self, first: int, count: int) -> Any:
        """Return what launches take for some of the words."""
        return self._part(self._words, first, count)

    def zeros(self, count: int) -> Any:
        """Return what launches take for zeroed words that nobody else has."""
        first = self.take(count)
        return self._part(self._words, first, count)

    def reading(self, first: int, count: int) -> Callable[[], list[int]]:
        """Begin to read some of the words."""
        return self._on.reading(self._words, first, count)


_NO_FACTS = Facts._make([0] * len(Facts._fields))


class _Survey(_Work):
    """The work on a matrix, and what is known of it.

    Attributes
    ----------
    facts : Facts
    distinct : _Distinct or None
        Of the values, if they were counted.
    long : _Pieces or None
        Rows too long for a slice, and their segments by numbers, once they are listed.
    turned : _Turned or None
        The segments in the order of their columns, once they are sorted.
    turns : bool
        Whether that is put off.
    kept : object
        What must live while segments are sorted.
    later : list of callable
        What is launched beside others, on the `Aside` that it is given, while the host waits for these.
    """

    def __init__(
        self,
        device: Device,
        kernels: _Kernels,
        words: Array,
        types: _Types,
        counts: bool,
        entries: int,
    ) -> None:
        super().__init__(device, kernels, words)
        self._room -= VALUE_WORDS * counts
        self.types = types
        self.facts = _NO_FACTS
        self.distinct = _Distinct(words, VALUES_AT, self._room) if counts else None
        self.long: _Pieces | None = None
        self.turned: _Turned | None = None
        self.turns = False
        self.later: list[Callable[[Aside], Any]] = []
        self.kept: Any = None
        self._asides: list[Aside] = []
        self._values: ValueStatistics | None = None
        self._count = entries

    def take(self, count: int) -> int:
        """See `_Work`; what is known of values is read first if there are no words left."""
        first = self._taken
        if first + count <= self._room:
            self._taken = first + count
            return first
        if self.distinct is not None:
            self.values()
        return super().take(count)

    def read(self, first: int, count: int) -> list[int]:
        """Wait for some of the words, and for the facts of values before them if these are not known."""
        asks = self.distinct is not None and self._values is None
        begin = VALUES_AT if asks else first
        found = self.reading(begin, first + count - begin)()
        if asks:
            self._values = _value_statistics(self._count, *found[:2])
        return found[first - begin :]

    def fork(self) -> Aside | None:
        """Return where what is put off may run, behind all that was launched; None if nothing is."""
        return self._on.aside() if self.later else None

    def begin(self, aside: Aside | None) -> None:
        """Launch there what is put off."""
        if aside is None:
            return
        self._asides.append(aside)
        known, self.known = self.known, dict(self.known)
        for launch in self.later:
            launch(aside)
        self.later.clear()
        self.known = known

    def join(self) -> None:
        """Have launches follow what was launched beside them."""
        while self._asides:
            self._asides.pop().join()

    def telling(self, first: int, count: int) -> Callable[[], Callable[[], list[int]]]:
        """Have the next kernel tell the host some words when it is done.

        What is returned is called when it was launched, and returns what does what `read` does.
        """
        asks = self.distinct is not None and self._values is None
        begin = VALUES_AT if asks else first
        size = first + count - begin
        told, sent = self._on.telling(size)
        self.known |= {
            "done": self.zeros(1),
            "words": self.words(begin, size),
            "word_count": size,
            "told": told,
        }

        def reading() -> Callable[[], list[int]]:
            finish = sent()

            def read() -> list[int]:
                found = finish()
                if asks:
                    self._values = _value_statistics(self._count, *found[:2])
                return found[first - begin :]

            return read

        return reading

    def values(self) -> ValueStatistics:
        """Return the facts of values, and wait for them if they are not known."""
        if self._values is None:
            self.read(VALUES_AT + 2, 0)
        assert self._values
        return self._values


class _Orders(NamedTuple):
    """Rows in the orders of several sort windows, and how they are cut.

    Attributes
    ----------
    windows : tuple of int
        0, or from 1 to m, rising, one for each candidate.
    rows : Array, shape (candidates * m,), or None
        The row at each position of each candidate; None if no row moves.
    tiles : int
        Of an order.
    before : int
        Where the words of the work begin that say how the chain of slices comes to each tile: two for each of
        every candidate.
    first : int
        Where the numbers of all candidates begin among these words: slices, steps and full steps of every
        one, and then what a sample of each reads.
    """

    windows: tuple[int, ...]
    rows: Array | None
    tiles: int
    before: int
    first: int


class _Turned(NamedTuple):
    """Segments in an order: first entries, lengths and headers. None if there are none."""

    starts: Array | None
    lengths: Array | None
    headers: Array | None


class _Pieces(NamedTuple):
    """Rows that are cut into segments, and these by their numbers."""

    long_rows: Array
    offsets: Array
    rows: Array
    segments: _Turned


class _Placed(NamedTuple):
    """What a layout keeps: kernels that follow it are told where these are."""

    segments: _Turned
    orders: _Orders


@dataclass
class Places:
    """Where the entries of a pattern are, row by row, for other values.

    Attributes
    ----------
    starts : Array, shape (m + 1,), uint64
        The first entry of each row, and the number of all.
    pieces : Array, shape (segments,), uint64
        Entries of each segment of a row that is cut.
    types : dict
        Of the pattern's integers, by their names in the sources.
    arguments : dict
        What `kernels.REFILL` is given each time.
    words : dict
        What launches take for these.
    blocks : int
    plan : Plan
        Whose pattern and order it is.
    kernels : dict
        What was launched, by types and codings of values.
    """

    starts: Array
    pieces: Array
    types: dict[str, np.dtype[Any]]
    arguments: dict[str, Any]
    words: dict[str, Any]
    blocks: int
    plan: Plan
    kernels: dict[Any, Launches] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.starts.nbytes + self.pieces.nbytes)


class Fill:
    """Other values in the place of some, in their coding: launches that are prepared once.

    Parameters
    ----------
    device : Device
    dtype : numpy.dtype
        Of the matrix.
    refill : callable
        Takes the values, and a question's `misfit`, `turn` and `told`.
    holds : callable, optional
        Takes the values, `misfit` and `turn`; without it the coding holds any.
    """

    def __init__(
        self,
        device: Device,
        dtype: np.dtype[Any],
        refill: Callable[..., None],
        holds: Callable[..., None] | None = None,
    ) -> None:
        self._on, self._refill, self._holds = device, refill, holds
        self._bits, self._null = device.bits, device.word(None)
        self._kind = bits_type(dtype)

    def __call__(self, data: Array, behind: Callable[[], object] = lambda: None) -> bool:
        """Write values, contiguous and of the matrix's type; False, and nothing written, if one does not fit.

        Nothing is waited for between the two launches; if nothing is asked, nothing is waited for at all.
        `behind` is called when all is launched, whatever comes of it, and not yet waited for.
        """
        values = self._bits(data, self._kind)
        if self._holds is None:
            self._refill(values, self._null, 0, self._null)
            behind()
            return True
        question = self._on.question()
        self._holds(values, question.misfit, question.turn)
        self._refill(values, question.misfit, question.turn, question.told)
        behind()
        return question.fits()


class Primitives:
    """The primitives of packing on one device.

    Parameters
    ----------
    device : Device
    """

    share, floor = 0.6, 8 << 20
    """Share of the bytes of a matrix, or bytes if more, in which windows are tried side by side."""

    def __init__(self, device: Device) -> None:
        self._on = device
        self._kernels: dict[Any, _Kernels] = {}
        self._empty: dict[Any, Array] = {}
        self._readied: set[Any] = set()

    @property
    def device(self) -> Device:
        """Where arrays lie."""
        return self._on

    # ---- statistics ----------------------------------------------------------------------------------

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """See `Primitives`; also holds that the arrays are a matrix, as `dasp._check.compressed` does."""
        m, nnz = csr.shape[0], len(csr.indices)
        if csr.indptr.shape != (m + 1,):
            _check.compressed_facts("CSR", csr.shape, False, 0, (nnz, len(csr.data)), None)
        counts = bool(narrow and nnz and len(csr.data))
        long_tiles = LONG_COUNTS * ceil_div(m, LONG_TILE)
        zeros = ZEROS + m // SLICE_TILE + nnz // CUT_TILE + ORDER_ZEROS * (m // CUT_TILE + 1) + long_tiles
        words, types, word = self._on.zeroed(zeros + VALUE_WORDS * counts), _integers(csr), self._on.word
        work = _Survey(self._on, self._of(types), words, types, counts, nnz)
        first = work.take(VALUES_AT + 2)
        told, sent = self._on.telling(VALUES_AT)
        none = word(None)
        work.known |= {
            "indptr": word(csr.indptr),
            "indices": word(csr.indices),
            "m": m,
            "nnz": nnz,
            "stride": m,
            "steps": cut.steps,
            "segment_steps": cut.segment_steps,
            "most_segments": cut.most_segments,
            "segment_starts": none,
            "segment_lengths": none,
            "segments": 0,
            "facts": work.words(first, VALUES_AT),
            "long_tiles": work.zeros(long_tiles),
            "done": work.zeros(1),
            "told": told,
        }
        work.launch(kernels.SURVEY, _share(max(m, nnz), 256, BLOCKS))
        reading = sent()
        if work.distinct:
            self._count_values(work, csr.data, None, work.distinct)
        facts = work.facts = Facts._make(reading())  # while the values are counted
        _hold(csr, facts)
        return Survey(
            columns_rise=facts.descents == facts.row_descents,
            most_column=facts.most_column - BIAS if nnz else -1,
            values=work.values if counts else None,
            long_rows=facts.long_rows,
            longest=facts.longest_whole,
            rises=facts.rises > 0,
            detail=work,
        )

    def _count_values(self, work: _Work, data: Array, order: Array | None, distinct: _Distinct) -> None:
        """Set facts of values, and the table of distinct ones; both are 0 before."""
        count, dtype, part, none = len(data), data.dtype, self._on.part, self._on.word(None)
        work.known |= self._table(distinct)
        work.known |= {
            "data": self._on.bits(data, bits_type(dtype)),
            "order": self._on.word(order),
            "count": count,
            "facts": part(distinct.words, distinct.facts, 2),
            "come": none,
            "codes": none,
            "table": none,
            "room": 0,
            "misfit": none,
            "turn": 0,
        }
        of_values = self._of(_of_values(data), dtype)
        work.launch(kernels.VALUE_FACTS, _share(count, VALUES_AT_ONCE, BLOCKS // 4), VALUE_THREADS, of_values)

    def _table(self, distinct: _Distinct) -> dict[str, Any]:
        """Return what kernels are told of the table of distinct values."""
        words, _, first = distinct
        claims, firsts = self._on.part(words, first, SLOTS), self._on.part(words, first + SLOTS, SLOTS + 1)
        return {"claims": claims, "firsts": firsts}

    def sort_columns(self, csr: Csr, survey: Survey) -> tuple[Csr, Array]:
        """See `Primitives`: rows of up to 1024 entries in one pass, and then runs of 1024 merge by two."""
        nnz, work = len(csr.indices), survey.detail
        kinds = {"to_columns": csr.indices.dtype, "to_order": narrowest(nnz)}
        to = {name: self._on.empty(nnz, kind) for name, kind in kinds.items()}
        blocks = ceil_div(nnz, RUN)
        work.launch(kernels.SORT_COLUMNS, blocks, **to)
        width = RUN
        while width < work.facts.longest:
            runs = {"columns": to["to_columns"], "order": to["to_order"], "width": width}
            to = {name: self._on.empty(nnz, kind) for name, kind in kinds.items()}
            work.launch(kernels.MERGE_COLUMNS, blocks, **runs, **to)
            width *= 2
        work.tell(indices=to["to_columns"])
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
        each = csr.shape[0] * (survey.detail.types["Index"].itemsize + 1)
        at_once = max(max(int(self.share * _bytes(csr)), self.floor) // max(each, 1), 1)
        found: dict[int, SliceStatistics] = {}
        orders, work = None, survey.detail
        try:
            for first in range(0, len(windows), at_once):
                orders = None  # gives its memory back before more is taken
                some = windows[first : first + at_once]
                orders = self._cut_orders(csr, survey, cut, some)
                found |= self._statistics(csr, work, cut, orders, sector_columns, blocks)
        finally:
            work.join()
        return Tried(found, orders)

    def _statistics(
        self,
        csr: Csr,
        work: _Survey,
        cut: Cut,
        orders: _Orders,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> dict[int, SliceStatistics]:
        """Return what is counted of orders, segments left out; what is put off is launched before waiting."""
        asked = orders.first, (TOTALS + SAMPLED) * len(orders.windows)
        if not any(blocks):
            return _slice_statistics(orders.windows, work.read(*asked))
        sampled = orders.first + TOTALS * len(orders.windows)
        launch = self._sample(csr, cut, orders, None, sector_columns, blocks, sampled, work)
        read, aside = work.telling(*asked), work.fork()
        launch()
        reading = read()
        work.begin(aside)
        return _slice_statistics(orders.windows, reading())

    def slice_statistics(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        layout: Layout,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> Callable[[], SliceStatistics]:
        """See `Primitives`; they are counted beside what `store` launches, which comes next."""
        counted = layout.slices, layout.steps, layout.full
        if not layout.slices or not any(blocks):
            return lambda: SliceStatistics(*counted, 0, 0, 0, 0)
        work, orders = survey.detail, layout.detail.orders
        first, reading = work.take(SAMPLED), []

        def begin(aside: Aside) -> None:
            work.tell(windows=None, window_count=0, totals=work.words(orders.first, TOTALS))
            launch = self._sample(csr, cut, orders, layout, sector_columns, blocks, first, work)
            read = work.telling(first, SAMPLED)
            with aside:
                launch()
                reading.append((read(), launch))

        work.later.append(begin)
        return lambda: SliceStatistics(*counted, *reading.pop()[0]())

    def _sample(
        self,
        csr: Csr,
        cut: Cut,
        orders: _Orders,
        layout: Layout | None,
        sector_columns: int,
        blocks: tuple[int, int, int],
        sampled: int,
        work: _Survey,
    ) -> Callable[[], None]:
        """Return what counts the sectors that blocks of slices read, in all orders or of a layout.

        `sampled` is where they go among the words of the work. It must live until they are counted.
        """
        longest = max(cut.steps, cut.segment_steps) if layout and layout.segments else cut.steps
        units, count, known = PLACES * sum(map(bool, blocks)), len(orders.windows), work.known
        known |= _sizes_of_blocks(blocks, longest, len(csr.indices))
        tables, most = None, known["table_slots"]
        if most > SHARED_SLOTS and csr.shape[1] // sector_columns >= 32 * SHARED_SLOTS:
            room = max(_bytes(csr) // 3, self.floor) // (4 * most * count)
            units = max(min(units, room), 1)
            (tables,) = self._on.scratch((units * most * count, UINT32))
        known["sector_shift"] = sector_columns.bit_length() - 1
        known["tables"] = self._on.word(tables)
        known["sampled"] = work.words(sampled, SAMPLED * count)

        def launch(_kept: Any = tables) -> None:
            work.launch(kernels.COUNT_SECTORS, (units, count))

        return launch

    # ---- layout --------------------------------------------------------------------------------------

    def lay_out(self, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
        """See `Primitives`."""
        m, work = csr.shape[0], survey.detail
        facts, window, positions = work.facts, min(window, m), m - survey.long_rows
        if tried and window in tried.detail.windows:
            orders = self._only(survey, tried.detail, window, m)
            slices, steps, full = tried.statistics[window][:TOTALS]
        else:
            orders = self._cut_orders(csr, survey, cut, (window,))
            slices, steps, full = work.read(orders.first, TOTALS)
        segments, index, known, word = facts.segments, work.types["Index"], work.known, self._on.word
        rows = None if orders.rows is None else self._on.empty(positions, index)
        headers = self._on.empty((segments + slices, 4), UINT32)
        work.begin(work.fork())
        work.join()
        pieces = self._list_long(csr, survey)
        placed = pieces.segments
        if segments and segments + slices > cut.in_order:
            placed = work.turned or self._turn_segments(survey)
        known["headers"], known["segments"] = word(headers), segments
        known["segment_starts"], known["segment_lengths"] = word(placed.starts), word(placed.lengths)
        known["segment_headers"], known["placed"] = word(placed.headers), word(rows)
        if segments or orders.tiles:
            known["steps_before"] = facts.segment_steps
            work.launch(kernels.CUT_HEADERS, max(orders.tiles, 1))
        known["rows"] = known["placed"]
        return Layout(
            positions=positions,
            segments=segments,
            slices=segments + slices,
            steps=facts.segment_steps + steps,
            full=facts.segment_full + full,
            rows=self._nothing(index) if rows is None else rows,
            headers=headers,
            long_rows=pieces.long_rows,
            segment_offsets=pieces.offsets,
            segment_rows=pieces.rows,
            detail=_Placed(placed, _Orders(orders.windows, rows, orders.tiles, orders.before, orders.first)),
        )

    def _nothing(self, dtype: Any) -> Array:
        """Return an array without numbers, which all plans share."""
        found = self._empty.get(dtype)
        if found is None:
            found = self._empty[dtype] = self._on.empty(0, dtype)
        return found

    def _zero(self, dtype: np.dtype[Any]) -> Array:
        """Return an array of one 0, which all plans share."""
        key = dtype, 0
        if key not in self._empty:
            self._empty[key] = self._on.constant((0,)).view(dtype)[:1]
        return self._empty[key]

    def _only(self, survey: Survey, orders: _Orders, window: int, m: int) -> _Orders:
        """Return one of several orders, and have the kernels that follow know it alone."""
        nth, tiles, work, rows = orders.windows.index(window), 2 * orders.tiles, survey.detail, None
        if orders.rows is not None and (window or survey.long_rows):
            rows = orders.rows
            work.known["rows"] = self._on.part(rows, nth * m, m)
        else:
            work.known["rows"] = self._on.word(None)
        before = orders.before + nth * tiles
        work.known["before"] = work.words(before, tiles)
        return _Orders((window,), rows, orders.tiles, before, orders.first + nth * TOTALS)

    def _tell(self, survey: Survey, orders: _Orders, m: int) -> None:
        """Have kernels know some orders; a window of all rows goes unsaid."""
        work, windows = survey.detail, orders.windows
        narrower = windows if windows[-1] < m else windows[:-1]
        work.known |= {
            "rows": self._on.word(orders.rows),
            "windows": self._on.word(self._on.constant(narrower)),
            "window_count": len(narrower),
            "before": work.words(orders.before, 2 * orders.tiles * len(windows)),
            "totals": work.words(orders.first, TOTALS * len(windows)),
        }

    def _cut_orders(self, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...]) -> _Orders:
        """Sort rows in each of the windows, and cut them; nothing is read."""
        m, count, work = csr.shape[0], len(windows), survey.detail
        positions, known = m - survey.long_rows, work.known
        known["positions"], known["identity"] = positions, int(not survey.long_rows)
        known["steps"], known["segment_steps"] = cut.steps, cut.segment_steps
        tiles = ceil_div(positions, CUT_TILE)
        moves = m and (survey.long_rows or any(windows))
        sort_tiles = _window_tiles(windows, m) if moves else 0
        passages, counts, rows = self._on.scratch(
            (count * tiles * ENTRIES, COUNT),
            ((sort_tiles << DIGIT_BITS) + 1, COUNT),
            (count * m if moves else 0, work.types["Index"]),
        )
        first, before = work.take(count * (TOTALS + SAMPLED)), work.take(2 * count * tiles)
        orders = _Orders(windows, rows if moves else None, tiles, before, first)
        self._tell(survey, orders, m)
        if survey.long_rows:
            self._list_long(csr, survey)
        if self._sure_to_turn(csr, work, cut):
            work.turns = True
            work.later.append(partial(self._turn_segments, survey))
        if moves:
            self._sort_rows(csr, survey, cut, orders, sort_tiles, counts)
        if tiles:
            known["come"], known["passages"] = work.zeros(count), self._on.word(passages)
            work.launch(kernels.CUT_TILES, (tiles, count))
        return orders

    def _sure_to_turn(self, csr: Csr, work: _Survey, cut: Cut) -> bool:
        """Whether segments, not yet sorted, will be, however rows are sorted."""
        facts = work.facts
        if work.turns or not 0 < facts.segments <= MOST_SEGMENTS:
            return False
        rows, entries = csr.shape[0] - facts.long_rows, len(csr.indices) - WARP * facts.segment_steps
        least = max(ceil_div(rows, WARP), ceil_div(entries, WARP * cut.steps))
        return facts.segments + least > cut.in_order

    def _sort_rows(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        orders: _Orders,
        tiles: int,
        counts: Array,
    ) -> None:
        """Set the rows in slices in the order of each window, m apart."""
        m, long_count, work, windows = csr.shape[0], survey.long_rows, survey.detail, orders.windows
        long_rows = self._on.word(work.long.long_rows if long_count else None)
        longest = work.facts.longest_whole
        bits = (longest + 1).bit_length()
        wide = [nth for nth, window in enumerate(windows) if window > SORT_TILE]
        beside = self._on.aside() if wide and m >= BESIDE and bits > DIGIT_BITS else None
        work.known |= {
            "longest": longest,
            "most": WARP * cut.steps,
            "bits": bits,
            "long_rows": long_rows,
            "long_count": long_count,
            "come": work.zeros(1),
            "counts": self._on.word(None if beside else counts),
            "apart": int(tiles * len(windows) <= APART),
        }
        work.launch(kernels.SORT_WINDOWS, (tiles, len(windows)), 512)
        work.known |= {"keys": self._on.word(None), "gone": long_rows, "gone_count": long_count}
        kept = []
        try:
            for nth in wide:
                to, counted = self._on.part(orders.rows, nth * m, m), counts if nth == wide[-1] else None
                of = m, work.types["Index"]
                kept.append(self._sort(work, of, windows[nth], bits, to, None if beside else counted, beside))
        finally:
            if beside:
                beside.join()

    def _sort(
        self,
        work: _Work,
        elements_of: tuple[int, np.dtype[Any]],
        width: int,
        bits: int,
        to: Any,
        counted: Array | None = None,
        beside: Aside | None = None,
    ) -> Any:
        """Sort so many elements of a type by their keys inside windows, stably; see kernels/pack/radix.cu.

        `counted` has the places of the first digits, if they were counted. One tile needs none. What is
        returned must be kept until what is launched `beside` has joined.
        """
        elements, kind = elements_of
        passes = ceil_div(max(bits, 1), DIGIT_BITS)
        tiles = ceil_div(elements, width) * ceil_div(width, SORT_TILE)
        counts = counted
        if tiles > 1 and counts is None:
            (counts,) = self._on.scratch(((tiles << DIGIT_BITS) + 1, COUNT))
        spare = self._on.scratch((elements, kind))[0] if passes > 1 else None
        source, come = None, work.take(passes)
        work.tell(elements=elements, width=width, counts=counts)
        with beside or nullcontext():
            for nth in range(passes):
                target = to if (passes - nth) % 2 else spare
                work.tell(shift=nth * DIGIT_BITS, last=int(nth == passes - 1), **{"from": source})
                if tiles > 1 and (nth or counted is None):
                    work.launch(kernels.COUNT_DIGITS, tiles, 512, come=work.words(come + nth, 1))
                work.launch(kernels.MOVE_DIGITS, tiles, 512, to=target)
                source = target
        return counts, spare

    def _list_long(self, csr: Csr, survey: Survey) -> _Pieces:
        """Return the rows too long for a slice, and their segments."""
        work: _Survey = survey.detail
        rows, index, count = survey.long_rows, work.types["Index"], work.facts.segments
        if not rows:
            none = _Turned(None, None, None)
            return _Pieces(self._nothing(index), self._zero(index), self._nothing(index), none)
        if work.long is None:
            long_rows, offsets = self._on.empty(rows, index), self._on.empty(rows + 1, index)
            found = _Pieces(long_rows, offsets, self._on.empty(count, index), self._room_for_segments(count))
            made = {"long_rows": long_rows, "offsets": offsets, "segment_rows": found.rows}
            work.launch(
                kernels.LIST_LONG, ceil_div(csr.shape[0], LONG_TILE), **made, **found.segments._asdict()
            )
            work.long = found
        return work.long

    def _room_for_segments(self, count: int) -> _Turned:
        return _Turned(*self._on.scratch((count, INT64), (count, INT64), (4 * count, UINT32)))

    def _turn_segments(self, survey: Survey, beside: Aside | None = None) -> _Turned:
        """Return segments in the order of their first columns, perhaps sorted beside others."""
        work, bits = survey.detail, survey.most_column.bit_length()
        assert work.long
        count, (starts, lengths, _) = work.facts.segments, work.long.segments
        turned = work.turned = self._room_for_segments(count)
        (keys,) = self._on.scratch((count, UINT32))
        to = {f"turned_{name}": array for name, array in turned._asdict().items()}
        work.tell(starts=starts, lengths=lengths, segments=count, column_keys=keys, **to)
        if count <= MOST_SEGMENTS:
            work.kept = keys
            with beside or nullcontext():
                work.launch(kernels.SORT_SEGMENTS, 1, 512, column_bits=bits)
            return turned
        (in_turn,) = self._on.scratch((count, work.types["Index"]))
        work.launch(kernels.COLUMN_KEYS, _share(count, 256, BLOCKS), count=count, keys=keys)
        indptr = work.known["indptr"]
        work.tell(indptr=None, longest=0, most=0, gone=None, gone_count=0)
        self._sort(work, (count, work.types["Index"]), count, bits, in_turn)
        work.known["indptr"] = indptr
        work.launch(kernels.PLACE_SEGMENTS, 1, 1024, in_turn=in_turn)
        return turned

    # ---- fill ----------------------------------------------------------------------------------------

    def store(
        self, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
    ) -> tuple[Values, Array, Array]:
        """See `Primitives`."""
        try:
            return self._store(csr, survey, order, layout, coding)
        finally:
            survey.detail.join()

    def _store(
        self, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
    ) -> tuple[Values, Array, Array]:
        """Do what `store` does, beside what is counted of the layout."""
        work, word, known, slices = survey.detail, self._on.word, survey.detail.known, layout.slices
        index, dtype = work.types["Index"], csr.data.dtype
        values, kept = self._room(csr.data, order, layout.steps, coding, work)
        if not slices:
            return values, self._nothing(index), self._nothing(np.uint8)
        bases = self._on.empty(layout.steps, index)
        tiles, blocks = ceil_div(slices, SLICE_TILE), ceil_div(slices, 8)
        first = work.take(tiles + 2)
        told, sent = self._on.telling(1)
        known |= {
            "slices": slices,
            "bases": word(bases),
            "data": self._on.bits(csr.data, bits_type(dtype)),
            "order": word(order),
            "come": work.words(first, 1),
            "sizes": work.words(first + 1, tiles + 1),
            "told": told,
        }
        aside = work.fork()
        work.launch(kernels.STORE_SLICES, blocks, 256, self._of(work.types, dtype, coding))
        reading = sent()
        work.begin(aside)
        size = reading()[0]
        del kept  # and not sooner: what runs beside would get its memory
        deltas = self._on.empty(WARP * size, np.uint8)
        known["deltas"] = word(deltas)
        work.launch(kernels.FILL_DELTAS, blocks)
        return values, bases, deltas

    def _room(
        self, data: Array, order: Array | None, steps: int, coding: Coding, work: _Survey
    ) -> tuple[Values, Any]:
        """Return values whose codes are to be stored, and what must live until then; tell kernels of both."""
        known, dtype, kept = work.known, data.dtype, None
        known["table"] = known["codes"] = known["stored"] = self._on.word(None)
        known["distinct"] = 0
        if coding == Coding.EQUAL:
            return Values(coding, self._nothing(np.uint8), self._on.first(data)), kept
        table = self._nothing(dtype)
        if coding == Coding.DICTIONARY:
            # In another order values first appear elsewhere.
            distinct = work.distinct if order is None else self._value_facts(data, order)
            assert distinct
            table = self._on.empty(work.values().distinct, dtype)
            kept = self._dictionary(data, order, distinct, table)
            work.tell(codes=kept, distinct=len(table), table=_plain(table))
        stored = self._on.empty(WARP * steps if len(data) else 0, code_type(coding, dtype))
        known["stored"] = self._on.bits(stored, _code_bits(coding, dtype))
        return Values(coding, stored, table), kept

    def _dictionary(self, data: Array, order: Array | None, distinct: _Distinct, table: Array) -> Array:
        """Return codes by slots of the table of distinct values, and write values by codes."""
        (codes,) = self._on.scratch((SLOTS, np.dtype(np.uint8)))
        work = _Work(self._on, self._of(_of_values(data), data.dtype), data=_plain(data), order=order)
        work.tell(**self._table(distinct), codes=codes, table=_plain(table))
        work.launch(kernels.DICTIONARY, 1, VALUE_THREADS)
        return codes

    def _value_facts(self, data: Array, order: Array | None) -> _Distinct:
        """Return facts of values, and the table of distinct ones."""
        distinct = _Distinct(self._on.zeroed(2 + VALUE_WORDS), 0, 2)
        work = _Work(self._on, self._of(_of_values(data), data.dtype))
        self._count_values(work, data, order, distinct)
        return distinct

    # ---- other values --------------------------------------------------------------------------------

    def slots(self, plan: Plan) -> Places:
        """See `Primitives`: of each row where it begins, which is less than the slot of every entry."""
        (starts, pieces, _), pattern = self._count_entries(plan), plan.pattern
        arguments = {
            **_packed(pattern),
            "segment_offsets": pattern.segment_offsets,
            "starts": starts,
            "pieces": pieces,
            "order": plan.order,
            "table": None,
            "codes": None,
            "distinct": 0,
        }
        words = {name: self._on.word(value) for name, value in (arguments | _UNASKED).items()}
        place = narrowest(pattern.entries) if plan.order is None else plan.order.dtype
        types = {"Start": np.dtype(np.int64), "Column": pattern.index_dtype, "Index": pattern.index_dtype}
        blocks = ceil_div(len(pattern.headers), 8)
        return Places(starts, pieces, types | {"Place": place}, arguments, words, blocks, plan)

    def fill(self, places: Places, values: Values, dtype: np.dtype[Any]) -> Fill | None:
        """Return what overwrites values in place; None if there are none.

        Parameters
        ----------
        places : Places
        values : Values
            Of the pattern.
        dtype : numpy.dtype
            Of the matrix.
        """
        coding, stored, count = values.coding, values.codes, places.plan.nnz
        if not places.blocks or not count:
            return None
        of, asked = self._of(places.types, dtype, coding), ("data", "misfit", "turn")
        if coding == Coding.DICTIONARY:
            return self._dictionary_fill(places, values, dtype, of)
        if coding == Coding.EQUAL:
            refill = of.prepared(kernels.KEEP_FIRST, {"table": _plain(values.table)}, (*asked, "told"), 1, 1)
        else:
            arguments = places.arguments | {"stored": _bits(stored, coding)}
            overlaps = coding != Coding.PLAIN  # and so there is a question in front of it
            refill = of.prepared(
                kernels.REFILL, arguments, (*asked, "told"), places.blocks, overlaps=overlaps
            )
        if coding == Coding.PLAIN:
            return Fill(self._on, dtype, refill)
        blocks = _share(count, 2048, 2 * BLOCKS)
        return Fill(self._on, dtype, refill, of.prepared(kernels.HOLDS, {"count": count}, asked, blocks))

    def _dictionary_fill(self, places: Places, values: Values, dtype: np.dtype[Any], of: _Kernels) -> Fill:
        """Return what overwrites values by their numbers in a table, and the table."""
        on, count, asked = self._on, places.plan.nnz, ("data", "misfit", "turn")
        sizes = {"facts": 2, "claims": SLOTS, "firsts": SLOTS + 1, "come": 1}
        counted = {name: on.zeros(size, COUNT) for name, size in sizes.items()}
        coder = {"codes": on.empty(SLOTS, np.uint8), "table": _plain(values.table)}
        made = {"room": len(values.table), "order": None, "count": count}
        blocks = _share(count, VALUES_AT_ONCE, BLOCKS // 4)
        counting = self._of(_of_count(count), dtype).prepared(
            kernels.VALUE_FACTS, {**counted, **coder, **made}, asked, blocks, VALUE_THREADS
        )
        stored = {"stored": _bits(values.codes, values.coding), "distinct": len(values.table)}
        arguments = places.arguments | coder | stored
        refill = of.prepared(kernels.REFILL, arguments, (*asked, "told"), places.blocks, overlaps=True)
        return Fill(on, dtype, refill, counting)

    def count_values(self, data: Array) -> tuple[ValueStatistics, _Distinct]:
        """See `Primitives`; it keeps the table of distinct values."""
        distinct = self._value_facts(data, None)
        return _value_statistics(len(data), *self._on.reading(distinct.words, 0, 2)()), distinct

    def code_values(
        self,
        data: Array,
        slots: Places,
        total: int,
        coding: Coding,
        counted: tuple[ValueStatistics, _Distinct] | None,
    ) -> Values:
        """See `Primitives`."""
        if coding == Coding.EQUAL:
            return Values(coding, self._nothing(np.uint8), self._on.first(data))
        stored = self._on.empty(total, code_type(coding, data.dtype))
        table, coder = self._nothing(data.dtype), dict[str, Any]()
        if coding == Coding.DICTIONARY and counted:
            table = self._on.empty(counted[0].distinct, data.dtype)
            codes = self._dictionary(data, None, counted[1], table)
            coder = {"codes": codes, "table": _plain(table), "distinct": len(table)}
        self._refill(data, slots, coding, stored, coder)
        return Values(coding, stored, table)

    def recode_values(self, data: Array, slots: Places, values: Values) -> bool:
        """See `Primitives`."""
        fill = self.fill(slots, values, data.dtype)
        return fill is None or fill(data)

    def _refill(
        self, data: Array, places: Places, coding: Coding, stored: Array, coder: Mapping[str, Any]
    ) -> None:
        """Write the codes of values into the slots of a pattern."""
        if not places.blocks:
            return
        key = data.dtype, coding
        launch = places.kernels.get(key)
        if launch is None:
            launch = places.kernels[key] = self._of(places.types, *key)[kernels.REFILL]
        word = self._on.word
        told = {name: word(array) for name, array in coder.items()}
        given = {"data": word(_plain(data)), "stored": word(_bits(stored, coding)), **told}
        launch((places.blocks, 1), 256, places.words | given)

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """See `Primitives`."""
        return self._on.zeros(count, dtype)

    def scatter(self, numbers: Array, slots: Array | None, stored: Array) -> None:
        """See `Primitives`."""
        if len(numbers):
            types = _of_values(numbers) | {"Slot": np.dtype(np.int32) if slots is None else slots.dtype}
            given = {"data": _plain(numbers), "count": len(numbers), "slots": slots, "to": _plain(stored)}
            work = _Work(self._on, self._of(types, numbers.dtype), **given)
            blocks = _share(len(numbers), 1024, 2 * BLOCKS)
            work.launch(kernels.SCATTER, blocks)

    def overwrite(self, array: Array, numbers: Array) -> None:
        """See `Primitives`."""
        self.scatter(numbers, None, array)

    # ---- the way back --------------------------------------------------------------------------------

    def unpack(self, plan: Plan) -> tuple[Array, Array, Array]:
        """See `Primitives`."""
        indptr, indices, codes = self.unpack_codes(plan)
        return indptr, indices, self.decode(plan.values, codes, plan.pattern.entries, plan.dtype)

    def unpack_codes(self, plan: Plan) -> tuple[Array, Array, Array | None]:
        """Return what `unpack` does, with the values as they are stored; None if they are not."""
        count, values = plan.pattern.entries, plan.values
        indices, codes = self._on.empty(count, plan.pattern.index_dtype), None
        if values.coding != Coding.EQUAL:
            codes = self._on.empty(count, values.codes.dtype)
        starts, _, work = self._count_entries(plan)
        if count:
            stored = None if codes is None else _plain(values.codes)
            given = {"bases": plan.pattern.bases, "segment_offsets": plan.pattern.segment_offsets}
            made = {"to_indices": indices, "to_codes": None if codes is None else _plain(codes)}
            blocks = ceil_div(len(plan.pattern.headers), 8)
            work.launch(kernels.FILL_ENTRIES, blocks, **given, codes=stored, **made)
        return starts.view(np.int64), indices, codes

    def _count_entries(self, plan: Plan) -> tuple[Array, Array, _Work]:
        """Return where each row begins, and the entries of each segment; and the work, which goes on."""
        pattern, m = plan.pattern, plan.shape[0]
        starts, pieces = self._on.zeros(m + 1, COUNT), self._on.empty(pattern.segments, COUNT)
        tiles, blocks = ceil_div(m, ROW_TILE), ceil_div(len(pattern.headers), 8)
        given = {"starts": starts, "pieces": pieces, "m": m, "tiles": tiles, **_packed(pattern)}
        work = _Work(self._on, self._of(_of_plan(plan)), self._on.zeroed(tiles + 2), **given)
        work.tell(come=work.zeros(1), sizes=work.zeros(tiles + 1))
        if pattern.entries:
            work.launch(kernels.COUNT_ENTRIES, blocks)
            work.launch(kernels.START_ROWS, tiles)
        return starts, pieces, work

    def decode(self, values: Values, codes: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
        """See `Primitives`."""
        if codes is not None and values.coding == Coding.PLAIN:
            return codes
        data = self._on.empty(count, dtype)
        if count:
            coded = None if codes is None or not len(codes) else _bits(codes, values.coding)
            given = {"codes": coded, "table": _plain(values.table), "count": count, "data": _plain(data)}
            work = _Work(self._on, self._of(_of_values(data), data.dtype, values.coding), **given)
            work.launch(kernels.DECODE, _share(count, 256, BLOCKS))
        return data

    def find_diagonal(self, plan: Plan, k: int, first: int, count: int) -> Array | None:
        """See `Primitives`."""
        found = self._on.zeros(count, COUNT)
        if not plan.pattern.entries or not count:
            return found.view(np.int64) - 1
        work = _Work(self._on, self._of(_of_plan(plan)), self._on.zeroed(1), **_packed(plan.pattern))
        twice, blocks = work.take(1), ceil_div(len(plan.pattern.headers), 8)
        where = {"bases": plan.pattern.bases, "further": k, "first_row": first}
        work.launch(kernels.FIND_DIAGONAL, blocks, **where, found=found, twice=work.words(twice, 1))
        return None if work.reading(twice, 1)()[0] else found.view(np.int64) - 1

    def clear_pads(self, pattern: Pattern, codes: Array) -> None:
        """See `Primitives`."""
        if len(codes):
            index, code = pattern.index_dtype, bits_type(codes.dtype)
            types = {"Start": np.dtype(np.int64), "Column": index, "Index": index, "Code": code}
            work = _Work(self._on, self._of(types), **_packed(pattern))
            work.launch(kernels.CLEAR_PADS, ceil_div(len(pattern.headers), 8), codes=_plain(codes))

    def transpose(self, csr: Csr) -> tuple[Csr, Array, bool]:
        """See `Primitives`: entries are sorted by column, six bits at a time, and then moved."""
        (m, n), nnz = csr.shape, len(csr.indices)
        starts, order = self._on.zeros(n + 1, np.int64), self._on.empty(nnz, narrowest(nnz))
        made = Csr((n, m), starts, *(self._on.empty(nnz, array.dtype) for array in csr[2:]))
        if not nnz:
            return made, order, m == n
        # To the sort entries are what rows are elsewhere.
        of_entries = self._of(_integers(csr._replace(shape=(nnz, nnz))) | {"Code": bits_type(csr.data.dtype)})
        given = {"indptr": None, "indices": csr.indices, "m": m, "n": n, "nnz": nnz}
        work = _Work(self._on, of_entries, self._on.zeroed(ZEROS), **given)
        differs = work.take(1)
        self._sort_entries(csr, order, work)
        work.tell(indptr=csr.indptr, order=order, differs=work.words(differs, 1) if m == n else None)
        moved = {"data": _plain(csr.data), "to_data": _plain(made.data), "to_indices": made.indices}
        work.launch(kernels.TURN_ENTRIES, _share(nnz, 256, BLOCKS), **moved)
        work.launch(kernels.START_COLUMNS, _share(n + 1, 256, BLOCKS), to_indptr=starts)
        return made, order, m == n and not work.reading(differs, 1)()[0]

    def _sort_entries(self, csr: Csr, order: Array, work: _Work) -> None:
        """Sort the numbers of the entries by column, stably."""
        nnz = len(order)
        if csr.indices.dtype.itemsize == 4:
            keys = csr.indices.view(np.uint32)
        else:
            (keys,) = self._on.scratch((nnz, UINT32))
            work.launch(kernels.ENTRY_KEYS, _share(nnz, 256, BLOCKS), keys=keys)
        work.tell(keys=keys, longest=0, most=0, gone=None, gone_count=0)
        self._sort(work, (nnz, order.dtype), nnz, max(csr.shape[1] - 1, 0).bit_length(), order)

    # ---- what is compiled ----------------------------------------------------------------------------

    def ready(self, csr: Csr) -> None:
        """Have the kernels that most matrices of these types need compiled beside each other, not in turn."""
        integers = _integers(csr)
        key = integers.key, csr.data.dtype.num, csr.shape[0] > SORT_TILE
        if key in self._readied:
            return
        self._readied.add(key)
        of_integers, plain = _defines(integers), _value_defines(csr.data.dtype, Coding.PLAIN)
        wide = (kernels.MOVE_DIGITS,) if csr.shape[0] > SORT_TILE else ()
        self._on.load_all(
            [
                *((signature.source, of_integers) for signature in (*ALWAYS, *wide)),
                (kernels.VALUE_FACTS.source, _defines(_of_values(csr.data)) | plain),
                (kernels.STORE_SLICES.source, of_integers | plain),
            ]
        )

    def _of(
        self,
        types: dict[str, np.dtype[Any]],
        dtype: np.dtype[Any] | None = None,
        coding: Coding = Coding.PLAIN,
    ) -> _Kernels:
        """Return kernels for integers of some types, and perhaps for values of one, in a coding."""
        named = types.key if isinstance(types, _Types) else tuple(types.items())
        key = named, dtype and dtype.num, int(coding)
        found = self._kernels.get(key)
        if found is None:
            constants, types = _defines(types), dict(types)
            if dtype is not None:
                constants |= _value_defines(dtype, coding)
                types |= {"Bits": bits_type(dtype), "Code": _code_bits(coding, dtype)}
            found = self._kernels[key] = _Kernels(self._on, types, constants)
        return found


class _Types(dict[str, np.dtype[Any]]):
    """Types of integers by their names in the sources, and a key of them: NumPy's types take long to hash."""

    key: Any = None


def _integers(csr: Csr) -> _Types:
    """Return the types of a matrix's integers by their names in the sources."""
    index, place = _index(csr), narrowest(len(csr.indices))
    key = csr.indptr.dtype.num, csr.indices.dtype.num, index.num, place.num
    types = _types.get(key)
    if types is None:
        types = _Types(Start=csr.indptr.dtype, Column=csr.indices.dtype, Index=index, Place=place)
        types.key = key
        _types[key] = types
    return types


_types: dict[Any, _Types] = {}


def _of_plan(plan: Plan) -> dict[str, np.dtype[Any]]:
    """Return those of a plan's integers and codes."""
    index = plan.pattern.index_dtype
    code = bits_type(plan.values.codes.dtype)
    return {"Start": np.dtype(np.int64), "Column": index, "Index": index, "Code": code}


def _of_values(data: Array) -> _Types:
    """Return those for kernels that know values alone."""
    return _of_count(len(data))


def _of_count(count: int) -> _Types:
    """Return those for kernels that know so many values alone."""
    place = narrowest(count)
    types = _types.get(place.num)
    if types is None:
        types = _Types(_NO_MATRIX, Place=place)
        types.key = place.num
        _types[place.num] = types
    return types


def _defines(types: Mapping[str, np.dtype[Any]]) -> dict[str, str]:
    """Return the constants that stand for types."""
    return {
        "DASP_CODE_BYTES" if name == "Code" else f"DASP_{name.upper()}": str(kind.itemsize)
        if name == "Code"
        else C_NAMES[kind]
        for name, kind in types.items()
    }


def _value_defines(dtype: np.dtype[Any], coding: Coding) -> dict[str, str]:
    """Return the constants of kernels that are compiled for values."""
    return {
        "DASP_VALUE_BYTES": str(dtype.itemsize),
        "DASP_KIND": str(KINDS[dtype.kind]),
        "DASP_BFLOAT16": str(int(dtype == BFLOAT16)),
        "DASP_CODING": str(int(coding)),
    }


_INT32 = np.iinfo(np.int32).max

_NO_MATRIX = dict.fromkeys(("Start", "Column", "Index"), np.dtype(np.int32))
"""For kernels that know no matrix."""


def _index(csr: Csr) -> np.dtype[Any]:
    return narrowest(max(csr.shape))


def _bytes(csr: Csr) -> int:
    return int(csr.indptr.nbytes + csr.indices.nbytes + csr.data.nbytes)


def _share(count: int, each: int, most: int) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, each), most), 1)


@lru_cache(maxsize=256)
def _window_tiles(windows: tuple[int, ...], m: int) -> int:
    """Return the most blocks that sort rows inside any of some windows, 0 for one that is cut as it is.

    A block has several windows, or a window several blocks.
    """

    def tiles(window: int) -> int:
        if window > SORT_TILE:
            return ceil_div(m, window) * ceil_div(window, SORT_TILE)
        return ceil_div(m, CHUNKS // ceil_div(window, CHUNK) * window)

    return max(tiles(min(window or SORT_TILE, m)) for window in windows)


@lru_cache(maxsize=256)
def _sizes_of_blocks(blocks: tuple[int, int, int], longest: int, entries: int) -> dict[str, int]:
    """Return what a sample is told of blocks of slices of up to so many steps, and of their tables.

    `entries` are those of the matrix.
    """
    most = [min(size * WARP * longest, entries) for size in blocks]
    slots = [max(1 << (2 * count - 1).bit_length(), 64) if count else 0 for count in most]
    kinds = "by_slice", "few", "many"
    sizes = dict(zip(kinds, blocks, strict=True)) | {"table_slots": max(slots)}
    return sizes | {f"slots_{kind}": count for kind, count in zip(kinds, slots, strict=True)}


@cache
def _code_bits(coding: Coding, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which kernels/pack/encode.cuh makes a code."""
    kind = code_type(coding, dtype)
    return kind if coding == Coding.BYTE else bits_type(kind)


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


_UNASKED = {"misfit": None, "turn": 0, "told": None}
"""What `kernels.REFILL` is told where nobody asked whether values fit."""


def _slice_statistics(windows: tuple[int, ...], counted: list[int]) -> dict[int, SliceStatistics]:
    """Return what was counted of each candidate."""
    found, at, sampled = {}, 0, TOTALS * len(windows)
    for window in windows:
        found[window] = SliceStatistics(*counted[at : at + TOTALS], *counted[sampled : sampled + SAMPLED])
        at += TOTALS
        sampled += SAMPLED
    return found


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


def _hold(csr: Csr, facts: Facts) -> None:
    """Hold that arrays on the device are a matrix; see `dasp._check.compressed`."""
    given = len(csr.indices), len(csr.data)
    least = (facts.least_column_not ^ ALL_BITS) - BIAS
    columns = (least, facts.most_column - BIAS) if given[0] else None
    _check.compressed_facts("CSR", csr.shape, not facts.falls, facts.end - BIAS, given, columns)
