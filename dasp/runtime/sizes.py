"""Sizes: whole blocks, the type that holds an index, and memory, looked up before much is taken."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from dasp.runtime.types import Array

HUGE_PAGE = 1 << 21
"""Bytes of a large page, where the system lends such; by small ones new memory takes ten times as long."""

BYTES_PER_ENTRY, BYTES_PER_ROW, BYTES_PER_COLUMN = 64, 80, 16
"""Most memory that reading, planning and multiplying a matrix takes for each stored entry, row and column.

Measured with 32-bit indices: 21 to 41 bytes an entry, by the symmetry and the field, 70 a row and 8 a column;
64-bit indices take up to 1.5 times as much an entry."""

_INT32, _INT64, _MOST_INT32 = np.dtype(np.int32), np.dtype(np.int64), np.iinfo(np.int32).max
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_UNKNOWN_MACHINE_BYTES = 16 << 30


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


def new_array(count: int, dtype: npt.DTypeLike) -> np.ndarray[Any, Any]:
    """Return a new array of numbers, whatever they are; a large one takes whole huge pages.

    NumPy asks the system for such pages where an array takes 4 MB, but they begin where they must: what lies
    before the first and behind the last of them comes page by page, which takes as long as all the others.

    Examples
    --------
    >>> new_array(3, np.float32).shape
    (3,)
    """
    size = count * np.dtype(dtype).itemsize
    if size < HUGE_PAGE:
        return np.empty(count, dtype)
    room = np.empty(round_up(size, HUGE_PAGE) + HUGE_PAGE, np.uint8)
    begin = -room.__array_interface__["data"][0] % HUGE_PAGE
    return room[begin : begin + size].view(dtype)


class OversizeError(ValueError):
    """Something would not fit into this machine's memory, and was not begun."""


def refuse_oversize(what: str, needed_bytes: float, remedy: str) -> None:
    """Refuse to build something that would take more than half of this machine's memory.

    Parameters
    ----------
    what : str
        The thing that was given, for the message: "the matrix of dense:1000000".
    needed_bytes : float
        An estimate of the memory that building it takes, in bytes.
    remedy : str
        The way out, for the message.

    Raises
    ------
    OversizeError
        If `needed_bytes` is above half of `machine_bytes()`.
    """
    limit = machine_bytes() / 2
    if not needed_bytes <= limit:
        raise OversizeError(
            f"{what} would take about {readable(needed_bytes)} to build; "
            f"the limit is half of this machine's memory, {readable(limit)}; {remedy}"
        )


def machine_bytes() -> int:
    """Memory of the machine or of the container we run in, whichever is less, in bytes."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        found = _UNKNOWN_MACHINE_BYTES
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        found = min(found, int(_CONTAINER_LIMIT.read_text()))
    return found if found > 0 else _UNKNOWN_MACHINE_BYTES


def readable(count: float) -> str:
    """Write a number of bytes with the unit that suits it.

    Examples
    --------
    >>> readable(1536), readable(7.2e12)
    ('1.5 KiB', '6.5 TiB')
    """
    if count < 1024:
        return f"{count:.0f} bytes"
    *units, largest = ("KiB", "MiB", "GiB", "TiB", "PiB")
    for unit in units:
        count /= 1024
        if count < 1024:
            return f"{count:,.1f} {unit}"
    return f"{count / 1024:,.1f} {largest}"
