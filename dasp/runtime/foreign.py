"""Arrays of other libraries (PyTorch, JAX, all that speak DLPack), converted both ways without a copy.

No library is imported here: its arrays exist only if it was imported already. Arrays on a GPU are read and
written on their library's current stream: PyTorch's for its tensors, else CuPy's.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeGuard

import numpy as np

from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.cuda.gpus import find_number
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.types import AnyArray, Array, ForeignArray, Number

_CPU = 1, 3
"""Kinds of devices in DLPack (`DLDeviceType`) whose memory NumPy reads: the host's, and pinned memory."""

_CUDA = 2, 13
"""Kinds of devices whose memory CuPy reads: a GPU's, and managed memory."""

matrices: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The matrices with a key that are still alive, by their keys."""

_keys = itertools.count()


def new_key(matrix: object) -> str:
    """Return a key by which `matrices` finds a matrix as long as the matrix lives.

    The key is a str, because every version of PyTorch keeps that as a constant in a compiled graph.
    """
    key = str(next(_keys))
    matrices[key] = matrix
    return key


def is_foreign(array: object) -> TypeGuard[ForeignArray]:
    """Return True for an array of a library that is neither NumPy nor CuPy."""
    kind = type(array)
    return (
        kind is not np.ndarray
        and (hasattr(kind, "__dlpack__") or hasattr(array, "__cuda_array_interface__"))
        and not isinstance(array, np.ndarray)
        and kind.__module__.partition(".")[0] not in ("numpy", "cupy", "cupyx")
    )


def call(
    product: Callable[..., Array], A: Any, x: AnyArray, out: AnyArray | None, **scales: Number
) -> AnyArray:
    """Return product(x, out=out, ...) for arrays of other libraries: `out`, or an array of the kind of `x`.

    Parameters
    ----------
    product : callable
        A's, for arrays of NumPy or CuPy.
    A : SpMatrix, or another object with its shape, dtype and device
    x, out : array, at least one of another library
    **scales : float
        alpha and beta.

    Raises
    ------
    TypeError
        If an array is not on A's device or is sparse, or `out` cannot be written.
    """
    with stream_of(x if is_foreign(x) else out, A.device):
        vector, result = take("x", x, A.device), out
        if out is None and _root(x) == "torch" and not scales.get("beta"):
            kind = _dtypes.find_arithmetic(A.dtype, vector.dtype).y
            result = x.new_empty((A.shape[0], *x.shape[1:]), dtype=_tensor_type(kind))
        if result is None:
            return give_back(product(vector, **scales), x)
        product(vector, out=_take_out(result, A.device), **scales)
        if out is not None and _root(out) == "torch" and not out.is_inference():
            # Autograd may have kept `out`, and must know that its numbers have changed.
            sys.modules["torch"].autograd.graph.increment_version(out)
        return result


def take(name: str, array: AnyArray, device: str) -> AnyArray:
    """Return an array of another library as one of NumPy or CuPy that shares its memory; others unchanged.

    Raises
    ------
    TypeError
        If it is not on the device, or is sparse.
    """
    if not is_foreign(array):
        return array
    array = _plain(name, array)
    where = _device_of(array)
    if where != device:
        raise TypeError(
            f"{name} is {_check.kind_of(array, library=True)} on {where} and A is on {device}; "
            "both must be on one device"
        )
    if _root(array) == "torch":
        return _view(array, device)
    if device == "cpu":
        return np.from_dlpack(array)
    import cupy

    with cupy.cuda.Device(find_number(device)):
        return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)


def take_anywhere(array: ForeignArray) -> AnyArray:
    """Return an array of another library, wherever it is, as one of NumPy or CuPy that shares its memory."""
    return take("x", array, _device_of(_plain("x", array)))


def as_matrix(given: ForeignArray) -> Any:
    """Return a matrix of another library as an array of NumPy or CuPy, a sparse tensor as a CSR matrix.

    Raises
    ------
    TypeError
        If PyTorch cannot make CSR of a sparse tensor: it is stored in blocks, or has more dimensions.
    """
    if _root(given) != "torch" or given.layout is sys.modules["torch"].strided:
        return take_anywhere(given)
    try:
        csr = given.detach().to_sparse_csr()
    except RuntimeError as error:
        raise TypeError(
            f"A is {_check.kind_of(given, library=True)} of layout {given.layout} and shape "
            f"{tuple(given.shape)}, of which PyTorch makes no CSR matrix; a dense one, or COO, CSR or CSC of "
            "numbers, is needed"
        ) from error
    parts = tuple(take_anywhere(part) for part in (csr.values(), csr.col_indices(), csr.crow_indices()))
    if isinstance(parts[0], np.ndarray):
        from scipy.sparse import csr_array

        return csr_array(parts, shape=tuple(csr.shape))
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(parts, shape=tuple(csr.shape))


def to_host(array: ForeignArray) -> Array:
    """Return an array of another library as one of NumPy, copied if it is on a GPU."""
    return _arrays.to_host(take_anywhere(array))


def give_back(y: Array, like: AnyArray) -> AnyArray:
    """Return an array of NumPy or CuPy as one of the library of `like`; unchanged if that takes no others."""
    if not is_foreign(like):
        return y
    library = like.__array_namespace__() if hasattr(like, "__array_namespace__") else None
    library = library or sys.modules[_root(like)]
    return library.from_dlpack(y) if hasattr(library, "from_dlpack") else y


def wants_gradients(x: AnyArray) -> bool:
    """Return True if products with x must be operators of PyTorch: x has gradients, or is traced."""
    return _root(x) == "torch" and (is_traced() or _has_gradients(x))


def _has_gradients(x: ForeignArray) -> bool:
    return bool(x.requires_grad and sys.modules["torch"].is_grad_enabled()) or is_transformed(x)


def by_operators(
    product: Callable[[ForeignArray], ForeignArray],
    x: ForeignArray,
    out: ForeignArray | None,
    alpha: Number,
    beta: Number,
) -> ForeignArray:
    """Return alpha product(x) + beta out by operators of PyTorch.

    Raises
    ------
    TypeError
        If x has gradients and `out`, `alpha` or `beta` is given: gradients do not go through `out`.
    ValueError
        If the result does not fit into `out`.
    """
    if out is None and alpha == 1 and beta == 0:
        return product(x)
    if not is_traced() and _has_gradients(x):
        raise TypeError(
            "x requires gradients and out, alpha or beta is given; A @ x alone has them; pass x.detach()"
        )
    y = alpha * product(x)
    if out is None:
        return y
    if out.shape != y.shape or out.dtype != y.dtype:  # a copy would repeat and round what does not fit
        raise ValueError(
            f"out has shape {tuple(out.shape)} and dtype {out.dtype}; the product has shape {tuple(y.shape)} "
            f"and dtype {y.dtype}"
        )
    return out.copy_(y if beta == 0 else y + beta * out)


def is_traced() -> bool:
    """Return True if `torch.compile` is tracing the running code."""
    return bool(sys.modules["torch"].compiler.is_compiling())


def is_transformed(x: ForeignArray) -> bool:
    """Return True if a tensor of PyTorch has a tangent, or is wrapped by a transform of `torch.func`."""
    torch = sys.modules["torch"]
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return True
    forward = torch.autograd.forward_ad
    return forward._current_level >= 0 and forward.unpack_dual(x).tangent is not None


def _take_out(out: AnyArray, device: str) -> AnyArray:
    """Return `out` as an array that a result is written to; raise TypeError if it cannot be written."""
    if is_foreign(out) and _root(out) in ("jax", "jaxlib"):
        raise TypeError(
            f"out is {_check.kind_of(out, library=True)}, which cannot be written to; leave it out"
        )
    if is_foreign(out) and _root(out) == "torch":
        if out.is_conj() or out.is_neg():
            raise TypeError("out is a conjugated or negated view; a tensor with numbers of its own is needed")
        if out.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise TypeError("out requires gradients, which no product into it has; pass out.detach()")
    return take("out", out, device)


def _plain(name: str, array: ForeignArray) -> ForeignArray:
    """Return a PyTorch tensor without its history, conjugated or negated in memory; others unchanged."""
    if _root(array) != "torch":
        return array
    if array.is_nested:
        raise TypeError(f"{name} is a nested {_name(array)}; a dense one is needed")
    if array.layout is not sys.modules["torch"].strided:
        raise TypeError(f"{name} is a sparse {_name(array)}; a dense one is needed; pass {name}.to_dense()")
    if array.is_conj() or array.is_neg():
        array = array.resolve_conj().resolve_neg()
    return array.detach()


def _device_of(array: ForeignArray) -> str:
    """Return an array's device: `cpu`, `cuda:N`, or the name of another device."""
    if not hasattr(array, "__dlpack_device__"):
        import cupy

        return f"cuda:{int(cupy.asarray(array).device.id)}"
    try:
        kind, nth = array.__dlpack_device__()
    except (ValueError, RuntimeError, TypeError):  # PyTorch's answer for a device that DLPack does not know
        return str(getattr(array, "device", "an unknown device"))
    if int(kind) in _CPU:
        return "cpu"
    return f"cuda:{nth}" if int(kind) in _CUDA else f"device {nth} of DLPack's kind {int(kind)}"


@cache
def _number_type(kind: object) -> np.dtype[Any]:
    """Return NumPy's type for a type of PyTorch."""
    name = str(kind).rpartition(".")[2]
    if name in _dtypes.TABLE:
        return _dtypes.TABLE[name].dtype
    if name not in ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))):
        raise TypeError(
            f"a tensor has dtype {kind}; integers, bool or one of {', '.join(_dtypes.TABLE)} is needed"
        )
    return np.dtype(name)


@cache
def _tensor_type(kind: np.dtype[Any]) -> Any:
    """Return PyTorch's type for a type of NumPy."""
    return getattr(sys.modules["torch"], kind.name)


def _view(tensor: ForeignArray, device: str) -> AnyArray:
    """Return an array of NumPy or CuPy on a tensor's memory, without DLPack: every product calls this."""
    kind = _number_type(tensor.dtype)
    if device == "cpu":
        if kind == _dtypes.BFLOAT16:
            return tensor.view(sys.modules["torch"].int16).numpy().view(kind)
        return tensor.numpy()
    import cupy

    size = tensor.numel() * kind.itemsize
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), size, tensor, tensor.device.index)
    strides = tuple(kind.itemsize * stride for stride in tensor.stride())
    return cupy.ndarray(tuple(tensor.shape), kind, cupy.cuda.MemoryPointer(memory, 0), strides)


def stream_of(array: AnyArray, device: str) -> AbstractContextManager[object]:
    """Return a context in which CuPy works on the current stream of an array's library."""
    if device == "cpu" or _root(array) != "torch":
        return nullcontext()
    import cupy

    gpu = find_number(device)
    stream = sys.modules["torch"].cuda.current_stream(gpu)
    if stream.cuda_stream == cupy.cuda.get_current_stream(gpu).ptr:
        return nullcontext()
    return _on_torch_stream(stream, gpu)


@contextmanager
def _on_torch_stream(stream: Any, gpu: int) -> Iterator[None]:
    import cupy

    # CuPy takes the stream for one of the current GPU.
    with cupy.cuda.Device(gpu), on_stream(cupy.cuda.Stream.from_external(_TorchStream(stream))):
        yield


class _TorchStream:
    """A stream of PyTorch as CuPy takes it, by the CUDA stream protocol, which PyTorch 2.4 lacks."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream  # CuPy keeps this object, and so PyTorch's stream, alive

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, and the handle."""
        return 0, self.stream.cuda_stream


def _root(array: object) -> str:
    return type(array).__module__.partition(".")[0]


def _name(array: object) -> str:
    return f"{_root(array)}.{type(array).__name__}"
