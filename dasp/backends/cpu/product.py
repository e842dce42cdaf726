"""A plan on the CPU, ready to be multiplied by vectors and by matrices of several columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp import formats
from dasp._dtypes import into, sum_type
from dasp.backends.cpu import published, sliced
from dasp.backends.cpu.halves import store_rounded, widened
from dasp.formats.array import Plan
from dasp.formats.published.pattern import NAME as PUBLISHED
from dasp.formats.sliced.pattern import NAME as SLICES

Vector = np.ndarray[Any, Any]

KERNELS: dict[str, Any] = {SLICES: sliced.Kernel, PUBLISHED: published.Kernel}
"""What multiplies a plan of each format: made of the plan, with `multiply(x, y, alpha, beta)`."""


class Product:
    """A plan, ready to be multiplied on the CPU; see `dasp.backends.protocols.Product`.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.

    Raises
    ------
    RuntimeError, TypeError
        If the CPU has no product for the plan's format, or that none for its type.
    """

    def __init__(self, plan: Plan) -> None:
        if plan.format not in KERNELS:
            raise RuntimeError(
                f"the plan has format {plan.format!r}; the CPU multiplies {', '.join(KERNELS)}"
            )
        self.plan = plan
        kernel = KERNELS[plan.format](plan)
        self._multiply = kernel.multiply
        self._multiply_columns = getattr(kernel, "multiply_columns", None)
        formats.refuse_type(plan.format, plan.dtype, "A")
        self._x_shape, self._m = (plan.shape[1],), plan.shape[0]
        # Vectors in half precision are never plain: they are widened, and the result is rounded.
        self._dtype = plan.dtype if sum_type(plan.dtype) == plan.dtype else None
        self._one, self._zero = plan.dtype.type(1), plan.dtype.type(0)

    def quick(self, x: Any, out: Any = None, scale: tuple[float, float] | None = None) -> Vector | None:
        """Return A x if x and out are the plainest of vectors, else None; for the sake of small matrices."""
        if not _is_plain(x, self._x_shape, self._dtype):
            return None
        if out is None:
            out = np.empty(self._m, self._dtype)
        elif not _is_plain(out, (self._m,), self._dtype) or np.may_share_memory(out, x):
            return None
        alpha, beta = (self._one, self._zero) if scale is None else map(type(self._one), scale)
        self._multiply(_read_only(x), out, alpha, beta)
        result: Vector = out
        return result

    def multiply(self, x: Vector, y: Vector, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0.

        Raises
        ------
        TypeError
            If the plan's format has no product of these types.
        """
        formats.refuse_type(self.plan.format, y.dtype, "the product")
        if x.ndim == 2:
            self._multiply_matrix(x, y, alpha, beta)
            return
        total = sum_type(y.dtype)
        vector = _read_only(_taken(x, into(self.plan.dtype, x.dtype, total).x))
        result = y if y.flags.carray and y.dtype == total else _taken(y, total)
        self._multiply(vector, result, total.type(alpha), total.type(beta))
        if y.dtype != total:
            rounded = y if y.flags.carray else np.empty_like(y)
            store_rounded(result, rounded)
            result = rounded
        if result is not y:
            y[:] = result

    def _multiply_matrix(self, x: Vector, y: Vector, alpha: complex, beta: complex) -> None:
        """Multiply all columns at once where there are several, in C order and of real numbers."""
        total = sum_type(y.dtype)
        if self._multiply_columns is None or x.shape[1] < 2 or total.kind == "c" or not _in_rows(x):
            for k in range(x.shape[1]):
                self.multiply(x[:, k], y[:, k], alpha, beta)
            return
        rows = x if x.dtype == total and x.flags.aligned else np.require(x, total, ["C", "A"])
        keeps = y.dtype == total and y.flags.aligned and _in_rows(y)
        result = y if keeps else np.require(y, total, ["C", "A"])
        self._multiply_columns(_read_only(rows), result, total.type(alpha), total.type(beta))
        if result is not y:
            y[:] = result


def _in_rows(array: Vector) -> bool:
    """Whether each row of a matrix lies in one run of memory, behind the row before it."""
    row, column = array.strides
    return array.flags.c_contiguous or (column == array.itemsize and row >= 0 and row % column == 0)


def _taken(vector: Vector, kind: np.dtype[Any]) -> Vector:
    """Return a vector contiguous, aligned and of a type that holds it: itself or a copy."""
    if vector.dtype == kind and vector.flags.c_contiguous and vector.flags.aligned:
        return vector
    if vector.dtype.itemsize == 2 and kind == np.float32 and vector.dtype.kind in "fV":
        return widened(np.require(vector, None, ["C", "A"]))
    return np.require(vector, kind, ["C", "A"])


def _is_plain(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> bool:
    """Whether this is a writable NumPy array, aligned and contiguous, of just this shape and type, if any."""
    plain: bool = (
        type(array) is np.ndarray and array.dtype is dtype and array.shape == shape and array.flags.carray
    )
    return plain


def _read_only(x: Vector) -> Vector:
    """Return a view that is read-only, whatever x is, so that one compiled form serves all callers."""
    view = x.view()
    view.flags.writeable = False
    return view
