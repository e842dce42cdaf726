"""The operations on matrices on a GPU; `dasp.formats.csr.matrix.Operations` says what each returns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.formats.csr.matrix import Array, Csr, equal
from dasp.runtime.cuda.device import KernelLauncher
from dasp.runtime.cuda.launch import Kinds, Signature
from dasp.runtime.dtypes import C_NAMES, bits_type
from dasp.runtime.sizes import ceil_div, narrowest

COUNT = np.dtype(np.uint64)
"""The type of counters in the kernels."""

INT64 = np.dtype(np.int64)


@cache
def kinds_of(**types: np.dtype[Any]) -> Kinds:
    """Return the kinds of a kernel for types of integers, by their names in its source."""
    constants = {f"DASP_{name.upper()}": C_NAMES[kind] for name, kind in types.items()}
    return Kinds(types | {"Count": COUNT}, constants)


SORT_THREADS, SORT_TILE, DIGIT_BITS = 1024, 8192, 6
"""Threads and elements of a block of sort.cu, and the bits of a key by which one pass sorts."""

COUNT_DIGITS = Signature(
    "csr/sort.cu",
    "dasp_count_digits",
    """
    const Key*    keys
    const Place*  from
    long long     count
    int           shift
    Count*        come
    Count*        counts
    """,
)

MOVE_DIGITS = Signature(
    "csr/sort.cu",
    "dasp_move_digits",
    """
    const Key*    keys
    const Place*  from
    long long     count
    int           shift
    const Count*  counts
    Place*        to
    """,
)


def sort(
    on: KernelLauncher,
    keys: Array,
    bits: int,
    to: Array,
    place: np.dtype[Any],
    elements: Array | None = None,
    *,
    start: np.dtype[Any] = INT64,
) -> None:
    """Write the numbers of elements, sorted stably by their keys.

    Parameters
    ----------
    on : KernelLauncher
    keys : Array, int32 or int64
        The key of each element, by the element's number: not negative, of at most `bits` bits.
    bits : int
    to : Array, shape (count,)
        The result, of type `place`.
    place : numpy.dtype
        int32 or int64.
    elements : Array, shape (count,), optional
        The numbers in their order before the sort, of type `place`; by default all, from 0 on.
    start : numpy.dtype
        The type of indptr, if entries are sorted for a transpose, whose kernels are compiled with these.
    """
    count = keys.size if elements is None else elements.size
    kinds = kinds_of(Start=start, Key=keys.dtype, Place=place)
    tiles, passes = ceil_div(count, SORT_TILE), max(ceil_div(bits, DIGIT_BITS), 1)
    counts, come = on.device.empty((tiles << DIGIT_BITS) + 1, COUNT), on.device.zeros(passes, COUNT)
    spare = on.device.empty(count, place) if passes > 1 else None
    source = elements
    for nth in range(passes):
        target = to if (passes - nth) % 2 else spare
        known = {"keys": keys, "from": source, "count": count, "shift": nth * DIGIT_BITS, "counts": counts}
        on.launch(COUNT_DIGITS, kinds, tiles, SORT_THREADS, come=come[nth : nth + 1], **known)
        on.launch(MOVE_DIGITS, kinds, tiles, SORT_THREADS, to=target, **known)
        source = target


FIND_ROWS = Signature(
    "csr/sort.cu",
    "dasp_find_rows",
    """
    const Start*  indptr      [m + 1]
    long long     m
    long long     nnz
    const Place*  order       [nnz]
    Key*          to_indices  [nnz]
    """,
)

START_COLUMNS = Signature(
    "csr/sort.cu",
    "dasp_start_columns",
    """
    const Key*     indices    [nnz]
    long long      n
    long long      nnz
    const Place*   order      [nnz]
    long long*     to_indptr  [n + 1]
    """,
)


def transpose(on: KernelLauncher, csr: Csr) -> tuple[Csr, Array] | None:
    """See `Operations`: sort entries by column, six bits at a time, and then move them."""
    (m, n), nnz, place = csr.shape, len(csr.indices), narrowest(len(csr.indices))
    indptr, order = on.device.zeros(n + 1, np.int64), on.device.empty(nnz, place)
    indices = on.device.empty(nnz, csr.indices.dtype)
    if not nnz:
        return None if m == n else (Csr((n, m), indptr, indices, csr.data), order)
    sort(on, csr.indices, max(n - 1, 0).bit_length(), order, place, start=csr.indptr.dtype)
    kinds = kinds_of(Start=csr.indptr.dtype, Key=csr.indices.dtype, Place=place)
    known = {"order": order, "nnz": nnz}
    of_entries, of_columns = on.count_blocks(nnz, 256), on.count_blocks(n + 1, 256)
    on.launch(FIND_ROWS, kinds, of_entries, indptr=csr.indptr, m=m, to_indices=indices, **known)
    on.launch(START_COLUMNS, kinds, of_columns, indices=csr.indices, n=n, to_indptr=indptr, **known)
    data = csr.data.view(bits_type(csr.data.dtype))[order].view(csr.data.dtype)
    transposed = Csr((n, m), indptr, indices, data)
    return None if equal(csr, transposed) else (transposed, order)


RUN = 1024
"""Entries of a block of sort_columns.cu."""

SORT_COLUMNS = Signature(
    "csr/sort_columns.cu",
    "dasp_sort_columns",
    """
    const Start*   indptr      [m + 1]
    const Column*  indices
    long long      m
    Column*        to_columns
    Place*         to_order
    Count*         longest     [1]
    """,
)

MERGE_COLUMNS = Signature(
    "csr/sort_columns.cu",
    "dasp_merge_columns",
    """
    const Start*   indptr      [m + 1]
    long long      m
    long long      nnz
    long long      width
    const Column*  columns     [nnz]
    const Place*   order       [nnz]
    Column*        to_columns  [nnz]
    Place*         to_order    [nnz]
    """,
)


def sort_columns(on: KernelLauncher, csr: Csr) -> tuple[Csr, Array]:
    """See `Operations`: one pass sorts runs of up to 1024 entries, others merge a row's runs in pairs."""
    nnz, place = len(csr.indices), narrowest(len(csr.indices))
    empty, blocks, longest = on.device.empty, ceil_div(nnz, RUN), on.device.zeros(1, COUNT)
    kinds = kinds_of(Start=csr.indptr.dtype, Column=csr.indices.dtype, Place=place)
    columns, order = empty(nnz, csr.indices.dtype), empty(nnz, place)
    if not nnz:
        return csr._replace(indices=columns), order
    known = {"indptr": csr.indptr, "m": csr.shape[0]}
    to = {"to_columns": columns, "to_order": order}
    on.launch(SORT_COLUMNS, kinds, blocks, indices=csr.indices, longest=longest, **known, **to)
    width, most = RUN, int(longest.tolist()[0])
    while width < most:
        runs = {"columns": columns, "order": order, "nnz": nnz, "width": width}
        columns, order = empty(nnz, csr.indices.dtype), empty(nnz, place)
        to = {"to_columns": columns, "to_order": order}
        on.launch(MERGE_COLUMNS, kinds, blocks, **known, **runs, **to)
        width *= 2
    return csr._replace(indices=columns), order


SCAN_THREADS, SCAN_TILE = 256, 1024
"""Threads and numbers of a block of scan.cu."""

SUM_TILES = Signature(
    "csr/scan.cu",
    "dasp_sum_tiles",
    """
    const Start*  numbers  [count]
    long long     count
    Count*        come     [1]
    Count*        sums
    """,
)

SCAN_TILES = Signature(
    "csr/scan.cu",
    "dasp_scan_tiles",
    """
    const Start*  numbers  [count]
    long long     count
    const Count*  sums
    Start*        starts   [count + 1]
    """,
)


def scan(on: KernelLauncher, numbers: Array) -> Array:
    """See `Operations`: first sum the numbers of each tile, and then scan the numbers in each."""
    count, kind = len(numbers), numbers.dtype
    starts: Array = on.device.zeros(count + 1, kind)
    if not count:
        return starts
    tiles = ceil_div(count, SCAN_TILE)
    known = {"numbers": numbers, "count": count, "sums": on.device.empty(tiles + 1, COUNT)}
    kinds, come = kinds_of(Start=kind), on.device.zeros(1, COUNT)
    on.launch(SUM_TILES, kinds, tiles, SCAN_THREADS, come=come, **known)
    on.launch(SCAN_TILES, kinds, tiles, SCAN_THREADS, starts=starts, **known)
    return starts


class CudaOperations(KernelLauncher):
    """The operations on matrices on one GPU, and the launches of their kernels."""

    sort_columns, scan, transpose = sort_columns, scan, transpose
