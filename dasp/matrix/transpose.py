"""The transpose of a planned matrix: made on first use, kept, and never stale."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dasp import formats
from dasp.formats import devices
from dasp.formats.plan import Csr, Plan
from dasp.matrix import planning
from dasp.matrix.device import found, packed
from dasp.matrix.policy import Policy
from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign
from dasp.runtime.dtypes import bits_type

Relative = Callable[[], Any]
"""Gives a matrix, or None if it is gone."""


class Places:
    """What all matrices of one pattern share, once somebody asked for it.

    Attributes
    ----------
    lock : threading.Lock
    slots : object or None
        What says where every entry goes, as `Format.slots` returns it.
    transpose : SpMatrix or None
        One with the transposed pattern, whose entries come in the same order.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots: Any = None
        self.transpose: Any = None


def from_left(A: Any, x: Any) -> Any:
    """Return x A by a product with the transpose, x of shape (m,) or (k, m)."""
    if not _foreign.is_one(x):
        x = devices.find(A.device).as_operand(x, A.device)
    _check.left_operand(A.shape, x.shape, -1)
    return A.T.matvec(x.T).T if len(x.shape) == 2 else A.T.matvec(x)


def _transposed(plan: Plan, primitives: Any) -> tuple[Csr, Any] | None:
    """Return the transpose of the matrix of a plan, and which of the entries that came in each entry is; None
    if it is the matrix itself."""
    made = primitives.transpose(Csr(plan.shape, *planning.unpack(plan, primitives)))
    return made if made is None or plan.order is None else (made[0], plan.order[made[1]])


class Transposable:
    """Products with the transpose, for `dasp.SpMatrix`.

    A matrix keeps the transpose that it made; the transpose knows its maker and does not keep it, so that
    memory is given back as soon as nobody holds either. They share a lock, which is held while one is
    made and while values are written in place: a transpose has all values of before, or takes the new.
    """

    _places: Places
    _relatives: dict[str, Relative]
    _relatives_lock: Any

    if TYPE_CHECKING:
        shape: Any
        dtype: Any
        device: Any
        plan: Any
        _backend: Any

        def __init__(self, plan: Plan, device: str = "auto") -> None: ...

        with_values: Any
        matvec: Any
        _write: Any

    def _made(self, name: str) -> Any:
        """Return the transpose (T) or its conjugate (H) if this matrix made one and keeps it."""
        kept = self._relatives.get(name)
        return None if kept is None or isinstance(kept, weakref.ref) else kept()

    def _relative(self, name: str, make: Callable[[], Any]) -> Any:
        kept = self._relatives.get(name)
        found = None if kept is None else kept()
        if found is not None:
            return found
        with self._relatives_lock:
            kept = self._relatives.get(name)
            found = None if kept is None else kept()
            if found is None:
                made = make()
                if made is not self:
                    made._relatives[name] = weakref.ref(self)
                    made._relatives_lock = self._relatives_lock
                self._relatives[name] = weakref.ref(self) if made is self else lambda: made
                found = made
        return found

    @property
    def T(self) -> Self:
        """The transpose, a matrix of shape (n, m) on the same device.

        Planned on first use and kept; `A.T.T is A`. A symmetric matrix, whose transpose has the same entries
        bit for bit, is its own. `A.T.with_values` takes values in the order of A's, but for a symmetric A,
        where it is `A.with_values`; `A.with_values(data).T` is the transpose always. Values that are written
        into A in place are written into its transpose, too, and the other way round.

        Raises
        ------
        MemoryError
            If there is not enough for another plan.

        Notes
        -----
        Costs a second plan, and 4 or 8 bytes an entry for the order of the entries. Values written in place
        that do not fit the coding of the transpose leave that as it was, and `A.T` is another one from then
        on; nor is a symmetric matrix its own transpose any more, nor its conjugate `A.H`. So take both anew
        after such a change.

        Examples
        --------
        >>> import dasp, numpy, scipy.sparse
        >>> A = dasp.SpMatrix.from_dense([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]], device="cpu")
        >>> A.T @ numpy.array([1.0, 10.0])
        array([30.,  2., 40.])
        >>> A.T.T is A
        True
        """
        return self._relative("T", self._make_transpose)  # type: ignore[no-any-return]

    @property
    def H(self) -> Self:
        """The conjugate transpose: `A.T` if values are real, else another matrix, which is kept like that."""
        if self.dtype.kind != "c":
            return self.T
        return self._relative("H", lambda: self.T.conj())  # type: ignore[no-any-return, attr-defined]

    def transpose(self) -> Self:
        """Return `A.T`."""
        return self.T

    def rmatvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha A^H x + beta out.

        Parameters
        ----------
        x : array_like, shape (m,), (m, 1) or (m, k)
        out, alpha, beta
            As `matvec` takes them.

        Returns
        -------
        array, shape (n,), (n, 1) or (n, k)
            As `A.H.matvec` does: deterministic, with the same bound, and as fast as a product with A.

        Raises
        ------
        TypeError, ValueError
            As `matvec` does.
        """
        self._check_left(x)
        return self.H.matvec(x, out=out, alpha=alpha, beta=beta)

    def rmatmat(self, X: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha A^H X + beta out; see `rmatvec`."""
        return self.rmatvec(X, out=out, alpha=alpha, beta=beta)

    def __rmatmul__(self, x: Any) -> Any:
        """Return x A for x of shape (m,) or (k, m)."""
        if getattr(x, "ndim", 0) == 1:  # several vectors are rows here, and columns there
            y = self.T._product.quick(x)  # type: ignore[attr-defined]
            if y is not None:
                return y
        return from_left(self, x)

    def _check_left(self, x: Any) -> None:
        """Hold that an array has as many rows as A."""
        shape = np.shape(x) if isinstance(x, (list, tuple)) else getattr(x, "shape", None)
        if shape is not None:
            _check.left_operand(self.shape, shape, 0)

    def _make_transpose(self) -> Any:
        """Fill the pattern's transpose with these values, or plan one; this matrix if it is equal."""
        with self._places.lock:
            if self._places.transpose is not None:
                return self._places.transpose.with_values(self._entries())
            plan = self._plan_of_transpose()
            if plan is None:
                return self
            self._places.transpose = type(self)(plan, self.device)
            return self._places.transpose

    def _plan_of_transpose(self) -> Plan | None:
        """Plan the transpose, where the format is packed; None if it is this matrix."""
        plan, where = self.plan, self.device
        if not self._backend.packs(plan.format):
            plan, where = self._backend.to_host(plan), "cpu"
        with devices.find(where).filling(where, ends=True) as primitives:
            made = _transposed(plan, primitives)
        if made is None:
            return None
        turned, order = made
        policy = Policy(layout=plan.format, **formats.find(plan.format).alike(plan))
        return packed(turned, order, policy, self.device)

    def _entries(self) -> Any:
        """Return the value of every entry on the device, in the order in which entries came in."""
        return self._as_they_came(found(planning.unpack, self.plan, self.device)[2])

    def _as_they_came(self, packed: Any) -> Any:
        """Return what is known of each packed entry, row by row, in the order in which entries came in."""
        order = self.plan.order
        if order is None:
            return packed
        with self._backend.filling(self.device):
            came, bits = packed.copy(), bits_type(packed.dtype)
            came.view(bits)[order] = packed.view(bits)
        return came

    def _pass_on(self, values: Any, done: set[int]) -> None:
        """Write values into the transpose that was made, too; let one go that cannot hold them.

        A relative of the same pattern goes as well, itself or its conjugate: that was right of a symmetric
        matrix, which it may not be now.
        """
        for name, kept in list(self._relatives.items()):
            other = kept()
            if other is not None and other._places is self._places:
                self._let_go(name, other)
            elif other is not None and id(other) not in done:
                done.add(id(other))
                theirs = values.conj() if name == "H" else values
                try:
                    other._write(theirs)
                except ValueError:
                    self._let_go(name, other)
                else:
                    other._pass_on(theirs, done)

    def _let_go(self, name: str, other: Any) -> None:
        """Know a relative no more, nor be known by it."""
        del self._relatives[name]
        other._relatives.pop(name, None)
