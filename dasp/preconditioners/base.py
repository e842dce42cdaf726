"""The base of all preconditioners: fixed sequences of passes and products that compute z = M r."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Self
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike
from scipy.sparse import csr_array, issparse

from dasp.matrix.matrix import SpMatrix
from dasp.matrix.planning import find_device
from dasp.matrix.policy import Policy
from dasp.runtime import check as _check
from dasp.runtime.arrays import is_array, is_cupy_sparse, operand, overlap, to_host
from dasp.runtime.process import ProcessLock
from dasp.runtime.types import Array, DeviceArray
from dasp.solvers.arguments import make_space
from dasp.solvers.operator import Matrix, as_operator, device_of

MOST_STEPS = 1000
"""Most sweeps, and most steps of a polynomial: each costs a launch or two in every application."""

OLD_VALUES = "M was made of older values of A; M.update(A) takes the new ones"

RECENT = 8
"""Calls of `matvec` on a GPU whose programs are kept for the next one with the same vectors."""


TYPES = {"f": ("float32", "float64"), "c": ("complex64", "complex128")}
"""Names of the types in which preconditioners compute, by the kind of their matrices' values."""


class Preconditioner:
    """An approximate inverse M of a matrix: z = M r.

    M is a linear operator: use `M @ r`, `M.matvec(r, out=z)`, or pass it as `M=` to dasp's, SciPy's and
    CuPy's solvers.

    Attributes
    ----------
    shape : tuple of int
        (n, n).
    dtype : numpy.dtype
        The type in which M computes: float32 or float64, for a complex matrix complex64 or complex128; r and
        z may have another. A real M multiplies the real and the imaginary part of a complex r in turn.
    device : str
        `cpu` or `cuda:N`.
    lasting : bool
        True if a product that a graph captured stays right as long as M lives.
    takes_out : bool
        True if solvers may call `matvec(r, out=z)`; they apply an operator without this attribute by `@`.
    costly : bool
        True if M r takes as long as several products with a matrix; solvers then compute few M r in vain.
    generation : int
        Grows when `update` replaces arrays; programs prepared earlier must then be prepared anew.
    """

    lasting: ClassVar[bool] = True
    takes_out: ClassVar[bool] = True
    costly: ClassVar[bool] = True

    def __init__(
        self,
        n: int,
        dtype: np.dtype[Any],
        device: str,
        names: tuple[str, ...],
    ) -> None:
        """Make the vectors `b` (the residual), `x` (the result) and those called `names`."""
        self.shape, self.dtype, self.device = (n, n), np.dtype(dtype), device
        self.space, self.generation = make_space(device, self.dtype), 0
        self.vectors = self.space.vectors(n, "b", "x", *names)
        self._source: Callable[[], SpMatrix | None] = lambda: None
        self._writes, self._warned = 0, False
        self._own: Callable[[], None] | None = None
        # The caller of `prepare` owns the program and its vectors; the weak references keep neither alive.
        self._prepared: WeakValueDictionary[tuple[Any, ...], Callable[[], None]] = WeakValueDictionary()
        self._recent: deque[Callable[[], None]] = deque(maxlen=RECENT)
        self._lock = ProcessLock()

    def __repr__(self) -> str:
        n, name = self.shape[0], type(self).__module__.removesuffix(".cycle").rpartition(".")[2]
        return f"<{name} {n} x {n}, {self.dtype}, on {self.device}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            f"{self!r} cannot be pickled or copied: it holds prepared passes; pickle its matrix, and make it "
            "again of that"
        )

    def apply(self) -> None:
        """Compute `x` from `b` by passes and products; on a GPU this runs once for each program."""
        raise NotImplementedError

    def _load_diagonal(self, inverse: Array) -> None:
        """Load an inverse diagonal, given on the host, into vector `d`; the errors are those of `cast`."""
        self.vectors["d"][...] = self.space.asarray(cast(inverse, self.dtype, diagonal=True))

    def _read(self, A: Matrix) -> Any:
        """Return the numbers of a matrix that `_load` takes, on the host."""
        raise TypeError(f"{self!r} takes no new values; make another one of the new matrix")

    def _load(self, numbers: Any) -> bool:
        """Take the numbers of a matrix. Return True if that replaced no array and no plan."""
        raise NotImplementedError

    def _in_type(self, dtype: np.dtype[Any]) -> Preconditioner:
        """Return a preconditioner with the same numbers that computes in a type."""
        raise ValueError(
            f"{self!r} was asked to compute in {dtype}; it computes in the matrix's type; make it of the "
            "matrix in the other one"
        )

    def update(self, A: Matrix) -> None:
        """Take the new values of the matrix that M was made of, or of another one with the same pattern.

        Parameters
        ----------
        A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
            Multigrid keeps the matrices between its levels and computes the coarse ones anew; it takes a
            new PyAMG hierarchy too.

        Raises
        ------
        TypeError, ValueError
            If A has another shape or kind, or no preconditioner can be made of it. M may then be unusable.

        Notes
        -----
        The numbers are written in place, so the solvers' graphs and your own use the new ones from then on.
        A plan whose value compression cannot hold the new values is replaced; a graph of your own must then
        be captured anew (`generation` has grown).
        """
        shape = getattr(A, "shape", self.shape)
        shape = getattr(A, "local_shape", shape)  # on several ranks, the shape of this rank's part
        kind = np.dtype(getattr(A, "dtype", np.float32)).kind
        if tuple(shape) != self.shape:
            raise ValueError(
                f"A has shape {tuple(shape)}; M has shape {self.shape}, and A must have the same"
            )
        if kind == "c" and self.dtype.kind != "c":
            raise TypeError(f"A is complex and M computes in {self.dtype}; make another M of A")
        numbers = self._read(A)
        with self._lock.get():
            if not self._load(numbers):
                self._own, self.generation = None, self.generation + 1
                self._recent.clear()
                self._prepared.clear()
        self._remember_source(A)

    def _remember_source(self, A: object) -> Self:
        """Remember the matrix whose numbers M holds, and return M."""
        self._source, self._writes, self._warned = lambda: None, 0, False
        if isinstance(A, SpMatrix):
            self._source, self._writes = weakref.ref(A), A.writes
        return self

    def warn_of_old_values(self, A: object) -> None:
        """Warn once if A is the matrix that M was made of and its values have been written since."""
        source = self._source()
        if source is not None and source is A and source.writes != self._writes and not self._warned:
            self._warned = True
            warnings.warn(OLD_VALUES, UserWarning, stacklevel=5)

    def matvec(self, r: Array, out: Array | None = None) -> Array:
        """Return M r.

        Parameters
        ----------
        r : array, shape (n,) or (n, 1), on the device
        out : array, optional
            Where the result is written: like r, not overlapping it. On a GPU this costs no copies,
            and can be captured in a graph after a first call.

        Returns
        -------
        array of the shape and type of r; of M's type if r holds integers, and complex if M is

        Raises
        ------
        ValueError, TypeError
            If r is no array, has another shape or is on another device, or the type of `out` cannot hold M r.
        """
        r = operand("r", r)
        if out is not None and not is_array(out):
            raise TypeError(f"out is {_check.kind_of(out)}; a numpy.ndarray or a cupy.ndarray is needed")
        if r.shape not in ((self.shape[0],), (self.shape[0], 1)):
            raise ValueError(f"r has shape {r.shape}; ({self.shape[0]},) is needed")
        if device_of(r) not in (None, self.device):
            raise TypeError(f"r is on {device_of(r)} and M on {self.device}; both must be on one device")
        kind = self._result_type(r)
        if out is not None and out.dtype.kind in ("biufV" if kind.kind == "c" else "biu"):
            what = "is complex" if kind.kind == "c" else "has fractions"
            raise TypeError(f"out has dtype {out.dtype}; M r {what}, so {kind} is needed")
        if out is not None and out.shape not in ((self.shape[0],), (self.shape[0], 1)):
            raise ValueError(f"out has shape {out.shape}; {r.shape} is needed, as r has")
        with self._lock.get():
            if out is not None and (program := self._in_place(r, out)):
                self._recent.append(program)
                program()
                return out
            if self._own is None:
                self._own = self.space.program(self.apply)
            if self.dtype.kind != "c" and r.dtype.kind == "c":
                return self._apply_to_parts(r, r.copy() if out is None else out)
            self.vectors["b"][...] = r.reshape(-1)
            self._own()
            if out is None:
                return self.vectors["x"].astype(kind, copy=True).reshape(r.shape)
            out.reshape(-1)[...] = self.vectors["x"]
            return out

    def _result_type(self, r: Array) -> np.dtype[Any]:
        """Return the type of M r: r's, or M's for integers; if M is complex, the complex type of that
        precision."""
        kind = self.dtype if r.dtype.kind in "biu" else np.dtype(r.dtype)
        return np.result_type(kind, np.complex64) if self.dtype.kind == "c" else kind

    def _apply_to_parts(self, r: Array, out: Array) -> Array:
        """Set `out` to M r for a real M and a complex r; allocate nothing, so that a graph can capture it."""
        assert self._own is not None
        for of, to in ((r.real, out.real), (r.imag, out.imag)):
            self.vectors["b"][...] = of.reshape(-1)
            self._own()
            to[...] = self.vectors["x"].reshape(to.shape)
        return out

    def prepare(self, r: Array, out: Array) -> Callable[[], None]:
        """Return a function that sets `out` to M r; it works as long as M lives.

        Parameters
        ----------
        r, out : array, shape (n,), on the device
        """
        with self._lock.get():
            program = self._in_place(r, out)
        me = weakref.proxy(self)
        return program or (lambda: me.matvec(r, out=out))

    def _in_place(self, r: Array, out: Array) -> Callable[[], None] | None:
        """Return a function that sets `out` to M r without copies, or None if r or `out` must be copied."""
        if not all(hasattr(one.data, "ptr") for one in (r, out)):
            return None
        key = _places(r, out)
        program = self._prepared.get(key)
        if program is None:
            own = self.vectors["b"], self.vectors["x"]
            if not (self.vectors.bind("b", r) and self.vectors.bind("x", out)):
                self.vectors.bind("b", own[0])
                return None
            self._prepared[key] = program = self.space.program(self.apply)
            self.vectors.bind("b", own[0])
            self.vectors.bind("x", own[1])
        return program

    def matmat(self, R: Array, out: Array | None = None) -> Array:
        """Return M R, one column after the other.

        Parameters
        ----------
        R : array, shape (n, k), on the device
        out : array, optional
            Where the result is written: like R, not overlapping it.

        Returns
        -------
        array of the shape of R, and of the type that `matvec` returns for a column

        Raises
        ------
        ValueError, TypeError
            If R is no array, has another shape or is on another device, or `out` is no array like the result.
        """
        R = operand("R", R)
        if R.ndim != 2 or R.shape[0] != self.shape[0]:
            raise ValueError(f"R has shape {R.shape}; ({self.shape[0]}, k) is needed")
        if out is None:
            out = R.astype(self._result_type(R), copy=True)
        elif getattr(out, "shape", None) != R.shape:
            raise ValueError(
                f"out is {_check.kind_of(out)}; an array of the shape of R, {R.shape}, is needed"
            )
        elif isinstance(out, np.ndarray) and overlap(out, R):
            raise ValueError("out overlaps R; pass another array")
        for k in range(R.shape[1]):
            self.matvec(R[:, k], out=out[:, k])
        return out

    def __matmul__(self, r: Array) -> Array:
        """Return M r, column by column if r has several."""
        return self.matmat(r) if getattr(r, "ndim", 1) == 2 else self.matvec(r)

    def __call__(self, r: Array) -> Array:
        """Return M r, column by column if r has several; SciPy's `lobpcg` calls its M."""
        return self @ r

    def astype(self, dtype: DTypeLike) -> Preconditioner:
        """Return a preconditioner with the numbers of M that computes in float32 or float64, or for a complex
        M in complex64 or complex128; r and z may have any type.

        In float32 it moves half the bytes, and a solver in float64 converges as before.

        Raises
        ------
        ValueError
            For another type.
        """
        wanted, known = np.dtype(dtype), TYPES[self.dtype.kind]
        if wanted.name not in known:
            raise ValueError(f"dtype is {wanted}; {' or '.join(known)} is needed")
        return self if wanted == self.dtype else self._in_type(wanted)


def _places(*arrays: DeviceArray) -> tuple[Any, ...]:
    """Return the address, the strides and the type of each array of a GPU."""
    return tuple((int(one.data.ptr), one.strides, one.dtype) for one in arrays)


def host_matrix(A: object) -> csr_array:
    """Return a matrix as a SciPy CSR array on the host.

    Raises
    ------
    TypeError
        If A has no entries to read, such as a LinearOperator.
    ValueError
        If A is not square.
    """
    if hasattr(A, "to_scipy"):
        A = A.to_scipy()
    elif is_cupy_sparse(A):
        A = A.get()
    if not (issparse(A) or isinstance(A, np.ndarray)):
        over_ranks = hasattr(A, "local_shape")
        remedy = "; over ranks take dasp.distributed.preconditioners" if over_ranks else ""
        raise TypeError(f"A is {_check.kind_of(A)}; a matrix whose entries can be read is needed{remedy}")
    matrix = csr_array(A)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"A has shape {matrix.shape}; a square matrix is needed")
    return canonical(matrix)


def computing_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a preconditioner computes, given the matrix's: that, or double precision."""
    if dtype.kind == "c":
        return np.dtype(np.complex64 if dtype.name == "complex64" else np.complex128)
    return np.dtype(np.float32 if dtype.name == "float32" else np.float64)


def wide_type(dtype: np.dtype[Any]) -> type[np.inexact[Any]]:
    """Return the type in which a preconditioner is set up, given the matrix's: double precision."""
    return np.complex128 if dtype.kind == "c" else np.float64


def canonical(A: csr_array) -> csr_array:
    """Return a CSR array with sorted indices and no duplicates: itself, or a copy."""
    if not A.has_canonical_format:
        A = A.copy()
        A.sum_duplicates()
    return A


def is_finite(numbers: Array) -> bool:
    """Return True if an array on the host holds no NaN and no infinity."""
    with np.errstate(all="ignore"):
        return bool(abs(numbers.sum()) < np.inf or (abs(numbers) < np.inf).all())


def cast(numbers: Array, dtype: np.dtype[Any], *, diagonal: bool = False) -> Array:
    """Return an array on the host cast to a type, or itself if it has that type.

    Raises
    ------
    ValueError
        If the cast makes a finite number infinite, a nonzero one of an inverse diagonal zero, or all zero.
    """
    if numbers.dtype == dtype:
        return numbers
    with np.errstate(all="ignore"):
        there = numbers.astype(dtype)
        if is_finite(there) and (there.all() if diagonal else there.any()):
            return there
        lost = abs(numbers) < np.inf
        lost &= ~(abs(there) < np.inf)
    if diagonal or not there.any():
        lost |= (there == 0) & (numbers != 0)
    if lost.any():
        raise ValueError(
            f"M holds {lost.sum()} numbers that are too large or too small for {np.dtype(dtype)}; "
            "scale A, or compute in double precision"
        )
    return there


def cast_matrix(matrix: csr_array, dtype: np.dtype[Any]) -> csr_array:
    """Return a SciPy CSR matrix with the same pattern and its values cast; the errors are those of `cast`."""
    return csr_array((cast(matrix.data, dtype), matrix.indices, matrix.indptr), matrix.shape)


class PlannedPart:
    """A planned matrix that a preconditioner multiplies by; its values can be replaced.

    Attributes
    ----------
    csr : scipy.sparse.csr_array
        The matrix on the host, in its own type.
    matrix : SpMatrix
        The same matrix, planned in the preconditioner's type.
    operator : DeviceOperator
        Multiplies by `matrix`.
    """

    def __init__(
        self, csr: csr_array, dtype: np.dtype[Any], device: str, like: PlannedPart | None = None
    ) -> None:
        """Plan a SciPy matrix, its values cast to a type; `like` is the same one planned in another type."""
        self._dtype, self._device, self.csr = dtype, device, csr
        if like is None or np.promote_types(dtype, like.matrix.dtype) != like.matrix.dtype:
            self._make(cast_matrix(csr, dtype), None)
        else:
            cast(csr.data, dtype)
            self._take(like.matrix.astype(dtype))

    def _make(self, typed: csr_array, policy: Policy | None) -> None:
        self._take(SpMatrix.from_scipy(typed, device=self._device, policy=policy))

    def _take(self, matrix: SpMatrix) -> None:
        self.matrix, self.operator = matrix, as_operator(matrix, self._device)

    def load(self, csr: csr_array) -> bool:
        """Take another matrix. Return True if its values could be written in place."""
        old, typed, policy = self.csr, cast_matrix(csr, self._dtype), None
        self.csr = csr
        if np.array_equal(old.indptr, csr.indptr) and np.array_equal(old.indices, csr.indices):
            try:
                self.matrix.with_values(self.matrix.asarray(typed.data), out=self.matrix)
                return True
            except ValueError:  # the plan's compression cannot hold these values
                policy = Policy(narrow=False)
        self._make(typed, policy)
        return False

    def diagonal(self) -> Array:
        """Return the diagonal on the host, from the device if that is a GPU."""
        return self.csr.diagonal() if self._device == "cpu" else to_host(self.matrix.diagonal())


def choose_device(A: object, device: str | None) -> str:
    """Return the device that is given, else that of A, else the CPU.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If `device` is not a device, or does not work.
    """
    return (device_of(A) or "cpu") if device is None else find_device(device)


def inverse_diagonal(diagonal: Array) -> Array:
    """Return 1 / a_ii in double precision, given the diagonal of a matrix on the host.

    Raises
    ------
    ValueError
        If an entry is zero, not finite, or so small that its inverse is not.
    """
    with np.errstate(all="ignore"):
        inverse = 1.0 / diagonal.astype(wide_type(diagonal.dtype), copy=False)
        there = abs(inverse.astype(computing_type(diagonal.dtype), copy=False))
    least, most = there.min(initial=np.inf), there.max(initial=0)  # the inverse of infinity is 0
    if least > 0 and most < np.inf:
        return inverse
    bad = np.flatnonzero(~((there > 0) & (there < np.inf)))
    raise ValueError(
        f"{len(bad)} rows have no usable diagonal entry, the first is row {bad[0]}; M divides by it, so each "
        "row needs one that is finite and not 0"
    )
