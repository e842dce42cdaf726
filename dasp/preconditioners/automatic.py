"""`dasp.solve`: a method and a preconditioner that fit the matrix.

It stands in this room because it is the lowest one that knows matrices, solvers and preconditioners.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from dasp import solvers
from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import inverse_diagonal
from dasp.preconditioners.jacobi import divide_by
from dasp.runtime import check as _check
from dasp.runtime.arrays import is_cupy
from dasp.runtime.dtypes import real_type
from dasp.runtime.types import Array, ArrayLike, Vector
from dasp.solvers.arguments import leave_together, place_and_type
from dasp.solvers.choose import METHODS, WITHOUT_M, choose_method, find_diagonal
from dasp.solvers.driver import BREAKDOWN
from dasp.solvers.operator import Matrix
from dasp.solvers.stats import Stats

RTOL = {4: 1e-4, 8: 1e-8}
"""Norm of the residual over that of b that is asked for by default, by the bytes of a number's real part."""

SECOND = {"cg": "minres", "bicgstab": "gmres"}
"""The method that goes on where the one that was chosen breaks down."""

LEAST_SPREAD = 1.01
"""Least ratio of the largest to the smallest diagonal entry for Jacobi to change anything."""


@leave_together
def solve(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None = None,
    *,
    method: str | None = None,
    M: Matrix | str | None = "auto",
    rtol: float | None = None,
    device: str = "auto",
    **options: Any,
) -> tuple[Array, Stats]:
    """Solve A x = b by a method and with a preconditioner that fit A.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (m, n)
        A matrix of SciPy or CuPy, and a dense array, is planned first, on `device`.
    b : array, shape (m,) or (m, 1)
        NumPy, or CuPy for a matrix on a GPU.
    x0 : array, shape (n,), optional
        Where to start; zeros by default.
    method : {"cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr"}, optional
        By default cg if A is symmetric (Hermitian) with a positive diagonal, minres if it is symmetric,
        bicgstab if it is square, lsmr if it is not.
    M : "auto", None, matrix or linear operator, shape (n, n)
        Approximates the inverse of A. "auto" is Jacobi's where the diagonal has no zero and is not constant,
        and else none.
    rtol : float, optional
        Done when norm(b - A x) <= rtol * norm(b); by default 1e-8, in single precision 1e-4. For lsqr and
        lsmr as they say.
    device : str
        Where a matrix is planned that is not an SpMatrix: as in `SpMatrix`.
    **options
        Of the method: `maxiter`, `callback`, `progress` and so on.

    Returns
    -------
    x : array, of the kind and place of b
    stats : Stats
        As of every solver; `stats.choice` says what was chosen, and why.

    Raises
    ------
    TypeError, ValueError
        As of `SpMatrix` and of the method; if A lies on several ranks and no method is named.

    Notes
    -----
    The choice takes two products and the diagonal; pass `method` and `M` to do without. A that looks definite
    and is not is noticed by cg: minres goes on from its x then, as gmres does where bicgstab breaks down.
    For many systems with one A make M once and call the method itself.

    Examples
    --------
    >>> import dasp, numpy as np
    >>> A = dasp.models.generate("poisson2d:10")
    >>> x, stats = dasp.solve(A, np.ones(100), device="cpu")
    >>> stats.converged, stats.choice
    (True, 'cg: A is symmetric with a positive diagonal; its diagonal is constant')
    """
    if method is not None and method not in METHODS:
        raise ValueError(f"method is {method!r}; one of {', '.join(METHODS)} is needed")
    if isinstance(M, str) and M != "auto":
        raise ValueError(f"M is {M!r}; 'auto', None or a preconditioner is needed, such as one of jacobi(A)")
    if method is None and hasattr(A, "local_shape"):
        raise TypeError(f"A is {_check.kind_of(A)}, on several ranks; pass the method that fits")
    if not isinstance(A, SpMatrix) and (hasattr(A, "tocsr") or isinstance(A, np.ndarray) or is_cupy(A)):
        A = SpMatrix(A, device)
    diagonal = cache(lambda: find_diagonal(A))  # read once, if at all
    if method is None:
        chosen, why = choose_method(A, diagonal)
    else:
        chosen, why = method, "as asked for"
    if isinstance(M, str):
        divisor, reason = find_divisor(A, chosen, diagonal)
        M, why = None if divisor is None else divide_by(divisor, A), f"{why}; {reason}"
    if rtol is None:
        rtol = RTOL[real_type(place_and_type(A, b)[1]).itemsize]
    x, stats = run(chosen, A, b, M, x0=x0, rtol=rtol, **options)
    title = chosen if M is None else f"{chosen} with {type(M).__name__}"
    if method is None and chosen in SECOND and stats.info == BREAKDOWN and math.isfinite(stats.residual):
        x, more = run(SECOND[chosen], A, b, M, x0=x, rtol=rtol, **options)
        title, why = f"{title}, then {SECOND[chosen]}", f"{why}; {chosen} stopped: {stats.reason}"
        stats = more.after(stats)
    return x, replace(stats, choice=f"{title}: {why}")


def run(method: str, A: Matrix, b: ArrayLike, M: Matrix | None, **options: Any) -> tuple[Array, Stats]:
    """Solve by a method of `METHODS`, with M if that takes one."""
    if method not in WITHOUT_M:
        options["M"] = M
    found: tuple[Array, Stats] = getattr(solvers, method)(A, b, **options)
    return found


def find_divisor(A: Matrix, method: str, diagonal: Callable[[], Vector | None]) -> tuple[Vector | None, str]:
    """Return the diagonal of A if Jacobi's preconditioner may make a method faster, else None; and why."""
    if method in WITHOUT_M:
        return None, f"{method} takes no preconditioner"
    if hasattr(A, "local_shape"):
        return None, "none is chosen for several ranks"
    numbers = diagonal()
    if numbers is None:
        return None, "A has no diagonal that can be read"
    if method not in ("bicgstab", "gmres") and not (numbers.real > 0).all():
        return None, f"Jacobi's is not definite, as {method} needs it"
    sizes = abs(numbers)
    if not len(sizes) or sizes.max() <= LEAST_SPREAD * sizes.min():
        return None, "its diagonal is constant"
    try:
        inverse_diagonal(numbers)
    except ValueError:
        return None, "its diagonal cannot be divided by"
    return numbers, "its diagonal varies"
