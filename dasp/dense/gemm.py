"""The front door of dense products: checks, transpositions, and the choice of a kernel."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dasp.dense.ladder import HALF, REAL, Kernel, Product

Device = Literal["cpu", "cuda"]
VENDOR = {"cpu": "NumPy's BLAS", "cuda": "cuBLAS"}


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1,
    beta: float = 0,
    trans_a: bool = False,
    trans_b: bool = False,
    out: Any = None,
    kernel: str = "auto",
) -> Any:
    """Return alpha op(A) op(B) + beta C, where op(X) is X or its transpose.

    Nothing that was passed is modified, except `out`. Sizes may be anything, zero included; any strides are
    read as they are. Equal inputs give equal bits on one device. A NaN or Inf of A or B reaches only its row
    or column.

    Parameters
    ----------
    a : array of shape (m, k), or (k, m) if `trans_a`
        NumPy (CPU) or CuPy (GPU), float32 or float64; on a GPU also float16 or bfloat16, summed in float32.
    b : array of shape (k, n), or (n, k) if `trans_b`; dtype and device of `a`
    c : array of shape (m, n), dtype and device of `a`, optional
        Not read if beta == 0, so it may hold NaN then.
    alpha, beta : real numbers
    trans_a, trans_b : multiply by the transpose of a, of b
    out : array of shape (m, n), dtype and device of `a`, optional
        Where the result is written, any strides. It may share no memory with a or b; it may be c itself.
    kernel : "auto", "vendor", or the name of a rung (`kernels`)
        "auto" asks the autotuned table; `explain` says what it answers.

    Returns
    -------
    array of shape (m, n), dtype and device of `a`: `out` if that was given, else new and row-major

    Raises
    ------
    TypeError
        For arguments that are no arrays, or of a dtype that the device does not multiply.
    ValueError
        For shapes that do not fit, an unknown kernel, or an `out` that overlaps a, b or part of c.
    RuntimeError
        If the GPU is too old for the kernel.

    Notes
    -----
    2 m n k operations. On a GPU the product runs on CuPy's current stream. It may be captured in a CUDA
    graph; the workspace of a captured product stays allocated as long as the process lives.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.dense import gemm
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> gemm(a, a, trans_b=True, alpha=0.5)
    array([[ 2.5,  7. ],
           [ 7. , 25. ]], dtype=float32)
    """
    device = _device_of(a=a, b=b, c=c, out=out)
    _check_dtypes(device, a=a, b=b, c=c, out=out)
    _check_scalars(alpha=alpha, beta=beta)
    left, right = (a.T if trans_a else a), (b.T if trans_b else b)
    shape = _check_shapes(left, right, c, beta)
    rung = _choose(device, kernel, _name(a.dtype), (*shape, left.shape[1]))
    if out is None:
        out = _backend(device).empty(shape, a.dtype)
    else:
        _check_out(out, shape, a, b, c if beta != 0 else None)
    addend = c if beta != 0 else None
    if addend is not None and _same_view(addend, out):
        addend = out
    product = Product(left, right, addend, out, float(alpha), float(beta))
    if 0 in shape:
        return out
    if left.shape[1] == 0 or alpha == 0:
        _scale(product)
    else:
        rung.run(product)
    return out


def kernels(device: Device = "cuda") -> tuple[Kernel, ...]:
    """Return the ladder of a device, slowest rung first, the best last.

    Parameters
    ----------
    device : "cuda" or "cpu"; neither needs a GPU to be listed

    Raises
    ------
    ValueError
        For any other device.

    Examples
    --------
    >>> from dasp.dense import kernels
    >>> kernels("cpu")[0].name, kernels("cpu")[-1].name
    ('dot', 'goto')
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; it must be 'cpu' or 'cuda'")
    ladder: tuple[Kernel, ...] = _backend(device).LADDER
    return ladder


@dataclass(frozen=True)
class Explanation:
    """Which kernel `gemm(..., kernel="auto")` runs, and why. `str()` gives one line."""

    kernel: str
    why: str
    summary: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.why}"


def explain(
    a_shape: tuple[int, int],
    b_shape: tuple[int, int],
    dtype: Any = "float32",
    *,
    device: Device = "cuda",
    trans_a: bool = False,
    trans_b: bool = False,
) -> Explanation:
    """Say which kernel `gemm` would run for these shapes, and why.

    Parameters
    ----------
    a_shape, b_shape : shapes of a and b as they would be passed to `gemm`
    dtype : anything that names a dtype
    device : "cuda" or "cpu"

    Raises
    ------
    TypeError, ValueError
        As `gemm`.

    Examples
    --------
    >>> from dasp.dense import explain
    >>> explain((1000, 1000), (1000, 1000), device="cpu").kernel
    'goto'
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; it must be 'cpu' or 'cuda'")
    m, k = reversed(a_shape) if trans_a else a_shape
    inner, n = reversed(b_shape) if trans_b else b_shape
    if inner != k:
        raise ValueError(f"op(a) has {k} columns and op(b) has {inner} rows; they must be equal")
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    _check_dtype("dtype", name, device)
    chosen, why = _backend(device).choose(name, m, n, k)
    if chosen == "vendor":
        return Explanation("vendor", why, VENDOR[device])
    return Explanation(chosen, why, _find(device, chosen).summary)


@functools.cache
def _backend(device: str) -> Any:
    return importlib.import_module(f"dasp.dense.{device}")


def _package(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def _device_of(**arrays: Any) -> str:
    """The device that all the arrays are on: "cpu" or "cuda"."""
    found = {name: _package(array) for name, array in arrays.items() if array is not None or name in "ab"}
    for name, array in arrays.items():
        if name in found and not (found[name] == "cupy" or isinstance(array, np.ndarray)):
            raise TypeError(
                f"{name} is a {type(array).__name__}; it must be a numpy.ndarray or a cupy.ndarray"
            )
    places = {name: "cuda" if package == "cupy" else "cpu" for name, package in found.items()}
    for name, place in places.items():
        if place != places["a"]:
            raise TypeError(f"a is on the {places['a']} and {name} on the {place}; move one of them")
    return places["a"]


@functools.cache
def _name(dtype: Any) -> str:
    """The dtype's name; NumPy takes microseconds to spell it."""
    return str(dtype.name)


def _check_dtype(name: str, dtype: str, device: str) -> None:
    if dtype in REAL or (device == "cuda" and dtype in HALF):
        return
    where = "on the CPU" if device == "cpu" else "on the GPU"
    allowed = "float32 or float64" if device == "cpu" else "float16, bfloat16, float32 or float64"
    raise TypeError(f"{name} is {dtype}; a product {where} needs {allowed}; convert it first")


def _check_dtypes(device: str, **arrays: Any) -> None:
    kind = arrays["a"].dtype
    _check_dtype("a's dtype", _name(kind), device)
    for name, array in arrays.items():
        if array is not None and array.dtype != kind:
            raise TypeError(
                f"{name} has dtype {array.dtype}, a has dtype {kind}; all must have the same dtype"
            )


def _check_scalars(**scalars: Any) -> None:
    for name, value in scalars.items():
        if not isinstance(value, int | float | np.integer | np.floating):
            raise TypeError(f"{name} is a {type(value).__name__}; it must be a real number")


def _check_shapes(left: Any, right: Any, c: Any, beta: float) -> tuple[int, int]:
    for name, array in (("a", left), ("b", right)):
        if array.ndim != 2:
            raise ValueError(f"{name} has {array.ndim} dimensions; a matrix product needs 2")
    if left.shape[1] != right.shape[0]:
        raise ValueError(
            f"op(a) has shape {left.shape} and op(b) {right.shape}; "
            f"op(a)'s columns and op(b)'s rows must be as many"
        )
    shape = (left.shape[0], right.shape[1])
    if c is None and beta != 0:
        raise ValueError(f"beta is {beta} and c is None; give c, or beta=0")
    if c is not None and c.shape != shape:
        raise ValueError(f"c has shape {c.shape}; the product has shape {shape}")
    return shape


def _check_out(out: Any, shape: tuple[int, int], a: Any, b: Any, c: Any) -> None:
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; the product has shape {shape}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only; it must be writable")
    if out.size and any(
        stride == 0 and length > 1 for stride, length in zip(out.strides, out.shape, strict=True)
    ):
        raise ValueError(f"out has strides {out.strides}; each of its elements must have memory of its own")
    for name, array in (("a", a), ("b", b)):
        if _overlap(array, out):
            raise ValueError(f"out shares memory with {name}; it must share none; pass a new array")
    if c is not None and not _same_view(c, out) and _overlap(c, out):
        raise ValueError("out shares part of its memory with c; it must be c itself or share none")


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _same_view(x: Any, y: Any) -> bool:
    return _address(x) == _address(y) and x.strides == y.strides and x.shape == y.shape


def _overlap(x: Any, y: Any) -> bool:
    if x.size == 0 or y.size == 0:
        return False
    if not isinstance(x, np.ndarray):
        return bool(_backend("cuda").share_memory(x, y))
    try:
        return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _find(device: str, name: str) -> Kernel:
    """The rung of that name, or the vendor's library, which is on no ladder."""
    backend = _backend(device)
    if name == "vendor":
        return Kernel("vendor", VENDOR[device], (*REAL, *HALF), run=backend.run_vendor)
    for rung in backend.LADDER:
        if rung.name == name:
            return rung  # type: ignore[no-any-return]
    names = ", ".join(repr(rung.name) for rung in backend.LADDER)
    raise ValueError(f"kernel is {name!r}; it must be 'auto', 'vendor', {names}")


def _choose(device: str, name: str, dtype: str, sizes: tuple[int, int, int]) -> Kernel:
    if name == "auto":
        name = _backend(device).choose(dtype, *sizes)[0]
    rung = _find(device, name)
    if dtype not in rung.dtypes:
        raise TypeError(f"kernel {name!r} multiplies {' or '.join(rung.dtypes)}; a has dtype {dtype}")
    return rung


def _scale(product: Product) -> None:
    """Out = beta c, where there is nothing to multiply."""
    if product.c is None:
        product.out[...] = 0
    elif product.beta == 1:
        product.out[...] = product.c
    else:
        product.out[...] = product.c * product.c.dtype.type(product.beta)
