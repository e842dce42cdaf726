"""The space of each device, found by the device's name; and what a matrix on several ranks asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
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


SCIPY = {"tol": "rtol", "btol": "rtol", "restrt": "restart", "iter_lim": "maxiter", "show": "progress"}
"""Arguments of SciPy's solvers, and those of ours that are meant."""


def one_call(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method whose A may lie on several ranks, all of which leave it where one fails."""

    @wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> R:
        A = _find_matrix(method, given, named)
        if not hasattr(A, "solver_space"):
            return method(*given, **named)
        with A.call:
            return method(*given, **named)

    return call


def one_rank(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that refuses an A which lies on several ranks."""

    @wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> R:
        if hasattr(_find_matrix(method, given, named), "solver_space"):
            raise TypeError(
                f"A lies on several ranks; {method.__name__} works on one; use cg, minres, bicgstab or gmres"
            )
        return method(*given, **named)

    return call


def _find_matrix(method: Callable[..., object], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return A of the arguments of a call.

    Raises
    ------
    TypeError
        If the method has no argument of a name; it says which one is meant.
    """
    known = _parameters(method)
    for name in named:
        if name not in known:
            meant = SCIPY.get(name, "")
            remedy = f"{meant} is meant" if meant in known else f"it has {', '.join(known)}"
            raise TypeError(f"{method.__name__} has no argument {name}; {remedy}")
    return given[0] if given else named.get("A")


@cache
def _parameters(method: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(method).parameters


def space_for(device: str, dtype: np.dtype[Any]) -> Space:
    """Return the space of a device, `cpu` or `cuda:N`, for vectors of float32 or float64."""
    made: Space = load(MODULES[device.partition(":")[0]]).make_space(device, dtype)
    return made
