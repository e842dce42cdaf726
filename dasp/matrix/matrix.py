"""SpMatrix: a sparse matrix that is planned once and multiplied many times."""

from __future__ import annotations

import os
from typing import Any, Self

from scipy.sparse import sparray, spmatrix

from dasp.formats.plan import Plan
from dasp.matrix import convert, planning
from dasp.matrix.arithmetic import ArithmeticMatrix
from dasp.matrix.planned import Shared
from dasp.matrix.planning import Request, find_device
from dasp.matrix.policy import Policy
from dasp.runtime import foreign as _foreign
from dasp.runtime.types import ArrayLike


class SpMatrix(ArithmeticMatrix):
    """A sparse matrix, planned for fast products with vectors on one device.

    `SpMatrix(A)` takes every matrix that SciPy's `csr_array` takes, and more; `from_scipy`, `from_cupy`,
    `from_dense` and `from_coo` take one kind each and document its conversion. Only the values of a matrix
    can change (`with_values`). Several threads may use one matrix at once. Equal inputs give equal bits,
    whatever the number of threads.

    Parameters
    ----------
    A : sparse matrix, array_like, tuple, Plan or SpMatrix
        A sparse matrix of SciPy, CuPy or PyTorch; a dense one; `(data, (row, col))`; `(data, indices,
        indptr)`; or an earlier plan with NumPy arrays. A matrix made from an SpMatrix shares the pattern and
        copies the values. Two matrices made from one plan share its values: do not write values in place into
        either.
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` is the GPU that holds A, if one does; else a GPU, if one works; else the CPU.
    shape : tuple of int, optional
        The shape of a matrix given as a tuple; by default the smallest that holds its coordinates.
        `(data, indices, indptr)` has as many rows as `indptr` has steps.
    policy : Policy, optional
        How rows are packed; by default in the way that is fast for the matrix on the device. Not allowed
        with a plan.

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
        Bytes of the plan's arrays, and of all that is kept beside them, such as the transpose once made.
    plan : Plan
        The packed arrays, NumPy on the CPU and CuPy on a GPU.

    Examples
    --------
    >>> import dasp, numpy, scipy.sparse
    >>> A = dasp.SpMatrix(scipy.sparse.eye_array(3, format="csr"), device="cpu")
    >>> A @ numpy.array([1.0, 2.0, 3.0])
    array([1., 2., 3.])
    """

    def __init__(
        self,
        A: object,
        device: str = "auto",
        *,
        shape: tuple[int, int] | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Plan a matrix of any kind, or take a plan to a device; see the class."""
        A = _foreign.as_matrix(A) if _foreign.is_foreign(A) else A
        request = Request.make(device, policy, A)
        if isinstance(A, SpMatrix):
            keeps_plan = policy is None and shape is None
            A = A.to_device(request.device).copy().plan if keeps_plan else A.to_scipy()
        if not isinstance(A, Plan):
            A = planning.pack(*convert.to_csr(A, shape, request), request)
        elif policy is not None or shape is not None:
            raise TypeError("policy or shape is given with a plan, which has its own; leave them out")
        else:
            planning.freeze(A)  # arrays that were pickled are writable
        self._begin(request.device, A, Shared())

    @classmethod
    def from_scipy(cls, A: sparray | spmatrix, *, policy: Policy | None = None, device: str = "auto") -> Self:
        """Plan a SciPy sparse matrix.

        Parameters
        ----------
        A : scipy.sparse array or matrix, shape (m, n), any format and dtype of numbers
            float64, float32, float16, bfloat16, complex64 and complex128 are kept. Integers, bool and long
            double are promoted (or, beyond 53 bits, rounded) to float64. Duplicates sum in the product; they,
            explicit zeros and unsorted indices are kept as they are. `A` is not modified.
        policy : Policy, optional
            How rows are packed; by default in the way that is fast for the matrix on the device.
        device : {"auto", "cpu", "cuda", "cuda:N"}
            `auto` is a GPU, if one works, and else the CPU.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError
            If `A` is not a SciPy sparse matrix, or its values are not numbers.
        ValueError
            If the arrays of `A` are not a valid matrix, or `device` is not a device.
        RuntimeError
            If a GPU was asked for and none works.

        Notes
        -----
        Planning takes time linear in m + nnz. The first matrix on a machine takes some seconds more, to
        compile. For a GPU the matrix is copied there, checked and planned, and the copy is freed. The kernel
        of the product is compiled in the background; the first product may wait for it.
        """
        request = Request.make(device, policy)
        return cls(planning.pack(*convert.from_scipy(A, request), request), request.device)

    @classmethod
    def from_cupy(cls, A: object, *, policy: Policy | None = None, device: str = "auto") -> Self:
        """Plan a `cupyx.scipy.sparse` matrix.

        Parameters
        ----------
        A : cupyx.scipy.sparse matrix, shape (m, n), any format and dtype of numbers
            As for `from_scipy`. A CSR matrix is planned where it lies, others by way of the host.
        policy, device
            As `from_scipy` takes them; `device="auto"` is the GPU that holds `A`.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `from_scipy` does.
        """
        request = Request.make(device, policy, A)
        return cls(planning.pack(*convert.from_cupy(A, request), request), request.device)

    @classmethod
    def from_dense(cls, A: ArrayLike, *, policy: Policy | None = None, device: str = "auto") -> Self:
        """Plan the non-zero entries of a dense matrix.

        Parameters
        ----------
        A : array_like, shape (m, n), any dtype of numbers
            A CuPy array is planned where it lies. The entries are numbered row by row.
        policy, device
            As `from_scipy` takes them; `device="auto"` is the GPU that holds `A`, if one does.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `from_scipy` does.
        """
        request = Request.make(device, policy, A)
        return cls(planning.pack(*convert.from_dense(A, request), request), request.device)

    @classmethod
    def from_coo(
        cls,
        data: ArrayLike,
        coords: tuple[ArrayLike, ArrayLike],
        shape: tuple[int, int],
        *,
        policy: Policy | None = None,
        device: str = "auto",
    ) -> Self:
        """Plan a matrix given by its entries.

        Parameters
        ----------
        data : array_like, shape (nnz,), any dtype of numbers
            Values; promoted as `from_scipy` does.
        coords : tuple of two array_like, each of shape (nnz,), or an array of shape (2, nnz), integers
            Row and column of each entry, in any order. Duplicates are kept, and sum in the product.
        shape : tuple of int
            (m, n).
        policy, device
            As `from_scipy` takes them.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `from_scipy` does.
        """
        request = Request.make(device, policy)
        return cls(planning.pack(*convert.from_coo(data, coords, shape), request), request.device)

    def to_device(self, device: str) -> Self:
        """Return the matrix on a device: itself if it is there already.

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
        device = find_device(device)
        return self if device == self.device else type(self)(self._backend.to_host(self.plan), device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, as `dasp.save_plan` does; `load` reads it."""
        from dasp import io

        io.save_plan(path, self.plan)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> Self:
        """Read a matrix that `save` wrote and check it in full, as `dasp.load_plan` does; nothing is planned.

        Parameters
        ----------
        path : str or path
        device : {"auto", "cpu", "cuda", "cuda:N"}

        Raises
        ------
        dasp.io.MatrixFileError
            If the file is missing, or holds no plan.
        """
        from dasp import io

        return cls(io.load_plan(path), device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the plan, and the device by name."""
        return type(self), (self._backend.to_host(self.plan), self.device)
