"""Matrices in from files, names and models.

`load_matrix` turns what a user types into a matrix. Whatever is wrong with it comes back as a
`MatrixFileError` of one line: what was given, what is needed, what to do.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from scipy.sparse import csr_array

from dasp import models
from dasp.io.files import MatrixFileError, one_line_errors
from dasp.io.market import read_matrix_market
from dasp.io.npz import read_npz

FOLDER_VARIABLE = "DASP_MATRICES"
"""The environment variable that names the folder of the matrix collection."""

_SUFFIXES = (".npz", ".mtx", ".mtx.gz")


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
            return read_npz(path)
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
        found = _find_file(path, text) or (_find_in_folder(Path(folder), text) if folder else None)
    except OSError as error:
        raise MatrixFileError(
            f"{text:.200} cannot be looked up: {error.strerror}; give a file's path"
        ) from error
    if found is None:
        raise MatrixFileError(_explain_missing(path, text, folder))
    return found


def _find_file(path: Path, text: str) -> Path | None:
    """Return the path if it is a file; a folder that SuiteSparse unpacked stands for its file."""
    if path.is_dir():
        inside = path / f"{path.name}.mtx"
        if inside.is_file():
            return inside
        raise MatrixFileError(
            f"{text} is a folder; a matrix is a file; choose one of its .mtx, .mtx.gz or .npz files"
            + _list_examples(path)
        )
    return path if path.exists() else None


def _list_examples(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(_SUFFIXES))
    return f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else " (it has none)"


def _find_in_folder(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    candidates += [folder / name, folder / name / f"{Path(name).name}.mtx"]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _strip_suffix(name: str) -> str:
    for suffix in (".gz", ".mtx", ".npz"):
        name = name.removesuffix(suffix)
    return name


def _explain_missing(path: Path, text: str, folder: str | None) -> str:
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
    places = {
        entry.name: str(entry) for entry in _list_entries(path.parent) if entry.name.endswith(_SUFFIXES)
    }
    if folder:
        places |= {
            _strip_suffix(entry.name): _strip_suffix(entry.name) for entry in _list_entries(Path(folder))
        }
    places |= {name: models.examples()[name] for name in known}
    near = difflib.get_close_matches(path.name, places, n=3, cutoff=0.7)
    where = (
        f"a name in {folder}" if folder else f"a name (set {FOLDER_VARIABLE} to the folder of your matrices)"
    )
    remedy = "did you mean " + " or ".join(places[name] for name in near) + "?" if near else "check the path"
    return f"{shown} was not found; a matrix is a file, {where} or a model such as poisson3d:50; {remedy}"


def _list_entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
