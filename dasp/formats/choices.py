"""Checks of the options of a format."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np


def check_int(name: str, value: Any, least: int, most: int) -> None:
    """Check that a choice is an int in a range.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if not least <= int(value) <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")


def check_switch(name: str, value: Any) -> None:
    """Check that a choice is True or False.

    Raises
    ------
    TypeError
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}; it must be True or False")
