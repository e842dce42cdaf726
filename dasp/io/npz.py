"""Matrices in the .npz files of `scipy.sparse.save_npz`: sizes bounded first, every index checked."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dasp.formats.csr.matrix import check_compressed, check_entries
from dasp.io.archives import Announced, Archive, open_archive
from dasp.io.files import MatrixFileError
from dasp.runtime.sizes import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

_ARRAYS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}
"""The arrays that `scipy.sparse.save_npz` writes for each format, besides the three below."""

_HEADS = {"format", "shape", "_is_array"}
_LONGEST_HEAD = 64
"""Elements or bytes that each of those may have."""


def read_npz(path: Path) -> csr_array:
    """Read a file of `scipy.sparse.save_npz`; never unpickle; check every index."""
    with open_archive(path, "scipy.sparse.save_npz", partial(_check_names, path)) as archive:
        form, shape = _read_heads(archive)
        announced = {name: archive.announced[name] for name in _ARRAYS[form]}
        _check_announced(path, form, shape, announced)
        entries = announced["data"].size
        refuse_oversize(
            f"{path} with {shape[0]:,} rows and {entries:,} values",
            BYTES_PER_ENTRY * entries + BYTES_PER_ROW * shape[0] + BYTES_PER_COLUMN * shape[1],
            "choose a smaller matrix",
        )
        arrays = [archive.read(name) for name in _ARRAYS[form]]
    return _to_csr(form, shape, arrays)


def _check_names(path: Path, names: Collection[str]) -> None:
    """Check that the members are those of a matrix in one of SciPy's formats."""
    if "dasp_plan" in names:
        raise MatrixFileError(f"{path} is a saved plan; a matrix is needed; load it with dasp.load_plan")
    if not any(set(names) - _HEADS == set(arrays) for arrays in _ARRAYS.values()) or not {
        "format",
        "shape",
    } <= set(names):
        shown = ", ".join(sorted(f"{name:.20}" for name in names)[:6])
        raise MatrixFileError(
            f"{path} has the arrays {shown or '(none)'}; those of a sparse matrix are needed; "
            "write it with scipy.sparse.save_npz"
        )


def _read_heads(archive: Archive) -> tuple[str, tuple[int, int]]:
    """Read the format and the shape, which are short."""
    for name in _HEADS & archive.announced.keys():
        if archive.announced[name].nbytes > _LONGEST_HEAD:
            raise ValueError(f"{name} has {archive.announced[name].nbytes:,} bytes")
    form, shape = archive.read("format").item(), archive.read("shape")
    form = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if set(_ARRAYS.get(form, ())) != archive.announced.keys() - _HEADS:
        raise ValueError(f"its format is {form!r:.20}, which its arrays are not of")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or not (0 <= shape.min() <= shape.max() < 2**63):
        raise ValueError(f"its shape is {shape.tolist()!r:.60}")
    return form, (int(shape[0]), int(shape[1]))


def _check_announced(path: Path, form: str, shape: tuple[int, int], announced: dict[str, Announced]) -> None:
    """Check that values are numbers and indices integers, of as many dimensions as the format has."""
    if announced["data"].dtype.kind not in "biufc":
        raise MatrixFileError(f"{path} holds values of type {announced['data'].dtype}; numbers are needed")
    for name, array in announced.items():
        if name != "data" and (array.dtype.kind not in "iu" or len(array.shape) != 1):
            raise ValueError(
                f"{name} is of type {array.dtype} and shape {array.shape}, not a list of integers"
            )
    sizes = announced["data"].shape
    if len(sizes) != {"bsr": 3, "dia": 2}.get(form, 1):
        raise ValueError(f"data has shape {sizes}")
    if form == "bsr" and any(
        not size or length % size for size, length in zip(sizes[1:], shape, strict=True)
    ):
        raise ValueError(f"its blocks have shape {sizes[1:]}, of which {shape} is no multiple")


def _to_csr(form: str, shape: tuple[int, int], arrays: list[np.ndarray[Any, Any]]) -> csr_array:
    """Let SciPy make and convert the matrix; every index is checked before its compiled code reads it."""
    make = getattr(scipy.sparse, f"{form}_array")
    if form == "coo":
        data, *coords = arrays
        check_entries(shape, coords[0], coords[1], data)
        matrix = csr_array(make((data, tuple(coords)), shape=shape))
        if data.dtype.kind in "iu" and matrix.nnz < len(data):
            _check_sums(data, make((np.abs(data.astype(np.float64)), tuple(coords)), shape=shape))
        return matrix
    if form == "dia":
        data, offsets = arrays
        if len(offsets) != len(data):
            raise ValueError(f"it has {len(offsets)} offsets and {len(data)} diagonals")
        inside = (offsets > -shape[0]) & (offsets < shape[1])
        return csr_array(make((data[inside], offsets[inside]), shape=shape))
    data, indices, indptr = arrays
    lines, places = shape[::-1] if form == "csc" else shape
    if form == "bsr":
        lines, places = lines // data.shape[1], places // data.shape[2]
    # SciPy looks at the last of indptr first, and no further where that is 0.
    end = int(indptr[-1]) if len(indptr) else 0
    if 0 <= end <= min(len(indices), len(data)):
        data, indices = data[:end], indices[:end]
    check_compressed(form.upper(), (lines, places), indptr, indices, data)
    return csr_array(make((data, indices, indptr), shape=shape))


def _check_sums(data: np.ndarray[Any, Any], sizes: Any) -> None:
    """Check that the integers at each place can be summed; their sizes are given."""
    if csr_array(sizes).data.max() >= np.iinfo(data.dtype).max:
        raise ValueError(f"the sum of several entries at one place may be beyond {data.dtype}")
