"""Matrices in from files, names and models; plans saved and loaded.

`load_matrix` turns what a user types into a matrix. Whatever is wrong with it comes back as a
`MatrixFileError` of one line: what was given, what is needed, what to do.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dasp import models
from dasp.formats.csr.check import check_compressed
from dasp.formats.plan import Plan
from dasp.io.archives import Announced, Archive, open_archive, refuse_oversize_archive
from dasp.io.files import MatrixFileError, one_line_errors, replacing
from dasp.io.market import read_matrix_market
from dasp.io.plans import array_names, check_plan, pack_plan, unpack_plan
from dasp.runtime import check as _check
from dasp.runtime.cpu.signals import as_raised
from dasp.runtime.memory import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

__all__ = ["MatrixFileError", "load_matrix", "load_plan", "save_plan"]

FOLDER_VARIABLE = "DASP_MATRICES"
"""The environment variable that names the folder of the matrix collection."""

_SUFFIXES = (".npz", ".mtx", ".mtx.gz")
_PLAN_FACTOR = 8.0
"""Bytes that reading and checking a plan takes for each of its own, at most: 1.1 to 6.1 were measured."""

_LONGEST_PLAN_HEAD = 1 << 20


def load_matrix(spec: str | os.PathLike[str], *, seed: int = 0) -> csr_array:
    """Load or build the matrix that a user names.

    Parameters
    ----------
    spec : str or path
        A model (``poisson3d:100``, see `dasp.models.families`), a file (.mtx, .mtx.gz, or an .npz of
        `scipy.sparse.save_npz`), or a name found in the folder that the environment variable
        DASP_MATRICES names: NAME.npz, NAME.mtx, NAME.mtx.gz or NAME/NAME.mtx.
    seed : int
        For a model: which of its random members.

    Returns
    -------
    scipy.sparse.csr_array
        On the host, of the file's own type (int64 for the integer field, float64 for a pattern's ones).
        Symmetric and skew-symmetric storage is written out in full. Explicit zeros are kept; duplicates
        of a Matrix Market file are summed, as SciPy does.

    Raises
    ------
    MatrixFileError
        If there is no such file, name or model, if the file is damaged, or of another kind, or if
        the matrix would take more than half of this machine's memory.

    Examples
    --------
    >>> load_matrix("poisson2d:10").shape
    (100, 100)
    """
    text = os.fsdecode(spec)
    if ":" in text and models.is_model(text):
        return _build_model(text, seed)
    path = _find(text)
    with one_line_errors(path):
        if path.name.lower().endswith(".npz"):
            return _read_npz(path)
        return read_matrix_market(path)


def check_spec(spec: str) -> None:
    """Check that there is a file, a name or a model for what a user names, without reading or building it.

    Raises
    ------
    MatrixFileError
        As `load_matrix` raises it for what it cannot find.
    """
    if not (":" in spec and models.is_model(spec)):
        _find(spec)
        return
    try:
        models.check(spec)
    except ValueError as error:
        raise MatrixFileError(str(error)) from error


def _build_model(spec: str, seed: int) -> csr_array:
    try:
        return models.generate(spec, seed)
    except (ValueError, MemoryError) as error:
        raise MatrixFileError(
            str(error) or f"{spec} does not fit in memory; choose smaller parameters"
        ) from error


def _find(text: str) -> Path:
    """Find the file that a path or a name of the collection means; MatrixFileError if there is none."""
    if not text or "\0" in text:
        raise MatrixFileError(
            f"the matrix is {text!r}; it must be a file, a name or a model such as poisson3d:50"
        )
    path = Path(text)
    folder = os.environ.get(FOLDER_VARIABLE)
    try:
        found = _existing_file(path, text) or (_in_folder(Path(folder), text) if folder else None)
    except OSError as error:
        raise MatrixFileError(
            f"{text:.200} cannot be looked up: {error.strerror}; give a file's path"
        ) from error
    if found is None:
        raise MatrixFileError(_not_found(path, text, folder))
    return found


def _existing_file(path: Path, text: str) -> Path | None:
    """Return the path if it is a file; a folder that SuiteSparse unpacked stands for its file."""
    if path.is_dir():
        inside = path / f"{path.name}.mtx"
        if inside.is_file():
            return inside
        raise MatrixFileError(
            f"{text} is a folder; a matrix is a file; choose one of its .mtx, .mtx.gz or .npz files"
            + _examples_in(path)
        )
    return path if path.exists() else None


def _examples_in(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(_SUFFIXES))
    return f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else " (it has none)"


def _in_folder(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    candidates += [folder / name, folder / name / f"{Path(name).name}.mtx"]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _stem(name: str) -> str:
    for suffix in (".gz", ".mtx", ".npz"):
        name = name.removesuffix(suffix)
    return name


def _not_found(path: Path, text: str, folder: str | None) -> str:
    """Return the message for a text that is no file, name or model, with the nearest one."""
    shown = text if len(text) <= 200 else text[:197] + "..."
    known = [*models.examples()]
    if models.is_model(text):
        return f"{shown} is a model without parameters; give them, for example {models.examples()[text]}"
    head, colon, _ = text.partition(":")
    if colon and "/" not in head:
        near = difflib.get_close_matches(head, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{shown} is neither a file nor a known model; the models are {', '.join(known)}{hint}"
    places = {entry.name: str(entry) for entry in _entries(path.parent) if entry.name.endswith(_SUFFIXES)}
    if folder:
        places |= {_stem(entry.name): _stem(entry.name) for entry in _entries(Path(folder))}
    places |= {name: models.examples()[name] for name in known}
    near = difflib.get_close_matches(path.name, places, n=3, cutoff=0.7)
    where = (
        f"a name in {folder}" if folder else f"a name (set {FOLDER_VARIABLE} to the folder of your matrices)"
    )
    remedy = "did you mean " + " or ".join(places[name] for name in near) + "?" if near else "check the path"
    return f"{shown} was not found; a matrix is a file, {where} or a model such as poisson3d:50; {remedy}"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


# SciPy's .npz


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


def _read_npz(path: Path) -> csr_array:
    """Read what `scipy.sparse.save_npz` wrote; never unpickles; checks every index."""
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
        for name, index, length in zip(("row", "column"), coords, shape, strict=True):
            if index.size and not (index.min() >= 0 and index.max() < length):
                raise ValueError(f"{name} index {index.min()} or {index.max()} is outside 0..{length - 1}")
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


# Plans


def save_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    """Write a plan to an .npz file, which replaces an older one only when it is complete and on the disk.

    Parameters
    ----------
    path : str or path
        Where to; the name is used as it is. A link of that name is replaced and not followed.
    plan : Plan
        Its arrays may live on the host or on a GPU; they are written with their own types.

    Raises
    ------
    MatrixFileError
        If the file cannot be written. Nothing is left behind then, and an older file stays as it was.
    TypeError
        If `plan` is none.

    Notes
    -----
    Several threads or processes may save to one path at once: the file is always one of theirs, and whole.

    Examples
    --------
    >>> import os, tempfile, dasp
    >>> A = dasp.SpMatrix(dasp.models.generate("poisson2d:10"), device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dasp.save_plan(os.path.join(folder, "plan.npz"), A.plan)
    ...     plan = dasp.load_plan(os.path.join(folder, "plan.npz"))
    >>> again = dasp.SpMatrix(plan, device="cpu")
    >>> (again.to_scipy() != A.to_scipy()).nnz
    0
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan is {_check.kind_of(plan)}; a dasp plan is needed; pass the .plan of an SpMatrix"
        )
    with replacing(_file_path(path)) as file, as_raised():
        arrays: dict[str, Any] = pack_plan(plan)  # numbers alone, so nothing is pickled
        np.savez(file, **arrays)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan that `save_plan` wrote, and check every invariant of its arrays.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Plan
        On the host; arrays and types as they were saved, read-only.

    Raises
    ------
    MatrixFileError
        If the file is missing, is no plan, was written by another version of the format, or holds arrays
        that do not make a plan; and, before any of them is read, if they would take more than half of this
        machine's memory.

    See Also
    --------
    save_plan : with an example of both.
    """
    target = _file_path(path)
    with (
        one_line_errors(target),
        open_archive(target, "dasp.save_plan", partial(_check_plan_names, target)) as archive,
    ):
        if archive.announced["dasp_plan"].nbytes > _LONGEST_PLAN_HEAD:
            raise ValueError(f"dasp_plan has {archive.announced['dasp_plan'].nbytes:,} bytes")
        refuse_oversize_archive(archive, _PLAN_FACTOR)
        plan = unpack_plan({name: archive.read(name) for name in archive.announced})
        check_plan(plan)
        return plan


def _file_path(path: str | os.PathLike[str]) -> Path:
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise MatrixFileError(f"the path is {text!r}; it must name a file")
    return Path(text)


def _check_plan_names(path: Path, names: Collection[str]) -> None:
    if "dasp_plan" not in names:
        raise MatrixFileError(f"{path} holds no plan; write one with dasp.save_plan")
    unknown = sorted(set(names) - array_names() - {"dasp_plan"})
    if unknown:
        raise MatrixFileError(
            f"{path} has the unknown field {unknown[0]:.60}; write it again with dasp.save_plan"
        )
