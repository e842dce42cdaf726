"""The user's own numbers: the file that `dasp tune machine` writes and planning reads.

It is JSON: {machine: {field of `CostModel`: number}}. A machine is a GPU by its name or a processor by its
design: one file serves several machines that share a home. Fields that are not there stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from dasp.formats.cost import CostModel, read_fields

VARIABLE = "DASP_COST_MODEL"
"""The environment variable that names the file."""


def find_path() -> Path:
    """Return where the file is: DASP_COST_MODEL, or cost_models.json in the user's cache folder."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dasp" / "cost_models.json"


def apply(model: CostModel, machine: str) -> CostModel:
    """Return the model of a machine with the user's own numbers.

    Raises
    ------
    ValueError
        If the file cannot be read, or is no file of cost models.
    """
    try:
        path = find_path()
    except RuntimeError:  # no home
        return model
    fields = _read(path).get(machine)
    if not fields:
        return model
    try:
        return dataclasses.replace(model, name=f"{machine}, measured by its user", **fields)
    except ValueError as error:
        raise _refusal(path, error) from None


def write(path: Path, machine: str, fields: dict[str, Any]) -> None:
    """Keep the numbers of a machine in a file, beside those of others.

    Raises
    ------
    ValueError
        If there is such a file that cannot be read, or is no file of cost models.
    """
    kept = {**_read(path), machine: read_fields(fields)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of each machine in a file; none if there is no file."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(given, dict):
            raise ValueError(f"it holds {given!r:.40}; an object of machines is needed")
        found = {machine: read_fields(fields) for machine, fields in given.items()}
        for machine, fields in found.items():
            if fields.keys() & {"name", "kind"}:
                raise ValueError(f"it says a name or a kind of {machine}; numbers alone are needed")
    except (OSError, ValueError, RecursionError) as error:
        named = os.environ.get(VARIABLE)
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and not named):
            return {}  # a home that cannot be read holds no numbers
        raise _refusal(path, error) from None
    return found


def _refusal(path: Path, error: Exception) -> ValueError:
    """Return the error that says why a file is of no use, in one line."""
    why = " ".join(str(error).split())
    return ValueError(f"{path} is no file of cost models: {why}; `dasp tune machine` writes one")
