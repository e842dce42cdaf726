"""Checks of the arguments of solvers, made before any work; if A lies on several ranks, by all of them."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime.arrays import on_gpu, take
from dasp.runtime.dtypes import is_number, real_type, stored
from dasp.runtime.log import logger
from dasp.runtime.process import load
from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.operator import Matrix, device_of
from dasp.solvers.space import Space

if TYPE_CHECKING:
    from tqdm import tqdm

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])

MODULES = {"cpu": "dasp.solvers.cpu.space", "cuda": "dasp.solvers.cuda.space"}
"""The module that makes the space of a device."""

PROGRESS_EVERY = 32
"""Iterations between two residuals that the progress bar shows."""


SCIPY_NAMES = {"tol": "rtol", "btol": "rtol", "restrt": "restart", "iter_lim": "maxiter", "show": "progress"}
"""Arguments of SciPy's solvers, now or once, and the argument that each is here."""


def together(A: object, work: Callable[[], Any], alike: Callable[[Any], dict[str, Any]]) -> Any:
    """Do some work and return its result; if A lies on several ranks, all of them must succeed first.

    `alike` returns the properties of the result that must be equal on all ranks.
    """
    agree = getattr(A, "agree", None)
    return work() if agree is None else agree(work, alike)


def leave_together(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that ranks call together: if it fails on one, even for a wrong name, all leave it.

    Its first argument has a context `call` if it lies on several ranks; see `Communicator.call`.
    """
    first = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> T:
        together = getattr(given[0] if given else named.get(first), "call", None)
        with together if isinstance(together, AbstractContextManager) else nullcontext():
            return function(*given, **named)

    return call


def one_call(*, ranks: bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of methods: it times them, and warns if M was made from older values of A.

    A decorated method raises TypeError for an A over several ranks unless `ranks` is true, and for an
    argument of SciPy's solvers that has another name here.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @leave_together
        @wraps(method)
        def call(*given: P.args, **named: P.kwargs) -> R:
            name, A, M = method.__name__, given[0] if given else named.get("A"), named.get("M")
            for other in SCIPY_NAMES.keys() & named.keys():
                raise TypeError(f"{name} has no argument {other}; {SCIPY_NAMES[other]} is meant")
            if not ranks and hasattr(A, "solver_space"):
                raise TypeError(
                    f"A lies on several ranks and {name} works on one; cg, minres, bicgstab and gmres take it"
                )
            if hasattr(M, "warn_of_old_values"):
                M.warn_of_old_values(A)
            began = time.perf_counter()
            *found, stats = method(*given, **named)
            stats = replace(stats, seconds=time.perf_counter() - began)
            logger.info("%s in %.3g s: %s", name, stats.seconds, stats.reason)
            return cast("R", (*found, stats))

        return call

    return decorate


@dataclass
class Limits:
    """When a solve ends, and the callback and the progress bar that follow it."""

    rtol: float
    atol: float
    maxiter: int
    check_every: int
    callback: Callable[[Any], None] | None
    bar: tqdm | None


def make_limits(
    A: Matrix,
    rtol: float,
    atol: float,
    maxiter: int | None,
    check_every: int | None,
    callback: Callable[[Any], None] | None,
    progress: bool,
    usual: int = 10,
    **others: object,
) -> Limits:
    """Check the arguments that say when to stop; if A lies on several ranks, on all of them.

    If `maxiter` is None, `usual` times the larger size of A stands for it. `others` are arguments that are
    not checked here, but must be equal on all ranks too.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or value; all ranks raise the same.
    """

    def make() -> Limits:
        relative, absolute = check_number("rtol", rtol), check_number("atol", atol)
        for name, number in (("maxiter", maxiter), ("check_every", check_every)):
            if number is not None:
                _check.count(name, number)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback is {_check.kind_of(callback)}; a function of x is needed")
        most = usual * max((1, *getattr(A, "shape", ()))) if maxiter is None else int(maxiter)
        every = int(check_every or (PROGRESS_EVERY if progress and callback is None else 1))
        return Limits(relative, absolute, most, every, callback, _make_bar() if progress else None)

    def alike(limits: Limits) -> dict[str, Any]:
        seen = {"callback": "none" if callback is None else "given", "progress": bool(progress)}
        numbers = {"rtol": limits.rtol, "atol": limits.atol, "maxiter": limits.maxiter}
        return {**numbers, **seen, "check_every": limits.check_every, **others}

    limits: Limits = together(A, make, alike)
    return limits


def check_number(name: str, value: object) -> float:
    """Return a finite real number that is at least 0.

    Raises
    ------
    TypeError, ValueError
        If it is none.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; a real number is needed")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {value}; a finite number of at least 0 is needed")
    return number


def _make_bar() -> tqdm:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise RuntimeError("progress was asked for and tqdm is not installed; pip install tqdm") from error
    return tqdm(unit=" iterations", leave=True)


def find_device_and_type(
    A: Matrix, b: ArrayLike | None, M: Matrix | None = None
) -> tuple[str, np.dtype[Any]]:
    """Return the device of a system and the type of its vectors.

    The type is float32 if A and b are of single or half precision, else float64; or the complex type of the
    same precision if A, b or M is complex.

    Raises
    ------
    TypeError
        If A or b has a dtype that is not of numbers.
    """
    device = device_of(A) or device_of(b) or "cpu"
    kinds = {"A": _type_of(A), "b": _type_of(0.0 if b is None else b)}
    for name, dtype in kinds.items():
        if not is_number(dtype):
            raise TypeError(f"{name} has dtype {dtype}; a real or complex dtype is needed")
    small = all(dtype.kind in "fVc" and real_type(stored(dtype)).itemsize <= 4 for dtype in kinds.values())
    if any_complex(A, b, M):
        return device, np.dtype(np.complex64 if small else np.complex128)
    return device, np.dtype(np.float32 if small else np.float64)


def make_space(device: str, dtype: np.dtype[Any]) -> Space:
    """Return the space of a device, `cpu` or `cuda:N`, for vectors of a real or complex type."""
    made: Space = load(MODULES[device.partition(":")[0]]).make_space(device, dtype)
    return made


def find_space(A: Matrix, device: str, dtype: np.dtype[Any]) -> Space:
    """Return the space of a system's vectors; a matrix on several ranks brings its own."""
    own: Callable[[np.dtype[Any]], Space] | None = getattr(A, "solver_space", None)
    return make_space(device, dtype) if own is None else own(dtype)


def any_complex(*given: object) -> bool:
    """Return True if any of these matrices, vectors or lists of numbers is complex; None counts as real."""
    return any(_type_of(one).kind == "c" for one in given)


def _type_of(array: object) -> np.dtype[Any]:
    """Return the type of the numbers of an array or a list; float64 for an object without a dtype.

    Raises
    ------
    TypeError
        If the dtype is of another library than NumPy and CuPy.
    """
    if isinstance(array, (list, tuple)):
        return np.asarray(array).dtype
    try:
        return np.dtype(getattr(array, "dtype", None) or np.float64)
    except TypeError as error:
        kind, given = _check.kind_of(array, library=True), getattr(array, "dtype", None)
        raise TypeError(f"{kind} was given, of {given}; NumPy's or CuPy's are needed") from error


def check_square(A: Matrix, M: Matrix | None) -> None:
    """Check that A is square, and that M has its shape.

    Raises
    ------
    TypeError, ValueError
        If A or M is no matrix or operator, A is not square, or M has another shape.
    """
    shape = getattr(A, "shape", None)
    if shape is None or len(shape) != 2:
        raise TypeError(f"A is {_check.kind_of(A)}; a matrix or linear operator is needed")
    if shape[0] != shape[1]:
        raise ValueError(f"A has shape {tuple(shape)}; a square matrix is needed; lsqr and lsmr take others")
    if M is None:
        return
    if not hasattr(M, "shape"):
        remedy = "; wrap it in scipy.sparse.linalg.LinearOperator" if callable(M) else ""
        raise TypeError(
            f"M is {_check.kind_of(M)}; a matrix or linear operator is needed, such as "
            f"dasp.preconditioners.jacobi(A){remedy}"
        )
    if tuple(M.shape) != tuple(shape):
        raise ValueError(
            f"M has shape {tuple(M.shape)}; A has shape {tuple(shape)}, and M must have the same"
        )
    own, taken = (tuple(getattr(each, "local_shape", each.shape)) for each in (A, M))
    if own != taken:
        raise ValueError(
            f"M takes {taken[1]} numbers on a rank that has {own[0]} rows of A; a preconditioner over the "
            "same ranks is needed; make it with dasp.distributed.preconditioners"
        )


def check_vector(
    name: str, array: object, size: int, what: str = "rows", into: np.dtype[Any] | None = None
) -> Array:
    """Return b or x0 as a flat array, a list as a NumPy array; `into` is the type of the system's vectors.

    Raises
    ------
    TypeError, ValueError
        If it is no vector of `size` numbers, or if it is complex and `into` is real.
    """
    given: Array = array if on_gpu(array) else take(name, array)
    if given.dtype.kind == "c" and into is not None and into.kind != "c":
        raise TypeError(f"{name} has dtype {given.dtype}; A, b and M are real, so a real dtype is needed")
    if given.shape not in ((size,), (size, 1)):
        several = given.ndim == 2 and len(given) == size
        remedy = "; pass one column at a time" if several else ""
        raise ValueError(
            f"{name} has shape {given.shape}; A has {size} {what}, so ({size},) is needed{remedy}"
        )
    return given.reshape(-1)


def check_vectors(name: str, array: object, size: int) -> Array:
    """Return an array whose columns are vectors; a list as a NumPy array.

    Raises
    ------
    TypeError, ValueError
        If it is no two-dimensional array of numbers with `size` rows.
    """
    given: Array = array if on_gpu(array) else take(name, array)
    if given.ndim != 2 or given.shape[0] != size:
        what = f"has shape {given.shape}" if given.ndim else f"is {_check.kind_of(array)}"
        raise ValueError(f"{name} {what}; A has {size} rows, so ({size}, k) is needed")
    return given
