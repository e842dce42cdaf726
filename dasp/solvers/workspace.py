"""What a solve needs and the next one finds again: its vectors, its prepared passes, on a GPU its graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any


class Workspace:
    """What a solve needs, kept for the next solve with the same matrix, preconditioner, and for each method.

    Pass one as `workspace=` to every solve of a sequence: from the second on nothing is allocated but the x
    that is returned. It holds on to the matrix and the preconditioner. One solve may use it at a time:
    another thread, or a callback that solves, is refused it.

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
        self._kept: tuple[Any, ...] = ()
        self._made: dict[tuple[Any, ...], Any] = {}
        self._free = Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be one solve's alone.

        Raises
        ------
        ValueError
            If another has it.
        """
        if not self._free.acquire(blocking=False):
            raise ValueError("workspace is in use by another solve; pass one of its own, or none")
        try:
            yield
        finally:
            self._free.release()

    def get(self, key: tuple[Any, ...], kept: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what was made for a key. What was made for other objects than `kept` is dropped."""
        same = len(kept) == len(self._kept) and all(a is b for a, b in zip(kept, self._kept, strict=True))
        if not same:
            self._drop()
            self._kept = kept
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        """Let go of what was made.

        It refers to itself: Python's collector would find it, but late, and a GPU's memory is dear.
        """
        for made in self._made.values():
            vars(made).clear()
        self._made.clear()

    @property
    def vectors(self) -> int:
        """How many vectors of n numbers it holds (of m, where those are longer)."""
        return sum(int(made.count) for made in self._made.values())

    @property
    def systems(self) -> int:
        """How many systems it is ready for: one for each method, type and so on."""
        return len(self._made)

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors."""
        return sum(int(made.nbytes) for made in self._made.values())
