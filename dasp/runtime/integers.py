"""Division of whole numbers that rounds up, NumPy's arrays of them too, and the type that holds one."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from dasp.runtime.types import Array


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: Array, b: int | Array) -> Array: ...
def ceil_div(a: int | Array, b: int | Array) -> int | Array:
    """Return the least integer that is at least a / b.

    Examples
    --------
    >>> ceil_div(7, 4), ceil_div(8, 4)
    (2, 2)
    """
    return -(-a // b)


@overload
def round_up(a: int, b: int) -> int: ...
@overload
def round_up(a: Array, b: int | Array) -> Array: ...
def round_up(a: int | Array, b: int | Array) -> int | Array:
    """Return the least multiple of b that is at least a.

    Examples
    --------
    >>> round_up(7, 4), round_up(8, 4)
    (8, 8)
    """
    return -(-a // b) * b


def narrowest(largest: int) -> np.dtype[Any]:
    """Return int32 where it holds a number, else int64."""
    return _INT32 if largest <= _MOST_INT32 else _INT64


_INT32, _INT64, _MOST_INT32 = np.dtype(np.int32), np.dtype(np.int64), np.iinfo(np.int32).max
