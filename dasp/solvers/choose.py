"""Which method fits a system: by the shape of A, two products with it, and its diagonal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dasp.formats import devices
from dasp.runtime.arrays import to_host
from dasp.runtime.types import Vector
from dasp.solvers.arguments import place_and_type
from dasp.solvers.operator import Matrix, as_operator

METHODS = ("cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr")
"""The methods that solve A x = b for one right-hand side; `block_cg` wants several, and `lobpcg` none."""

WITHOUT_M = ("lsqr", "lsmr")
"""Those that take no preconditioner."""

ROUNDING = 1e3
"""Units of rounding by which two products of a symmetric matrix may differ, over the norm of their terms."""


def choose_method(A: Matrix, diagonal: Callable[[], Vector | None] | None = None) -> tuple[str, str]:
    """Choose a method for a matrix or a linear operator.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (m, n)
    diagonal : callable, optional
        Returns that of A; by default `find_diagonal`.

    Returns
    -------
    method : str
        One of `METHODS`.
    why : str
        In words.

    Raises
    ------
    TypeError
        If A is no matrix or operator of numbers.

    Notes
    -----
    A positive diagonal is necessary for a definite matrix, and not sufficient: an indefinite one may be taken
    for definite.
    """
    device, dtype = place_and_type(A, None)
    as_operator(A, device)  # is it one?
    m, n = A.shape
    if m != n:
        return "lsmr", f"A is {m} x {n}"
    word = "Hermitian" if dtype.kind == "c" else "symmetric"
    if not is_hermitian(A):
        return "bicgstab", f"A is not {word}"
    numbers = find_diagonal(A) if diagonal is None else diagonal()
    if numbers is None:
        return "minres", f"A is {word}, and has no diagonal that can be read"
    if (numbers.real > 0).all():
        return "cg", f"A is {word} with a positive diagonal"
    return "minres", f"A is {word}, and its diagonal is not positive"


def is_hermitian(A: Matrix) -> bool:
    """Return True if u' A v is the conjugate of v' A u, up to rounding, for two random vectors."""
    device, dtype = place_and_type(A, None)
    operator, rng, n = as_operator(A, device), np.random.default_rng(0), int(A.shape[0])
    vectors, products = [], []
    for _ in range(2):
        vector = rng.random(n) - 0.5 + (1j * (rng.random(n) - 0.5) if dtype.kind == "c" else 0)
        x, y = (devices.find(device).asarray(numbers, device, dtype) for numbers in (vector, np.zeros(n)))
        operator.multiply(x, y)
        vectors.append(to_host(x))
        products.append(to_host(y))
    ahead, back = vectors[0].conj() * products[1], vectors[1] * products[0].conj()
    size = np.hypot(np.linalg.norm(ahead), np.linalg.norm(back))
    with np.errstate(invalid="ignore"):
        return bool(abs(ahead.sum() - back.sum()) <= ROUNDING * np.finfo(dtype).eps * size)


def find_diagonal(A: Matrix) -> Vector | None:
    """Return the diagonal of a matrix on the host, or None of an operator that has none to be read."""
    diagonal = getattr(A, "diagonal", None)
    return to_host(diagonal()) if callable(diagonal) else None
