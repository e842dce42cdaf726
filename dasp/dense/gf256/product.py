"""The front door of products over GF(2^8): it checks arguments, and finds the device and the kernel."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from dasp.dense.gf256 import cpu
from dasp.dense.gf256.field import Kernel
from dasp.dense.launch_cuda import using
from dasp.runtime import arrays as _arrays
from dasp.runtime.types import Array

_BYTE = np.dtype(np.uint8)


def kernels(device: str = "cuda") -> tuple[Kernel, ...]:
    """Return the ladder of a device, slowest first.

    Parameters
    ----------
    device : {"cuda", "cpu"}

    Returns
    -------
    tuple of Kernel
        Rungs that this processor cannot run are listed, and refused by `matmul`.

    Raises
    ------
    ValueError
        If `device` is another one.

    Examples
    --------
    >>> [kernel.name for kernel in kernels("cpu")][:2]
    ['log_exp', 'product_rows']
    """
    ladder: tuple[Kernel, ...] = _backend(device).LADDER
    return ladder


def _backend(device: str) -> Any:
    if device == "cpu":
        return cpu
    if device == "cuda":
        from dasp.dense.gf256 import cuda

        return cuda
    raise ValueError(f"device is {device!r}; it must be 'cuda' or 'cpu'")


def read_matrix(name: str, given: Array) -> Array:
    """Return a matrix of bytes as a plain array; refuse anything else."""
    array = _arrays.operand(name, given)
    if array.dtype != _BYTE:
        raise TypeError(f"{name} has dtype {array.dtype}; elements of GF(2^8) are uint8")
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; a matrix with two dimensions is needed")
    return array


def _check_operands(a: Array, b: Array, out: Array | None, on_gpu: bool) -> None:
    """Check that matrices of bytes can be multiplied, and `out` be written."""
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a has shape {a.shape} and b has shape {b.shape}; a must have {b.shape[0]} columns")
    if not on_gpu and _arrays.is_cupy(a):
        raise TypeError(
            "a is on the GPU and b on the CPU; the result lives where b lives, so a must be a NumPy array"
        )
    if out is not None:
        _arrays.check_result(out, (a.shape[0], b.shape[1]), _BYTE, on_gpu=on_gpu)


def _find_kernel(device: str, name: str) -> Any:
    """Return the rung of that name.

    Raises
    ------
    ValueError
        If the ladder has no such rung.
    RuntimeError
        If this machine cannot run it.
    """
    ladder = kernels(device)
    for kernel in ladder:
        if kernel.name == name:
            if not kernel.available:
                raise RuntimeError(
                    f"this processor lacks {kernel.needs}, which kernel {name!r} needs; pass kernel='auto'"
                )
            return kernel
    names = ", ".join(kernel.name for kernel in ladder)
    raise ValueError(f"kernel is {name!r}; on this device it must be 'auto' or one of {names}")


def matmul(a: Array, b: Array, *, out: Array | None = None, kernel: str = "auto") -> Array:
    """Return the matrix product of two matrices over GF(2^8), meant for a small `a` and a wide `b`.

    Parameters
    ----------
    a : uint8, shape (m, k), NumPy, or CuPy if `b` is
        Coefficients, any strides.
    b : uint8, shape (k, n), NumPy or CuPy
        Any strides; adjacent columns are read in place, others are copied first.
    out : uint8, shape (m, n), on the device of `b`, optional
        Receives the product; any strides. It may overlap `a` or `b`.
    kernel : str, default "auto"
        A rung of `kernels(device)`, or "auto" for the best that needs no preparation.

    Returns
    -------
    uint8, shape (m, n)
        `out` if it was given. With k = 0 it is all zeros. On the GPU the work is ordered in the current
        stream.

    Raises
    ------
    TypeError
        If an operand is not a uint8 array of NumPy or CuPy, or the operands are on two devices.
    ValueError
        If the shapes do not fit, `out` is read-only, or no kernel has that name.
    RuntimeError
        If this machine cannot run the kernel.

    Notes
    -----
    The work is `m k n` products and as many exclusive ors; `k n` bytes are read and `m n` written, and the
    best kernels are bound by those bytes when m is small.

    Examples
    --------
    >>> import numpy as np
    >>> matmul(np.array([[2, 3]], np.uint8), np.array([[128], [1]], np.uint8))
    array([[30]], dtype=uint8)
    """
    a, b = read_matrix("a", a), read_matrix("b", b)
    on_gpu, library = _arrays.is_cupy(b), _arrays.namespace(b)
    _check_operands(a, b, out, on_gpu)
    device = "cuda" if on_gpu else "cpu"
    backend = _backend(device)
    chosen = backend.BEST if kernel == "auto" else _find_kernel(device, kernel)
    with using(b, out, a if _arrays.is_cupy(a) else None) if on_gpu else nullcontext():
        if _is_strided(b):
            b = library.ascontiguousarray(b)
        read = [a, b] if _arrays.is_cupy(a) == on_gpu else [b]
        copied = out is None or _is_strided(out) or any(library.may_share_memory(out, x) for x in read)
        target: Any = library.empty((a.shape[0], b.shape[1]), np.uint8) if copied else out
        if not a.shape[1]:
            target[...] = 0
        elif target.size:
            backend.multiply(chosen, a, b, target)
        if out is None or not copied:
            return target  # type: ignore[no-any-return]
        out[...] = target
        return out


def _is_strided(array: Array) -> bool:
    """Return True if the columns of a matrix of bytes are not adjacent."""
    return array.shape[1] > 1 and array.strides[1] != 1
