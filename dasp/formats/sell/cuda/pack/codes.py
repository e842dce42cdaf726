"""Values and codes as kernels/pack/ sees them: the constants of kernels, and codes as their bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.formats.plan import Array, Plan
from dasp.formats.sell.pattern import Coding, code_type
from dasp.runtime.dtypes import BFLOAT16, bits_type

KINDS = {"f": 1, "V": 1, "c": 2}
"""Kinds of values, by those of NumPy's types: `DASP_KIND` in kernels/pack/values.cuh. bfloat16 is V."""


def types_of_plan(plan: Plan) -> dict[str, np.dtype[Any]]:
    """Return those of a plan's integers and codes."""
    index = plan.pattern.index_dtype
    code = bits_type(plan.values.codes.dtype)
    return {"Start": np.dtype(np.int64), "Column": index, "Index": index, "Code": code}


def value_defines(dtype: np.dtype[Any], coding: Coding) -> dict[str, str]:
    """Return the constants of kernels that are compiled for values."""
    return {
        "DASP_VALUE_BYTES": str(dtype.itemsize),
        "DASP_KIND": str(KINDS[dtype.kind]),
        "DASP_BFLOAT16": str(int(dtype == BFLOAT16)),
        "DASP_CODING": str(int(coding)),
    }


@cache
def code_bits(coding: Coding, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which kernels/pack/encode.cuh makes a code."""
    kind = code_type(coding, dtype)
    return kind if coding == Coding.BYTE else bits_type(kind)


def as_codes(codes: Array, coding: Coding) -> Array:
    """Return stored values as the codes that kernels see."""
    return codes.view(code_bits(coding, codes.dtype))
