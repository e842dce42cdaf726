"""SpMatrix: a sparse matrix that was planned once, to be multiplied many times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse

from dasp import formats
from dasp.formats import devices
from dasp.formats.plan import Plan
from dasp.matrix import convert as intake
from dasp.matrix import planning
from dasp.matrix.arithmetic import Surface
from dasp.matrix.device import found, resolve
from dasp.matrix.policy import Policy
from dasp.matrix.transpose import Places, Transposable
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime import foreign as _foreign


class SpMatrix(Transposable, Surface):
    """A sparse matrix, planned for fast products with vectors on one device.

    `SpMatrix(A)` takes what SciPy's `csr_array` takes, and more; `from_scipy`, `from_cupy`, `from_dense` and
    `from_coo` take one kind each and say what becomes of it. Nothing but values changes (`with_values`).
    Several threads may use one at once. Equal inputs give equal bits, whatever the number of threads.

    Parameters
    ----------
    A : sparse matrix, array_like, tuple, Plan or SpMatrix
        Of SciPy, CuPy or PyTorch; dense; `(data, (row, col))`; `(data, indices, indptr)`; or a plan that was
        made before, with NumPy arrays. Of an SpMatrix the pattern is shared, and the values are copied. Two
        matrices made of one plan share its values: write others in place into neither.
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` is the GPU on which A lies, if it does; else a GPU if one works, and else the CPU.
    shape : tuple of int, optional
        Of a matrix that is given as a tuple; coordinates alone give the smallest that has room for them.
    policy : Policy, optional
        How rows are packed; by default what is fast for the matrix on the device. Not for a plan.
    progress : bool
        Show a bar (tqdm) if planning takes more than a second.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `from_scipy` does.

    Attributes
    ----------
    shape : tuple of int
        (m, n).
    dtype : numpy.dtype
        float64, float32, float16, bfloat16, complex64 or complex128.
    nnz : int
        Stored entries, explicit zeros and duplicates counted.
    ndim : int
        2.
    device : str
        `cpu` or `cuda:N`.
    nbytes : int
        Bytes of the plan's arrays, and of what is kept beside them: the transpose once it was asked for.
    plan : Plan
        The packed arrays, NumPy on the CPU and CuPy on a GPU.

    Examples
    --------
    >>> import dasp, numpy, scipy.sparse
    >>> A = dasp.SpMatrix(scipy.sparse.eye_array(3, format="csr"), device="cpu")
    >>> A @ numpy.array([1.0, 2.0, 3.0])
    array([1., 2., 3.])
    """

    # NumPy must not take `x @ A` for an array product of its own, nor SciPy for a sparse one.
    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2
    _device: str
    _writes: int
    lasting = True
    """A product that was captured in a CUDA graph stays right as long as the matrix lives."""

    def __init__(
        self,
        A: Any,
        device: str = "auto",
        *,
        shape: tuple[int, int] | None = None,
        policy: Policy | None = None,
        progress: bool = False,
    ) -> None:
        """Plan a matrix of any kind, or take a plan to a device; see the class."""
        if isinstance(A, Plan):
            device = resolve(device)
        else:
            A = intake.known(A)
            device = intake.place_of(A, device)
        if isinstance(A, SpMatrix):
            A = A.to_device(device).copy().plan if policy is None else A.to_scipy()
        if not isinstance(A, Plan):
            A = intake.any_matrix(A, shape, policy, device, progress)
        elif policy is not None or shape is not None:
            raise TypeError("policy or shape is given with a plan, which has its own; leave them out")
        self._begin(device, devices.find(device).product(A, device), Places())

    def _begin(self, device: str, product: Any, places: Places) -> None:
        """Be a matrix on a device, without relatives."""
        # At once: `A * 2` takes no longer than some of these by themselves.
        self.__dict__.update(
            _device=device,
            _backend=devices.find(device),
            _product=product,
            _places=places,
            _writes=0,
            _key=_foreign.new_key(self),
            _relatives={},
            _relatives_lock=threading.RLock(),
        )

    @classmethod
    def from_scipy(
        cls, A: Any, *, policy: Policy | None = None, device: str = "auto", progress: bool = False
    ) -> Self:
        """Plan a SciPy sparse matrix.

        Parameters
        ----------
        A : scipy.sparse array or matrix, shape (m, n), any format and dtype of numbers
            float64, float32, float16, bfloat16, complex64 and complex128 are kept. Integers, bool and long
            double are promoted (or, beyond 53 bits, rounded) to float64. Duplicates sum in the product; they,
            explicit zeros and unsorted indices are kept as they are. Not modified.
        policy : Policy, optional
            How rows are packed; by default what is fast for the matrix on the device.
        device : {"auto", "cpu", "cuda", "cuda:N"}
            `auto` takes the GPU if one works, and else the CPU.
        progress : bool
            Show a bar (tqdm) if planning takes more than a second.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError
            If `A` is not a SciPy sparse matrix, or not of numbers.
        ValueError
            If the arrays of `A` are not a valid matrix, or `device` is not a device.
        RuntimeError
            If a GPU was asked for and none works.

        Notes
        -----
        Takes time linear in m + nnz, and for the first matrix on a machine some seconds more, to compile what
        it needs. For a GPU the matrix is copied there, checked and planned there, and its memory given back.
        """
        return cls(intake.scipy_matrix(A, policy, device, progress), device)

    @classmethod
    def from_cupy(
        cls, A: Any, *, policy: Policy | None = None, device: str = "auto", progress: bool = False
    ) -> Self:
        """Plan a `cupyx.scipy.sparse` matrix.

        Parameters
        ----------
        A : cupyx.scipy.sparse matrix, shape (m, n), any format and dtype of numbers
            As for `from_scipy`. A CSR matrix is planned where it lies, others by way of the host.
        policy, device, progress
            As `from_scipy` takes them; `device="auto"` is the GPU that holds `A`.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `from_scipy` does.
        """
        device = intake.place_of(A, device)
        return cls(intake.cupy_matrix(A, policy, device, progress), device)

    @classmethod
    def from_dense(
        cls, A: Any, *, policy: Policy | None = None, device: str = "auto", progress: bool = False
    ) -> Self:
        """Plan the entries of a dense matrix that are not zero.

        Parameters
        ----------
        A : array_like, shape (m, n), any dtype of numbers
            Of CuPy too; it is planned where it lies. Entries come row by row.
        policy, device, progress
            As `from_scipy` takes them; `device="auto"` is the GPU that holds `A`, if one does.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `from_scipy` does.
        """
        device = intake.place_of(A, device)
        return cls(intake.dense_matrix(A, policy, device, progress), device)

    @classmethod
    def from_coo(
        cls,
        data: Any,
        coords: tuple[Any, Any],
        shape: tuple[int, int],
        *,
        policy: Policy | None = None,
        device: str = "auto",
        progress: bool = False,
    ) -> Self:
        """Plan a matrix given by its entries.

        Parameters
        ----------
        data : array_like, shape (nnz,), any dtype of numbers
            Values; promoted as `from_scipy` does.
        coords : tuple of two array_like, each of shape (nnz,), integers
            Row and column of each entry, in any order. Duplicates are kept, and sum in the product.
        shape : tuple of int
            (m, n).
        policy, device, progress
            As `from_scipy` takes them.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `from_scipy` does.
        """
        return cls(intake.coordinates(data, coords, shape, policy, device, progress), device)

    def with_values(self, data: Any, *, out: SpMatrix | None = None) -> SpMatrix:
        """Return the matrix with the same pattern and other values.

        Parameters
        ----------
        data : array_like, shape (nnz,), any dtype of numbers
            A value for each entry, in the order of the entries that this matrix was made from: unsorted
            columns and duplicates included. NumPy (or a list) for a matrix on the CPU; CuPy, on the same
            GPU, for one on a GPU.
        out : SpMatrix, optional
            A matrix of this pattern, itself for example, whose values are overwritten in place: a captured
            graph that multiplies by it goes on with the new ones. It keeps its type and its coding. If its
            transpose was made, that has the new values too (see `T`).

        Returns
        -------
        SpMatrix
            `out`, or a new matrix that shares the arrays of the pattern.

        Raises
        ------
        TypeError
            For the wrong kind of array, another type than that of `out`, or an `out` that is no SpMatrix.
        ValueError
            For another number of values, an `out` of another pattern, or values that the coding of `out` does
            not hold (`Policy(narrow=False)` reserves room for any); `out` is left as it was.

        Notes
        -----
        Nothing is chosen anew but how values are coded. The first call on a pattern finds where every row
        begins and keeps that, 8 or 12 bytes a row. Of the published format, and on the CPU of entries that
        came in another order than that of rows and columns, it is the slot of every entry, 4 or 8 bytes each,
        and of that format found on the host. On a GPU the call runs on the current stream; with an `out`
        whose values are stored as they are it reads nothing back and can be captured, after a first call
        outside of a capture.

        Examples
        --------
        >>> import dasp, numpy, scipy.sparse
        >>> A = dasp.SpMatrix.from_scipy(scipy.sparse.eye_array(3, format="csr"), device="cpu")
        >>> A.with_values([1.0, 2.0, 3.0]) @ numpy.ones(3)
        array([1., 2., 3.])
        """
        if isinstance(out, SpMatrix) and out._places is self._places:
            with out._relatives_lock:
                if not out._relatives and out._product.take_values(data, self._places.slots):
                    out._writes += 1
                    return out
        if hasattr(data, "tocsr"):
            raise TypeError(
                f"data is a sparse {type(data).__name__}; a value for each entry is needed; pass its data, "
                "if its entries come in the order of A's"
            )
        plan = self.plan
        with self._backend.filling(self.device) as primitives:
            values = self._backend.as_values(data, self.device)
            if values.shape != (self.nnz,):
                raise ValueError(
                    f"data has {len(values)} values; A has {self.nnz} entries; as many are needed"
                )
            if out is not None:
                self._check_alike(out, values.dtype)
                with out._relatives_lock:
                    out._write(values)
                    out._pass_on(values, {id(out)})
                return out
            new = formats.find(plan.format).values_from(plan, values, self._slots(), primitives)
        return self._sharing(plan.of(new, values.dtype))

    def _write(self, values: Any) -> None:
        """Overwrite the values in place; ValueError, and no change, if the coding cannot hold others."""
        slots = self._slots()
        if not self._backend.may_write(self.plan):  # as those in the memory of a pickle
            self._product = self._backend.product(self.copy().plan, self.device)
        with self._backend.filling(self.device) as primitives:
            formats.find(self.plan.format).values_into(self.plan, values, slots, primitives)
        self._writes += 1
        self._product.follow()

    def _check_alike(self, out: Any, dtype: np.dtype[Any]) -> None:
        """Hold that the values of `out` can be overwritten by those of a type for this pattern."""
        if not isinstance(out, SpMatrix):
            raise TypeError(f"out is {_check.kind_of(out)}; an SpMatrix is needed")
        if out._places is not self._places:
            raise ValueError(
                "out has another pattern; one that with_values made of the same matrix is needed"
            )
        if out.dtype != dtype:
            raise TypeError(f"out has dtype {out.dtype} and data {dtype}; these must be equal")

    def _slots(self) -> Any:
        """Return the slot of every entry on the device, found once for a pattern."""
        with self._places.lock:
            if self._places.slots is None:
                self._places.slots = found(planning.slots_of, self.plan, self.device)
        return self._places.slots

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

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays, and of what is kept beside them for `with_values` and `T`."""
        return self.plan.nbytes + sum(size for name, size in self._kept() if name != "order")

    def _kept(self) -> list[tuple[str, int]]:
        """Return what is kept beside the format's own arrays, and its bytes."""
        kept = {"order": self.plan.order, "slots": self._places.slots}
        kept |= {"transpose": self._made("T"), "adjoint": self._made("H")}
        found = [(name, int(array.nbytes)) for name, array in kept.items() if array is not None]
        made = int(self._product.nbytes)
        return [*found, ("octets", made)] if made else found

    def matvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha A x + beta out.

        Parameters
        ----------
        x : array_like, shape (n,), (n, 1) or (n, k)
            NumPy (or a list) for a matrix on the CPU; CuPy, on the same GPU, for a matrix on a GPU; or an
            array of another library there (PyTorch, JAX, what speaks DLPack), which is read and, as `out`,
            written without a copy, on PyTorch's current stream if it is a tensor of that, else CuPy's. Of
            any strides; C order costs least. The product has the type that NumPy would give it, of which
            docs/dtypes.md has a table.
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
        if hasattr(x, "tocsr"):
            raise TypeError(
                f"x is a sparse {type(x).__name__}; dense vectors are needed; multiply A.tocsr() by "
                "x.tocsr(), and plan the product if it is to be multiplied"
            )
        if _foreign.is_one(x) or _foreign.is_one(out):
            if _foreign.wants_gradients(x):
                return self._with_gradients(x, out, alpha, beta)
            return _foreign.call(self.matvec, self, x, out, alpha=alpha, beta=beta)
        x = self._backend.as_operand(x, self.device)
        _check.operand(self.shape, x)
        dtype = _dtypes.arithmetic(self.dtype, x.dtype).y
        alpha, beta = _check.scale("alpha", alpha, dtype), _check.scale("beta", beta, dtype)
        shape = (self.shape[0], *x.shape[1:])
        if out is None:
            if beta != 0:
                raise ValueError(
                    f"beta is {beta} and out is None; pass the array that beta multiplies as out"
                )
            out = self._backend.empty(shape, dtype, self.device, _arrays.order(x))
        else:
            self._backend.check_out(out, x, shape, dtype, self.device)
        formats.refuse_type(self.plan.format, dtype, "the product")
        self._product.multiply(x, out, alpha, beta)
        return out

    def prepare_with_dot(
        self, x: Any, out: Any, w: Any, *, square: bool = False, run: int = 0
    ) -> tuple[Callable[[], None], Any] | None:
        """Prepare a product that leaves a dot product of its result behind, for solvers on a GPU.

        Parameters
        ----------
        x, out, w : array, shapes (n,), (m,) and (m,), float32 or float64, on the matrix's device
            They are kept; `out` overlaps neither of the others.
        square : bool
            Whether out'out is left too.
        run : int
            If not 0, slices that a warp takes one after the other: blocks come and go then, so that other
            kernels find room, and leave many sums. Needed for `square`.

        Returns
        -------
        call, sums : callable, array of float64
            `call()` sets `out` to A x and writes `sums`, whose sum is w'out; with `square` the sum of its
            first half, and out'out that of the other. None where no kernel does that, or it does not pay: on
            the CPU, and where rows are long.
        """
        prepare = getattr(self._product, "prepare_with_dot", None)
        return None if prepare is None else prepare(x, out, w, square=square, run=run)

    def prepare_cg(self, dtype: Any, *, diagonal: bool) -> Any:
        """Prepare conjugate gradients in one launch, for solvers on a GPU.

        Parameters
        ----------
        dtype : numpy.dtype
            Of the vectors, float32 or float64.
        diagonal : bool
            Whether there is a diagonal preconditioner.

        Returns
        -------
        recipe : dasp.solvers.persistent.kernel.Recipe, or None
            What kernels/solve/resident.cu takes by the matrix; None where it does not multiply by it or does
            not pay: on the CPU, in the published format, where rows are so long that they are cut, where
            matrix and vectors do not fit into the shared memory of all multiprocessors, and in float32.
        """
        prepare = getattr(self._product, "prepare_cg", None)
        return None if prepare is None else prepare(np.dtype(dtype), diagonal=diagonal)

    def _with_gradients(self, x: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """Return A x by an operator of PyTorch: with gradients for x, or in a graph that is traced."""
        from dasp.interop import torch

        return _foreign.by_operators(partial(torch.matmul, self), x, out, alpha, beta)

    def dot(self, x: Any, out: Any = None) -> Any:
        """Return A x; see `matvec`."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: Any) -> Any:
        """Return A x; see `matvec`."""
        y = self._product.quick(x)
        return self.matvec(x) if y is None else y

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuse to be an array, which NumPy would make of one element: the matrix itself."""
        raise TypeError("A is an SpMatrix and no array; to_scipy() gives its entries, A @ x its product")

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
        with devices.find("cpu").filling("cpu") as primitives:
            indptr, indices, data = planning.unpack(plan, primitives)
        data = data.astype(_dtypes.sum_type(self.dtype), copy=False)
        return scipy.sparse.csr_array((data, indices, indptr), shape=self.shape)

    def to_device(self, device: str) -> Self:
        """Return the matrix on a device, itself if it is there already.

        Parameters
        ----------
        device : {"auto", "cpu", "cuda", "cuda:N"}

        Returns
        -------
        SpMatrix
            With the same plan: a layout chosen for another device works, but may not be the fastest here.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            If `device` is not a device, or does not work.
        """
        device = resolve(device)
        return self if device == self.device else type(self)(self._backend.to_host(self.plan), device)

    def as_linear_operator(self) -> Any:
        """Return a LinearOperator for iterative solvers: SciPy's on the CPU, CuPy's on a GPU."""
        return self._backend.linear_operator(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the plan, and the device by name."""
        return type(self), (self._backend.to_host(self.plan), self.device)
