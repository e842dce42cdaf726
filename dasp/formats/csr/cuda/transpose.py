"""The transpose of a matrix on a GPU: sort entries by column, six bits at a time, and then move them."""

from __future__ import annotations

import numpy as np

from dasp.formats.csr.cuda.sort import kinds_of, sort
from dasp.formats.csr.matrix import Array, Csr, equal
from dasp.runtime.cuda.device import KernelLauncher
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import bits_type
from dasp.runtime.sizes import narrowest

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


def transpose(on: KernelLauncher, csr: Csr) -> tuple[Csr, Array] | None:
    """See `Operations`."""
    (m, n), nnz, place = csr.shape, len(csr.indices), narrowest(len(csr.indices))
    indptr, order = on.device.zeros(n + 1, np.int64), on.device.empty(nnz, place)
    indices = on.device.empty(nnz, csr.indices.dtype)
    if not nnz:
        return None if m == n else (Csr((n, m), indptr, indices, csr.data), order)
    sort(on, csr.indices, max(n - 1, 0).bit_length(), order, place)
    kinds = kinds_of(Start=csr.indptr.dtype, Column=csr.indices.dtype, Place=place)
    known = {"order": order, "nnz": nnz}
    of_entries, of_columns = on.count_blocks(nnz, 256), on.count_blocks(n + 1, 256)
    on.launch(FIND_ROWS, kinds, of_entries, indptr=csr.indptr, m=m, to_indices=indices, **known)
    on.launch(START_COLUMNS, kinds, of_columns, indices=csr.indices, n=n, to_indptr=indptr, **known)
    data = csr.data.view(bits_type(csr.data.dtype))[order].view(csr.data.dtype)
    transposed = Csr((n, m), indptr, indices, data)
    return None if equal(csr, transposed) else (transposed, order)
