"""Write entries into their slots on a GPU: codes of values, bases and deltas; and new values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dasp.formats.csr.cuda import CudaOperations
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array, Plan
from dasp.formats.sell.cuda.kinds import (
    BLOCK_SLICES,
    COUNT,
    UINT8,
    find_entry_kinds,
    find_matrix_kinds,
    find_value_kinds,
)
from dasp.formats.sell.cuda.survey import (
    NOT_DICTIONARY,
    count_distinct,
    read_facts,
)
from dasp.formats.sell.cuda.unpack import ROWS_OF_SLICES, count_entries, list_row_slots
from dasp.formats.sell.pattern import Coding, Values, code_type
from dasp.formats.sell.primitives import Layout, Survey
from dasp.runtime.cuda.launch import Kinds, Signature
from dasp.runtime.sizes import ceil_div, narrowest

STORE_SLICES = Signature(
    "pack/store.cu",
    "dasp_store_slices",
    """
    const Start*           indptr
    const Column*          indices
    const Bits*            data
    const Place*           order
    const Bits*            table
    int                    distinct
    const Index*           rows
    long long              positions
    const long long*       segment_starts   [segments]
    const long long*       segment_lengths  [segments]
    long long              segments
    long long              slices
    uint4*                 headers          [slices]
    Index*                 bases
    Code*                  stored
    Count*                 sizes
    """,
)

FILL_DELTAS = Signature(
    "pack/store.cu",
    "dasp_fill_deltas",
    """
    const Start*      indptr
    const Column*     indices
    const Index*      rows
    long long         positions
    const long long*  segment_starts   [segments]
    const long long*  segment_lengths  [segments]
    long long         segments
    long long         slices
    uint4*            headers          [slices]
    const Index*      bases
    const Count*      sizes
    unsigned char*    deltas
    """,
)

REFILL = Signature(
    "pack/refill.cu",
    "dasp_refill",
    f"""{ROWS_OF_SLICES.rstrip()}
    const unsigned char*   deltas
    const Count*           starts
    const Count*           pieces           [segments]
    const Place*           order
    const Bits*            table
    int                    distinct
    Code*                  stored
    const Bits*            data
    """,
)

HOLDS = Signature(
    "pack/values.cu",
    "dasp_holds",
    """
    long long    count
    const Bits*  data    [count]
    Count*       misfit  [1]
    """,
)

SCATTER = Signature(
    "pack/scatter.cu",
    "dasp_scatter",
    """
    const Bits*  data   [count]
    long long    count
    const Slot*  slots
    Bits*        to
    """,
)


def store(
    on: CudaOperations, csr: Csr, survey: Survey, order: Array | None, layout: Layout
) -> tuple[Values, tuple[Array, Array, Array, Array]]:
    """See `Primitives`."""
    device, coding, dictionary = on.device, survey.coding, survey.detail.dictionary
    kinds, slots = find_matrix_kinds(csr, coding), WARP * layout.steps if len(csr.data) else 0
    values = _allocate_values(on, csr.data, slots, coding, dictionary)
    bases = device.empty(layout.steps, kinds.types["Index"])
    if not layout.slices:
        return values, (layout.rows, layout.headers, bases, device.empty(0, UINT8))
    blocks = ceil_div(layout.slices, BLOCK_SLICES)
    sizes = device.zeros(blocks + 2, COUNT)
    slices: dict[str, Any] = {
        "indptr": csr.indptr,
        "indices": csr.indices,
        "rows": layout.rows if len(layout.rows) else None,
        "positions": layout.positions,
        **layout.detail.segments.arguments,
        "slices": layout.slices,
        "headers": layout.headers,
        "bases": bases,
        "sizes": sizes,
    }
    on.launch(
        STORE_SLICES,
        kinds,
        blocks,
        **slices,
        data=csr.data,
        order=order,
        table=dictionary,
        distinct=len(values.table),
        stored=None if coding == Coding.EQUAL else values.codes,
    )
    deltas = device.empty(WARP * device.read(sizes[blocks : blocks + 1])[0], UINT8)
    on.launch(FILL_DELTAS, kinds, blocks, **slices, deltas=deltas)
    return values, (layout.rows, layout.headers, bases, deltas)


def _allocate_values(
    on: CudaOperations, data: Array, slots: int, coding: Coding, dictionary: Array | None
) -> Values:
    """Allocate values: the table is complete, the codes are still to be written."""
    device, dtype = on.device, data.dtype
    if coding == Coding.EQUAL:
        first = device.empty(1, dtype)
        device.copy(first, data)
        return Values(coding, device.empty(0, UINT8), first)
    table = device.empty(0, dtype) if dictionary is None else dictionary
    return Values(coding, device.empty(slots, code_type(coding, dtype)), table)


_CAPTURED = (
    "new values were written into coded ones, of a matrix or of its transpose, while a graph was captured; "
    "a graph writes values that are stored as they are; plan the matrix with Policy(narrow=False)"
)


@dataclass
class Places:
    """Places of the entries of a pattern, row by row, for new values.

    Attributes
    ----------
    plan : Plan
        The plan whose pattern and order these are.
    starts : Array, shape (m + 1,), uint64
        The first entry of each row, and the number of entries.
    pieces : Array, shape (segments,), uint64
        Entries of each segment.
    arguments : dict
        The arrays of the pattern, and those above, by their names in kernels.
    """

    plan: Plan
    starts: Array
    pieces: Array
    arguments: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.starts.nbytes + self.pieces.nbytes)

    @property
    def blocks(self) -> int:
        """Blocks of threads, a warp for each slice."""
        return ceil_div(len(self.plan.pattern.headers), BLOCK_SLICES)

    def kinds(self, dtype: np.dtype[Any], coding: Coding) -> Kinds:
        """Return the kinds of kernels that read the pattern and values."""
        pattern, order = self.plan.pattern, self.plan.order
        place = narrowest(pattern.entries) if order is None else order.dtype
        return find_entry_kinds(pattern.index_dtype, place, dtype, coding)


def find_places(on: CudaOperations, plan: Plan) -> Places:
    """See `Primitives.find_slots`: the places where rows begin, which take less memory than all slots."""
    starts, pieces = count_entries(on, plan)
    arguments: dict[str, Any] = {
        **list_row_slots(plan.pattern),
        "starts": starts,
        "pieces": pieces,
        "order": plan.order,
    }
    return Places(plan, starts, pieces, arguments)


def code_values(
    on: CudaOperations,
    data: Array,
    slots: Places,
    total: int,
    coding: Coding,
    dictionary: Array | None,
) -> Values:
    """See `Primitives`."""
    values = _allocate_values(on, data, total, coding, dictionary)
    if coding != Coding.EQUAL:
        _refill(on, data, slots, coding, values.codes, values.table)
    return values


def recode_values(on: CudaOperations, data: Array, places: Places, values: Values) -> bool:
    """See `Primitives`; the values are tested first, and written if they fit.

    Raises
    ------
    RuntimeError
        In a capture, unless values are stored as they are: the host must read the test.
    """
    coding, table, device = values.coding, values.table, on.device
    if not places.blocks or not len(data):
        return True
    if coding != Coding.PLAIN and device.is_capturing():
        raise RuntimeError(_CAPTURED)
    if coding == Coding.DICTIONARY:
        distinct = count_distinct(on, data)
        dead, count = read_facts(on, distinct)
        if dead & NOT_DICTIONARY or count > len(table):
            return False
        table = table[:count]
        device.copy(table, distinct.table)
    elif coding != Coding.PLAIN and not _holds(on, data, coding):
        return False
    if coding == Coding.EQUAL:
        device.copy(table, data)
    else:
        _refill(on, data, places, coding, values.codes, table)
    return True


def _holds(on: CudaOperations, data: Array, coding: Coding) -> bool:
    """Return True if a coding without a dictionary keeps every bit of every value."""
    misfit, count = on.device.zeros(1, COUNT), len(data)
    of, blocks = find_value_kinds(data.dtype, count, coding), on.count_blocks(count, 2048, 8)
    on.launch(HOLDS, of, blocks, count=count, data=data, misfit=misfit)
    return on.device.read(misfit) == [0]


def _refill(
    on: CudaOperations, data: Array, places: Places, coding: Coding, stored: Array, table: Array
) -> None:
    """Write the codes of values into the slots of a pattern; `table` is that of a dictionary."""
    if not places.blocks:
        return
    on.launch(
        REFILL,
        places.kinds(data.dtype, coding),
        places.blocks,
        **places.arguments,
        table=table if len(table) else None,
        distinct=len(table),
        stored=stored,
        data=data,
    )


def scatter(on: CudaOperations, numbers: Array, slots: Array | None, stored: Array) -> None:
    """See `Primitives`."""
    count, slot = len(numbers), np.dtype(np.int32) if slots is None else slots.dtype
    if count:
        on.launch(
            SCATTER,
            find_value_kinds(numbers.dtype, count, slot=slot),
            on.count_blocks(count, 1024, 8),
            data=numbers,
            count=count,
            slots=slots,
            to=stored,
        )


def overwrite(on: CudaOperations, array: Array, numbers: Array) -> None:
    """See `Primitives`."""
    scatter(on, numbers, None, array)
