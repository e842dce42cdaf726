"""The types of values that dasp multiplies, one row each, and the four types in a product's arithmetic.

Results have the types that NumPy gives them. bfloat16 comes from ml_dtypes; NumPy knows it by name once this
module is imported.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt


class Row(NamedTuple):
    """The properties of one type of values.

    Attributes
    ----------
    dtype : numpy.dtype
    c : str
        Its name in the CUDA sources.
    unit_roundoff : float
        Largest relative error of one rounding to nearest; of a complex number, in each of its parts.
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

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The types by their names in CUDA kernels."""
        return {"Value": self.value, "X": self.x, "Sum": self.sum, "Y": self.y}

    @property
    def defines(self) -> dict[str, str]:
        """The compile-time constants that give the types to CUDA kernels."""
        return {f"DASP_{name.upper()}": C_NAMES[dtype] for name, dtype in self.types.items()}


TABLE = {
    "float64": Row(np.dtype(np.float64), "double", 2.0**-53, "float64", "float64"),
    "float32": Row(np.dtype(np.float32), "float", 2.0**-24, "float32", "float32"),
    "float16": Row(np.dtype(np.float16), "Float16", 2.0**-11, "float16", "float32"),
    "bfloat16": Row(np.dtype(ml_dtypes.bfloat16), "Bfloat16", 2.0**-8, "bfloat16", "float32"),
    "complex64": Row(np.dtype(np.complex64), "Complex<float>", 2.0**-24, "float32", "complex64"),
    "complex128": Row(np.dtype(np.complex128), "Complex<double>", 2.0**-53, "float64", "complex128"),
}
"""Every type that a matrix and a product may have, by name. A new type is a new row here."""

C_NAMES = {row.dtype: row.c for row in TABLE.values()} | {
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
}
"""The name in the CUDA sources of each type of values and of indices."""

BFLOAT16 = TABLE["bfloat16"].dtype

_FLOAT16 = TABLE["float16"].dtype


@functools.cache  # because NumPy takes microseconds for the name of a type
def real_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the real part of a type of `TABLE`; a real type is its own."""
    return TABLE[TABLE[dtype.name].real].dtype


@functools.cache
def sum_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the sums in a product whose result has this type of `TABLE`."""
    return TABLE[TABLE[dtype.name].sum].dtype


@functools.cache
def bits_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type that copies numbers bit for bit: an unsigned integer, or complex128 for itself."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.itemsize <= 8 else TABLE["complex128"].dtype


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return True for a type of numbers: bool, integers, reals of any precision, complex, and bfloat16."""
    return dtype.kind in "fiubc" or dtype == BFLOAT16


def named(given: npt.DTypeLike) -> np.dtype[Any]:
    """Return the type of `TABLE` that a caller names.

    Raises
    ------
    TypeError
        If `given` is not in `TABLE`.
    """
    try:
        name = np.dtype(given).name
    except TypeError:
        name = str(given)
    if name not in TABLE:
        raise TypeError(f"dtype is {given}; one of {', '.join(TABLE)} is needed")
    return TABLE[name].dtype


@functools.cache
def stored(dtype: np.dtype[Any], what: str = "A") -> np.dtype[Any]:
    """Return the type of `TABLE` in which numbers of a type are stored.

    Types of the table stay; bool, integers and long double become float64, complex long double complex128.

    Raises
    ------
    TypeError
        If `dtype` is not a type of numbers.
    """
    if not is_number(dtype):
        raise TypeError(f"{what} has dtype {dtype}; a dtype of numbers is needed")
    if dtype.name in TABLE:
        return TABLE[dtype.name].dtype
    return TABLE["complex128" if dtype.kind == "c" else "float64"].dtype


@functools.cache
def result_type(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a product of numbers of two types, by NumPy's rules.

    bfloat16 is promoted as float16 is, and the two together give float32.

    Examples
    --------
    >>> half, single, double = (np.dtype(f"f{size}") for size in (2, 4, 8))
    >>> [str(result_type(half, other)) for other in (half, BFLOAT16, single, double)]
    ['float16', 'float32', 'float32', 'float64']
    """
    if one == other:
        return stored(one)
    if BFLOAT16 in (one, other):
        met = other if one == BFLOAT16 else one
        kind = np.dtype(np.result_type(_FLOAT16, met))
        return stored(kind) if kind != _FLOAT16 else TABLE["float32"].dtype if met == _FLOAT16 else BFLOAT16
    return stored(np.dtype(np.result_type(one, other)))


def find_arithmetic(matrix: np.dtype[Any], x: np.dtype[Any]) -> Arithmetic:
    """Return the types in the product of a matrix and a vector; see docs/dtypes.md.

    Raises
    ------
    TypeError
        If `x` is not a type of numbers, or has more than double precision.
    """
    if not is_number(x) or x.itemsize > (16 if x.kind == "c" else 8):
        raise TypeError(f"x has dtype {x}; a real or complex dtype of at most double precision is needed")
    return find_arithmetic_into(matrix, x, result_type(matrix, x))


@functools.cache
def find_arithmetic_into(matrix: np.dtype[Any], x: np.dtype[Any], y: np.dtype[Any]) -> Arithmetic:
    """Return the types in the product of a matrix and a vector that is written into a vector of type `y`.

    Values keep their stored type; x has the type of y, or of y's real part where x is real.
    """
    return Arithmetic(matrix, y if x.kind == "c" else real_type(y), sum_type(y), y)
