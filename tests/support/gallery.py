"""Small matrices by name, each chosen to break one thing, and a strategy that draws many more."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from dasp.models import lattice, unstructured

FAMILIES = (*lattice.FAMILIES, *unstructured.FAMILIES)
EXAMPLES = {family.name: family.example for family in FAMILIES}
"""A small model matrix of every family."""

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257)
"""Row lengths around every threshold of the format of the paper."""


def from_lengths(lengths: Any, n: int, seed: int = 0, dtype: Any = np.float64) -> csr_array:
    """Return a matrix with these row lengths; columns are random, unsorted, and may repeat inside a row."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    indices = rng.integers(0, max(n, 1), indptr[-1]).astype(np.int32)
    return csr_array(
        (rng.standard_normal(indptr[-1]).astype(dtype), indices, indptr), shape=(len(lengths), n)
    )


def _entries(data: Any, rows: Any, columns: Any, shape: tuple[int, int]) -> csr_array:
    indptr = np.searchsorted(rows, np.arange(shape[0] + 1)).astype(np.int32)
    return csr_array((np.asarray(data, float), np.asarray(columns, np.int32), indptr), shape=shape)


def _dense_row() -> csr_array:
    lengths = np.full(100, 3)
    lengths[37] = 2000
    return from_lengths(lengths, 500)


def _cancelling() -> csr_array:
    big = 2.0**60
    return _entries([big, 1.0, -big, 1.0, big, -big], [0] * 6, range(6), (1, 6))


def _subnormal() -> csr_array:
    matrix = from_lengths([0, 1, 2, 3, 4, 5, 40, 300], 50)
    matrix.data *= 1e-310
    return matrix


def _explicit_zeros() -> csr_array:
    matrix = from_lengths([1, 2, 3, 4, 5, 12, 300], 40)
    matrix.data[::2] = 0.0
    matrix.data[1::4] = -0.0
    return matrix


def _wide_indices() -> csr_array:
    matrix = from_lengths([1, 3, 2, 2, 4, 9, 257], 60)
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    return matrix


def _million() -> csr_array:
    lengths = np.array([4, 1_000_000, 0, 7])
    return from_lengths(lengths, 1000)


GALLERY = {
    "lengths around every threshold": from_lengths(np.repeat(LENGTHS, 3), 400),
    "lengths shuffled": from_lengths(np.random.default_rng(5).permutation(np.repeat(LENGTHS, 9)), 333),
    "8 rows of 5": from_lengths(np.full(8, 5), 30),
    "17 rows of 5": from_lengths(np.full(17, 5), 30),
    "33 rows of 27": from_lengths(np.full(33, 27), 64),
    "rows of 1 only": from_lengths(np.full(70, 1), 20),
    "more rows of 1 than of 3": from_lengths([1] * 50 + [3] * 17 + [2] * 35, 20),
    "more rows of 3 than of 1": from_lengths([3] * 50 + [1] * 17 + [4] * 33, 20),
    "one dense row": _dense_row(),
    "every row long": from_lengths(np.full(5, 1500), 3000),
    "all rows empty": from_lengths(np.zeros(50, int), 10),
    "0 x n": from_lengths([], 10),
    "n x 0": from_lengths(np.zeros(7, int), 0),
    "0 x 0": from_lengths([], 0),
    "1 x 1": from_lengths([1], 1),
    "duplicates": coo_array((np.arange(1.0, 13.0), ([0, 1, 1, 1] * 3, [2, 0, 0, 0] * 3)), shape=(3, 4)),
    "explicit zeros": _explicit_zeros(),
    "64-bit indices": _wide_indices(),
    "a cancelling row": _cancelling(),
    "subnormals": _subnormal(),
}

MILLION = _million()
"""A row of 10^6 entries: too many for the emulator, few for the CPU and the GPU."""


@st.composite
def matrices(draw: st.DrawFn, most_rows: int = 60) -> csr_array:
    """Draw a matrix of up to `most_rows` rows, with lengths around every threshold and values of any size."""
    lengths = draw(st.lists(st.sampled_from(LENGTHS), max_size=most_rows))
    n = draw(st.integers(1, 300))
    matrix = from_lengths(lengths, n, seed=draw(st.integers(0, 2**32 - 1)))
    matrix.data *= 10.0 ** draw(st.integers(-5, 5))
    return matrix
