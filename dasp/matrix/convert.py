"""Matrices of callers, of whatever kind, to plans on a device."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse

from dasp.formats import devices
from dasp.formats.plan import Csr, Plan, csr_from_coo
from dasp.matrix import planning
from dasp.matrix.device import packed, packer, resolve
from dasp.matrix.policy import Policy
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign
from dasp.runtime.memory import BYTES_PER_ROW, refuse_oversize


def known(given: Any) -> Any:
    """Return a matrix of another library than SciPy, NumPy and CuPy as one of theirs; others as they are."""
    return _foreign.as_matrix(given) if _foreign.is_one(given) else given


def place_of(given: Any, device: str) -> str:
    """Return the device that is meant for a matrix: `auto` is the GPU where it lies, or what works here."""
    if device == "auto" and type(given).__module__.startswith("cupy"):
        number = getattr(getattr(getattr(given, "data", None), "device", None), "id", None)
        device = device if number is None else f"cuda:{number}"
    return resolve(device)


def any_matrix(given: Any, shape: Any, policy: Policy | None, device: str, progress: bool) -> Plan:
    """Plan a matrix of any kind: of SciPy or CuPy, dense, or a tuple as SciPy's csr_array takes it.

    Parameters
    ----------
    given : sparse matrix, array_like or tuple
        `(data, (row, col))` and `(data, indices, indptr)` are coordinates and CSR.
    shape : tuple of int or None
        Of a matrix that is given as a tuple; by default as small as coordinates allow.
    policy, device, progress
        As `dasp.SpMatrix` takes them.

    Raises
    ------
    TypeError, ValueError, RuntimeError
    """
    if isinstance(given, (str, os.PathLike)):
        raise TypeError(f"A is {str(given)!r}; a matrix is needed; read it with dasp.load_matrix")
    if isinstance(given, tuple):
        return _tuple(given, shape, policy, device, progress)
    if shape is not None and _check.shape(shape) != tuple(getattr(given, "shape", np.shape(given))):
        raise ValueError(f"shape is {shape}; A has shape {np.shape(given)}; leave shape out")
    if type(given).__module__.startswith("cupyx.scipy.sparse"):
        return cupy_matrix(given, policy, device, progress)
    if scipy.sparse.issparse(given):
        return scipy_matrix(given, policy, device, progress)
    return dense_matrix(given, policy, device, progress)


def _tuple(given: tuple[Any, ...], shape: Any, policy: Policy | None, device: str, progress: bool) -> Plan:
    """Plan coordinates or the three arrays of a CSR matrix."""
    if len(given) == 3:
        data, indices, indptr = given
        if shape is None:
            raise ValueError("shape is None; A is (data, indices, indptr), so shape=(m, n) is needed")
        size = _check.shape(shape)
        arrays = (
            _arrays.values("data", data),
            _arrays.index("indices", indices),
            _arrays.index("indptr", indptr),
        )
        _check.csr(size, arrays[2], arrays[1], arrays[0])
        return _plan(size, _arrays.Compressed(arrays[2], arrays[1], arrays[0]), policy, device, progress)
    if len(given) != 2 or not isinstance(given[1], (tuple, list)) or len(given[1]) != 2:
        raise TypeError(
            f"A is a tuple of {len(given)}; (data, (row, col)) or (data, indices, indptr) is needed"
        )
    data, (row, col) = given
    if shape is None:
        row, col = _arrays.index("row", row), _arrays.index("col", col)
        shape = tuple(int(index.max(initial=-1)) + 1 for index in (row, col))
    return coordinates(data, (row, col), shape, policy, device, progress)


def scipy_matrix(A: Any, policy: Policy | None, device: str, progress: bool) -> Plan:
    """Plan a SciPy sparse matrix; see `dasp.SpMatrix.from_scipy`."""
    if not scipy.sparse.issparse(A):
        planned = hasattr(A, "to_scipy")
        remedy = "pass A.to_scipy()" if planned else "use from_dense, from_coo or from_cupy for others"
        raise TypeError(f"A is {_check.kind_of(A)}; a scipy.sparse matrix is needed; {remedy}")
    on_cpu = packer(A.shape, policy, resolve(device)) == "cpu"
    return _plan(A.shape, _arrays.sparse_matrix(A, checks=on_cpu), policy, device, progress)


def cupy_matrix(A: Any, policy: Policy | None, device: str, progress: bool) -> Plan:
    """Plan a sparse matrix of CuPy for a device as `place_of` returns it; see `dasp.SpMatrix.from_cupy`."""
    if not type(A).__module__.startswith("cupyx.scipy.sparse") or not hasattr(A, "get"):
        raise TypeError(f"A is {_check.kind_of(A)}; a cupyx.scipy.sparse matrix is needed")
    shape = int(A.shape[0]), int(A.shape[1])
    where = packer(shape, policy, device)
    if A.format != "csr" or where != f"cuda:{A.data.device.id}":
        return scipy_matrix(A.get(), policy, device, progress)
    csr = Csr(shape, *devices.find(device).as_csr(A))
    return packed(csr, None, policy, device, where=where, progress=progress)


def dense_matrix(A: Any, policy: Policy | None, device: str, progress: bool) -> Plan:
    """Plan the entries of a dense matrix of NumPy or CuPy that are not zero."""
    if _arrays.is_cupy(A) and A.ndim == 2:
        device = place_of(A, device)
        where = packer(A.shape, policy, device)
        if where == f"cuda:{A.device.id}":
            csr = Csr(A.shape, *devices.find(device).entries_of(A))
            return packed(csr, None, policy, device, where=where, progress=progress)
        A = A.get()
    dense = _arrays.dense_matrix("A", A)
    rows, columns = np.nonzero(dense)
    return coordinates(dense[rows, columns], (rows, columns), dense.shape, policy, device, progress)


def coordinates(
    data: Any, coords: tuple[Any, Any], shape: Any, policy: Policy | None, device: str, progress: bool
) -> Plan:
    """Plan a matrix given by its entries; see `dasp.SpMatrix.from_coo`."""
    size = _check.shape(shape)
    if not isinstance(coords, (tuple, list)) or len(coords) != 2:
        raise TypeError("coords is not a pair; (row, col) is needed")
    return _plan(size, _arrays.coordinates(size, data, *coords), policy, device, progress)


def _plan(
    shape: tuple[int, int],
    arrays: _arrays.Compressed | _arrays.Coordinates,
    policy: Policy | None,
    device: str,
    progress: bool,
) -> Plan:
    """Plan a matrix whose arrays were taken in, and checked if the CPU packs it."""
    device, order = resolve(device), None
    where = packer(shape, policy, device)
    if where == "cpu":
        refuse_oversize(
            f"A with {shape[0]:,} rows", BYTES_PER_ROW * float(shape[0]), "leave out rows without entries"
        )
    if isinstance(arrays, _arrays.Coordinates):
        cpu = devices.find("cpu").primitives
        order = planning.row_order(shape[0], arrays.rows, cpu)
        arrays = _arrays.Compressed(*csr_from_coo(shape[0], *arrays, cpu))
    csr = Csr((int(shape[0]), int(shape[1])), *arrays)
    return packed(csr, order, policy, device, where=where, progress=progress)
