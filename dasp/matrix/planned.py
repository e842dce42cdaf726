"""A matrix with a plan: its product, other values for its pattern, and a transpose that is never stale."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self, overload

import numpy as np

from dasp import formats
from dasp.formats import backends
from dasp.formats.backend import Backend
from dasp.formats.csr.matrix import Csr, check_room
from dasp.formats.plan import Plan, arrays_of, with_arrays
from dasp.formats.product import Product
from dasp.matrix import planning
from dasp.matrix.linear_map import LinearMap
from dasp.matrix.policy import Policy
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime import foreign as _foreign
from dasp.runtime.process import ProcessLock
from dasp.runtime.types import Array, ArrayLike, DenseArray, DTypeLike, Number


class Shared:
    """Data that all matrices of one pattern share, made on first use.

    Attributes
    ----------
    lock : ProcessLock
    slots : object or None
        The slot of every entry, as `Format.find_slots` returns it.
    transpose : SpMatrix or None
        A matrix with the transposed pattern, which takes values in the same order.
    """

    def __init__(self) -> None:
        self.lock = ProcessLock()
        self.slots: Any = None
        self.transpose: Any = None


class PlannedMatrix(LinearMap):
    """A matrix that multiplies by its plan, takes new values in place, and makes its transpose.

    `dasp.SpMatrix` is one. A matrix holds the transpose that it made, and the transpose refers to that matrix
    weakly, so that memory is freed as soon as no other object refers to either. The two share a lock,
    which is held while a transpose is made and while values are written in place, so that a transpose never
    mixes old and new values.
    """

    _backend: Backend
    _product: Product
    _shared: Shared
    _writes: int
    _derived: dict[str, Callable[[], Self | None]]
    _lock: ProcessLock

    def _begin(self, device: str, plan: Plan, shared: Shared, like: Product | None = None) -> None:
        """Take a plan to a device; `like` is the product of another matrix with the same pattern."""
        self._backend = backends.find(device)
        self._product = self._backend.make_product(plan, like)
        self._shared, self._writes, self._key = shared, 0, _foreign.new_key(self)
        self._derived, self._lock = {}, ProcessLock()

    def _share(self, plan: Plan) -> Self:
        """Return the matrix of another plan with the same pattern."""
        other = object.__new__(type(self))
        other._begin(self.device, plan, self._shared, self._product)
        return other

    # ---- the product ----------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """`cpu` or `cuda:N`."""
        return self._backend.device

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
            The array that receives the result: of the product's shape and type, not overlapping `x`. If
            `beta` is 0 it is not read, and may hold anything, NaN too.
        alpha, beta : float, or complex for a complex product
            With `beta` other than 0, `out` is needed.

        Returns
        -------
        array, shape (m,), (m, 1) or (m, k)
            `out`, or a new array of x's library, in C order if x is in C order and else in F order. Every
            row is written, empty rows too.

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
        summed: the product's, or float32 for half precisions, which are rounded once more, at the end. If A
        and x are both complex, this bounds the real and the imaginary part, with 2 n for n and |re| + |im|
        for an absolute value.
        """
        if type(alpha) is float and type(beta) is float and (out is not None or beta == 0.0):
            scale = None if alpha == 1.0 and beta == 0.0 else (alpha, beta)
            y = self._product.multiply_if_plain(x, out, scale)
            if y is not None:
                return y
        return self._convert_and_multiply(x, out, alpha, beta)

    def _convert_and_multiply(
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
        operand = self._backend.as_operand(x)
        _check.operand(self.shape, operand)
        dtype = _dtypes.find_arithmetic(self.dtype, operand.dtype).y
        alpha, beta = _check.scale("alpha", alpha, dtype), _check.scale("beta", beta, dtype)
        shape = (self.shape[0], *operand.shape[1:])
        if out is None:
            if beta != 0:
                raise ValueError(
                    f"beta is {beta} and out is None; pass the array that beta multiplies as out"
                )
            out = self._backend.empty(shape, dtype, _arrays.order(operand))
        else:
            out = self._backend.check_out(out, operand, shape, dtype)
        self._product.multiply(operand, out, alpha, beta)
        return out

    @overload
    def __matmul__(self, x: Array) -> Array: ...

    @overload
    def __matmul__(self, x: ArrayLike) -> Any: ...

    def __matmul__(self, x: ArrayLike) -> Any:
        """Return A x; see `matvec`."""
        y = self._product.multiply_if_plain(x)
        return self._convert_and_multiply(x) if y is None else y

    def __rmatmul__(self, x: ArrayLike) -> Any:
        """Return x A for x of shape (m,) or (k, m)."""
        if getattr(x, "ndim", 0) == 1:  # several vectors are rows of x, but columns for the transpose
            y = self.T._product.multiply_if_plain(x)
            if y is not None:
                return y
        return super().__rmatmul__(x)

    def _with_gradients(self, x: ArrayLike, out: DenseArray | None, alpha: Number, beta: Number) -> Any:
        """Return the product by an operator of PyTorch, which passes gradients to x and can be traced."""
        from dasp.interop import torch

        return _foreign.by_operators(partial(torch.matmul, self), x, out, alpha, beta)

    @property
    def __dasp_product__(self) -> Product:
        """The product of the plan, for solvers, which capture it in graphs: it stays valid while A lives.

        On a GPU it may also have `prepare_with_dot`.
        """
        return self._product

    def asarray(self, x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
        """Return an array on the matrix's device, copied only if it must be.

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
        return self._backend.asarray(x, dtype)

    # ---- other values ---------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays, and of the arrays kept beside them for `with_values` and `T`."""
        return self.plan.nbytes + sum(size for name, size in self._list_kept() if name != "order")

    @property
    def writes(self) -> int:
        """The number of times that values were written in place, into this matrix or its transpose."""
        return self._writes

    def _list_kept(self) -> list[tuple[str, int]]:
        """Return the names and the bytes of the arrays that are kept beside the format's own."""
        kept: dict[str, Any] = {"order": self.plan.order, "slots": self._shared.slots}
        for name, find in list(self._derived.items()):
            if not isinstance(find, weakref.ref):
                kept["transpose" if name == "T" else "adjoint"] = find()
        sizes = {name: int(array.nbytes) for name, array in kept.items() if array is not None}
        sizes |= {"row blocks": int(self._product.nbytes)}
        return [(name, size) for name, size in sizes.items() if size]

    def copy(self) -> Self:
        """Return a matrix with the same pattern and its own copy of the values, to overwrite in place."""
        values = self.plan.values
        with self._backend.use_primitives():
            own = with_arrays(values, (array.copy() for array in arrays_of(values)))
        return self._share(self.plan.of(own, self.dtype))

    __copy__ = copy

    def with_values(self, data: ArrayLike, *, out: Self | None = None) -> Self:
        """Return the matrix with the same pattern and other values.

        Parameters
        ----------
        data : array_like, shape (nnz,), any dtype of numbers
            A value for each entry, in the order in which the caller gave the entries of this matrix,
            unsorted columns and duplicates included; for a CSC, BSR or DIA matrix in the order of its
            `tocsr().data`, which is not that of its `data`. `coordinates` has the row and column of each.
            NumPy (or a list) for a matrix on the CPU; CuPy, on the same GPU, for one on a GPU.
        out : SpMatrix, optional
            A matrix with this pattern, such as A itself. Its values are overwritten in place: a captured
            graph that multiplies by it uses the new ones, and so does its transpose, if there is one (see
            `T`). It keeps its type and its coding. Call `update` of a preconditioner that was made for it.

        Returns
        -------
        SpMatrix
            `out`, or a new matrix that shares the arrays of the pattern.

        Raises
        ------
        TypeError
            For the wrong kind of array, another type than that of `out`, or an `out` that is no SpMatrix.
        ValueError
            For another number of values, an `out` of another pattern, or values that the coding of `out`
            cannot hold (with `Policy(narrow=False)` it holds any). `out` then keeps its values.

        Notes
        -----
        Only the coding of the values may change, not the pattern. The first call for a pattern finds the
        beginning of every row and keeps it, at 8 or 12 bytes a row. The format dasp finds the slot of every
        entry on the host and keeps it instead, at 4 or 8 bytes each; so does the CPU if the entries were not
        sorted by row and column. On a GPU the call runs on the current stream. If the values of `out` are not
        compressed, the call reads nothing back, and can be captured after a first call outside of a capture.

        Examples
        --------
        >>> import dasp, numpy, scipy.sparse
        >>> A = dasp.SpMatrix.from_scipy(scipy.sparse.eye_array(3, format="csr"), device="cpu")
        >>> A.with_values([1.0, 2.0, 3.0]) @ numpy.ones(3)
        array([1., 2., 3.])
        """
        if isinstance(out, PlannedMatrix) and out._shared is self._shared:
            with out._lock.get():
                if not out._derived and out._product.write_if_plain(data, self._shared.slots):
                    out._writes += 1
                    return out
        if hasattr(data, "tocsr"):
            raise TypeError(
                f"data is a sparse {type(data).__name__}; a value for each entry is needed; pass its data, "
                "if its entries come in the order of A's"
            )
        plan = self.plan
        with self._backend.use_primitives() as primitives:
            values = self._backend.as_values(data)
            if values.shape != (self.nnz,):
                raise ValueError(
                    f"data has {len(values)} values; A has {self.nnz} entries; as many are needed"
                )
            if out is not None:
                self._check_out(out, values.dtype)
                with out._lock.get():
                    out._write(values)
                    out._propagate(values, {id(out)})
                return out
            new = formats.find(plan.format).values_from(plan, values, self._slots(), primitives)
        return self._share(plan.of(new, values.dtype))

    def _write(self, values: Array) -> None:
        """Overwrite the values in place; ValueError, and no change, if the coding cannot hold them."""
        slots = self._slots()
        if not all(map(_arrays.may_be_writable, arrays_of(self.plan.values))):  # in a pickle
            self._product = self._backend.make_product(self.copy().plan)
        with self._backend.use_primitives() as primitives:
            formats.find(self.plan.format).values_into(self.plan, values, slots, primitives)
        self._writes += 1
        self._product.refresh()

    def _check_out(self, out: object, dtype: np.dtype[Any]) -> None:
        """Check that `out` has this pattern and the type `dtype`; TypeError or ValueError if not."""
        if not isinstance(out, PlannedMatrix):
            raise TypeError(f"out is {_check.kind_of(out)}; an SpMatrix is needed")
        if out._shared is not self._shared:
            raise ValueError(
                "out has another pattern; one that with_values made of the same matrix is needed"
            )
        if out.dtype != dtype:
            raise TypeError(f"out has dtype {out.dtype} and data {dtype}; these must be equal")

    def _slots(self) -> Any:
        """Return the slot of every entry on the device, found once for a pattern."""
        with self._shared.lock.get():
            if self._shared.slots is None:
                self._shared.slots = planning.find_slots(self.plan, self.device)
        return self._shared.slots

    # ---- the transpose --------------------------------------------------------------------------------

    def _find_derived(self, name: str) -> Self | None:
        """Return the transpose (T) or its conjugate (H) if there is one."""
        find = self._derived.get(name)
        return None if find is None else find()

    def _derive(self, name: str, make: Callable[[], Self]) -> Self:
        """Return the transpose (T) or its conjugate (H), and make it only if there is none."""
        found = self._find_derived(name)
        if found is not None:
            return found
        with self._lock.get():
            found = self._find_derived(name)
            if found is not None:
                return found
            made = make()
            if made is self:
                self._derived[name] = weakref.ref(self)
            else:
                made._derived[name], made._lock = weakref.ref(self), self._lock
                self._derived[name] = lambda: made
            return made

    @property
    def T(self) -> Self:
        """The transpose, a matrix of shape (n, m) on the same device.

        It is planned on first use and kept; `A.T.T is A`. A symmetric matrix, whose transpose has the same
        entries bit for bit, is its own transpose. `A.T.with_values` takes values in the order of A's entries,
        unless A is symmetric: then it is `A.with_values`. `A.with_values(data).T` is always the transpose.
        Values written in place into A are also written into its transpose, and vice versa.

        Raises
        ------
        MemoryError, ValueError
            If there is no room for another plan.

        Notes
        -----
        The transpose costs a second plan, and 4 or 8 bytes an entry for the order of the entries. If the
        coding of the transpose cannot hold values that are written in place, the transpose keeps its old
        values, and `A.T` is another matrix from then on. A symmetric matrix is no longer its own transpose
        after any write in place, nor is its conjugate `A.H`. So read `A.T` and `A.H` anew after a write.

        Examples
        --------
        >>> import dasp, numpy, scipy.sparse
        >>> A = dasp.SpMatrix.from_dense([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]], device="cpu")
        >>> A.T @ numpy.array([1.0, 10.0])
        array([30.,  2., 40.])
        >>> A.T.T is A
        True
        """
        return self._derive("T", self._make_transpose)

    def _make_transpose(self) -> Self:
        """Fill the pattern's transpose with these values, or plan one; this matrix if it is symmetric."""
        with self._shared.lock.get():
            known: Self | None = self._shared.transpose
            if known is not None:
                return known.with_values(self._values())
            plan = self._plan_transpose()
            if plan is None:
                return self
            other = object.__new__(type(self))
            other._begin(self.device, plan, Shared())
            self._shared.transpose = other
            return other

    def _plan_transpose(self) -> Plan | None:
        """Plan the transpose on the device that packs the format; return None if it equals this matrix."""
        check_room(self.shape[::-1])
        form = formats.find(self.plan.format)
        with planning.read_where_packed(self.plan, self.device) as (plan, _, primitives):
            transposed = primitives.transpose(Csr(plan.shape, *form.unpack(plan, primitives)))
            if transposed is None:
                return None
            csr, order = transposed
            if plan.order is not None:
                order = plan.order[order]
        policy = Policy(format=plan.format, **form.list_choices(plan))
        return planning.pack(csr, order, planning.Request(self.device, policy))

    def _values(self) -> Array:
        """Return the value of every entry on the device, in the caller's order of the entries."""
        return self._in_callers_order(planning.unpack(self.plan, self.device)[2])

    def _in_callers_order(self, packed: Array) -> Array:
        """Return an array, with an element for each packed entry, in the caller's order of entries."""
        order = self.plan.order
        if order is None:
            return packed
        with self._backend.use_primitives():
            came, bits = packed.copy(), _dtypes.bits_type(packed.dtype)
            came.view(bits)[order] = packed.view(bits)
        return came

    def _propagate(self, values: Array, done: set[int]) -> None:
        """Write values into the derived matrices too; drop one that cannot hold them.

        One that shares the pattern is dropped as well: it is this matrix or its conjugate, because the matrix
        was symmetric, and need not be symmetric now.
        """
        for name, kept in list(self._derived.items()):
            other = kept()
            if other is not None and other._shared is self._shared:
                self._drop(name, other)
            elif other is not None and id(other) not in done:
                done.add(id(other))
                theirs = values.conj() if name == "H" else values
                try:
                    other._write(theirs)
                except ValueError:
                    self._drop(name, other)
                else:
                    other._propagate(theirs, done)

    def _drop(self, name: str, other: Self) -> None:
        """Forget a derived matrix, and have it forget this one."""
        del self._derived[name]
        other._derived.pop(name, None)
