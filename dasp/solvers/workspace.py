"""What a solve needs and the next one finds again: its vectors, its prepared passes, on a GPU its graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Workspace:
    """What a solve needs, kept for the next solve with the same matrix, preconditioner, method and type.

    Pass one as `workspace=` to every solve of a sequence: from the second on nothing is allocated but the x
    that is returned. It holds on to the matrix and the preconditioner. One thread may use it at a time.

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
        self._key: tuple[Any, ...] | None = None
        self._kept: tuple[Any, ...] = ()
        self._made: Any = None

    def get(self, key: tuple[Any, ...], kept: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what was made for a key; what does not fit is dropped and made anew.

        `kept` are the objects that the key tells apart by their identity.
        """
        same = len(kept) == len(self._kept) and all(a is b for a, b in zip(kept, self._kept, strict=True))
        if not same or key != self._key:
            self._made = None
            self._made, self._key, self._kept = make(), key, kept
        return self._made

    @property
    def vectors(self) -> int:
        """How many vectors of n numbers it holds (of m, where those are longer)."""
        return 0 if self._made is None else int(self._made.count)

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors."""
        return 0 if self._made is None else int(self._made.nbytes)
