"""The transpose of a matrix: entries are sorted by column, six bits at a time, and then moved."""

from __future__ import annotations

import numpy as np

from dasp.formats.csr.cuda.c_types import UINT32, as_bits, types_of_matrix
from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array, narrowest
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS
from dasp.formats.sell.cuda.pack.survey import ZEROS
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.runtime.dtypes import bits_type


def transpose(on: Resources, csr: Csr) -> tuple[Csr, Array] | None:
    """See `Primitives`: entries are sorted by column, six bits at a time, and then moved."""
    (m, n), nnz = csr.shape, len(csr.indices)
    starts, order = on.device.zeros(n + 1, np.int64), on.device.empty(nnz, narrowest(nnz))
    made = Csr((n, m), starts, *(on.device.empty(nnz, array.dtype) for array in csr[2:]))
    if not nnz:
        return None if m == n else (made, order)
    # To the sort entries are what rows are elsewhere.
    of_entries = on.compiled(
        types_of_matrix(csr._replace(shape=(nnz, nnz))) | {"Code": bits_type(csr.data.dtype)}
    )
    given = {"indptr": None, "indices": csr.indices, "m": m, "n": n, "nnz": nnz}
    work = Work(on.device, of_entries, on.device.zeroed(ZEROS), **given)
    differs = work.take(1)
    _sort_entries(on, csr, order, work)
    work.tell(indptr=csr.indptr, order=order, differs=work.words(differs, 1) if m == n else None)
    moved = {"data": as_bits(csr.data), "to_data": as_bits(made.data), "to_indices": made.indices}
    work.launch(kernels.TURN_ENTRIES, share(nnz, 256, BLOCKS), **moved)
    work.launch(kernels.START_COLUMNS, share(n + 1, 256, BLOCKS), to_indptr=starts)
    return (made, order) if m != n or work.read(differs, 1)[0] else None


def _sort_entries(on: Resources, csr: Csr, order: Array, work: Work) -> None:
    """Sort the numbers of the entries by column, stably."""
    nnz = len(order)
    if csr.indices.dtype.itemsize == 4:
        keys = csr.indices.view(np.uint32)
    else:
        (keys,) = on.device.scratch((nnz, UINT32))
        work.launch(kernels.ENTRY_KEYS, share(nnz, 256, BLOCKS), keys=keys)
    work.tell(keys=keys, longest=0, most=0, gone=None, gone_count=0)
    sort(on, work, (nnz, order.dtype), nnz, max(csr.shape[1] - 1, 0).bit_length(), order)
