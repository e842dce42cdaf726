"""What solves that were given no workspace leave to later ones with the same matrix, on a GPU.

There a solve is captured, which takes as long as some hundred iterations of a small system. Few workspaces
are left at a time, small ones, and each for as long as its matrix and its preconditioner live: it holds
neither.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from dasp.runtime import check as _check
from dasp.solvers.workspace import Workspace

MOST, BYTES = 8, 128 << 20
"""Workspaces that are left at a time, systems of one, and bytes of the vectors of all."""

Pair = tuple[Any, Any]
"""A matrix, and a preconditioner or what a method for least squares takes for its adjoint; or None."""


Mark = Callable[[], Callable[[], None]]
"""Returns what has later work wait for all that was launched before."""


class _Left(NamedTuple):
    """A workspace, what it is for, and what has the current stream wait for its last solve."""

    workspace: Workspace
    own: Pair
    of: tuple[weakref.ref[Any], ...]
    follow: Callable[[], None]


_left: dict[tuple[int, int], _Left] = {}
"""By the identities of matrix and preconditioner, the one left last at the end.

Threads share it without a lock, and what a collector calls changes it: each step is one operation of a dict.
"""

atexit.register(_left.clear)  # what frees a GPU's memory needs CuPy


def lasts(A: Any) -> bool:
    """Whether products with a matrix or a preconditioner that were captured stay right while it lives."""
    return bool(getattr(type(A), "lasting", False))


def take(A: Any, M: Any, given: Any) -> tuple[Workspace, Pair]:
    """Return the caller's workspace, or one that nobody else has, and what systems in it are to be made of.

    Raises
    ------
    TypeError
        If the caller's is none.
    """
    if given is not None:
        if not isinstance(given, Workspace):
            raise TypeError(f"workspace is {_check.kind_of(given)}; a dasp.solvers.Workspace is needed")
        return given, (A, M)
    if not (lasts(A) and (M is None or lasts(M))):
        return Workspace(), (A, M)
    found = _left.pop((id(A), id(M)), None)
    if found is None:
        return Workspace(), (weakref.proxy(A), None if M is None else weakref.proxy(M))
    found.follow()
    return found.workspace, found.own


def leave(A: Any, M: Any, workspace: Workspace, own: Pair, mark: Mark | None) -> None:
    """Leave what `take` returned for the next one, if that may have it; `mark` is that of a space."""
    if own[0] is A or mark is None or workspace.nbytes > BYTES or workspace.systems > MOST:
        return
    key = id(A), id(M)

    def forget(_: Any) -> None:
        _left.pop(key, None)

    of = tuple(weakref.ref(one, forget) for one in (A, M) if one is not None)
    _left.pop(key, None)
    _left[key] = _Left(workspace, own, of, mark())
    nbytes = 0
    for count, other in enumerate(reversed(list(_left))):
        one = _left.get(other)
        nbytes += 0 if one is None else one.workspace.nbytes
        if count >= MOST or nbytes > BYTES:
            _left.pop(other, None)
