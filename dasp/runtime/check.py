"""Checks of a caller's arguments.

Unless a function says otherwise, a wrong kind of argument raises TypeError and a wrong value ValueError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Complex, Integral, Real
from typing import Any

import numpy as np

from dasp.runtime.dtypes import BFLOAT16
from dasp.runtime.types import DenseArray

_SAID_WITH_AN = re.compile(r"[aeio]|u(?!int|func|ser)|ndarray|spmatrix", re.IGNORECASE)


def kind_of(given: object, *, library: bool = False) -> str:
    """Return how an error names an object of the wrong kind: `an int`, `a list`, `None`, `the class str`.

    With `library` the name begins with the package, unless the type is built in: `a torch.Tensor`.
    """
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name, package = type(given).__name__, type(given).__module__.partition(".")[0]
    if library and package != "builtins":
        name = f"{package}.{name}"
    return f"{'an' if _SAID_WITH_AN.match(name) else 'a'} {name}"


def shape(given: object) -> tuple[int, int]:
    """Return a matrix shape as two ints.

    Raises
    ------
    TypeError, ValueError
        If `given` is not a pair of ints that are not negative, or a size is no 64-bit number.
    """
    if not isinstance(given, (tuple, list)) or not all(isinstance(size, Integral) for size in given):
        raise TypeError(f"shape is {given!r}; a pair of ints is needed")
    if len(given) != 2 or min(given) < 0:
        raise ValueError(f"shape is {tuple(given)}; a pair of ints that are not negative is needed")
    if max(given) >= 2**63:
        raise ValueError(f"shape is {tuple(given)}; sizes below 2^63 are needed")
    return int(given[0]), int(given[1])


def scale(name: str, value: object, product: np.dtype[Any]) -> complex:
    """Return alpha or beta as a float, or as a complex number for a complex product.

    Raises
    ------
    TypeError
        If `value` is not a number, or not a real one and the product is real.
    ValueError
        If `value` is an integer or a fraction beyond the range of float64.
    """
    number = python_number(value)
    is_real = isinstance(number, float | int | Real | np.bool_) or (
        getattr(number, "ndim", None) == 0 and (number.dtype.kind in "fbiu" or number.dtype == BFLOAT16)
    )
    if not is_real and product.kind == "c":
        if isinstance(number, Complex) or (getattr(number, "ndim", None) == 0 and number.dtype.kind == "c"):
            return complex(number)
        raise TypeError(f"{name} is {kind_of(value)}; a number is needed")
    if not is_real:
        given = repr(number) if isinstance(number, Complex) else kind_of(value)
        raise TypeError(f"{name} is {given} and the product has dtype {product}; a real number is needed")
    try:
        return float(number)
    except OverflowError as error:
        raise ValueError(f"{name} is beyond float64; a number of at most 1.8e308 is needed") from error


def python_number(value: object) -> Any:
    """Return a zero-dimensional array of another library as a Python number.

    Anything else is returned unchanged, arrays with dtypes of NumPy included.
    """
    foreign = getattr(value, "ndim", None) == 0 and not isinstance(getattr(value, "dtype", None), np.dtype)
    return value.item() if foreign and hasattr(value, "item") else value


def operand(matrix: tuple[int, int], x: DenseArray) -> None:
    """Raise ValueError unless x has shape (n,) or (n, k), for a matrix of shape (m, n)."""
    if x.ndim not in (1, 2) or x.shape[0] != matrix[1]:
        wanted = f"({matrix[1]},)" if x.ndim < 2 else f"({matrix[1]}, k)"
        remedy = "; pass x.T" if x.ndim == 2 and x.shape[1] == matrix[1] else ""
        raise ValueError(
            f"x has shape {x.shape}; A has shape {matrix}, so x must have shape {wanted}{remedy}"
        )


def left_operand(matrix: tuple[int, int], shape: tuple[int, ...], axis: int) -> None:
    """Raise ValueError unless x has one or two dimensions, and m numbers along `axis`, 0 or -1."""
    if len(shape) not in (1, 2) or shape[axis] != matrix[0]:
        several = f"({matrix[0]}, k)" if axis == 0 else f"(k, {matrix[0]})"
        wanted = f"({matrix[0]},)" if len(shape) < 2 else several
        raise ValueError(
            f"x has shape {shape}; A has shape {matrix}, so x must have shape {wanted} on the left of A"
        )


def out(array: DenseArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise an error unless an array has the dtype (TypeError) and the shape (ValueError) of the product."""
    if array.dtype != dtype:
        raise TypeError(f"out has dtype {array.dtype}; the product has dtype {dtype}")
    if array.shape != shape:
        raise ValueError(f"out has shape {array.shape}; the product has shape {shape}")


def count(name: str, value: object, others: str = "", most: int | None = None) -> int:
    """Return `value` as an int from 1 to `most`; `others` says in an error what else is allowed.

    Raises
    ------
    TypeError, ValueError
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}; an int is needed{others}")
    if value < 1:
        raise ValueError(f"{name} is {value}; at least 1 is needed{others}")
    if most is not None and int(value) > most:
        raise ValueError(f"{name} is {value}; at most {most} is needed{others}")
    return int(value)


def interval(bounds: Iterable[float], *, may_be_point: bool = False) -> tuple[float, float]:
    """Return the two rising positive numbers of `bounds`; with `may_be_point` they may be equal.

    Raises
    ------
    TypeError, ValueError
    """
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError) as error:
        raise TypeError(f"bounds are {bounds!r}; two rising positive numbers are needed") from error
    if not 0 < low <= high < math.inf or (low == high and not may_be_point):
        raise ValueError(f"bounds are {bounds}; two rising positive numbers are needed")
    return low, high


def device_name(device: object) -> str:
    """Return a device as `auto`, `cpu`, `cuda` or `cuda:N`."""
    if not isinstance(device, str):
        raise TypeError(f"device is {device!r}; a str is needed: 'auto', 'cpu', 'cuda' or 'cuda:N'")
    kind, colon, number = device.partition(":")
    if device in ("auto", "cpu", "cuda") or (kind == "cuda" and colon and number.isdecimal()):
        return device
    raise ValueError(f"device is {device!r}; 'auto', 'cpu', 'cuda' or 'cuda:N' is needed")
