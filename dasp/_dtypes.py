"""The types of values that dasp multiplies, one row each, and the four types in a product's arithmetic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
    """What must be known of one type of values.

    Attributes
    ----------
    dtype : numpy.dtype
    c : str
        Its name in the CUDA sources.
    unit_roundoff : float
        Largest relative error of one rounding to nearest.
    real : str
        Name of the type of its real part.
    sum : str
        Name of the type in which products are added up.
    """

    dtype: np.dtype[Any]
    c: str
    unit_roundoff: float
    real: str
    sum: str


class Arithmetic(NamedTuple):
    """The types in y = A x: of a stored value of A, of x, of the sums, and of y."""

    value: np.dtype[Any]
    x: np.dtype[Any]
    sum: np.dtype[Any]
    y: np.dtype[Any]


TABLE = {
    "float64": Row(np.dtype(np.float64), "double", 2.0**-53, "float64", "float64"),
    "float32": Row(np.dtype(np.float32), "float", 2.0**-24, "float32", "float32"),
}
"""Every type that a matrix and a product may have, by name. A new type is a new row here."""

C_NAMES = {row.dtype: row.c for row in TABLE.values()} | {
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
}
"""Names in the CUDA sources of the types of values and of positions."""


def stored(dtype: np.dtype[Any], what: str = "A") -> np.dtype[Any]:
    """Return the type of `TABLE` in which numbers of a type are stored.

    float32 and float64 stay, float16 becomes float32, and bool, integers and long double become float64.

    Raises
    ------
    TypeError
        For a type that is not real.
    """
    if dtype.kind == "f" and dtype.itemsize <= 4:
        return TABLE["float32"].dtype
    if dtype.kind in "fbiu":
        return TABLE["float64"].dtype
    raise TypeError(f"{what} has dtype {dtype}; a real dtype is needed")


def arithmetic(matrix: np.dtype[Any], x: np.dtype[Any]) -> Arithmetic:
    """Return the types of the product of a matrix by a vector: y has the wider of the two types.

    Raises
    ------
    TypeError
        If `x` is neither real nor at most double precision.
    """
    if x.kind not in "fbiu" or x.itemsize > 8:
        raise TypeError(f"x has dtype {x}; a real dtype of at most 8 bytes is needed")
    y = stored(np.result_type(matrix, x))
    return Arithmetic(matrix, y, TABLE[TABLE[y.name].sum].dtype, y)
