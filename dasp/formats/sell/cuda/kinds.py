"""The types and constants that the kernels in kernels/pack/ are compiled for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.formats.csr.cuda import COUNT as COUNT
from dasp.formats.csr.cuda import INT64 as INT64
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Plan
from dasp.formats.sell.pattern import Coding, code_type
from dasp.runtime.cuda.launch import Kinds
from dasp.runtime.dtypes import BFLOAT16, C_NAMES
from dasp.runtime.sizes import narrowest

Dtype = np.dtype[Any]

UINT8, UINT32 = np.dtype(np.uint8), np.dtype(np.uint32)

BLOCK_SLICES = 8
"""Slices of a block of 256 threads that takes a warp for each."""


def find_matrix_kinds(csr: Csr, coding: Coding | None = None) -> Kinds:
    """Return the kinds of a matrix: of its integers and, if a coding is given, of its values."""
    index, place = narrowest(max(csr.shape)), narrowest(len(csr.indices))
    integers = ("Start", csr.indptr.dtype), ("Column", csr.indices.dtype), ("Index", index), ("Place", place)
    return _find_kinds(integers, None if coding is None else csr.data.dtype, coding or Coding.PLAIN)


def find_value_kinds(
    dtype: Dtype, count: int, coding: Coding = Coding.PLAIN, slot: Dtype | None = None
) -> Kinds:
    """Return the kinds for kernels that read values alone, with their slots if `slot` is given."""
    integers = (
        *((name, np.dtype(np.int32)) for name in ("Start", "Column", "Index")),
        ("Place", narrowest(count)),
    )
    return _find_kinds(integers if slot is None else (*integers, ("Slot", slot)), dtype, coding)


def find_entry_kinds(index: Dtype, place: Dtype, dtype: Dtype, coding: Coding) -> Kinds:
    """Return the kinds for kernels that read a pattern and its values."""
    integers = ("Start", INT64), ("Column", index), ("Index", index), ("Place", place)
    return _find_kinds(integers, dtype, coding)


def find_plan_kinds(plan: Plan) -> Kinds:
    """Return the kinds for kernels that read a plan."""
    pattern = plan.pattern
    return find_entry_kinds(pattern.index_dtype, narrowest(pattern.entries), plan.dtype, plan.values.coding)


@cache
def _find_kinds(integers: tuple[tuple[str, Dtype], ...], dtype: Dtype | None, coding: Coding) -> Kinds:
    """Return the kinds for integers of some types and, unless `dtype` is None, for coded values."""
    constants = {f"DASP_{name.upper()}": C_NAMES[kind] for name, kind in integers}
    types = dict(integers) | {"Count": COUNT}
    if dtype is not None:
        constants |= {
            "DASP_VALUE_BYTES": str(dtype.itemsize),
            "DASP_COMPLEX": str(int(dtype.kind == "c")),
            "DASP_BFLOAT16": str(int(dtype == BFLOAT16)),
            "DASP_CODING": str(int(coding)),
        }
        types |= {"Bits": dtype, "Code": code_type(coding, dtype)}
    return Kinds(types, constants)
