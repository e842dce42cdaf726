"""The kinds of device on which formats are packed and multiplied: their interface and their modules.

A kind is a module with the functions of `Device`: arrays, products, and the primitives in which packing is
written. Code that calls them does not know whether arrays are NumPy's or CuPy's.
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

MODULES = {"cpu": "dasp.formats.device_cpu", "cuda": "dasp.formats.device_cuda"}


class Device(Protocol):
    """A kind of device."""

    def find_cost_model(self, device: str) -> CostModel:
        """Return the cost model of a device; ValueError if the user's file of cost models is bad."""

    def as_operand(self, x: object, device: str) -> Array:
        """Return x as an array on the device; TypeError if it is somewhere else."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str, order: Order) -> Array:
        """Return a new array for a result, in C or F order."""

    def check_out(
        self, out: object, x: Array, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> Array:
        """Return `out` if it can take a result; TypeError or ValueError if not."""

    def to_host(self, plan: Plan) -> Plan:
        """Return the plan with NumPy arrays, read-only."""

    def packing(self, csr: Csr, device: str) -> AbstractContextManager[tuple[Csr, BasicPrimitives]]:
        """Yield the matrix on a device, and the primitives; `product` waits for their work.

        The primitives of a GPU also check the matrix.
        """

    def as_values(self, data: object, device: str) -> Array:
        """Return values of a matrix as a vector on the device, in a type that plans have."""

    def filling(self, device: str, *, ends: bool = False) -> AbstractContextManager[BasicPrimitives]:
        """Yield the primitives, for work on the current stream; with `ends`, wait for it at the end."""

    def product(self, plan: Plan, device: str, like: Any = None) -> Product:
        """Return the product, on a device, by a plan with NumPy arrays or made there; wait for the plan.

        `like` is the product by a plan with the same pattern, perhaps of other types.
        """

    def asarray(self, x: object, device: str, dtype: DTypeLike | None = None) -> Array:
        """Return an array of any library and device as one on this device, copied only if it must be."""

    def add_scaled(self, y: Array, factor: Number, x: Array) -> None:
        """Add `factor` times x to y, on the current stream, without allocating on a GPU."""

    def sparse(self, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> Any:
        """Return a CSR matrix of SciPy or CuPy."""

    def as_csr(self, matrix: Any) -> tuple[Array, Array, Array]:
        """Return the arrays of a CSR matrix of CuPy; GPUs alone have this."""

    def entries_of(self, dense: Array) -> tuple[Array, Array, Array]:
        """Return the CSR arrays of a dense matrix of CuPy; GPUs alone have this."""

    def find_operator_type(self) -> Any:
        """Return the class of linear operators: SciPy's LinearOperator, or CuPy's for a GPU."""


@cache
def find(device: str) -> Device:
    """Return the module of a device, `cpu` or `cuda:N`."""
    return cast(Device, load(MODULES[device.partition(":")[0]]))
