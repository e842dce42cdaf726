"""The backend of the CPU; see `dasp.formats.backends.Backend`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dasp import formats
from dasp.formats.cost import CostModel, apply_own_numbers
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Plan, narrowest
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
from dasp.runtime.types import AnyArray, ArrayLike, Vector

__all__ = ["primitives"]


@cache
def find_cost_model(device: str) -> CostModel:
    """Return the cost model of the CPU, with the user's own numbers."""
    return apply_own_numbers(CostModel.for_cpu(), name_processor())


@contextmanager
def bring_to_device(csr: Csr, device: str) -> Iterator[tuple[Csr, Primitives]]:
    """Yield the matrix and the primitives.

    indptr gets the narrowest type that holds its numbers, so that code compiled for a matrix of SciPy also
    serves its transpose and a matrix made from coordinates; and code for arrays that can be written serves
    read-only ones.
    """
    starts = csr.indptr.astype(narrowest(len(csr.indices)), copy=False)
    with as_raised():
        yield Csr(csr.shape, *map(_arrays.as_input, (starts, csr.indices, csr.data))), primitives


@contextmanager
def use_primitives(device: str, *, wait: bool = False) -> Iterator[Primitives]:
    """Yield the primitives, whose work is done when they return."""
    with as_raised():
        yield primitives


def as_values(data: ArrayLike, device: str) -> Vector:
    """Return values of a matrix as a NumPy array."""
    return _arrays.as_input(_arrays.values("data", data))


def make_product(plan: Plan, device: str, like: CpuProduct | None = None) -> CpuProduct:
    """Return the product by a plan with NumPy arrays."""
    made: CpuProduct = formats.find(plan.format).products["cpu"]()(plan)
    return made


def as_operand(x: AnyArray, device: str, name: str = "x") -> Vector:
    """Return x as a NumPy array.

    Raises
    ------
    TypeError
        If x is a GPU array, a sparse matrix, or not made of numbers.
    """
    if hasattr(x, "__cuda_array_interface__"):
        raise TypeError(f"{name} is on a GPU and A on the CPU; use A.to_device('cuda') or pass {name}.get()")
    return _arrays.take(name, x)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: str, order: Order) -> Vector:
    """Return a new array for a result, in C or F order."""
    return np.empty(shape, dtype, order)


def check_out(out: object, x: Vector, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Vector:
    """Return `out`, a NumPy array for this result that does not overlap x; TypeError or ValueError if not."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is {_check.kind_of(out)} and A is on the CPU; a numpy.ndarray is needed")
    _arrays.check_result(out, shape, dtype)
    if _arrays.overlap(out, x):
        raise ValueError("out overlaps x; pass another array")
    return out


def to_host(plan: Plan) -> Plan:
    """Return the plan with NumPy arrays: itself."""
    return plan


def add_scaled(y: Vector, factor: complex, x: Vector) -> None:
    """Add `factor` times x to y, an array of the same shape."""
    y += sum_type(y.dtype).type(factor) * x


def asarray(x: AnyArray, device: str, dtype: npt.DTypeLike | None = None) -> Vector:
    """Return an array of any library and device as a NumPy array."""
    if _foreign.is_foreign(x):
        x = _foreign.to_host(x)
    return np.asarray(_arrays.to_host(x), dtype)


def make_sparse(shape: tuple[int, int], indptr: Vector, indices: Vector, data: Vector) -> Any:
    """Return a CSR matrix of SciPy.

    indptr takes the type of indices if that is wide enough, else SciPy converts the indices to its type.
    """
    from scipy.sparse import csr_array

    if data.size <= np.iinfo(indices.dtype).max:
        indptr = indptr.astype(indices.dtype, copy=False)
    return csr_array((data, indices, indptr), shape=shape)


def find_operator_type() -> Any:
    """Return SciPy's LinearOperator."""
    from scipy.sparse.linalg import LinearOperator

    return LinearOperator
