"""Save and load plans as named arrays, each named by the path of its field: ``pattern.medium.rows``.

Pattern and values are apart, so that files of one pattern differ in the members of ``values`` alone. The
dataclasses of the plan's format say which fields there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict, fields, is_dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from dasp import formats
from dasp.formats.cost import CostModel
from dasp.formats.plan import Plan, arrays_of, is_array, require, with_arrays
from dasp.io.files import MatrixFileError, one_line_errors, replacing
from dasp.io.npz import read_arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.arrays import to_host
from dasp.runtime.process import as_raised

FILE_VERSION = 8
"""Version of the file's contents; every change of them raises it."""

HEAD = "dasp_plan"
"""The member that holds all but the arrays, as JSON."""


def save_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    """Write a plan to an .npz file, which replaces an older one only when it is complete and on the disk.

    Parameters
    ----------
    path : str or path
        The file; its name is used unchanged. A link of that name is replaced, not followed.
    plan : Plan
        Its arrays may live on the host or on a GPU; they are written with their own types.

    Raises
    ------
    MatrixFileError
        If the file cannot be written. Nothing is left behind then, and an older file stays as it was.
    TypeError
        If `plan` is not a `Plan`.

    Notes
    -----
    Several threads or processes may save to one path at once: the file always holds the whole plan of one.

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
    with replacing(_check_path(path)) as file, as_raised():
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
        On the host, with the arrays and types that were saved; the arrays are read-only.

    Raises
    ------
    MatrixFileError
        If the file is missing, is no plan, was written by another version of the format, or holds arrays
        that are no valid plan or do not fit in this machine's memory.

    See Also
    --------
    save_plan : has an example of both.
    """
    target = _check_path(path)
    with one_line_errors(target):
        plan = unpack_plan(read_arrays(target, partial(_check_plan_names, target)))
        check_plan(plan)
        return plan


def _check_path(path: str | os.PathLike[str]) -> Path:
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise MatrixFileError(f"the path is {text!r}; it must name a file")
    return Path(text)


def _check_plan_names(path: Path, names: Collection[str]) -> None:
    if HEAD not in names:
        raise MatrixFileError(f"{path} holds no plan; write one with dasp.save_plan")


def pack_plan(plan: Plan) -> dict[str, np.ndarray]:
    """Return the arrays of a plan on the host, by field path; `HEAD` holds all other fields, as JSON."""
    arrays: dict[str, np.ndarray] = {}
    scalars: dict[str, Any] = {}
    _pack(plan.pattern, "pattern.", arrays, scalars)
    _pack(plan.values, "values.", arrays, scalars)
    if plan.order is not None:
        arrays["order"] = to_host(plan.order)
    head = {
        "version": FILE_VERSION,
        "format": plan.format,
        "shape": list(plan.shape),
        "dtype": plan.dtype.name,
        "fields": scalars,
    }
    arrays[HEAD] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    return arrays


def _pack(part: Any, prefix: str, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> None:
    for field in fields(part):
        value, path = getattr(part, field.name), prefix + field.name
        if isinstance(value, CostModel):
            scalars[path] = asdict(value)
        elif is_dataclass(value):
            _pack(value, path + ".", arrays, scalars)
        elif isinstance(value, np.dtype):
            scalars[path] = value.name
        elif is_array(value) and value.shape != ():
            array = to_host(value)
            # A file of arrays has no bfloat16: the plan's type tells what the bits are.
            arrays[path] = array.view(np.uint16) if array.dtype == _dtypes.BFLOAT16 else array
        else:
            scalars[path] = value.item() if isinstance(value, np.generic) else value


def unpack_plan(arrays: dict[str, np.ndarray]) -> Plan:
    """Return the plan of the arrays of `pack_plan`; `check_plan` checks the numbers in them.

    Raises
    ------
    ValueError
        If the version or the format is unknown, or a field is missing, unknown or of the wrong kind.
    """
    require(arrays[HEAD].nbytes <= 1 << 20, f"dasp_plan has {arrays[HEAD].nbytes:,} bytes")
    head = json.loads(arrays[HEAD].tobytes())
    version = head.get("version") if isinstance(head, dict) else None
    if version != FILE_VERSION:
        raise ValueError(f"its format is version {version}; this dasp reads version {FILE_VERSION}")
    left = {path: array for path, array in arrays.items() if path != HEAD}
    name, shape, scalars = head.get("format"), head.get("shape"), head.get("fields")
    require(
        isinstance(name, str) and name in formats.list_names(), f"its format is {name!r:.40}, an unknown one"
    )
    sizes = isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape)
    require(sizes and isinstance(shape, list), f"its shape is {shape!r:.40}")
    require(head.get("dtype") in _dtypes.TABLE, f"its dtype is {head.get('dtype')!r:.40}")
    require(isinstance(scalars, dict), "its fields are missing")
    kind = formats.find(str(name))
    left |= dict(scalars or {})
    pattern = _unpack(kind.pattern, "pattern.", left)
    values, dtype = _unpack(kind.values, "values.", left), _dtypes.TABLE[head["dtype"]].dtype
    if dtype == _dtypes.BFLOAT16:
        halves = (array.view(dtype) if array.dtype == np.uint16 else array for array in arrays_of(values))
        values = with_arrays(values, halves)
    order = _read_field("order", Any, left.pop("order")) if "order" in left else None
    if left:
        raise ValueError(f"it has the unknown field {min(left):.60}")
    m, n = shape or (0, 0)
    return Plan(kind.name, (m, n), dtype, pattern, values, order)


def _unpack(kind: type, prefix: str, left: dict[str, Any]) -> Any:
    values = {}
    for name, hint in get_type_hints(kind).items():
        path = prefix + name
        if isinstance(hint, type) and is_dataclass(hint) and hint is not CostModel:
            values[name] = _unpack(hint, path + ".", left)
            continue
        if path not in left:
            raise ValueError(f"its field {path} is missing")
        values[name] = _read_field(path, hint, left.pop(path))
    return kind(**values)


def _read_field(path: str, hint: object, value: object) -> Any:
    """Return a field in the type that its dataclass declares; ValueError if it has another."""
    if hint is Any or get_origin(hint) is np.ndarray:
        if not isinstance(value, np.ndarray) or not value.ndim or value.dtype.kind not in "iufc":
            raise ValueError(f"its field {path} is no array of numbers")
        value = np.ascontiguousarray(value)
        value.flags.writeable = False
        return value
    if hint is CostModel:
        return CostModel.from_dict(value)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        if type(value) is not int or value not in list(hint):
            raise ValueError(f"its field {path} is {value!r:.40}; no {hint.__name__} has that number")
        return hint(value)
    kinds = get_args(hint) or (hint,)  # two for `bool | None`
    if kinds[0] in (int, bool, float, str):
        if type(value) not in kinds:
            raise ValueError(f"its field {path} is {value!r:.40}, not of type {kinds[0].__name__}")
        return value
    if isinstance(value, str):
        return np.dtype(value)
    raise ValueError(f"its field {path} is {value!r:.40}")


def check_plan(plan: Plan) -> None:
    """Check every invariant of a plan's format, so that no product reads or writes out of bounds.

    Raises
    ------
    ValueError
        If an invariant does not hold; the message names the first.
    """
    try:
        formats.find(plan.format).check(plan)
        if plan.order is not None:
            _check_order(plan.order, plan.nnz)
    except ValueError as error:
        raise ValueError(f"it is not a valid plan: {error}") from error


def _check_order(order: np.ndarray, entries: int) -> None:
    require(
        order.shape == (entries,) and order.dtype.kind == "i", f"order is no vector of {entries} integers"
    )
    inside = not entries or (order.min() >= 0 and order.max() < entries)
    require(inside and (np.bincount(order, minlength=entries) == 1).all(), "order is no permutation")
