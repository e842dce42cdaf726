"""Sizes: multiples of blocks, types of indices, and the memory of this machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from dasp.runtime.types import Array

HUGE_PAGE = 1 << 21
"""Bytes of a huge page, where the system has them; new memory in small pages takes ten times as long."""

BYTES_PER_ENTRY, BYTES_PER_ROW, BYTES_PER_COLUMN = 64, 80, 16
"""Most bytes that reading, planning and multiplying a matrix take for each stored entry, row and column.

Measured with 32-bit indices: 21 to 41 bytes an entry, depending on symmetry and field, 70 a row, 8 a column;
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
    """Return int32 if it holds `largest`, else int64."""
    return _INT32 if largest <= _MOST_INT32 else _INT64


def new_array(count: int, dtype: npt.DTypeLike) -> np.ndarray[Any, Any]:
    """Return an uninitialized array; a large one begins at a huge page.

    NumPy asks the system for huge pages if an array takes 4 MB, but does not align the array to them. The
    parts before the first and after the last huge page come in small pages, which take as long as the rest.

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
    """An error raised before work that would not fit into this machine's memory."""


def refuse_oversize(what: str, needed_bytes: float, remedy: str) -> None:
    """Refuse to build something that would take more than half of this machine's memory.

    Parameters
    ----------
    what : str
        The name of the thing, for the message: "the matrix of dense:1000000".
    needed_bytes : float
        An estimate of the memory that building it takes, in bytes.
    remedy : str
        The advice to the user that ends the message.

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
    """Return the memory of this machine or of its container, whichever is less, in bytes."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        found = _UNKNOWN_MACHINE_BYTES
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        found = min(found, int(_CONTAINER_LIMIT.read_text()))
    return found if found > 0 else _UNKNOWN_MACHINE_BYTES


def readable(count: float) -> str:
    """Return a number of bytes as text, with a suitable unit.

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
