"""The vectors, passes and graphs of a solve, kept for the next one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NoReturn, Protocol, TypeVar

from dasp.runtime import check as _check
from dasp.solvers.operator import is_lasting
from dasp.solvers.space import Space

KEPT = "_solver_workspace"
"""The attribute of a matrix that holds its workspace between two solves."""

MOST_BYTES, MOST_SYSTEMS = 128 << 20, 8
"""The most bytes of vectors, and the most systems, in a workspace that a matrix keeps."""


class Prepared(Protocol):
    """A system, or a least-squares problem, ready to be solved for any b."""

    space: Space
    count: int
    nbytes: int


P = TypeVar("P", bound=Prepared)


class Workspace:
    """The memory of the solves with one matrix: vectors, prepared passes, and on a GPU captured graphs.

    Pass one as `workspace=` to every solve of a sequence: from the second on nothing is allocated but the x
    that is returned. A workspace holds on to the matrix and the preconditioner. One solve may use it at a
    time: a solve by another thread, or by a callback, raises ValueError.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from dasp.solvers import Workspace, cg
    >>> A, workspace = sp.diags_array([1.0, 2.0, 4.0], format="csr"), Workspace()
    >>> [bool(cg(A, b, workspace=workspace)[1].converged) for b in np.eye(3)]
    [True, True, True]
    >>> workspace.vectors
    5
    """

    def __init__(self) -> None:
        self._kept: tuple[object, ...] = ()
        self._generation = 0
        self._made: dict[tuple[object, ...], Any] = {}
        self._free = Lock()
        self._space: Space | None = None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError("a workspace cannot be pickled or copied: it holds prepared passes; make another one")

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Reserve the workspace for one solve; if the solve fails, drop all systems.

        Raises
        ------
        ValueError
            If another solve has reserved it.
        """
        if not self._free.acquire(blocking=False):
            raise ValueError("workspace is in use by another solve; pass one of its own, or none")
        try:
            yield
            if self._space is not None:
                self._space.wait()  # the next solve may be on another stream
        except BaseException:
            self._drop()  # a GPU may still use it
            raise
        finally:
            self._free.release()

    def get(self, key: tuple[object, ...], kept: tuple[object, ...], make: Callable[[], P]) -> P:
        """Return the system of a key; first drop those made from objects other than `kept`, or from older
        generations of them."""
        same = len(kept) == len(self._kept) and all(a is b for a, b in zip(kept, self._kept, strict=True))
        generation = sum(getattr(one, "generation", 0) for one in kept)
        if not same or generation != self._generation:
            self._drop()
            self._kept, self._generation = kept, generation
        if key not in self._made:
            self._made[key] = make()
        made: P = self._made[key]
        self._space = made.space
        return made

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        """Drop all systems.

        A system refers to itself: Python's collector would free it, but late, and a GPU's memory is dear.
        """
        for made in self._made.values():
            vars(made).clear()
        self._made.clear()

    @property
    def vectors(self) -> int:
        """The number of vectors that it holds, those of length m (for least squares) included."""
        return sum(int(made.count) for made in self._made.values())

    @property
    def systems(self) -> int:
        """The number of prepared systems: one for each method, its options, the type and the device."""
        return len(self._made)

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors."""
        return sum(int(made.nbytes) for made in self._made.values())


@contextmanager
def workspace_for(
    A: object, M: object, given: Workspace | None
) -> Iterator[tuple[Workspace, tuple[Any, Any]]]:
    """Reserve the workspace of a solve: the caller's, else the one that the matrix keeps, else a new one.

    Yields
    ------
    workspace : Workspace
    own : pair
        The matrix and the preconditioner from which systems are made. A workspace that a matrix keeps holds
        only weak proxies of them, so that their memory is given back when the caller drops them.

    Raises
    ------
    TypeError
        If `given` is no workspace.
    ValueError
        If another solve has reserved it.

    Notes
    -----
    During a solve the matrix does not hold its workspace, so that other threads make their own; a solve
    that fails does not give it back.
    """
    if given is not None and not isinstance(given, Workspace):
        raise TypeError(f"workspace is {_check.kind_of(given)}; a dasp.solvers.Workspace is needed")
    keeps = given is None and is_lasting(A) and (M is None or is_lasting(M))
    workspace = vars(A).pop(KEPT, None) if keeps else given
    if workspace is None:
        workspace = Workspace()
    own = (weakref.proxy(A), None if M is None else weakref.proxy(M)) if keeps else (A, M)
    with workspace.reserve():
        yield workspace, own
    if keeps and workspace.nbytes <= MOST_BYTES and workspace.systems <= MOST_SYSTEMS:
        vars(A)[KEPT] = workspace
