"""Load matrices from files, names and models.

`load_matrix` returns the matrix that a user names. It raises a fault of the name, the file or the model as a
`MatrixFileError` of one line, which says what was given, what is needed, and what to do.
"""

from __future__ import annotations

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
        Seed of a random model.

    Returns
    -------
    scipy.sparse.csr_array
        On the host, of the file's own type (int64 for the integer field, float64 for a pattern's ones),
        but float32 for float16, which SciPy cannot compute with.
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
    if path is None:
        return _build_model(text, seed)  # raises: an unknown model, or one without sizes
    with one_line_errors(path):
        if path.name.lower().endswith(".npz"):
            return read_npz(path)
        return read_matrix_market(path)


def _build_model(spec: str, seed: int) -> csr_array:
    try:
        return models.generate(spec, seed)
    except (ValueError, MemoryError) as error:
        raise MatrixFileError(
            str(error) or f"{spec} does not fit in memory; choose smaller parameters"
        ) from error


def _find(text: str) -> Path | None:
    """Return the file of a path or of a name of the collection; None if the text can only be a model."""
    if not text.strip() or "\0" in text:
        raise MatrixFileError(
            f"the matrix is {text!r}; it must be a file, a name or a model such as poisson3d:50"
        )
    try:
        found = find_file(text)
    except OSError as error:
        raise MatrixFileError(
            f"{text:.200} cannot be looked up: {error.strerror}; give a file's path"
        ) from error
    name, colon, _ = text.partition(":")
    if found is None and not models.is_model(text) and ("/" in name or not colon):
        folder = os.environ.get(FOLDER_VARIABLE) or "it is not set"
        raise MatrixFileError(
            f"{text:.200} was not found; a matrix is a file, a name in the folder {FOLDER_VARIABLE} "
            f"({folder}) or a model such as poisson3d:50"
        )
    return found


def find_file(text: str) -> Path | None:
    """Return the file that a path, or a name of the collection, stands for; None if there is none.

    A folder that SuiteSparse unpacked stands for the file in it.
    """
    path, folder = Path(text), os.environ.get(FOLDER_VARIABLE)
    inside = path / f"{path.name}.mtx"
    if path.is_dir() and inside.is_file():
        return inside
    if path.exists():
        return path
    return _find_in_folder(Path(folder), text) if folder else None


def _find_in_folder(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    candidates += [folder / name, folder / name / f"{Path(name).name}.mtx"]
    return next((candidate for candidate in candidates if candidate.is_file()), None)
