"""The record of a matrix in compressed sparse rows, out of which every format is packed."""

from __future__ import annotations

from typing import NamedTuple

from dasp.runtime.types import Array as Array


class Csr(NamedTuple):
    """A matrix as it comes in, checked (`dasp.formats.csr.check`), on the device where its plan is made.

    Attributes
    ----------
    shape : tuple of int
        (m, n).
    indptr : Array, shape (m + 1,), int32 or int64
        First entry of each row.
    indices : Array, shape (nnz,), int32 or int64
        Column of each entry, in any order inside a row, duplicates allowed.
    data : Array, shape (nnz,), a type of `dasp.runtime.dtypes.TABLE`
    """

    shape: tuple[int, int]
    indptr: Array
    indices: Array
    data: Array


def equal(one: Csr, other: Csr) -> bool:
    """Return True if two matrices on one device have the same entries in the same order, bit for bit."""
    if one.shape != other.shape or len(one.indices) != len(other.indices):
        return False
    words = f"u{min(one.data.itemsize, 8)}"
    return (
        bool((one.indptr == other.indptr).all())
        and bool((one.indices == other.indices).all())
        and bool((one.data.view(words) == other.data.view(words)).all())
    )
