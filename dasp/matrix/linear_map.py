"""Linear maps and their products: by a plan on a device, and A + sigma I without another plan.

`LinearMap` has the products that follow from `matvec` and the transpose. `PlannedMatrix` multiplies by a
plan; `dasp.SpMatrix` is one. `Shifted` adds sigma x to a product of another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NoReturn, Self, overload

import numpy as np
import scipy.sparse

from dasp import formats
from dasp.formats import devices
from dasp.formats.devices import Device, Product
from dasp.formats.plan import Plan
from dasp.matrix import planning
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime import foreign as _foreign
from dasp.runtime.types import Array, ArrayLike, DenseArray, DTypeLike, Number


class LinearMap(ABC):
    """A linear map with a product, a transpose and the names that SciPy's operators have."""

    # NumPy must not take `x @ A` for an array product of its own, nor SciPy for a sparse one.
    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2
    takes_out = True  # solvers then multiply by `matvec(x, out=y)`, others by `@`

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(m, n)."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""

    @property
    @abstractmethod
    def device(self) -> str:
        """`cpu` or `cuda:N`."""

    @abstractmethod
    def matvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A x + beta out."""

    @property
    @abstractmethod
    def T(self) -> Self:
        """The transpose."""

    @property
    @abstractmethod
    def H(self) -> Self:
        """The conjugate transpose."""

    def matmat(
        self, X: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A X + beta out; see `matvec`."""
        return self.matvec(X, out=out, alpha=alpha, beta=beta)

    def rmatvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
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
        shape = np.shape(x) if isinstance(x, (list, tuple)) else getattr(x, "shape", None)
        if shape is not None:
            _check.left_operand(self.shape, shape, 0)
        return self.H.matvec(x, out=out, alpha=alpha, beta=beta)

    def rmatmat(
        self, X: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A^H X + beta out; see `rmatvec`."""
        return self.rmatvec(X, out=out, alpha=alpha, beta=beta)

    def dot(self, x: ArrayLike, out: DenseArray | None = None) -> Any:
        """Return A x; see `matvec`."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: ArrayLike) -> Any:
        """Return A x; see `matvec`."""
        return self.matvec(x)

    def __rmatmul__(self, x: ArrayLike) -> Any:
        """Return x A by a product with the transpose, for x of shape (m,) or (k, m)."""
        z: Any = x if _foreign.is_foreign(x) else devices.find(self.device).as_operand(x, self.device)
        _check.left_operand(self.shape, z.shape, -1)
        return self.T.matvec(z.T).T if len(z.shape) == 2 else self.T.matvec(z)

    def transpose(self) -> Self:
        """Return `A.T`."""
        return self.T

    def as_linear_operator(self) -> Any:
        """Return a LinearOperator for iterative solvers: SciPy's on the CPU, CuPy's on a GPU."""
        return devices.find(self.device).linear_operator(self)


class PlannedMatrix(LinearMap):
    """A matrix that multiplies by its plan, for `dasp.SpMatrix`."""

    _device: str
    _backend: Device
    _product: Product

    @property
    def device(self) -> str:
        """`cpu` or `cuda:N`."""
        return self._device

    @property
    def plan(self) -> Plan:
        """The packed arrays, NumPy on the CPU and CuPy on a GPU."""
        plan: Plan = self._product.plan
        return plan

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n)."""
        return self.plan.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64, float32, float16, bfloat16, complex64 or complex128."""
        return self.plan.dtype

    @property
    def nnz(self) -> int:
        """Stored entries, explicit zeros and duplicates counted."""
        return self.plan.nnz

    @overload
    def matvec(
        self, x: Array, *, out: Array | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Array: ...

    @overload
    def matvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any: ...

    def matvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A x + beta out.

        Parameters
        ----------
        x : array_like, shape (n,), (n, 1) or (n, k)
            NumPy (or a list) for a matrix on the CPU; CuPy, on the same GPU, for a matrix on a GPU. Arrays
            of other libraries on the same device (PyTorch, JAX, DLPack) are read, and as `out` written,
            without a copy. A product by a PyTorch tensor runs on PyTorch's current stream, all others on
            CuPy's. Any strides; C order costs least. The product has NumPy's result type; docs/dtypes.md has
            a table.
        out : array, optional
            Of the product's shape and type, not overlapping `x`; the result is written there. May hold
            anything, NaN too, if `beta` is 0: it is not read then.
        alpha, beta : float, or complex for a complex product
            With `beta` other than 0, `out` is needed.

        Returns
        -------
        array, shape (m,), (m, 1) or (m, k)
            `out`, or a new array of the library of x, C-ordered if x is and else F-ordered. Every row is
            written, empty rows too.

        Raises
        ------
        TypeError
            For the wrong kind of array or number.
        ValueError
            For a wrong shape, or an `out` that is read-only or overlaps `x`.

        Notes
        -----
        For each row of n entries, |error| <= gamma(n + 2) sum_j |alpha a_ij x_j| + 2 u |beta out_i| up to
        order u^2, with gamma(n) = n u / (1 - n u) and u the unit roundoff of the type in which products are
        summed: the product's, or float32 for half precisions, which are rounded once more, at the end. Of a
        complex product of complex numbers that is the bound of each part, with 2 n and |re| + |im|.
        """
        if type(alpha) is float and type(beta) is float and (out is not None or beta == 0.0):
            y = self._product.quick(x, out, None if alpha == 1.0 and beta == 0.0 else (alpha, beta))
            if y is not None:
                return y
        return self._multiply(x, out, alpha, beta)

    def _multiply(
        self, x: ArrayLike, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A x + beta out for operands of any kind; see `matvec`."""
        if hasattr(x, "tocsr"):
            raise TypeError(
                f"x is a sparse {type(x).__name__}; dense vectors are needed; multiply A.tocsr() by "
                "x.tocsr(), and plan the product if it is to be multiplied"
            )
        if _foreign.is_foreign(x) or _foreign.is_foreign(out):
            if _foreign.wants_gradients(x):
                return self._with_gradients(x, out, alpha, beta)
            return _foreign.call(self.matvec, self, x, out, alpha=alpha, beta=beta)
        operand = self._backend.as_operand(x, self.device)
        _check.operand(self.shape, operand)
        dtype = _dtypes.arithmetic(self.dtype, operand.dtype).y
        formats.refuse_type(self.plan.format, dtype, "the product")
        alpha, beta = _check.scale("alpha", alpha, dtype), _check.scale("beta", beta, dtype)
        shape = (self.shape[0], *operand.shape[1:])
        if out is None:
            if beta != 0:
                raise ValueError(
                    f"beta is {beta} and out is None; pass the array that beta multiplies as out"
                )
            out = self._backend.empty(shape, dtype, self.device, _arrays.order(operand))
        else:
            out = self._backend.check_out(out, operand, shape, dtype, self.device)
        self._product.multiply(operand, out, alpha, beta)
        return out

    @overload
    def __matmul__(self, x: Array) -> Array: ...

    @overload
    def __matmul__(self, x: ArrayLike) -> Any: ...

    def __matmul__(self, x: ArrayLike) -> Any:
        """Return A x; see `matvec`."""
        y = self._product.quick(x)
        return self._multiply(x) if y is None else y

    def __rmatmul__(self, x: ArrayLike) -> Any:
        """Return x A for x of shape (m,) or (k, m)."""
        if getattr(x, "ndim", 0) == 1:  # several vectors are rows here, and columns there
            y = self.T._product.quick(x)
            if y is not None:
                return y
        return super().__rmatmul__(x)

    def _with_gradients(self, x: ArrayLike, out: DenseArray | None, alpha: Number, beta: Number) -> Any:
        """Return A x by an operator of PyTorch: with gradients for x, or in a graph that is traced."""
        from dasp.interop import torch

        return _foreign.by_operators(partial(torch.matmul, self), x, out, alpha, beta)

    @property
    def __dasp_product__(self) -> Product:
        """The product of the plan, for solvers, which capture it in graphs: it stays right while A lives.

        On a GPU it may also have `prepare_with_dot`.
        """
        return self._product

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be an array, which NumPy would make of one element: the matrix itself."""
        raise TypeError(
            "A is an SpMatrix and no array; functions of SciPy and others that need the entries take "
            "A.to_scipy(); A @ x is the product"
        )

    def asarray(self, x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
        """Return an array where the matrix is, copied there only if it must be.

        Parameters
        ----------
        x : array_like
            On the host or on a GPU, of any library.
        dtype : dtype, optional
            By default that of x.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
        """
        return self._backend.asarray(x, self.device, dtype)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the matrix as a new CSR array on the CPU.

        Returns
        -------
        scipy.sparse.csr_array, shape (m, n)
            The entries that came in, bit for bit, duplicates and explicit zeros too, in the caller's
            rows; the order inside a row may differ, and types are those of the plan, but float32 where that
            has a half precision, of which SciPy has none.
        """
        plan = self._backend.to_host(self.plan)
        indptr, indices, data = planning.unpack(plan, "cpu")
        data = data.astype(_dtypes.sum_type(self.dtype), copy=False)
        return scipy.sparse.csr_array((data, indices, indptr), shape=self.shape)


class Shifted(LinearMap):
    """The operator A + sigma I, which multiplies by the plan of A.

    Attributes
    ----------
    matrix : SpMatrix
        A, shape (n, n).
    sigma : float
    shape, dtype, device
        Those of A.

    Raises
    ------
    TypeError
        If `sigma` is no number.
    ValueError
        If A is not square.

    Notes
    -----
    A product is one with A, and a pass over x and y that adds alpha sigma x: two more roundings a row. Where
    x requires gradients, so does the result.

    Examples
    --------
    >>> import dasp, numpy
    >>> A = dasp.SpMatrix([[0.0, 2.0], [3.0, 0.0]], device="cpu")
    >>> A.shifted(10.0) @ numpy.array([1.0, 2.0])
    array([14., 23.])
    """

    def __init__(self, matrix: PlannedMatrix, sigma: Number) -> None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"A has shape {matrix.shape}; a square matrix is needed for A + sigma I")
        self.matrix, self.sigma = matrix, _check.scale("sigma", sigma, matrix.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return self.matrix.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of A."""
        return self.matrix.dtype

    @property
    def device(self) -> str:
        """`cpu` or `cuda:N`."""
        return self.matrix.device

    def matvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha (A + sigma I) x + beta out; see `dasp.SpMatrix.matvec`."""
        A = self.matrix
        if _foreign.is_foreign(x) or _foreign.is_foreign(out):
            if _foreign.wants_gradients(x):
                return _foreign.by_operators(self._shifted, x, out, alpha, beta)
            return _foreign.call(self.matvec, self, x, out, alpha=alpha, beta=beta)
        y: Any = A.matvec(x, out=out, alpha=alpha, beta=beta)
        factor = _check.scale("alpha", alpha, y.dtype) * self.sigma
        devices.find(self.device).add_scaled(y, factor, A.asarray(x))
        return y

    def _shifted(self, x: ArrayLike) -> Any:
        """Return (A + sigma I) x by operators of PyTorch."""
        return self.matrix.matvec(x).add(x, alpha=self.sigma)

    @property
    def T(self) -> Shifted:
        """The transpose, A^T + sigma I."""
        return Shifted(self.matrix.T, self.sigma)

    @property
    def H(self) -> Shifted:
        """The conjugate transpose."""
        return Shifted(self.matrix.H, self.sigma.conjugate())

    def __repr__(self) -> str:
        return f"<A + {self.sigma} I with A = {self.matrix!r}>"
