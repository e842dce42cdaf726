"""The interface of a backend, which holds what depends on the kind of device.

A backend makes arrays and products on one device, and yields the primitives in which packing is written. Code
that calls it does not know whether arrays are NumPy's or CuPy's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import Csr
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan
from dasp.formats.product import Product
from dasp.runtime.arrays import Order
from dasp.runtime.types import DTypeLike, Number


class Backend(ABC):
    """One device, `cpu` or `cuda:N`.

    Attributes
    ----------
    device : str
    """

    device: str

    @property
    @abstractmethod
    def cost_model(self) -> CostModel:
        """The cost model with the user's own numbers; ValueError if the user's file of them is bad."""

    # ---- arrays --------------------------------------------------------------------------------------

    @abstractmethod
    def as_operand(self, x: Any, name: str = "x") -> Array:
        """Return x as an array on the device.

        Raises
        ------
        TypeError
            If it is somewhere else, as nothing is copied between devices unasked, or not made of numbers.
        """

    @abstractmethod
    def as_values(self, data: Any) -> Array:
        """Return values of a matrix as a vector on the device, in a type that plans have.

        Raises
        ------
        TypeError, ValueError
            If they are somewhere else, not numbers, or not one-dimensional.
        """

    @abstractmethod
    def asarray(self, x: Any, dtype: DTypeLike | None = None) -> Array:
        """Return an array of any library and device as one on this device, copied only if it must be."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: Order) -> Array:
        """Return a new array for a result, in C or F order."""

    @abstractmethod
    def check_out(self, out: Any, x: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return `out`, an array for this result that does not overlap x; TypeError or ValueError if not."""

    @abstractmethod
    def add_scaled(self, y: Array, factor: Number, x: Array) -> None:
        """Add `factor` times x to y, of the same shape, on the current stream; a GPU allocates nothing."""

    # ---- matrices ------------------------------------------------------------------------------------

    @abstractmethod
    def use_primitives(self, *, wait: bool = False) -> AbstractContextManager[BasicPrimitives]:
        """Yield the primitives, for work on the current stream; with `wait`, wait for it at the end."""

    @abstractmethod
    def bring_to_device(self, csr: Csr) -> AbstractContextManager[tuple[Csr, BasicPrimitives]]:
        """Yield a matrix on the device, and the primitives; `make_product` waits for their work.

        The primitives of a GPU also check the matrix.
        """

    @abstractmethod
    def make_product(self, plan: Plan, like: Product | None = None) -> Product:
        """Return the product by a plan with NumPy arrays or made on the device; wait for the plan.

        `like` is the product by a plan with the same pattern, perhaps of other types: its compiled kernel may
        serve again.
        """

    @abstractmethod
    def to_host(self, plan: Plan) -> Plan:
        """Return a plan of the device with NumPy arrays, read-only."""

    @abstractmethod
    def make_sparse(self, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> Any:
        """Return a CSR matrix of SciPy, or of CuPy for a GPU."""

    @abstractmethod
    def find_operator_type(self) -> Any:
        """Return the class of linear operators: SciPy's LinearOperator, or CuPy's for a GPU."""

    # ---- matrices of CuPy: GPUs alone have these, which raise a TypeError for values that are no numbers --

    def as_csr(self, matrix: Any) -> tuple[Array, Array, Array]:
        """Return indptr, indices and data of a CSR matrix, in types that a plan takes; not checked."""
        raise NotImplementedError

    def find_entries(self, dense: Array) -> tuple[Array, Array, Array]:
        """Return indptr, indices and data of the non-zero numbers of a dense matrix."""
        raise NotImplementedError
