"""The space of each device, found by the device's name; and what a matrix on several ranks asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dasp.runtime.loading import load
from dasp.solvers.space import Space

P = ParamSpec("P")
R = TypeVar("R")

MODULES = {"cpu": "dasp.solvers.cpu.space", "cuda": "dasp.solvers.cuda.space"}
"""The module that makes the space of a device."""


def together(A: Any, work: Callable[[], Any], alike: Callable[[Any], dict[str, Any]]) -> Any:
    """Do some work and return its result; where A lies on several ranks, all must succeed first.

    `alike` says of the result what must be equal on all ranks.
    """
    agree = getattr(A, "agree", None)
    return work() if agree is None else agree(work, alike)


def one_call(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method whose A may lie on several ranks, all of which leave it where one fails."""

    @wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> R:
        A: Any = given[0] if given else named.get("A")
        if not hasattr(A, "solver_space"):
            return method(*given, **named)
        with A.call:
            return method(*given, **named)

    return call


def refuse_ranks(A: Any, method: str) -> None:
    """Refuse a matrix that lies on several ranks, for a method that works on one.

    Raises
    ------
    TypeError
    """
    if hasattr(A, "solver_space"):
        raise TypeError(f"A lies on several ranks; {method} works on one; use cg, minres, bicgstab or gmres")


def space_for(device: str, dtype: np.dtype[Any]) -> Space:
    """Return the space of a device, `cpu` or `cuda:N`, for vectors of float32 or float64."""
    made: Space = load(MODULES[device.partition(":")[0]]).make_space(device, dtype)
    return made
