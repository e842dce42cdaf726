"""Arrays of NumPy and CuPy: the library of an array, and the checks of a caller's arrays.

Every array that a caller passes comes through here before any work starts. An array of numbers is returned as
a plain array in native byte order, and everything else is refused in one line: by a TypeError for the
wrong kind, or a ValueError for a wrong value. Compiled code reads nothing else.
Neither CuPy nor SciPy is imported: an object of theirs exists only where its library was imported already.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Literal, TypeGuard

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.types import Array, DeviceArray, Vector

_OVERLAP_WORK = 100_000
"""Steps after which NumPy gives up on whether two odd views share an element; they then count as sharing."""


# Which library


def is_array(array: object) -> TypeGuard[Array]:
    """Return True for an array of NumPy or CuPy, subclasses included.

    Examples
    --------
    >>> is_array(np.zeros(3)), is_array([0.0])
    (True, False)
    """
    return isinstance(array, np.ndarray) or is_cupy(array)


def is_cupy(array: object) -> TypeGuard[DeviceArray]:
    """Return True for a cupy.ndarray."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, getattr(cupy, "ndarray", ()))


def is_cupy_sparse(matrix: object) -> TypeGuard[Any]:
    """Return True for a sparse matrix of CuPy, in any format."""
    return type(matrix).__module__.startswith("cupyx.scipy.sparse") and hasattr(matrix, "get")


def address(array: Vector) -> int:
    """Return the address of an array.

    `array.ctypes.data` takes twice as long, and imports a module, which a finalizer at the end of a process
    cannot.
    """
    return int(array.__array_interface__["data"][0])


def on_gpu(array: object) -> TypeGuard[DeviceArray]:
    """Return True if an array of any library (CuPy, PyTorch, JAX, Numba) lies in the memory of a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def namespace(array: object) -> ModuleType:
    """Return the module, NumPy or CuPy, whose functions take this array."""
    return sys.modules["cupy"] if is_cupy(array) else np


def to_host(array: object) -> Vector:
    """Return an array as one of NumPy: a copy of CuPy's, and NumPy's own unchanged."""
    host: Vector = array.get() if is_cupy(array) else np.asarray(array)
    return host


Order = Literal["C", "F"]
"""How arrays of two dimensions lie in memory: row by row, or column by column."""


def order(array: Array) -> Order:
    """Return the nearest memory order: F if a column's elements lie closer together than a row's, else C.

    Examples
    --------
    >>> order(np.ones((3, 2))), order(np.ones((3, 2)).T)
    ('C', 'F')
    """
    return "F" if array.ndim == 2 and abs(array.strides[0]) < abs(array.strides[1]) else "C"


# What a caller passes


def operand(name: str, given: object) -> Array:
    """Return an array of NumPy or CuPy as a plain one in native byte order; array-likes are refused.

    Raises
    ------
    TypeError
        If `given` is anything else, or `take` refuses it.
    """
    if not is_array(given):
        raise TypeError(f"{name} is {_check.kind_of(given)}; a numpy.ndarray or a cupy.ndarray is needed")
    return given if is_cupy(given) else take(name, given)


def take(name: str, given: object) -> Vector:
    """Return an array-like of the host as a plain NumPy array in native byte order.

    Parameters
    ----------
    name : str
        The caller's name for it, for the message.
    given : array_like
        An array of NumPy (a subclass, as numpy.matrix, becomes a plain array), a list, a number, or
        anything that NumPy turns into an array of bool, integers, real or complex numbers.

    Returns
    -------
    numpy.ndarray
        Of the caller's shape and type, with any strides, perhaps read-only; in the caller's own memory if
        `given` is an array in native byte order.

    Raises
    ------
    TypeError
        If `given` is an array on a GPU, a sparse or a masked array, or is not made of numbers.
    ValueError
        If `given` is a list whose rows differ in length.

    Examples
    --------
    >>> take("x", np.ones(2, ">f4")).dtype.isnative
    True
    """
    if type(given) is np.ndarray and given.dtype.isnative and _dtypes.is_number(given.dtype):
        return given
    _refuse_others(name, given)
    try:
        array = np.asarray(given)
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        reason = " ".join(str(error).split())
        raise kind(
            f"{name} is {_check.kind_of(given)} of which NumPy makes no array ({reason}); numbers are needed"
        ) from error
    if not _dtypes.is_number(array.dtype):
        what = f"has dtype {array.dtype}" if isinstance(given, np.ndarray) else f"is {_check.kind_of(given)}"
        raise TypeError(f"{name} {what}; an array of numbers is needed")
    return np.asarray(array, array.dtype.newbyteorder("="))


def _refuse_others(name: str, given: object) -> None:
    """Refuse objects that NumPy would take for something else, or refuse with an error of its own."""
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array; one without a mask is needed; pass {name}.filled(0) or {name}.data"
        )
    if on_gpu(given):
        raise TypeError(f"{name} is on a GPU; an array on the host is needed; pass {name}.get()")
    if hasattr(given, "tocsr"):
        raise TypeError(
            f"{name} is a sparse {type(given).__name__}; a dense array is needed; pass {name}.toarray()"
        )


def index(name: str, given: object) -> Vector:
    """Return an array-like of indices as int32 if that holds every number of its type, else as int64.

    Returns
    -------
    numpy.ndarray, one dimension, int32 or int64
        Contiguous and aligned; not compared with the size of anything.

    Raises
    ------
    TypeError
        If the numbers are not integers: bool is a mask and not an index, and a fraction must not be cut off.
    ValueError
        If the number of dimensions is not 1, or an unsigned number does not fit into int64.

    Examples
    --------
    >>> index("row", np.array([3, 1], ">u4"))
    array([3, 1])
    """
    array = take(name, given)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; one dimension is needed")
    if not array.size and not isinstance(given, np.ndarray):
        array = array.astype(np.int32)  # an empty list is an array of float64
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} has dtype {array.dtype}; integers are needed; pass {name}.astype(numpy.int64)"
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds {array.max()}; an index is below 2^63")
    dtype = np.int32 if np.can_cast(array.dtype, np.int32) else np.int64
    return np.require(array, dtype, ["C", "A"])


def values(name: str, given: object, dimensions: int = 1) -> Vector:
    """Return an array-like of a matrix's values in the type in which they are stored.

    Parameters
    ----------
    name : str
    given : array_like, any dtype of numbers
    dimensions : int
        The number of dimensions that `given` must have.

    Returns
    -------
    numpy.ndarray, a type of `dasp.runtime.dtypes.TABLE`
        See `dasp.runtime.dtypes.stored`. Contiguous and aligned.
    """
    array = take(name, given)
    if array.ndim != dimensions:
        wanted = "one dimension is" if dimensions == 1 else f"{dimensions} dimensions are"
        raise ValueError(f"{name} has shape {array.shape}; {wanted} needed")
    return np.require(array, _dtypes.stored(array.dtype), ["C", "A"])


def check_result(out: object, shape: tuple[int, ...], dtype: np.dtype[Any], *, on_gpu: bool = False) -> None:
    """Raise an error unless a result can be written into a caller's array, each element once.

    The array must be of NumPy, or of CuPy if the result is `on_gpu`.

    Raises
    ------
    TypeError
        If it is another kind of array, is masked, or has another type or byte order.
    ValueError
        If it has another shape, is read-only, or has memory that stands for several elements at once.
    """
    if not is_array(out) or is_cupy(out) != on_gpu or isinstance(out, (np.ma.MaskedArray, np.matrix)):
        library = "cupy" if on_gpu else "numpy"
        raise TypeError(f"out is {_check.kind_of(out)}; a {library}.ndarray is needed")
    _check.out(out, shape, dtype)
    if not on_gpu and not out.flags.writeable:
        raise ValueError("out is read-only; a writable array is needed")
    if not out.flags.forc and overlaps_itself(out):
        raise ValueError(f"out has strides {out.strides}; each of its elements must have memory of its own")


def overlaps_itself(array: Array) -> bool:
    """Return True if two elements of an array may lie in the same memory, as after `numpy.broadcast_to`.

    Notes
    -----
    The strides decide: the answer is False for every view that slicing, reshaping and transposing make of an
    array without such elements.
    """
    if not array.size:
        return False
    end = array.dtype.itemsize
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1:
            if stride < end:
                return True
            end += stride * (length - 1)
    return False


def may_be_writable(array: Array) -> bool:
    """Return True if an array, perhaps read-only, lies in memory that can be written.

    The memory of an array in a pickle, or in a file that is mapped for reading, cannot.
    """
    if not isinstance(array, np.ndarray):
        return True
    before = array.flags.writeable
    try:
        array.flags.writeable = True
    except ValueError:
        return False
    array.flags.writeable = before
    return True


class _Memory:
    """The memory of a NumPy array, in NumPy's array interface, as if it could be written."""

    def __init__(self, array: Vector) -> None:
        self.array = array  # keeps the memory
        self.__array_interface__ = array.__array_interface__ | {"data": (address(array), False)}


def as_input(array: Vector) -> Vector:
    """Return a NumPy array for compiled code that only reads it: read-only ones get a view that is not.

    Numba's type of an array says whether it can be written, so it would compile every function once more for
    the arrays of joblib and of mapped files. Nothing may write into the view: its memory may be read-only.
    """
    if array.flags.writeable:
        return array
    return np.asarray(_Memory(array)).view(array.dtype)  # bfloat16 is bytes to the interface


def overlap(one: Array, other: Array) -> bool:
    """Return True if two arrays of one library share an element, or if that takes too long to decide.

    Of CuPy's arrays the bounds decide, which asks the GPU nothing: a capture may go on.
    """
    library = namespace(one)
    if not library.may_share_memory(one, other):
        return False
    if library is not np:
        return True
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # NumPy's types know 0 and -1
    except np.exceptions.TooHardError:
        return True
