"""Kernels that pack rows of x for neighbours, and add products to rows of y."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.integers import ceil_div
from dasp.solvers.cuda.passes import THREADS

Array = Any

MOST_BLOCKS = 1024
"""Of a launch that packs or adds; each thread then takes several elements."""

PACK = Signature(
    "distributed/halo.cu",
    "dasp_pack",
    """
    const long long*  places [count]
    long long         count
    long long         columns
    Scalar*           packed
    const Scalar*     x
    long long         row
    long long         column
    """,
)

ADD = Signature(
    "distributed/halo.cu",
    "dasp_add",
    """
    const long long*  rows [count]
    long long         count
    long long         columns
    const Scalar*     product
    long long         from_row
    long long         from_column
    Scalar*           y
    long long         row
    long long         column
    """,
)


def steps(array: Array) -> tuple[int, int]:
    """Return by how many elements rows of an array are apart, and its columns."""
    size = array.dtype.itemsize
    return array.strides[0] // size, array.strides[1] // size if array.ndim == 2 else 1


def grid(elements: int) -> int:
    """Return the blocks of a launch for so many elements."""
    return max(1, min(ceil_div(elements, THREADS), MOST_BLOCKS))


def defines(dtype: np.dtype[Any]) -> dict[str, str]:
    """Return the constants of the kernels of a type in kernels/distributed."""
    return {"DASP_SCALAR": C_NAMES[dtype], "DASP_THREADS": str(THREADS)}


def packs(x: Any, places: Array, packed: Array) -> Callable[[int, Array], None]:
    """Return what packs, on a stream, the places of an array of dtype `x`."""
    columns = packed.size // max(1, len(packed))
    fixed = {"places": places, "count": len(places), "columns": columns, "packed": packed}
    launch = _launch(PACK, x, fixed, ("x", "row", "column"), packed.size)
    return lambda stream, source: launch(stream, source.data.ptr, *steps(source))


def adds(y: Any, rows: Array, product: Array) -> Callable[[int, Array], None]:
    """Return what adds a product, on a stream, to the rows of an array of dtype `y`."""
    over, beside = steps(product)
    columns = product.size // max(1, len(product))
    fixed = {"rows": rows, "count": len(rows), "columns": columns, "product": _flat(product)}
    fixed |= {"from_row": over, "from_column": beside}
    launch = _launch(ADD, y, fixed, ("y", "row", "column"), product.size)
    return lambda stream, target: launch(stream, target.data.ptr, *steps(target))


def _launch(
    signature: Signature, dtype: Any, fixed: Any, varying: tuple[str, ...], elements: int
) -> Callable[..., None]:
    if elements == 0:
        return lambda *_: None
    kernel = _source.load(signature.source, defines(np.dtype(dtype))).get_function(signature.entry)
    types = {"Scalar": np.dtype(dtype)}
    return Launch(kernel, signature, types, fixed, varying, blocks=grid(elements), threads=THREADS)


def _flat(array: Array) -> Array:
    """Return an array as it lies in memory, whatever its order."""
    return (array if array.flags.c_contiguous else array.T).ravel()
