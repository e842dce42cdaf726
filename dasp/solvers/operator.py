"""Operators: anything with a shape, a dtype and a product, behind one small protocol for solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime.types import Array


class Matrix(Protocol):
    """A matrix or linear operator that a caller gives a solver to multiply by; it has a dtype, too."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes (m, n)."""

    def __matmul__(self, x: Any, /) -> Any:
        """Return the product with x."""


class DeviceOperator:
    """A matrix, or another object with a product, on one device. A subclass defines `multiply` at least.

    Attributes
    ----------
    shape : tuple of int
        (m, n); on several ranks, the sizes of this rank's parts of y and x.
    device : str
        `cpu` or `cuda:N`.
    captures : bool
        True if `multiply` can be captured in a CUDA graph: it allocates nothing and never waits.
    costly : bool
        True if `multiply` takes as long as several products with a matrix.
    diagonal : array or None
        The diagonal of an operator that has no other entries: a pass that is made anyway can multiply by it.
    """

    captures = False
    costly = False
    diagonal: Array | None = None

    def __init__(self, shape: tuple[int, int], device: str) -> None:
        self.shape, self.device = shape, device

    def multiply(self, x: Array, y: Array) -> None:
        """Set y to the product with x, two vectors on the device that do not overlap."""
        raise NotImplementedError

    def multiply_block(self, X: Array, Y: Array) -> None:
        """Set each column of Y to the product with that of X, two blocks in C order that do not overlap."""
        multiply_by_column(self.multiply, X, Y)

    def prepare(self, x: Array, y: Array) -> Callable[[], None]:
        """Return a function that sets y to the product with x; it keeps all that it needs."""
        return partial(self.multiply, x, y)

    def prepare_with_dot(
        self, x: Array, y: Array, w: Array, *, square: bool = False
    ) -> tuple[Callable[[], None], Array] | None:
        """Return a function that also leaves partial sums of w'y, and these sums; None if that is impossible.

        With `square`, the first half of the sums adds up to w'y, and the second half to y'y.
        """
        return None


def product_of(A: object) -> Any:
    """Return the product of an SpMatrix, which prepares launches for solvers; for any other A, return A."""
    return getattr(A, "__dasp_product__", A)


def is_lasting(A: object) -> bool:
    """Return True if captured products with a matrix or a preconditioner stay right as long as it lives."""
    return hasattr(type(A), "__dasp_product__") or bool(getattr(type(A), "lasting", False))


def multiply_by_column(multiply: Callable[[Array, Array], object], X: Array, Y: Array) -> None:
    """Set each column of Y by `multiply(x, y)`, which gets contiguous copies of the columns."""
    for k in range(X.shape[1]):
        x, y = X[:, k].copy(), Y[:, k].copy()
        multiply(x, y)
        Y[:, k] = y


class _Planned(DeviceOperator):
    """An operator with `matvec(x, out=y)`: a planned matrix, or a preconditioner of this package."""

    captures = True

    def __init__(self, A: Any, device: str) -> None:
        super().__init__(_shape(A), device)
        self._A = A  # perhaps a weak proxy: to keep a bound method of A would keep A alive
        self.costly = bool(getattr(A, "costly", False))
        self.diagonal = getattr(A, "diagonal_of_inverse", None)

    def multiply(self, x: Array, y: Array) -> None:
        self._A.matvec(x, out=y)

    def multiply_block(self, X: Array, Y: Array) -> None:
        if hasattr(self._A, "matmat"):
            self._A.matmat(X, out=Y)
        else:
            super().multiply_block(X, Y)

    def prepare(self, x: Array, y: Array) -> Callable[[], None]:
        prepare = getattr(self._A, "prepare", None)
        ready: Callable[[], None] = partial(self.multiply, x, y) if prepare is None else prepare(x, y)
        return ready

    def prepare_with_dot(
        self, x: Array, y: Array, w: Array, *, square: bool = False
    ) -> tuple[Callable[[], None], Array] | None:
        prepare = getattr(product_of(self._A), "prepare_with_dot", None)
        return None if prepare is None else prepare(x, y, w, square=square)


class _Plain(DeviceOperator):
    """An operator with `@`: a SciPy or CuPy matrix, a LinearOperator, a dense array."""

    def __init__(self, A: Matrix, device: str, name: str) -> None:
        super().__init__(_shape(A), device)
        # The product of a numpy.matrix and a vector is a numpy.matrix again.
        self._A, self._name = np.asarray(A) if isinstance(A, np.matrix) else A, name

    def multiply(self, x: Array, y: Array) -> None:
        self._set(y, self._product(x))

    def multiply_block(self, X: Array, Y: Array) -> None:
        # A LinearOperator that has no matmat of its own gives its function columns of shape (n, 1).
        if hasattr(self._A, "nnz") or hasattr(self._A, "strides"):
            self._set(Y, self._product(X))
        else:
            super().multiply_block(X, Y)

    def _product(self, x: Array) -> Array:
        try:
            return self._A @ x
        except NotImplementedError as error:
            raise TypeError(
                f"{self._name} is {_check.kind_of(self._A)} that cannot make this product; give it one with "
                "A (matvec), and with its transpose (rmatvec) where the method needs that"
            ) from error

    def _set(self, y: Array, product: Array) -> None:
        if not hasattr(product, "shape"):
            raise TypeError(f"{self._name} @ x is {_check.kind_of(product)}; an array is needed")
        if product.shape == () and y.shape == (1,):  # SciPy's, of a sparse array in COO with one row
            product = np.reshape(product, 1)
        if product.shape != y.shape:
            raise ValueError(f"{self._name} @ x has shape {product.shape}; {y.shape} is needed")
        _set(y, product, self._name)


def _set(y: Array, product: Array, name: str) -> None:
    """Set a vector to a product.

    Raises
    ------
    TypeError
        If the product is complex and the vector is not: the operator has a real dtype.
    """
    if product.dtype.kind == "c" and y.dtype.kind != "c":
        raise TypeError(f"{name} @ x has dtype {product.dtype} for a real x; {name}.dtype must say so")
    y[...] = product


class FunctionOperator(DeviceOperator):
    """An operator that calls a function: it takes x, and y to set."""

    def __init__(self, shape: tuple[int, int], device: str, function: Callable[[Array, Array], None]) -> None:
        super().__init__(shape, device)
        self._function = function

    def multiply(self, x: Array, y: Array) -> None:
        """Set y to the product with x."""
        self._function(x, y)


def scale_by_power(operator: DeviceOperator, power: int) -> DeviceOperator:
    """Return 2^power times an operator: half of the power multiplies x, and the rest y, so that no factor
    overflows."""
    before, after = math.ldexp(1.0, power // 2), math.ldexp(1.0, power - power // 2)

    def multiply(x: Array, y: Array) -> None:
        operator.multiply(x * before, y)
        y *= after

    return FunctionOperator(operator.shape, operator.device, multiply)


def damp_by(
    operator: DeviceOperator, adjoint: DeviceOperator, damp: float
) -> tuple[FunctionOperator, FunctionOperator]:
    """Return [A; damp I], A above a multiple of the unit matrix, and its adjoint [A.H, damp I]."""
    m, n = operator.shape

    def forward(x: Array, y: Array) -> None:
        operator.multiply(x, y[:m])
        y[m:] = x * damp

    def backward(x: Array, y: Array) -> None:
        adjoint.multiply(x[:m], y)
        y += x[m:] * damp

    device = operator.device
    return FunctionOperator((m + n, n), device, forward), FunctionOperator((n, m + n), device, backward)


def _conjugate(transposed: DeviceOperator) -> DeviceOperator:
    """Return the adjoint of a complex matrix, given its transpose, without a copy of its values."""

    def multiply(x: Array, y: Array) -> None:
        transposed.multiply(x.conj(), y)
        y.imag[...] *= -1

    return FunctionOperator(transposed.shape, transposed.device, multiply)


def _shape(A: Matrix) -> tuple[int, int]:
    """Return the shape; on several ranks, the sizes of this rank's parts of y and x."""
    m, n = getattr(A, "local_shape", A.shape)
    return int(m), int(n)


def as_operator(A: Matrix, device: str, name: str = "A") -> DeviceOperator:
    """Return a matrix or linear operator as a `DeviceOperator`.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator
        With a shape of two sizes, and `@`.
    device : str
        The device of the vectors.
    name : str
        The name of the argument, for errors.

    Raises
    ------
    TypeError
        If A is no matrix or operator, or not on the device.
    """
    if len(getattr(A, "shape", ())) != 2 or not hasattr(A, "__matmul__"):
        raise TypeError(
            f"{name} is {_check.kind_of(A)}; a matrix or linear operator is needed, with shape, dtype and @"
        )
    own = device_of(A)
    if own is not None and own != device:
        raise TypeError(f"{name} is on {own} and the system on {device}; both must be on one device")
    return _Planned(A, device) if writes_into(A) else _Plain(A, device, name)


def adjoint_of(A: Matrix, device: str) -> DeviceOperator:
    """Return the conjugate transpose of A as a `DeviceOperator`; for a real A that is the transpose.

    Raises
    ------
    TypeError
        If A has none.
    """
    as_operator(A, device)
    transposed = getattr(A, "T", None)
    if transposed is not None and np.dtype(getattr(A, "dtype", None) or np.float64).kind != "c":
        return as_operator(transposed, device, "A.T")
    if hasattr(A, "H") and (transposed is None or writes_into(A)):
        return as_operator(A.H, device, "A.H")
    if transposed is not None:
        return _conjugate(as_operator(transposed, device, "A.T"))
    if hasattr(A, "rmatvec"):
        m, n = _shape(A)
        return FunctionOperator((n, m), device, lambda x, y: _set(y, A.rmatvec(x), "A.H"))
    raise TypeError(
        f"A is {_check.kind_of(A)} with neither T nor rmatvec; this method multiplies by the transpose; "
        "pass a matrix that has one, or a method that needs none (gmres, bicgstab)"
    )


def kept_adjoint(A: Any) -> Any:
    """Return the adjoint that A keeps, the same object as long as it is valid; None if A keeps none."""
    if not is_lasting(A):
        return None
    return A.H if np.dtype(A.dtype).kind == "c" else A.T


def writes_into(A: object) -> bool:
    """Return True if A is of this package: it has `matvec(x, out=y)`, which can be captured."""
    return bool(getattr(A, "takes_out", False))


def device_of(array: object) -> str | None:
    """Return where an array or a matrix is, `cpu` or `cuda:N`; None if it does not say."""
    kind = type(array).__module__.partition(".")[0]
    if kind in ("cupy", "cupyx"):
        # A sparse matrix of CuPy has a `device` that raises; its values have one that does not.
        values = array if kind == "cupy" else getattr(array, "data", None)
        number = getattr(getattr(values, "device", None), "id", None)
        return None if number is None else f"cuda:{number}"
    device = getattr(array, "device", None)
    if isinstance(device, str):
        return device
    if isinstance(array, np.ndarray) or (kind == "scipy" and hasattr(array, "nnz")):
        return "cpu"
    return None
