"""Which array library is this, and what a caller's array is once it is taken in.

Every array that a caller passes comes through here before any work starts: what can be taken is returned as a
plain array in native byte order, and what cannot is refused in one line: a TypeError for the wrong kind, a
ValueError for a wrong value. Compiled code reads nothing else.
Neither CuPy nor SciPy is imported: an object of theirs exists only where its library was imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.integers import narrowest

Vector = np.ndarray[Any, Any]
Library = Literal["numpy", "cupy"]

_OVERLAP_WORK = 100_000
"""Steps after which NumPy stops to decide whether two odd views share an element; they count as sharing."""


class Compressed(NamedTuple):
    """A matrix by rows: `indptr` of m + 1 numbers, then a column and a value for each entry."""

    indptr: Vector
    indices: Vector
    data: Vector


class Coordinates(NamedTuple):
    """A matrix by its entries, in any order: a row, a column and a value for each."""

    rows: Vector
    columns: Vector
    data: Vector


# Which library


def library(array: Any) -> Library | None:
    """Return whose array this is, subclasses included; None if it is neither NumPy's nor CuPy's.

    Examples
    --------
    >>> library(np.zeros(3)), library([0.0])
    ('numpy', None)
    """
    if isinstance(array, np.ndarray):
        return "numpy"
    return "cupy" if is_cupy(array) else None


def is_cupy(array: Any) -> bool:
    """Whether this is a cupy.ndarray."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, getattr(cupy, "ndarray", ()))


def address(array: Vector) -> int:
    """Return where an array of numbers begins.

    `array.ctypes.data` takes twice as long, and imports, which a finalizer at the end of a process cannot.
    """
    return int(array.__array_interface__["data"][0])


def on_gpu(array: Any) -> bool:
    """Whether an array of any library (CuPy, PyTorch, JAX, Numba) lies in the memory of a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def namespace(array: Any) -> Any:
    """Return the module, NumPy or CuPy, whose functions take this array."""
    return sys.modules["cupy"] if is_cupy(array) else np


def to_host(array: Any) -> Vector:
    """Return a NumPy array: a copy of one of CuPy, and NumPy's own as it is."""
    host: Vector = array.get() if is_cupy(array) else np.asarray(array)
    return host


def copied(array: Any, dtype: Any = None) -> Any:
    """Return a copy of a contiguous array, perhaps read as a type that is as wide, where it lies.

    A copy by CuPy takes the host four times as long.
    """
    if not is_cupy(array):
        return array.copy() if dtype is None else array.view(dtype).copy()
    cupy = sys.modules["cupy"]
    new, runtime = cupy.ndarray(array.shape, dtype or array.dtype), cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream().ptr
    runtime.memcpyAsync(new.data.ptr, array.data.ptr, new.nbytes, runtime.memcpyDeviceToDevice, stream)
    return new


Order = Literal["C", "F"]
"""How arrays of two dimensions lie in memory: row by row, or column by column."""


def order(array: Any) -> Order:
    """Return the order in memory that is nearest to an array's: C where a row lies in one run, else F.

    Examples
    --------
    >>> order(np.ones((3, 2))), order(np.ones((3, 2)).T)
    ('C', 'F')
    """
    return "F" if array.ndim == 2 and abs(array.strides[0]) < abs(array.strides[1]) else "C"


# What a caller passes


def operand(name: str, given: Any) -> Any:
    """Return an array of NumPy or CuPy as a plain one in native byte order; array-likes are refused.

    Raises
    ------
    TypeError
        For anything else, and for what `take` refuses.
    """
    if library(given) is None:
        raise TypeError(f"{name} is {_check.kind_of(given)}; a numpy.ndarray or a cupy.ndarray is needed")
    return given if is_cupy(given) else take(name, given)


def take(name: str, given: Any) -> Vector:
    """Return an array-like of the host as a plain NumPy array in native byte order.

    Parameters
    ----------
    name : str
        What the caller calls it, for the message.
    given : array_like
        An array of NumPy (a subclass, as numpy.matrix, becomes a plain array), a list, a number, or
        anything that NumPy turns into an array of bool, integers, real or complex numbers.

    Returns
    -------
    numpy.ndarray
        Of the caller's shape and type, any strides, perhaps read-only; the caller's own memory where its byte
        order is native.

    Raises
    ------
    TypeError
        For an array on a GPU, a sparse or a masked array, and anything that is not made of numbers.
    ValueError
        For a list whose rows differ in length.

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


def _refuse_others(name: str, given: Any) -> None:
    """Refuse what NumPy would turn into another thing, or into an error of its own."""
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


def vector(name: str, given: Any) -> Vector:
    """Return an array-like of one dimension, as `take` does."""
    array = take(name, given)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; one dimension is needed")
    return array


def index(name: str, given: Any) -> Vector:
    """Return an array-like of indices as int32 or int64, whichever holds every number of its type.

    Returns
    -------
    numpy.ndarray, one dimension, int32 or int64
        Contiguous and aligned; not yet compared with the size of anything.

    Raises
    ------
    TypeError
        For another type than integers: bool is a mask and not an index, and a fraction must not be cut off.
    ValueError
        For another number of dimensions, and unsigned numbers that int64 does not hold.

    Examples
    --------
    >>> index("row", np.array([3, 1], ">u4"))
    array([3, 1])
    """
    array = vector(name, given)
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


def values(name: str, given: Any, dimensions: int = 1) -> Vector:
    """Return an array-like of a matrix's values in the type in which they are stored.

    Parameters
    ----------
    name : str
    given : array_like, any dtype of numbers
    dimensions : int
        How many it must have.

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


def check_result(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Hold that a result can be written into a caller's NumPy array: every element, and each one once.

    Raises
    ------
    TypeError
        For another kind of array, a mask, or another type or byte order.
    ValueError
        For another shape, and memory that is read-only or stands for several elements at once.
    """
    if not isinstance(array, np.ndarray) or isinstance(array, (np.ma.MaskedArray, np.matrix)):
        raise TypeError(f"{name} is {_check.kind_of(array)}; a numpy.ndarray is needed")
    _check.out(array, shape, dtype, name)
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only; a writable array is needed")
    if not array.flags.forc and overlaps_itself(array):
        raise ValueError(
            f"{name} has strides {array.strides}; each of its elements must have memory of its own"
        )


def overlaps_itself(array: Any) -> bool:
    """Whether two elements of an array may lie in the same memory, as after `numpy.broadcast_to`.

    Notes
    -----
    Tells by the strides: False for every view that slicing, reshaping and transposing make of an array
    without such elements.
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


def may_be_writable(array: Vector) -> bool:
    """Whether a NumPy array that is perhaps read-only lies in memory that can be written.

    That of an array in a pickle, or in a file that is mapped for reading, cannot.
    """
    before = array.flags.writeable
    try:
        array.flags.writeable = True
    except ValueError:
        return False
    array.flags.writeable = before
    return True


def overlap(one: Vector, other: Vector) -> bool:
    """Whether two NumPy arrays share an element, or are too oddly laid out to tell soon."""
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


# Matrices


def coordinates(shape: tuple[int, int], data: Any, rows: Any, columns: Any) -> Coordinates:
    """Return a matrix that is given by its entries, valid for its shape.

    Parameters
    ----------
    shape : tuple of int
    data : array_like, shape (nnz,), any dtype of numbers
    rows, columns : array_like, shape (nnz,), any integer dtype

    Returns
    -------
    Coordinates
        Rows and columns of one type, int32 or int64; data as `values` has them; all contiguous.
    """
    taken = values("data", data), index("row", rows), index("col", columns)
    dtype = np.result_type(taken[1], taken[2])
    row, column = (positions.astype(dtype, copy=False) for positions in taken[1:])
    _check.entries(shape, row, column, taken[0])
    return Coordinates(row, column, taken[0])


def dense_matrix(name: str, given: Any) -> Vector:
    """Return an array-like of two dimensions as `take` does."""
    array = take(name, given)
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; a matrix with 2 dimensions is needed")
    _dtypes.stored(array.dtype)
    return array


def entries_of(dense: Any) -> Compressed:
    """Return the numbers of a dense matrix that are not zero, row by row, each with all of its bits.

    A GPU's arithmetic takes subnormal numbers for zero, and CuPy's own conversion gives a row in any order.

    Parameters
    ----------
    dense : array, shape (m, n), of NumPy or CuPy, a type of `dasp.runtime.dtypes.TABLE`
    """
    xp, (m, n), kind = namespace(dense), dense.shape, dense.dtype
    part, bits = _dtypes.real_type(kind).itemsize, _dtypes.bits_type(kind)
    plain = xp.ascontiguousarray(dense)
    words = plain.view(f"u{part}").reshape(m, n, kind.itemsize // part)
    kept = ((words << 1) != 0).any(axis=2)  # but for its sign
    indptr = xp.zeros(m + 1, np.int64)
    indptr[1:] = kept.sum(axis=1).cumsum()
    places = xp.flatnonzero(kept)
    columns = (places % max(n, 1)).astype(narrowest(n))
    return Compressed(indptr, columns, plain.view(bits).reshape(-1)[places].view(kind))


def sparse_matrix(matrix: Any, checks: bool = True) -> Compressed | Coordinates:
    """Return the arrays of a SciPy sparse matrix of any format, checked before SciPy converts it.

    SciPy's conversions read and write where the arrays of a matrix tell them to, and a caller may have
    changed those arrays since SciPy looked at them.

    Parameters
    ----------
    matrix : scipy.sparse array or matrix, shape (m, n), any format and dtype of numbers
    checks : bool
        Whether indptr and indices of a CSR matrix are compared with its shape; if not, they may be anything.

    Returns
    -------
    Compressed
        For CSR (the entries in their order), CSC, BSR, DIA and LIL: valid for the matrix's shape.
    Coordinates
        For COO and DOK.

    Raises
    ------
    TypeError
        For values that are no numbers, indices that are no integers, masked arrays.
    ValueError
        For arrays that do not fit each other or the shape, naming the first.
    """
    if matrix.ndim != 2:
        raise ValueError(f"A has shape {matrix.shape}; a matrix with 2 dimensions is needed")
    reader = _READERS.get(matrix.format)
    if reader is None:
        raise TypeError(f"A has the format {matrix.format!r}; one of {', '.join(_READERS)} is needed")
    return _csr(matrix, checks) if reader is _csr else reader(matrix)


def _csr(matrix: Any, checks: bool = True) -> Compressed:
    return _compressed("CSR", matrix, matrix.shape, values("A.data", matrix.data), checks)


def _compressed(
    kind: str, matrix: Any, shape: tuple[int, int], data: Vector, checks: bool = True
) -> Compressed:
    """Take in indptr and indices; what lies behind the last entry is room that SciPy keeps."""
    indptr, indices = index("A.indptr", matrix.indptr), index("A.indices", matrix.indices)
    end = int(indptr[-1]) if len(indptr) else 0
    if 0 <= end <= min(len(indices), len(data)):
        indices, data = indices[:end], data[:end]
    if checks:
        _check.compressed(kind, shape, indptr, indices, data)
    return Compressed(indptr, indices, data)


def _convert(matrix: Any, arrays: tuple[Vector, ...]) -> Compressed:
    """Let SciPy convert a matrix of the same class, made anew of arrays that were checked.

    It moves halves, which it has not, as their bits.
    """
    data, *others = arrays
    bits = np.dtype(np.uint16) if data.dtype.itemsize == 2 else data.dtype
    csr = type(matrix)((data.view(bits), *others), shape=matrix.shape).tocsr()
    return Compressed(csr.indptr, csr.indices, csr.data.view(data.dtype))


def _csc(matrix: Any) -> Compressed:
    indptr, indices, data = _compressed("CSC", matrix, matrix.shape[::-1], values("A.data", matrix.data))
    return _convert(matrix, (data, indices, indptr))


def _bsr(matrix: Any) -> Compressed:
    data = values("A.data", matrix.data, 3)
    (m, n), (height, width) = matrix.shape, data.shape[1:]
    if not height or not width or m % height or n % width:
        raise ValueError(f"A has blocks of shape {(height, width)} and shape {(m, n)}; a multiple is needed")
    indptr, indices, data = _compressed("BSR", matrix, (m // height, n // width), data)
    return _convert(matrix, (data, indices, indptr))


def _dia(matrix: Any) -> Compressed:
    data, offsets = values("A.data", matrix.data, 2), index("A.offsets", matrix.offsets)
    different = len(np.unique(offsets))
    if not len(data) == len(offsets) == different:
        raise ValueError(
            f"A has {len(data)} diagonals and {len(offsets)} offsets, {different} of them different; "
            "these must be equal"
        )
    m, n = matrix.shape
    inside = (offsets > -m) & (offsets < n)
    return _convert(matrix, (data[inside], offsets[inside]))


def _coo(matrix: Any) -> Coordinates:
    return coordinates(matrix.shape, matrix.data, *matrix.coords)


def _dok(matrix: Any) -> Coordinates:
    try:
        keys = np.array(list(matrix.keys())).reshape(-1, 2)
        data = np.fromiter(matrix.values(), matrix.dtype, len(keys))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A holds what is no entry ({error}); keys (row, column) and values that are numbers are needed"
        ) from error
    if not len(keys):
        keys = keys.astype(np.int32)
    return coordinates(matrix.shape, data, keys[:, 0], keys[:, 1])


def _lil(matrix: Any) -> Compressed:
    m, n = matrix.shape
    try:
        lengths, others = ([len(row) for row in lists] for lists in (matrix.rows, matrix.data))
        indices = index("A.rows", list(chain.from_iterable(matrix.rows)))
        data = np.fromiter(chain.from_iterable(matrix.data), matrix.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A holds what is no row ({error}); lists of columns and of as many numbers are needed"
        ) from error
    if lengths != others or len(lengths) != m:
        raise ValueError(f"A has {m} rows; its lists of columns and of values are not as many or not as long")
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    data = values("A.data", data)
    _check.compressed("LIL", (m, n), indptr, indices, data)
    return Compressed(indptr, indices, data)


_READERS: dict[str, Callable[[Any], Compressed | Coordinates]] = {
    "csr": _csr,
    "csc": _csc,
    "bsr": _bsr,
    "dia": _dia,
    "coo": _coo,
    "dok": _dok,
    "lil": _lil,
}
