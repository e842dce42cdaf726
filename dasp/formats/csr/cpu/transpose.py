"""The transpose of a matrix on the CPU; `dasp.formats.csr.matrix.Operations` says what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dasp.formats.csr.matrix import Csr
from dasp.runtime.cpu.compile import jit
from dasp.runtime.sizes import narrowest

Vector = np.ndarray[Any, Any]


def transpose(csr: Csr) -> tuple[Csr, Vector] | None:
    """See `Operations`: SciPy sorts the numbers of the entries by column, stably."""
    (m, n), indptr, indices, data = csr
    count, parts = len(indices), max(data.itemsize // 8, 1)
    words = data.view(f"u{data.itemsize // parts}").reshape(count, parts)
    if m == n and _is_symmetric(indptr, indices, words, indptr[:-1].copy()):
        return None
    numbers = np.arange(count, dtype=narrowest(count))
    starts = indptr.astype(numbers.dtype, copy=False)  # SciPy converts all to the widest type
    columns = csr_array((numbers, indices, starts), shape=(m, n)).tocsc()
    order, rows = columns.data, columns.indices.astype(indices.dtype, copy=False)
    return Csr((n, m), columns.indptr.astype(np.int64), rows, data[order]), order


@jit(nogil=True)
def _is_symmetric(indptr, indices, words, cursors):
    """Return True if a matrix has the entries of its transpose in the same order, bit for bit.

    Each entry of row i in column j must equal the entry at the cursor of row j, which must lie in column i.
    Most other matrices fail early. Indices are unsigned, so that Numba handles no negative ones.
    """
    for row in range(len(cursors)):
        for entry in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            column = np.uint64(indices[entry])
            place = np.uint64(cursors[column])
            if place >= np.uint64(indptr[column + np.uint64(1)]) or indices[place] != row:
                return False
            for word in range(words.shape[1]):
                if words[place, word] != words[entry, word]:
                    return False
            cursors[column] = place + np.uint64(1)
    return True
