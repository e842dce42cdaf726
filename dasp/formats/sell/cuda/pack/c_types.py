"""Types of a matrix by their names in kernels/pack/, and numbers as the bits that kernels see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array, narrowest
from dasp.runtime.dtypes import C_NAMES, bits_type

COUNT, INT64 = np.dtype(np.uint64), np.dtype(np.int64)
UINT8, UINT32 = np.dtype(np.uint8), np.dtype(np.uint32)

_NO_MATRIX = dict.fromkeys(("Start", "Column", "Index"), np.dtype(np.int32))
"""For kernels that know no matrix."""


class Types(dict[str, np.dtype[Any]]):
    """Types of integers by their names in the sources, and a key of them: NumPy's types take long to hash."""

    key: Any = None


def types_of_matrix(csr: Csr) -> Types:
    """Return the types of a matrix's integers by their names in the sources."""
    index, place = narrowest(max(csr.shape)), narrowest(len(csr.indices))
    key = csr.indptr.dtype.num, csr.indices.dtype.num, index.num, place.num
    types = _types.get(key)
    if types is None:
        types = Types(Start=csr.indptr.dtype, Column=csr.indices.dtype, Index=index, Place=place)
        types.key = key
        _types[key] = types
    return types


_types: dict[Any, Types] = {}


def types_of_values(data: Array) -> Types:
    """Return those for kernels that know values alone."""
    return types_of_count(len(data))


def types_of_count(count: int) -> Types:
    """Return those for kernels that know so many values alone."""
    place = narrowest(count)
    types = _types.get(place.num)
    if types is None:
        types = Types(_NO_MATRIX, Place=place)
        types.key = place.num
        _types[place.num] = types
    return types


def type_defines(types: Mapping[str, np.dtype[Any]]) -> dict[str, str]:
    """Return the constants that stand for types."""
    return {
        "DASP_CODE_BYTES" if name == "Code" else f"DASP_{name.upper()}": str(kind.itemsize)
        if name == "Code"
        else C_NAMES[kind]
        for name, kind in types.items()
    }


def as_bits(numbers: Array) -> Array:
    """Return numbers as their bits."""
    return numbers.view(bits_type(numbers.dtype))
