"""The backend of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from dasp import formats
from dasp.formats.backend import Backend
from dasp.formats.cost import CostModel, apply_own_numbers
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Plan
from dasp.formats.product import Product
from dasp.formats.product_cpu import CpuProduct
from dasp.formats.sell.cpu import primitives
from dasp.formats.sell.primitives import Primitives
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign
from dasp.runtime.arrays import Order
from dasp.runtime.cpu.compile import name_processor
from dasp.runtime.dtypes import sum_type
from dasp.runtime.process import as_raised
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import AnyArray, ArrayLike, DTypeLike, Number, Vector


class CpuBackend(Backend):
    """The CPU, with NumPy's arrays. Work is done when a method returns."""

    device = "cpu"

    @property
    def cost_model(self) -> CostModel:
        """The cost model of this processor, with the user's own numbers."""
        return _read_cost_model()

    def as_operand(self, x: AnyArray, name: str = "x") -> Vector:
        """See `Backend`."""
        if hasattr(x, "__cuda_array_interface__"):
            raise TypeError(
                f"{name} is on a GPU and A on the CPU; use A.to_device('cuda') or pass {name}.get()"
            )
        return _arrays.take(name, x)

    def as_values(self, data: ArrayLike) -> Vector:
        """See `Backend`."""
        return _arrays.as_input(_arrays.values("data", data))

    def asarray(self, x: AnyArray, dtype: DTypeLike | None = None) -> Vector:
        """See `Backend`."""
        if _foreign.is_foreign(x):
            x = _foreign.to_host(x)
        return np.asarray(_arrays.to_host(x), dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: Order) -> Vector:
        """See `Backend`."""
        return np.empty(shape, dtype, order)

    def check_out(self, out: object, x: Vector, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Vector:
        """See `Backend`."""
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is {_check.kind_of(out)} and A is on the CPU; a numpy.ndarray is needed")
        _arrays.check_result(out, shape, dtype)
        if _arrays.overlap(out, x):
            raise ValueError("out overlaps x; pass another array")
        return out

    def add_scaled(self, y: Vector, factor: Number, x: Vector) -> None:
        """See `Backend`."""
        y += sum_type(y.dtype).type(factor) * x

    @contextmanager
    def use_primitives(self, *, wait: bool = False) -> Iterator[Primitives]:
        """See `Backend`."""
        with as_raised():
            yield primitives

    @contextmanager
    def bring_to_device(self, csr: Csr) -> Iterator[tuple[Csr, Primitives]]:
        """See `Backend`.

        indptr gets the narrowest type that holds its numbers, so that code compiled for a matrix of SciPy
        also serves its transpose and a matrix made from coordinates; and code for arrays that can be written
        serves read-only ones.
        """
        starts = csr.indptr.astype(narrowest(len(csr.indices)), copy=False)
        with as_raised():
            yield Csr(csr.shape, *map(_arrays.as_input, (starts, csr.indices, csr.data))), primitives

    def make_product(self, plan: Plan, like: Product | None = None) -> CpuProduct:
        """See `Backend`."""
        made: CpuProduct = formats.find(plan.format).products["cpu"]()(plan)
        return made

    def to_host(self, plan: Plan) -> Plan:
        """Return the plan itself."""
        return plan

    def make_sparse(self, shape: tuple[int, int], indptr: Vector, indices: Vector, data: Vector) -> Any:
        """Return a CSR matrix of SciPy.

        indptr takes the type of indices if that is wide enough, else SciPy converts the indices to its type.
        """
        from scipy.sparse import csr_array

        if data.size <= np.iinfo(indices.dtype).max:
            indptr = indptr.astype(indices.dtype, copy=False)
        return csr_array((data, indices, indptr), shape=shape)

    def find_operator_type(self) -> Any:
        """See `Backend`."""
        from scipy.sparse.linalg import LinearOperator

        return LinearOperator


@cache
def _read_cost_model() -> CostModel:
    """Return the CPU's cost model; until Python 3.12 a `cached_property` held a lock that a fork copied."""
    return apply_own_numbers(CostModel.for_cpu(), name_processor())
