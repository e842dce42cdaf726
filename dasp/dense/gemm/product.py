"""The front door of dense products: checks, transpositions, and the choice of a kernel."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dasp.dense.gemm.ladder import Backend, DenseProduct, GemmKernel
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime.cuda import gpus
from dasp.runtime.process import load
from dasp.runtime.types import Array, DTypeLike

Device = Literal["cpu", "cuda"]
LARGEST_SINGLE = float(np.finfo(np.float32).max)


def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1,
    beta: float = 0,
    trans_a: bool = False,
    trans_b: bool = False,
    out: Array | None = None,
    kernel: str = "auto",
) -> Array:
    """Return alpha op(A) op(B) + beta C, where op(X) is X or its transpose.

    Nothing that was passed is modified, except `out`. Any sizes are allowed, zero included, and so are any
    strides, and either byte order but in `out`. Equal inputs give equal bits: on the CPU in any memory order
    and on any number of threads, on a GPU in the same memory order. A NaN or Inf of A or B reaches only its
    row or column of the result.

    Parameters
    ----------
    a : array of shape (m, k), or (k, m) if `trans_a`
        NumPy (CPU) or CuPy (GPU), float32 or float64; on a GPU also float16 or bfloat16, summed in float32.
    b : array of shape (k, n), or (n, k) if `trans_b`; dtype and device of `a`
    c : array of shape (m, n), dtype and device of `a`, optional
        Not read if beta == 0, so it may hold NaN then.
    alpha, beta : real numbers that the dtype holds (float32 for half precisions)
    trans_a, trans_b : multiply by the transpose of a, of b
    out : array of shape (m, n), dtype and device of `a`, in native byte order, optional
        Receives the result; any strides. It may share no memory with a or b; it may be c itself.
    kernel : "auto", "vendor", or the name of a rung (`kernels`)
        "auto" takes the fastest one known for the sizes; `explain` says which, and why.

    Returns
    -------
    array of shape (m, n), dtype and device of `a`: `out` if that was given, else new, row-major and in native
        byte order

    Raises
    ------
    TypeError
        If an argument is not an array, is masked, or has a dtype that the device does not multiply.
    ValueError
        If shapes do not fit, the kernel is unknown, or `out` overlaps a, b or part of c.
    RuntimeError
        If the GPU is too old for the kernel.

    Notes
    -----
    A product takes 2 m n k operations. On a GPU it runs on the GPU of its arrays, in CuPy's current stream
    there. It may be captured in a CUDA graph; its workspace then belongs to the graph (a pair of memory
    nodes) and ends with it.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.dense import gemm
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> gemm(a, a, trans_b=True, alpha=0.5)
    array([[ 2.5,  7. ],
           [ 7. , 25. ]], dtype=float32)
    """
    if not isinstance(kernel, str):
        raise TypeError(f"kernel is {_check.kind_of(kernel)}; the name of a kernel is needed")
    a, b = _arrays.operand("a", a), _arrays.operand("b", b)
    c = None if c is None else _arrays.operand("c", c)
    place = _find_place(a=a, b=b, c=c, out=out)
    backend = _backend(place)
    alpha, beta = _read_scalar("alpha", alpha, a.dtype), _read_scalar("beta", beta, a.dtype)
    with backend.using(a, b, c, out) as device:
        like_c = None if c is None else (c.dtype, c.shape)
        facts = kernel, bool(trans_a), bool(trans_b), a.dtype, a.shape, b.dtype, b.shape, like_c
        rung, shape = _decide(place, device, *facts)
        if c is None and beta != 0:
            raise ValueError(f"beta is {beta:g} and c is None; give c, or beta=0")
        addend = c if beta != 0 else None
        if out is None:
            out = target = _arrays.namespace(a).empty(shape, a.dtype)
        else:
            _arrays.check_result(out, shape, a.dtype, on_gpu=place == "cuda")
            target = out if place == "cuda" else np.asarray(out)
            addend = _check_memory(backend, target, a, b, addend)
        if 0 not in shape:
            left, right = (a.T if trans_a else a), (b.T if trans_b else b)
            product = DenseProduct(left, right, addend, target, alpha, beta)
            if alpha == 0 or not left.shape[1]:
                _scale(product)
            else:
                rung.run(product)
    return out


def kernels(device: Device = "cuda") -> tuple[GemmKernel, ...]:
    """Return the ladder of a device, slowest rung first, the best last.

    Parameters
    ----------
    device : "cuda" or "cpu"; neither needs a GPU to be listed

    Raises
    ------
    ValueError
        If `device` is another one.

    Examples
    --------
    >>> from dasp.dense import kernels
    >>> kernels("cpu")[0].name, kernels("cpu")[-1].name
    ('dot', 'goto')
    """
    return _backend(device).LADDER


@dataclass(frozen=True)
class Explanation:
    """The kernel that `gemm(..., kernel="auto")` runs, and why. `str()` gives one line."""

    kernel: str
    why: str
    summary: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.why}"


def explain(
    a_shape: tuple[int, int],
    b_shape: tuple[int, int],
    dtype: DTypeLike = "float32",
    *,
    device: Device = "cuda",
    trans_a: bool = False,
    trans_b: bool = False,
) -> Explanation:
    """Return which kernel `gemm` would run for these shapes, and why.

    Parameters
    ----------
    a_shape, b_shape : shapes of a and b as they would be passed to `gemm`
    dtype : anything that names a dtype
    device : "cuda" or "cpu"
    trans_a, trans_b : True if the product is with the transpose of a, of b

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As for `gemm`; RuntimeError if no GPU works.

    Examples
    --------
    >>> from dasp.dense import explain
    >>> explain((64, 64), (64, 64), device="cpu").kernel
    'vendor'
    """
    backend = _backend(device)
    if device == "cuda":
        gpus.resolve(device)
    m, n, k = _read_sizes(_check.shape(a_shape), _check.shape(b_shape), trans_a, trans_b)
    name = "bfloat16" if dtype == "bfloat16" else np.dtype(dtype).name
    _check_dtype("dtype", name, backend)
    chosen, why = backend.choose(name, m, n, k)
    return Explanation(chosen, why, _find(backend, chosen).summary)


@functools.cache
def _backend(device: str) -> Backend:
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; it must be 'cpu' or 'cuda'")
    module: Any = load(f"dasp.dense.gemm.{device}")
    return module  # type: ignore[no-any-return]


def _find_place(**arrays: Array | None) -> str:
    """Return the kind of device that all the arrays are on."""
    places = {name: "cuda" if _arrays.is_cupy(x) else "cpu" for name, x in arrays.items() if x is not None}
    for name, place in places.items():
        if place != places["a"]:
            raise TypeError(f"a is on the {places['a']} and {name} on the {place}; move one of them")
    return places["a"]


def _read_scalar(name: str, value: object, dtype: np.dtype[Any]) -> float:
    """Return a scalar as a float that the type of the sums holds."""
    number = _check.scale(name, value, dtype).real
    if dtype.itemsize < 8 and LARGEST_SINGLE < abs(number) < math.inf:
        raise ValueError(f"{name} is {number:.2g}; the sums of {dtype} hold at most {LARGEST_SINGLE:.2g}")
    return number


@functools.lru_cache(maxsize=4096)
def _decide(
    place: str,
    device: int,
    kernel: str,
    trans_a: bool,
    trans_b: bool,
    dtype: np.dtype[Any],
    a_shape: tuple[int, ...],
    b_dtype: np.dtype[Any],
    b_shape: tuple[int, ...],
    like_c: tuple[np.dtype[Any], tuple[int, ...]] | None,
) -> tuple[GemmKernel, tuple[int, int]]:
    """Check what does not depend on the arrays' memory; return the rung, and the shape of the product."""
    backend = _backend(place)
    _check_dtype("a's dtype", dtype.name if dtype.isnative else dtype.str, backend)
    m, n, k = _read_sizes(a_shape, b_shape, trans_a, trans_b)
    for name, other in (("b", b_dtype), *([("c", like_c[0])] if like_c else [])):
        if other != dtype:
            raise TypeError(f"{name} has dtype {other}, a has dtype {dtype}; all must have the same dtype")
    if like_c and like_c[1] != (m, n):
        raise ValueError(f"c has shape {like_c[1]}; the product has shape {(m, n)}")
    name = backend.choose(dtype.name, m, n, k)[0] if kernel == "auto" else kernel
    rung = _find(backend, name)
    if dtype.name not in rung.dtypes:
        raise TypeError(f"kernel {name!r} multiplies {' or '.join(rung.dtypes)}; a has dtype {dtype}")
    return rung, (m, n)


def _check_dtype(what: str, dtype: str, backend: Backend) -> None:
    if dtype not in backend.DTYPES:
        *most, last = backend.DTYPES
        allowed = f"{', '.join(most)} or {last}"
        raise TypeError(f"{what} is {dtype}; a product on {backend.PLACE} needs {allowed}; convert it first")


def _read_sizes(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], trans_a: bool, trans_b: bool
) -> tuple[int, int, int]:
    """Check that two shapes can be multiplied, and return m, n and k."""
    for name, shape in (("a", a_shape), ("b", b_shape)):
        if len(shape) != 2:
            raise ValueError(f"{name} has {len(shape)} dimensions; a matrix product needs 2")
    (m, k), (inner, n) = a_shape[:: -1 if trans_a else 1], b_shape[:: -1 if trans_b else 1]
    if inner != k:
        raise ValueError(
            f"op(a) has shape {(m, k)} and op(b) {(inner, n)}; "
            f"op(a)'s columns and op(b)'s rows must be as many"
        )
    return m, n, k


def _check_memory(backend: Backend, out: Array, a: Array, b: Array, c: Array | None) -> Array | None:
    """Check that out shares no memory with a, b or part of c; return c, or out if c is the same view."""
    for name, array in (("a", a), ("b", b)):
        if _arrays.overlap(array, out):
            raise ValueError(f"out shares memory with {name}; it must share none; pass a new array")
    if c is None or not _arrays.overlap(c, out):
        return c
    if not backend.same_view(c, out):
        raise ValueError("out shares part of its memory with c; it must be c itself or share none")
    return out


def _find(backend: Backend, name: str) -> GemmKernel:
    """Return the rung of that name, or the vendor's library, which is on no ladder."""
    for rung in (backend.VENDOR, *backend.LADDER):
        if rung.name == name:
            return rung
    names = ", ".join(repr(rung.name) for rung in backend.LADDER)
    raise ValueError(f"kernel is {name!r}; it must be 'auto', 'vendor', {names}")


def _scale(product: DenseProduct) -> None:
    """Set out = beta c, where there is nothing to multiply."""
    if product.c is None:
        product.out[...] = 0
    elif product.beta == 1:
        product.out[...] = product.c
    else:
        product.out[...] = product.c * product.c.dtype.type(product.beta)
