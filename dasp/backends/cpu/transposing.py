"""The transpose of a matrix on the CPU; `dasp.backends.protocols.Primitives` says what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp._compile import jit
from dasp._dtypes import bits_type
from dasp.formats.array import Csr, narrowest

Vector = np.ndarray[Any, Any]


def transpose(csr: Csr) -> tuple[Csr, Vector, bool]:
    """See `Primitives`: a stable counting sort, linear in m + n + nnz."""
    (m, n), indptr, indices, data = csr
    starts, bits = np.zeros(n + 1, np.int64), bits_type(data.dtype)
    rows, order = np.empty_like(indices), np.empty(len(indices), narrowest(len(indices)))
    turned = Csr((n, m), starts, rows, np.empty_like(data))
    _turn(indptr, indices, data.view(bits), starts, rows, order, turned.data.view(bits))
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
def _turn(indptr, indices, bits, starts, rows, order, turned):  # type: ignore[no-untyped-def]
    """Write row, number and value of each entry to where its column goes on; starts are 0 before."""
    for column in indices:
        starts[column + 1] += 1
    total = 0
    for column in range(len(starts)):  # each start moves on to where the next column begins
        total, starts[column] = total + starts[column], total
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            place = starts[column + 1]
            rows[place], order[place], turned[place] = row, entry, bits[entry]
            starts[column + 1] = place + 1
