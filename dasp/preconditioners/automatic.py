"""`dasp.solve`: choose a method and a preconditioner by A's shape, two products and its diagonal.

The module lies in this package, the lowest one that may import matrices, solvers and preconditioners.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from dasp import solvers
from dasp.formats import backends
from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import inverse_diagonal
from dasp.preconditioners.jacobi import divide_by
from dasp.runtime import check as _check
from dasp.runtime.arrays import is_cupy, to_host
from dasp.runtime.dtypes import real_type
from dasp.runtime.types import Array, ArrayLike, Vector
from dasp.solvers.arguments import find_device_and_type, leave_together
from dasp.solvers.driver import BREAKDOWN
from dasp.solvers.operator import Matrix, as_operator
from dasp.solvers.stats import Stats

METHODS = ("cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr")
"""The methods that solve A x = b for one right-hand side; `block_cg` takes several, and `lobpcg` none."""

WITHOUT_M = ("lsqr", "lsmr")
"""The methods that take no preconditioner."""

RTOL = {4: 1e-4, 8: 1e-8}
"""The default of `rtol`, by the bytes of a number's real part."""

SECOND = {"cg": "minres", "bicgstab": "gmres"}
"""The method that goes on if the chosen one breaks down, by the chosen one's name."""

LEAST_SPREAD = 1.01
"""Ratio of the largest to the smallest diagonal entry above which Jacobi's preconditioner is chosen."""

ROUNDING = 1e3
"""Most by which u' A v and v' A u may differ for a symmetric A, in eps times the norm of their terms."""

STORED = 16
"""The same in eps of the type of A: its entries may have been rounded, each on its own."""


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
        A SciPy or CuPy matrix or a dense array is planned first, on `device`.
    b : array, shape (m,) or (m, 1)
        NumPy, or CuPy for a matrix on a GPU.
    x0 : array, shape (n,), optional
        Where to start; zeros by default.
    method : {"cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr"}, optional
        By default cg if A is symmetric (Hermitian) with a positive diagonal, minres if it is symmetric,
        bicgstab if it is square, lsmr if it is not.
    M : "auto", None, matrix or linear operator, shape (n, n)
        Approximates the inverse of A. "auto" is `jacobi` if the diagonal has no zero and is not constant,
        else None.
    rtol : float, optional
        Stop when norm(b - A x) <= rtol * norm(b); by default 1e-8, in single precision 1e-4. `lsqr` and
        `lsmr` define it in their own way.
    device : str
        Where a matrix that is not an SpMatrix is planned, as in `SpMatrix`.
    **options
        Options of the method: `maxiter`, `callback`, `progress` and so on.

    Returns
    -------
    x : array, of the kind and place of b
    stats : Stats
        As from every solver; `stats.choice` names the choice and its reasons.

    Raises
    ------
    TypeError, ValueError
        As `SpMatrix` and the method raise them; if M is given to a method that takes none; or if A lies on
        several ranks and no method is named.

    Notes
    -----
    The choice costs two products and a read of the diagonal; pass `method` and `M` to avoid it. If A looks
    definite and is not, cg breaks down and minres goes on, from cg's x if its residual is below that of x0;
    gmres goes on after bicgstab likewise. For many systems with one A, make M once and call the method
    itself. A is never factorised; in two dimensions `scipy.sparse.linalg.splu` may take less time
    (docs/solvers.md has a table).

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
        raise TypeError(
            f"A is {_check.kind_of(A)}, on several ranks; a method is needed, such as method='cg'"
        )
    if not isinstance(A, SpMatrix) and (hasattr(A, "tocsr") or isinstance(A, np.ndarray) or is_cupy(A)):
        A = SpMatrix(A, device)
    diagonal = cache(lambda: _find_diagonal(A))  # read once, if at all
    if method is None:
        chosen, why = choose_method(A, diagonal)
    else:
        chosen, why = method, "as asked for"
    if isinstance(M, str):
        divisor, reason = _find_divisor(A, chosen, diagonal)
        M, why = None if divisor is None else divide_by(divisor, A), f"{why}; {reason}"
    if M is not None and chosen in WITHOUT_M:
        raise ValueError(f"M is {_check.kind_of(M)}, and {chosen} takes no preconditioner; leave M out")
    if rtol is None:
        rtol = RTOL[real_type(find_device_and_type(A, b)[1]).itemsize]
    options |= {"rtol": rtol} if chosen in WITHOUT_M else {"rtol": rtol, "M": M}
    x, stats = getattr(solvers, chosen)(A, b, x0=x0, **options)
    title = chosen if M is None else f"{chosen} with {type(M).__name__}"
    broken = stats.info == BREAKDOWN and math.isfinite(stats.residuals[0])
    most = options.get("maxiter")
    left = None if most is None else most - stats.iterations
    if method is None and chosen in SECOND and broken and left != 0:
        better = x if stats.residual <= stats.residuals[0] else x0
        x, more = getattr(solvers, SECOND[chosen])(A, b, x0=better, **{**options, "maxiter": left})
        title, why = f"{title}, then {SECOND[chosen]}", f"{why}; {chosen} stopped: {stats.reason}"
        stats = more.after(stats)
    return x, replace(stats, choice=f"{title}: {why}")


def choose_method(A: Matrix, diagonal: Callable[[], Vector | None] | None = None) -> tuple[str, str]:
    """Choose a method for a matrix or a linear operator.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (m, n)
    diagonal : callable, optional
        Returns the diagonal of A on the host, or None.

    Returns
    -------
    method : str
        One of `METHODS`.
    why : str
        The reason, in words.

    Raises
    ------
    TypeError
        If A is no matrix or operator of numbers.

    Notes
    -----
    A positive diagonal is necessary for a definite matrix, and not sufficient: an indefinite one may be taken
    for definite.
    """
    device, dtype = find_device_and_type(A, None)
    as_operator(A, device)  # raises TypeError if A is none
    m, n = A.shape
    if m != n:
        return "lsmr", f"A is {m} x {n}"
    word = "Hermitian" if dtype.kind == "c" else "symmetric"
    if not is_hermitian(A):
        return "bicgstab", f"A is not {word}"
    numbers = _find_diagonal(A) if diagonal is None else diagonal()
    if numbers is None:
        return "minres", f"A is {word}, and has no diagonal that can be read"
    if (numbers.real > 0).all():
        return "cg", f"A is {word} with a positive diagonal"
    return "minres", f"A is {word}, and its diagonal is not positive"


def is_hermitian(A: Matrix) -> bool:
    """Return True if u' A v is the conjugate of v' A u, up to rounding, for two random vectors."""
    device, dtype = find_device_and_type(A, None)
    operator, rng, n = as_operator(A, device), np.random.default_rng(0), int(A.shape[0])
    own = find_device_and_type(A, np.empty(0, np.float32))[1]  # single precision, if A is
    rounding = max(ROUNDING * np.finfo(dtype).eps, STORED * np.finfo(own).eps)
    vectors, products = [], []
    for _ in range(2):
        vector = rng.random(n) - 0.5 + (1j * (rng.random(n) - 0.5) if dtype.kind == "c" else 0)
        x, y = (backends.find(device).asarray(numbers, dtype) for numbers in (vector, np.zeros(n)))
        operator.multiply(x, y)
        vectors.append(to_host(x))
        products.append(to_host(y))
    with np.errstate(all="ignore"):
        # Divided by the largest number, so that no sum of squares overflows or underflows.
        largest = max(abs(product).max(initial=0) for product in products) or 1
        products = [product / largest for product in products]
        ahead, back = vectors[0].conj() * products[1], vectors[1] * products[0].conj()
        size = np.hypot(np.linalg.norm(ahead), np.linalg.norm(back))
        return bool(abs(ahead.sum() - back.sum()) <= rounding * size)


def _find_diagonal(A: Matrix) -> Vector | None:
    """Return the diagonal of a matrix on the host, or None for an operator whose diagonal cannot be read."""
    diagonal = getattr(A, "diagonal", None)
    return to_host(diagonal()) if callable(diagonal) else None


def _find_divisor(A: Matrix, method: str, diagonal: Callable[[], Vector | None]) -> tuple[Vector | None, str]:
    """Return the diagonal of A if Jacobi's preconditioner may make a method faster, else None; and why."""
    if method in WITHOUT_M:
        return None, f"{method} takes no preconditioner"
    if hasattr(A, "local_shape"):
        return None, "none is chosen for several ranks"
    numbers = diagonal()
    if numbers is None:
        return None, "Jacobi's needs a diagonal"
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
