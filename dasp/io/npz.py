"""Read archives of arrays (.npz), and the matrices that `scipy.sparse.save_npz` writes.

Nothing is unpickled. An archive whose table of contents announces too many bytes is refused before anything
is unpacked, and every index of a matrix is checked before SciPy's compiled code reads it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dasp.formats.csr.matrix import check_compressed, check_entries
from dasp.io.files import MatrixFileError, open_regular
from dasp.runtime.sizes import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

Array = np.ndarray[Any, Any]

_ARRAYS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}
"""The arrays that `scipy.sparse.save_npz` writes for each format, besides those of `_HEADS`."""

_HEADS = {"format", "shape", "_is_array"}


def read_arrays(path: Path, check_names: Callable[[Collection[str]], None]) -> dict[str, Array]:
    """Read all arrays of an .npz file, in native byte order.

    Parameters
    ----------
    path : Path
        A regular file.
    check_names : callable
        Takes the names of the arrays before any is read; raises if the file is of another kind.

    Raises
    ------
    zipfile.BadZipFile, zlib.error, EOFError, ValueError
        If the file is no archive of arrays, holds pickled objects, or is damaged.
    OversizeError
        If its arrays would take more than half of this machine's memory.
    """
    arrays = {}
    with open_regular(path) as file, zipfile.ZipFile(file) as members:
        check_names([name.removesuffix(".npy") for name in members.namelist()])
        # No member gives more bytes than the table of contents says.
        nbytes = sum(info.file_size for info in members.infolist())
        refuse_oversize(str(path), float(nbytes), "choose a smaller matrix")
        for name in members.namelist():
            with members.open(name) as member:
                arrays[name.removesuffix(".npy")] = read_array(member, name)
    return arrays


def read_array(file: IO[bytes], name: str) -> Array:
    """Read the one array of an .npy file, in native byte order.

    Raises
    ------
    ValueError, EOFError
        If the file is no such file, holds pickled objects, is damaged, or goes on after the array.
    """
    array = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):  # reading to the end compares the checksum of an archive's member
        raise ValueError(f"{name} goes on after its end")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_npz(path: Path) -> csr_array:
    """Read a file of `scipy.sparse.save_npz`; never unpickle; check every index."""
    arrays = read_arrays(path, partial(_check_names, path))
    form, shape = _read_heads(arrays)
    data = arrays["data"]
    refuse_oversize(
        f"{path} with {shape[0]:,} rows and {data.size:,} values",
        BYTES_PER_ENTRY * data.size + BYTES_PER_ROW * shape[0] + BYTES_PER_COLUMN * shape[1],
        "choose a smaller matrix",
    )
    return _to_csr(form, shape, [arrays[name] for name in _ARRAYS[form]])


def _check_names(path: Path, names: Collection[str]) -> None:
    """Check that the members are those of a matrix in one of SciPy's formats."""
    if "dasp_plan" in names:
        raise MatrixFileError(f"{path} is a saved plan; a matrix is needed; load it with dasp.load_plan")
    known = any(set(names) - _HEADS == set(arrays) for arrays in _ARRAYS.values())
    if not known or not {"format", "shape"} <= set(names):
        shown = ", ".join(sorted(f"{name:.20}" for name in names)[:6])
        raise MatrixFileError(
            f"{path} has the arrays {shown or '(none)'}; those of a sparse matrix are needed; "
            "write it with scipy.sparse.save_npz"
        )


def _read_heads(arrays: dict[str, Array]) -> tuple[str, tuple[int, int]]:
    """Check the types of the arrays; return the format and the shape."""
    form, shape = arrays["format"], arrays["shape"]
    name = form.item().decode("latin-1") if form.shape == () and form.dtype.kind == "S" else f"{form}"
    if set(_ARRAYS.get(name, ())) != arrays.keys() - _HEADS:
        raise ValueError(f"its format is {name!r:.20}, which its arrays are not of")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or not 0 <= shape.min() <= shape.max() < 2**63:
        raise ValueError(f"its shape is {shape.tolist()!r:.60}")
    for name_of, array in arrays.items():
        if name_of == "data" and array.dtype.kind not in "biufc":
            raise ValueError(f"it holds values of type {array.dtype}; numbers are needed")
        if name_of not in _HEADS | {"data"} and (array.dtype.kind not in "iu" or array.ndim != 1):
            raise ValueError(
                f"{name_of} is of type {array.dtype} and shape {array.shape}, not a list of integers"
            )
    return name, (int(shape[0]), int(shape[1]))


def _to_csr(form: str, shape: tuple[int, int], arrays: list[Array]) -> csr_array:
    """Return the matrix as CSR; check every index before SciPy's compiled code reads it."""
    make = getattr(scipy.sparse, f"{form}_array")
    data = arrays[0]
    if data.dtype == np.float16:  # which SciPy cannot compute with
        data = data.astype(np.float32)
    if data.ndim != {"bsr": 3, "dia": 2}.get(form, 1):
        raise ValueError(f"data has shape {data.shape}")
    if form == "coo":
        check_entries(shape, arrays[1], arrays[2], data)
        return csr_array(make((data, (arrays[1], arrays[2])), shape=shape))
    if form == "dia":
        offsets = arrays[1]
        if len(offsets) != len(data):
            raise ValueError(f"it has {len(offsets)} offsets and {len(data)} diagonals")
        inside = (offsets > -shape[0]) & (offsets < shape[1])
        return csr_array(make((data[inside], offsets[inside]), shape=shape))
    _, indices, indptr = arrays
    lines, places = shape[::-1] if form == "csc" else shape
    if form == "bsr":
        height, width = data.shape[1:]
        if not height or not width or lines % height or places % width:
            raise ValueError(f"its blocks have shape {(height, width)}, of which {shape} is no multiple")
        lines, places = lines // height, places // width
    # SciPy reads the last of indptr first, and nothing else if it is 0.
    end = int(indptr[-1]) if len(indptr) else 0
    if 0 <= end <= min(len(indices), len(data)):
        data, indices = data[:end], indices[:end]
    check_compressed(form.upper(), (lines, places), indptr, indices, data)
    return csr_array(make((data, indices, indptr), shape=shape))
