"""The transpose of a matrix on the CPU; `dasp.backends.protocols.Primitives` says what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp._compile import jit
from dasp.formats.array import Csr, narrowest

Vector = np.ndarray[Any, Any]


def transpose(csr: Csr) -> tuple[Csr, Vector, bool]:
    """See `Primitives`: a stable counting sort, linear in m + n + nnz."""
    (m, n), indptr, indices, data = csr
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(indices, minlength=n), out=starts[1:])
    rows, order = np.empty_like(indices), np.empty(len(indices), narrowest(len(indices)))
    _turn(indptr, indices, starts[:-1].copy(), rows, order)
    turned = Csr((n, m), starts, rows, data[order])
    return turned, order, _same(csr, turned)


def _same(one: Csr, other: Csr) -> bool:
    """Whether two matrices have the same entries in the same order, bit for bit."""
    return (
        one.shape == other.shape
        and np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
        and np.array_equal(one.data.view(np.uint8), other.data.view(np.uint8))
    )


@jit(nogil=True)
def _turn(indptr, indices, cursors, rows, order):  # type: ignore[no-untyped-def]
    """Write row and number of each entry to where the cursor of its column stands, and move that on."""
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            place = cursors[indices[entry]]
            rows[place] = row
            order[place] = entry
            cursors[indices[entry]] = place + 1
