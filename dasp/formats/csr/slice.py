"""Some rows or columns of a matrix, on either device."""

from __future__ import annotations

from dasp.formats.csr.matrix import Csr
from dasp.formats.csr.protocols import Operations


def slice_rows(csr: Csr, begin: int, end: int) -> Csr:
    """Return rows `begin` to `end` - 1, where 0 <= begin <= end <= m; indices and data are views."""
    starts = csr.indptr[begin : end + 1]
    first, last = starts[[0, -1]].tolist()
    return Csr((end - begin, csr.shape[1]), starts - first, csr.indices[first:last], csr.data[first:last])


def slice_columns(on: Operations, csr: Csr, begin: int, end: int) -> Csr:
    """Return columns `begin` to `end` - 1, where 0 <= begin <= end <= n; entries keep their order."""
    kept = (csr.indices >= begin) & (csr.indices < end)
    indptr = on.scan(kept.astype(csr.indptr.dtype))[csr.indptr]
    return Csr((csr.shape[0], end - begin), indptr, csr.indices[kept] - begin, csr.data[kept])
