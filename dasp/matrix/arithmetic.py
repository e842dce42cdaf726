"""SciPy's methods for `dasp.SpMatrix`: conversions, sums, scalings, and errors that name a remedy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from html import escape
from numbers import Complex, Real
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import scipy.sparse

from dasp import formats
from dasp.formats import backends
from dasp.matrix import planning
from dasp.matrix.planned import PlannedMatrix
from dasp.matrix.shifted import Shifted
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime import foreign as _foreign
from dasp.runtime.types import Array, ArrayLike, DTypeLike, Number

HEADINGS = "part", "rows", "entries", "slots", "fill", "bytes"


def _refuse_assignment(name: str) -> property:
    """Return a property that refuses to be assigned, and says how values are written."""

    def refuse(matrix: ArithmeticMatrix, value: object) -> NoReturn:
        raise AttributeError(
            f"A.{name} was assigned; a plan keeps its pattern, and values go in by "
            "A.with_values(values, out=A)",
            name=name,
            obj=matrix,
        )

    return property(fset=refuse)


class ArithmeticMatrix(PlannedMatrix):
    """A matrix with SciPy's conversions, scalings, sums and names, and errors that name a remedy."""

    # ---- to other forms ------------------------------------------------------------------------------

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the matrix as a new CSR array on the CPU.

        Returns
        -------
        scipy.sparse.csr_array, shape (m, n)
            The caller's entries, bit for bit, duplicates and explicit zeros too; their order inside a row
            may differ. Types are those of the plan, except that half precisions, which SciPy lacks, become
            float32. Indices are int32 if that holds the columns and the number of entries.
        """
        plan = self._backend.to_host(self.plan)
        indptr, indices, data = planning.unpack(plan, "cpu")
        data = data.astype(_dtypes.sum_type(self.dtype), copy=False)
        return backends.find("cpu").make_sparse(self.shape, indptr, indices, data)

    def tocsr(self) -> Any:
        """Return the matrix as CSR on its device: `scipy.sparse.csr_array` or CuPy's `csr_matrix`.

        Returns
        -------
        sparse matrix, shape (m, n)
            A new one, with the entries that `to_scipy` returns.
        """
        indptr, indices, data = planning.unpack(self.plan, self.device)
        with self._backend.use_primitives():
            data = data.astype(_dtypes.sum_type(self.dtype), copy=False)
        return self._backend.make_sparse(self.shape, indptr, indices, data)

    def tocsc(self) -> Any:
        """Return the matrix as CSC on its device, of SciPy or CuPy; see `tocsr`."""
        return self.tocsr().tocsc()

    def tocoo(self) -> Any:
        """Return the matrix as COO on its device, of SciPy or CuPy; see `tocsr`."""
        return self.tocsr().tocoo()

    def toarray(self) -> Array:
        """Return the matrix as a dense array on its device, shape (m, n), C-ordered; duplicates sum."""
        dense: Array = self.tocsr().toarray()
        return dense

    def astype(self, dtype: DTypeLike) -> Self:
        """Return the matrix with values of another type, rounded to it; itself if it has that type.

        Parameters
        ----------
        dtype : dtype
            float64, float32, float16, bfloat16, complex64 or complex128; or their names.

        Returns
        -------
        SpMatrix
            With the same pattern. Values too large for the type become infinite.

        Raises
        ------
        TypeError
            If no matrix can have the type, or if it is real and the values are complex.

        Examples
        --------
        >>> import dasp, numpy
        >>> A = dasp.SpMatrix([[0.0, 2.0], [3.0, 0.0]], device="cpu").astype("float16")
        >>> (A @ numpy.ones(2, numpy.float16)).dtype, (A @ numpy.ones(2)).dtype
        (dtype('float16'), dtype('float64'))
        """
        kind = _dtypes.named(dtype)
        if kind == self.dtype:
            return self
        if self.dtype.kind == "c" != kind.kind:
            raise TypeError(f"A has dtype {self.dtype} and dtype is {kind}; a complex dtype is needed")
        with np.errstate(over="ignore"):
            return self._map(lambda values: values.astype(kind))

    # ---- with other values ---------------------------------------------------------------------------

    def _map(self, function: Callable[[Array], Array]) -> Self:
        """Return the matrix with `function` applied to its values.

        The function must take NumPy arrays too, even if the matrix is on a GPU.
        """
        plan = self.plan
        with self._backend.use_primitives() as primitives:
            mapped = formats.find(plan.format).map_values(plan, function, primitives)
            if mapped is None:
                values = function(self._values())
        return self.with_values(values) if mapped is None else self._share(mapped)

    def conj(self) -> Self:
        """Return the matrix with conjugated values; itself if they are real."""
        if self.dtype.kind != "c":
            return self
        return self._map(lambda values: values.conj())

    conjugate = conj

    @property
    def H(self) -> Self:
        """The conjugate transpose: `A.T` if values are real, else another matrix, kept as `A.T` is."""
        if self.dtype.kind != "c":
            return self.T
        return self._derive("H", lambda: self.T.conj())

    def _compute(self, function: Callable[[Array], Array], factor: Number = 1.0) -> Self:
        """Return the matrix with `function` applied to its values, in the type of a value times `factor`.

        NumPy and CuPy compute little in bfloat16, so its values are computed in float32 and rounded.
        """
        if self.dtype != _dtypes.BFLOAT16:
            return self._map(function)
        if isinstance(factor, np.number):
            kind = _dtypes.result_type(self.dtype, factor.dtype)
        else:
            kind = np.dtype(np.complex64) if isinstance(factor, complex) else self.dtype
        return self._map(lambda values: function(values.astype(np.float32)).astype(kind))

    def __neg__(self) -> Self:
        return self._compute(operator.neg)

    def __abs__(self) -> Self:
        return self._compute(abs)

    def multiply(self, other: Number) -> Self:
        """Return the matrix times a scalar; each value is rounded once.

        Parameters
        ----------
        other : number
            Its type is promoted with that of the values by NumPy's rules: a Python float leaves float32 and
            half precisions as they are.

        Returns
        -------
        SpMatrix
            With the same pattern; values are coded anew.

        Raises
        ------
        TypeError
            For anything but a number.
        """
        factor = _number("A * x was asked with x", other, "for the product with a vector use A @ x; ")
        return self._compute(lambda values: values * factor, factor)

    def __mul__(self, other: Number) -> Self:
        return self.multiply(other)

    def __rmul__(self, other: Number) -> Self:
        return self.multiply(other)

    def __truediv__(self, other: Number) -> Self:
        divisor = _number("A / x was asked with x", other)
        return self._compute(lambda values: values / divisor, divisor)

    def scaled(self, left: ArrayLike | None = None, right: ArrayLike | None = None) -> Self:
        """Return diag(left) A diag(right), planned as A is.

        Parameters
        ----------
        left : array_like, shape (m,), optional
            The factor of each row, applied first.
        right : array_like, shape (n,), optional
            The factor of each column.

        Returns
        -------
        SpMatrix
            With the same pattern; values are coded anew.

        Raises
        ------
        TypeError
            For arrays that are not on the matrix's device.
        ValueError
            For other shapes.
        """
        sizes = zip(("left", "right"), (left, right), self.shape, strict=True)
        left, right = (self._diagonal_factor(*each) for each in sizes)
        indptr, columns, values = planning.unpack(self.plan, self.device)
        with self._backend.use_primitives():
            if left is not None:
                values = values * left[self._rows_of(indptr, columns.dtype)]
            if right is not None:
                values = values * right[columns]
            values = self._in_callers_order(values)
        return self.with_values(values)

    def _diagonal_factor(self, name: str, given: ArrayLike | None, size: int) -> Array | None:
        if given is None:
            return None
        given = _foreign.take(name, given, self.device)
        factor: Array = self._backend.as_operand(given, name)
        if factor.shape != (size,):
            raise ValueError(
                f"{name} has shape {factor.shape}; A has shape {self.shape}, so ({size},) is needed"
            )
        return factor

    def shifted(self, sigma: Number) -> Shifted:
        """Return A + sigma I, an operator that shares the plan of A.

        Parameters
        ----------
        sigma : float
            Or complex, if A is: take `A.astype(complex).shifted(sigma)` for a real A.

        Returns
        -------
        dasp.matrix.shifted.Shifted
            With `@`, `matvec`, `rmatvec`, `T`, `H` and `as_linear_operator`; `dasp.solvers` take it.

        Raises
        ------
        TypeError
            If `sigma` is not a number, or is complex and A is not.
        ValueError
            If A is not square.
        """
        return Shifted(self, sigma)

    # ---- entries, diagonals and sums -----------------------------------------------------------------

    def coordinates(self) -> tuple[Array, Array]:
        """Return the row and column of each entry, in the order in which `with_values` takes their values.

        Returns
        -------
        rows, columns : array, shape (nnz,), int32 or int64
            On the matrix's device.
        """
        indptr, columns, _ = planning.unpack(self.plan, self.device)
        with self._backend.use_primitives():
            rows = self._rows_of(indptr, columns.dtype)
            return self._in_callers_order(rows), self._in_callers_order(columns)

    def _rows_of(self, indptr: Array, dtype: DTypeLike) -> Array:
        """Return the row of each packed entry."""
        if not self.nnz:
            return indptr[:0].astype(dtype)
        # The row of an entry is the number of rows that have ended before it.
        ended = _arrays.namespace(indptr).bincount(indptr[1:], minlength=self.nnz + 1)
        rows: Array = ended[: self.nnz].cumsum().astype(dtype)
        return rows

    def diagonal(self, k: int = 0) -> Array:
        """Return the k-th diagonal on the matrix's device; duplicates sum.

        Parameters
        ----------
        k : int
            How far above the main diagonal, or below it if negative.
        """
        try:
            k = operator.index(k)
        except TypeError as error:
            raise TypeError(f"k is {k!r}; a whole number is needed") from error
        k = min(max(k, -self.shape[0]), self.shape[1])  # a k beyond int64 is beyond the matrix, too
        with self._backend.use_primitives():
            diagonal = self._product.diagonal(k)
        if diagonal is None:
            diagonal = self.tocsr().diagonal(k)
        return diagonal

    def trace(self, offset: int = 0) -> Any:
        """Return the sum of the `offset`-th diagonal, a scalar on the matrix's device."""
        return self.diagonal(offset).sum()

    def sum(self, axis: int | None = None, dtype: DTypeLike | None = None, out: Array | None = None) -> Any:
        """Return the sum of all values, of each column (axis 0) or of each row (axis 1).

        Parameters
        ----------
        axis : {None, 0, 1, -2, -1}
        dtype : dtype, optional
            The type to which the sum is converted, by default the matrix's.
        out : array, optional
            An array that receives the sum, and is returned.

        Returns
        -------
        scalar, or array of shape (n,) or (m,)
            On the matrix's device. Sums of rows and columns are products with a vector of ones, and as
            accurate as a product; the sum of all is that of the rows' sums. Sums of columns use the
            transpose, which is made and kept (`T`).

        Raises
        ------
        ValueError
            For another axis.
        """
        if axis is not None and (not isinstance(axis, (int, np.integer)) or axis not in (0, 1, -1, -2)):
            raise ValueError(f"axis is {axis!r}; None, 0 or 1 is needed")
        with self._backend.use_primitives():
            total = self._sum(axis).astype(dtype or self.dtype, copy=False)
            if out is None:
                return total
            out[...] = total
            return out

    def _sum(self, axis: int | None) -> Any:
        """Return the sum in the type in which products are summed."""
        if axis is not None:
            return self @ self._ones(1) if axis in (1, -1) else self._ones(0) @ self
        if self.shape[1] <= self.nnz:
            return (self @ self._ones(1)).sum()
        values = self._values()  # there is more room for these than for a vector of ones
        return values.astype(_dtypes.sum_type(self.dtype), copy=False).sum()

    def _ones(self, axis: int) -> Array:
        """Return a vector of `shape[axis]` ones on the matrix's device."""
        ones = self._backend.empty((self.shape[axis],), _dtypes.sum_type(self.dtype), "C")
        ones.fill(1)
        return ones

    # ---- operations that are refused -----------------------------------------------------------------

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to become an array: NumPy would make one whose only element is the matrix itself."""
        raise TypeError(
            "A is an SpMatrix and no array; functions of SciPy and others that need the entries take "
            "A.to_scipy(); A @ x is the product"
        )

    if not TYPE_CHECKING:  # else mypy would accept every name as an attribute

        def __getattr__(self, name: str) -> NoReturn:
            remedy = ""
            if name in ("data", "indices", "indptr") or hasattr(scipy.sparse.csr_array, name):
                remedy = f"; A.to_scipy().{name} is SciPy's"
            elif hasattr(scipy.sparse.csr_matrix, name):
                remedy = f"; scipy.sparse.csr_matrix(A.to_scipy()).{name} is SciPy's"
            raise AttributeError(f"an SpMatrix has no attribute {name!r}{remedy}", name=name, obj=self)

        data, indices, indptr = map(_refuse_assignment, ("data", "indices", "indptr"))

    def __bool__(self) -> NoReturn:
        raise ValueError("bool(A) was asked, and a matrix has no truth value; use A.nnz or `A is None`")

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(
            "A[...] was asked; a plan has no single entries; index A.tocsr(), and plan the part if it is "
            "to be multiplied"
        )

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise TypeError(
            "A[...] = value was asked; a plan keeps its pattern; write all values by "
            "A.with_values(values, out=A), or change A.tocsr() and plan it again"
        )

    def __eq__(self, other: object) -> bool:
        """Return True if this is the same object; refused for numbers, arrays and sparse matrices."""
        is_array = hasattr(other, "__array__") or hasattr(other, "tocsr")
        if isinstance(other, Complex) or (is_array and not isinstance(other, ArithmeticMatrix)):
            raise TypeError(
                f"A was compared with {_check.kind_of(other)}; a plan has no single entries; use A.tocsr()"
            )
        return self is other or NotImplemented

    __hash__ = object.__hash__

    def __add__(self, other: object) -> NoReturn:
        raise TypeError(
            f"a sum of A and {_check.kind_of(other)} was asked; a plan has one pattern; use "
            "A.shifted(sigma) for A + sigma I, or add to A.tocsr() and plan the sum; a function of SciPy "
            "that adds takes A.as_linear_operator() or A.to_scipy()"
        )

    __radd__ = __sub__ = __rsub__ = __add__

    # ---- texts ---------------------------------------------------------------------------------------

    def _lines(self) -> list[tuple[str, ...]]:
        """Return the cells of the table of the plan's parts."""
        lines = []
        for part in formats.find(self.plan.format).list_parts(self.plan):
            fill = f"{part.entries / part.slots:.3f}" if part.slots else "-"
            lines.append((part.name, *map(str, part[1:4]), fill, str(part.bytes)))
        return lines + [(name, "-", "-", "-", "-", str(size)) for name, size in self._list_kept()]

    def _title(self) -> str:
        m, n = self.shape
        return f"SpMatrix {m} x {n}, {self.nnz} entries, {self.dtype}, on {self.device}"

    def __repr__(self) -> str:
        """Return a table of the plan's parts."""
        widths = 10, 12, 14, 14, 7, 16
        lines = [
            line[0].ljust(widths[0]) + "".join(map(str.rjust, line[1:], widths[1:]))
            for line in (HEADINGS, *self._lines())
        ]
        return "\n".join([f"<{self._title()}>", *lines])

    def __format__(self, spec: str) -> str:
        """Return one line that names a remedy: libraries that refuse the matrix quote it."""
        return format(f"<{self._title()}; A.to_scipy() is a csr_array>", spec)

    def _repr_html_(self) -> str:
        """Return the table of `__repr__` in HTML, for notebooks."""
        head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in self._lines()]
        rows = "\n".join(f"<tr>{line}</tr>" for line in (head, *lines))
        return f"<div><p>{escape(self._title())}</p>\n<table>\n{rows}\n</table></div>"


def _number(what: str, given: object, remedy: str = "") -> Any:
    """Return a Python number as float or complex, and a NumPy scalar or 0-d array as a NumPy scalar."""
    if type(given) is float:
        return given
    given = _check.python_number(given)
    if getattr(given, "ndim", None) == 0 and _dtypes.is_number(getattr(given, "dtype", np.dtype(object))):
        return _arrays.to_host(given)[()]
    if isinstance(given, Complex):
        try:
            return float(given) if isinstance(given, Real) else complex(given)
        except OverflowError as error:
            raise ValueError(f"{what} beyond float64; a number of at most 1.8e308 is needed") from error
    raise TypeError(
        f"{what} {_check.kind_of(given)}; a number is needed; {remedy}"
        "scaled(left, right) scales rows and columns"
    )
