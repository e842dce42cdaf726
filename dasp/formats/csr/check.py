"""Checks of the arrays that a caller's matrix is made of; a ValueError says what is wrong with them."""

from __future__ import annotations

import numpy as np

from dasp.runtime.types import Vector


def check_entries(shape: tuple[int, int], rows: Vector, columns: Vector, data: Vector) -> None:
    """Hold that coordinates fit each other and the shape."""
    if not rows.shape == columns.shape == data.shape or data.ndim != 1:
        raise ValueError(
            f"data, row and col have shapes {data.shape}, {rows.shape} and {columns.shape}; "
            "one-dimensional arrays of one length are needed"
        )
    for name, positions, size in (("row", rows, shape[0]), ("col", columns, shape[1])):
        if positions.dtype.kind not in "iu":
            raise TypeError(f"{name} has dtype {positions.dtype}; integers are needed")
        if not len(positions):
            continue
        if positions.min() < 0:
            raise ValueError(f"{name} holds {positions.min()}; numbers from 0 are needed")
        if positions.max() >= size:
            room = f"so 0 to {size - 1} is needed" if size else f"which has no {name}"
            raise ValueError(f"{name} holds {positions.max()}; A has shape {shape}, {room}")


def check_compressed(
    kind: str, shape: tuple[int, int], indptr: Vector, indices: Vector, data: Vector
) -> None:
    """Hold that three arrays are compressed rows (CSR), columns (CSC) or rows of blocks (BSR).

    Parameters
    ----------
    kind : str
        For the message.
    shape : tuple of int
        How many lines are compressed, and how many places each has.
    """
    rises = indptr.shape == (shape[0] + 1,) and indptr[0] == 0 and not np.any(indptr[1:] < indptr[:-1])
    columns = (indices.min(), indices.max()) if len(indices) else None
    end = indptr[-1] if rises else 0
    check_facts(kind, shape, bool(rises), end, (len(indices), len(data)), columns)


def check_facts(
    kind: str,
    shape: tuple[int, int],
    rises: bool,
    end: int,
    given: tuple[int, int],
    columns: tuple[int, int] | None,
) -> None:
    """Hold the same of the numbers that were counted of such arrays.

    Parameters
    ----------
    kind, shape
        As above.
    rises : bool
        True if indptr rises from 0 in as many steps as there are lines.
    end : int
        Its last number.
    given : tuple of int
        Indices and values.
    columns : tuple of int or None
        Least and largest index.
    """
    lines, places = shape
    if not rises:
        raise ValueError(f"indptr does not rise from 0 in {lines} steps; A is not a valid {kind} matrix")
    if not given[0] == given[1] == end:
        raise ValueError(
            f"indptr ends with {end} and A has {given[0]} indices and {given[1]} values; these must be equal"
        )
    if columns and not 0 <= columns[0] <= columns[1] < places:
        raise ValueError(
            f"indices hold {columns[0]} to {columns[1]}; "
            f"a {kind} matrix of this shape needs 0 to {places - 1}"
        )
