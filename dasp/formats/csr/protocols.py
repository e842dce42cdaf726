"""The operations on matrices in compressed sparse rows that every device has."""

from __future__ import annotations

from typing import Protocol

from dasp.formats.csr.matrix import Array, Csr


class Operations(Protocol):
    """Operations on matrices on one device. Results are equal, bit for bit, on every device."""

    def sort_columns(self, csr: Csr) -> tuple[Csr, Array]:
        """Sort each row's entries by column, stably.

        Returns
        -------
        csr : Csr
            With the columns sorted, and the values where they were.
        order : Array, shape (nnz,), int32 or int64
            Where the value of each entry stands.
        """

    def scan(self, numbers: Array) -> Array:
        """Return the sum of all numbers before each, and then of all: an array of one more, of their type.

        Numbers are int32 or int64 and not negative; their type holds the sum of all.
        """

    def transpose(self, csr: Csr) -> tuple[Csr, Array] | None:
        """Return the transpose of a matrix, its entries row by row; None if it is the matrix, bit for bit.

        Returns
        -------
        csr : Csr
            With an indptr of int64 and indices of the matrix's type. Columns rise in every row; entries at
            one place keep their order.
        order : Array, shape (nnz,), int32 or int64
            Which entry of the matrix is each entry of the transpose.
        """
