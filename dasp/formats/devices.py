"""The kinds of device on which formats are packed and multiplied: what each owes, and where it is.

A kind is a module with the functions of `Device`: arrays, products, and the primitives in which packing is
written. Nothing above it knows whether arrays are NumPy's or CuPy's.
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
from dasp.runtime.arrays import Order
from dasp.runtime.process import load
from dasp.runtime.types import DTypeLike, Number

MODULES = {"cpu": "dasp.formats.device_cpu", "cuda": "dasp.formats.device_cuda"}


class Product(Protocol):
    """A plan, ready to be multiplied on one device. Several threads may use one at once.

    Attributes
    ----------
    plan : Plan
        With arrays on the device.
    """

    plan: Plan

    def quick(self, x: object, out: Any = None, scale: tuple[float, float] | None = None) -> Array | None:
        """Return A x if x, and out if given, are the plainest of vectors here, else None.

        With alpha and beta as `scale`, alpha A x + beta out; out is given if beta is not 0.
        """

    def take_values(self, data: object, slots: object) -> bool:
        """Overwrite the plan's values if data is the plainest of arrays and the coding holds it, else False.

        Parameters
        ----------
        data : object
        slots : object or None
            What the primitives said of the pattern, once somebody asked.
        """

    def multiply(self, x: Array, y: Array, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0.

        Parameters
        ----------
        x : Array, shape (n,) or (n, k), of any type that y's type holds
        y : Array, shape (m,) or (m, k), not overlapping x
            Any strides. All rows are written, those without entries too.
        alpha, beta : float, or complex for a complex y
        """

    def diagonal(self, k: int) -> Array | None:
        """Return the k-th diagonal in the type of sums; None if the matrix must be unpacked for it."""

    @property
    def nbytes(self) -> int:
        """Bytes of what products have made beside the plan."""

    def follow(self) -> None:
        """Take over values that were written into the plan in place."""


class Device(Protocol):
    """A kind of device."""

    def find_cost_model(self, device: str) -> CostModel:
        """Return the model by which choices are made for a device; ValueError for a bad file of them."""

    def as_operand(self, x: object, device: str) -> Array:
        """Return x as an array on the device; TypeError if it is somewhere else."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str, order: Order) -> Array:
        """Return a new array for a result, in C or F order."""

    def check_out(
        self, out: object, x: Array, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> Array:
        """Return `out`, which can take a result; TypeError or ValueError if not."""

    def to_host(self, plan: Plan) -> Plan:
        """Return the plan with NumPy arrays, read-only."""

    def packs(self, name: str) -> bool:
        """Return True if the primitives can pack a format; those of a GPU also check the matrix."""

    def packing(self, csr: Csr, device: str) -> AbstractContextManager[tuple[Csr, BasicPrimitives]]:
        """Give the matrix on a device, and the primitives; `product` waits for what they do."""

    def as_values(self, data: object, device: str) -> Array:
        """Return values of a matrix as a vector on the device, in a type that plans have."""

    def to_device(self, array: Array, device: str) -> Array:
        """Return a NumPy array on the device."""

    def filling(self, device: str, *, ends: bool = False) -> AbstractContextManager[BasicPrimitives]:
        """Give the primitives, for work on the current stream; with `ends`, wait for it at the end."""

    def may_write(self, plan: Plan) -> bool:
        """Return True if the values of a plan lie in memory that can be written, if not by these arrays."""

    def product(self, plan: Plan, device: str, like: Any = None) -> Product:
        """Take a plan with NumPy arrays, or made on this device, to a device; wait for what made it.

        `like` is the product of a plan with the same pattern, perhaps of other types.
        """

    def asarray(self, x: object, device: str, dtype: DTypeLike | None) -> Array:
        """Return an array of any library, wherever it is, as one on the device; copied only if it must be."""

    def add_scaled(self, y: Array, factor: Number, x: Array) -> None:
        """Add a multiple of x to y, on the current stream, without allocating on a GPU."""

    def sparse(self, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> Any:
        """Return a CSR matrix of SciPy or CuPy."""

    def as_csr(self, matrix: Any) -> tuple[Array, Array, Array]:
        """Return the arrays of a CSR matrix of CuPy; GPUs alone have this."""

    def entries_of(self, dense: Array) -> tuple[Array, Array, Array]:
        """Return the CSR arrays of a dense matrix of CuPy; GPUs alone have this."""

    def linear_operator(self, matrix: Any) -> Any:
        """Return the operator that solvers for this kind of device take."""


@cache
def find(device: str) -> Device:
    """Return the module of a device, `cpu` or `cuda:N`."""
    return cast(Device, load(MODULES[device.partition(":")[0]]))
