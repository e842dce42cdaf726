"""Signatures of the kernels in kernels/csr/."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.runtime.cuda.launch import Kinds, Signature
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.sizes import ceil_div

COUNT = np.dtype(np.uint64)

BLOCKS, THREADS = 528, 256
"""Most blocks of a launch whose threads go through an array a grid apart, and threads of a block."""

SORT_THREADS, SORT_TILE, DIGIT_BITS = 1024, 8192, 6
"""Threads of a block of sort.cu, its elements, and bits of a key that it sorts by."""

RUN = 1024
"""Entries of a block of sort_columns.cu."""

SCAN_THREADS, SCAN_TILE = 256, 1024
"""Threads of a block of scan.cu, and its numbers."""

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

FIND_ROWS = Signature(
    "csr/transpose.cu",
    "dasp_find_rows",
    """
    const Start*  indptr      [m + 1]
    long long     m
    long long     nnz
    const Place*  order       [nnz]
    Column*       to_indices  [nnz]
    """,
)

START_COLUMNS = Signature(
    "csr/transpose.cu",
    "dasp_start_columns",
    """
    const Column*  indices    [nnz]
    long long      n
    long long      nnz
    const Place*   order      [nnz]
    long long*     to_indptr  [n + 1]
    """,
)

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


@cache
def kinds_of(**types: np.dtype[Any]) -> Kinds:
    """Return the kinds of a kernel that knows some types of integers, by their names in its source."""
    constants = {f"DASP_{name.upper()}": C_NAMES[kind] for name, kind in types.items()}
    return Kinds(types | {"Count": COUNT}, constants)


def count_blocks(count: int) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, THREADS), BLOCKS), 1)
