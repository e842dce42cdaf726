"""A plan on the CPU, ready to be multiplied by vectors and by matrices of several columns."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from dasp.formats.plan import Plan
from dasp.formats.product import Product
from dasp.runtime.arrays import address, as_input
from dasp.runtime.cpu.emitter import LINE
from dasp.runtime.cpu.operands import store_rounded, transpose, widen
from dasp.runtime.dtypes import find_arithmetic_into, sum_type
from dasp.runtime.types import Number

Vector = np.ndarray[Any, Any]

TRANSPOSED_BYTES = 128
"""Most bytes of a row of the columns that are transposed at a time: two cache lines."""


class CpuProduct(Product):
    """A plan, ready to be multiplied on the CPU.

    A format adds `multiply_vector` and, where it multiplies `several` columns at once, `multiply_rows`.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.
    """

    several = False
    """True if the format multiplies several columns at once; else it multiplies one after the other."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._x_shape, self._y_shape = (plan.shape[1],), (plan.shape[0],)
        # Vectors in half precision are never plain: they are widened, and the result is rounded.
        self._dtype = plan.dtype if sum_type(plan.dtype) == plan.dtype else None
        self._one, self._zero = plan.dtype.type(1), plan.dtype.type(0)

    def multiply_vector(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set y = alpha A x + beta y for contiguous vectors in types of sums."""
        raise NotImplementedError

    def multiply_rows(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set Y = alpha A X + beta Y for 2 columns and more, with contiguous rows, in types of sums.

        Neither X nor Y has a negative stride.
        """
        raise NotImplementedError

    def refresh(self) -> None:
        """Do nothing: products read the plan each time."""

    def multiply_if_plain(
        self, x: object, out: object = None, scale: tuple[float, float] | None = None
    ) -> Vector | None:
        """Return A x if x and `out` are plain arrays, else None; this makes small products faster."""
        if type(x) is not np.ndarray:
            return None
        multiply, columns = self.multiply_vector, x.shape[1:]
        if columns:
            if not self.several or len(columns) > 1 or columns[0] < 2:
                return None
            multiply = self.multiply_rows
        if not _is_plain(x, self._x_shape + columns, self._dtype):
            return None
        shape = self._y_shape + columns
        if out is None:
            out = np.empty(shape, self._dtype)
        elif not _is_plain(out, shape, self._dtype) or np.may_share_memory(out, x):
            return None
        alpha, beta = (self._one, self._zero) if scale is None else map(type(self._one), scale)
        multiply(x, out, alpha, beta)
        result: Vector = out
        return result

    def multiply(self, x: Vector, y: Vector, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0."""
        if x.ndim == 2 and (not self.several or x.shape[1] < 2):
            for k in range(x.shape[1]):
                self.multiply(x[:, k], y[:, k], alpha, beta)
            return
        total = sum_type(y.dtype)
        read = _convert(as_input(x), find_arithmetic_into(self.plan.dtype, x.dtype, total).x)
        result = _convert(y, total)
        multiply = self.multiply_vector if x.ndim == 1 else self._multiply_matrix
        multiply(read, result, total.type(alpha), total.type(beta))
        if y.dtype != total:
            rounded = y if y.flags.forc and y.flags.aligned else np.empty_like(y)
            store_rounded(result, rounded)
            result = rounded
        if result is not y:
            y[...] = result

    def _multiply_matrix(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Multiply several columns at once; transpose columns that are stored by columns, a few at a time."""
        if _in_rows(x) and _in_rows(y):
            self.multiply_rows(x, y, alpha, beta)
            return
        k, most = y.shape[1], TRANSPOSED_BYTES // y.itemsize
        starts = range(0, k - 1, most)  # so that no column is left alone
        for start, end in zip(starts, [*starts[1:], k], strict=True):
            mine, result = x[:, start:end], y[:, start:end]
            sums = result
            if not _in_rows(y):
                sums = _by_rows(result) if beta != 0 else _rows_for(result)
            self.multiply_rows(_by_rows(mine), sums, alpha, beta)
            if sums is not result:
                transpose(sums, result.T)


def _by_rows(columns: Vector) -> Vector:
    """Return a matrix stored by rows: itself, or a copy if it is stored by columns."""
    if _in_rows(columns):
        return columns
    rows = _rows_for(columns)
    transpose(columns.T, rows)
    return rows


def _rows_for(columns: Vector) -> Vector:
    """Return a new matrix of the same shape, stored by rows, that begins at a cache line."""
    room = np.empty(columns.size * columns.itemsize + LINE, np.uint8)
    start = -address(room) % LINE
    return room[start : start + columns.size * columns.itemsize].view(columns.dtype).reshape(columns.shape)


def _in_rows(array: Vector) -> bool:
    """Return True if each row of a matrix is contiguous, and no row lies before the previous one."""
    row, column = array.strides
    return array.flags.c_contiguous or (column == array.itemsize and row >= 0 and row % column == 0)


def _convert(array: Vector, kind: np.dtype[Any]) -> Vector:
    """Return an aligned array of a type, with contiguous rows or columns: the array itself or a copy."""
    runs = array.flags.forc or (array.ndim == 2 and (_in_rows(array) or _in_rows(array.T)))
    if array.dtype == kind and array.flags.aligned and runs:
        return array
    if array.dtype == np.float16 and kind == np.float32:
        return widen(np.require(array, None, ["A"]))
    return np.array(array, kind, order="K")


def _is_plain(array: object, shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> TypeGuard[Vector]:
    """Return True if this is a writable NumPy array, aligned and contiguous, of this shape and type."""
    plain: bool = (
        type(array) is np.ndarray and array.dtype is dtype and array.shape == shape and array.flags.carray
    )
    return plain
