"""Backends: the modules that hold what differs between the kinds of device, and their interface.

A backend makes arrays and products, and yields the primitives in which packing is written. Code that calls it
does not know whether arrays are NumPy's or CuPy's. `find("cuda:0")` returns the backend of a device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, cast

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import Csr
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan
from dasp.formats.product import Product
from dasp.runtime.arrays import Order
from dasp.runtime.process import load
from dasp.runtime.types import DTypeLike, Number

MODULES = {"cpu": "dasp.formats.backend_cpu", "cuda": "dasp.formats.backend_cuda"}


class Backend(Protocol):
    """The functions of a backend, which is a module."""

    def find_cost_model(self, device: str) -> CostModel:
        """Return the cost model of a device; ValueError if the user's file of cost models is bad."""

    def as_operand(self, x: object, device: str, name: str = "x") -> Array:
        """Return x as an array on the device; TypeError if it is somewhere else."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str, order: Order) -> Array:
        """Return a new array for a result, in C or F order."""

    def check_out(
        self, out: object, x: Array, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> Array:
        """Return `out` if it can take a result; TypeError or ValueError if not."""

    def to_host(self, plan: Plan) -> Plan:
        """Return the plan with NumPy arrays, read-only."""

    def bring_to_device(self, csr: Csr, device: str) -> AbstractContextManager[tuple[Csr, BasicPrimitives]]:
        """Yield the matrix on a device, and the primitives; `make_product` waits for their work.

        The primitives of a GPU also check the matrix.
        """

    def as_values(self, data: object, device: str) -> Array:
        """Return values of a matrix as a vector on the device, in a type that plans have."""

    def use_primitives(self, device: str, *, wait: bool = False) -> AbstractContextManager[BasicPrimitives]:
        """Yield the primitives, for work on the current stream; with `wait`, wait for it at the end."""

    def make_product(self, plan: Plan, device: str, like: Product | None = None) -> Product:
        """Return the product, on a device, by a plan with NumPy arrays or made there; wait for the plan.

        `like` is the product by a plan with the same pattern, perhaps of other types.
        """

    def asarray(self, x: object, device: str, dtype: DTypeLike | None = None) -> Array:
        """Return an array of any library and device as one on this device, copied only if it must be."""

    def add_scaled(self, y: Array, factor: Number, x: Array) -> None:
        """Add `factor` times x to y, on the current stream, without allocating on a GPU."""

    def make_sparse(self, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> Any:
        """Return a CSR matrix of SciPy or CuPy."""

    def as_csr(self, matrix: Any) -> tuple[Array, Array, Array]:
        """Return the arrays of a CSR matrix of CuPy; GPUs alone have this."""

    def find_entries(self, dense: Array) -> tuple[Array, Array, Array]:
        """Return the CSR arrays of a dense matrix of CuPy; GPUs alone have this."""

    def find_operator_type(self) -> Any:
        """Return the class of linear operators: SciPy's LinearOperator, or CuPy's for a GPU."""


@cache
def find(device: str) -> Backend:
    """Return the backend of a device, `cpu` or `cuda:N`."""
    return cast(Backend, load(MODULES[device.partition(":")[0]]))
