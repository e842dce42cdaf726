"""The largest eigenvalue of D^-1 A, D the diagonal of A, which scales Chebyshev polynomials and smoothers."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dasp.runtime.arrays import is_cupy, namespace, to_host
from dasp.runtime.types import Array
from dasp.solvers.operator import DeviceOperator
from dasp.solvers.space import Pass, Space, Vectors

STEPS = 6
"""Most products by which the largest eigenvalue is estimated."""

UPPER = 1.12
"""The factor that raises the estimate, which lies below the largest eigenvalue."""

NAMES = "b", "x", "r", "step", "q", "d"
"""The vectors that an estimate needs."""

PERIOD = 65_521
"""Numbers after which the noise repeats itself: a prime, so that it differs from plane to plane of a grid."""

SKEW = 1e-3
"""Most relative difference that rounding may leave between inner products equal for a Hermitian matrix."""


def spectral_radius(
    A: csr_array, operator: DeviceOperator, inverse: Array, space: Space, vectors: Vectors
) -> float:
    """Estimate the largest absolute eigenvalue of D^-1 A, D the diagonal.

    Parameters
    ----------
    A : scipy.sparse.csr_array, shape (n, n)
        A on the host, for a bound if it is not Hermitian.
    operator : DeviceOperator
        A on the device.
    inverse : array, shape (n,)
        The diagonal of D^-1, on the device of `space` or on the host.
    space : Space
    vectors : Vectors
        With all of `NAMES`, which are overwritten.

    Returns
    -------
    float
        If A is Hermitian, an estimate from below; `UPPER` times it is mostly an upper bound. If not, `UPPER`
        times it is the largest sum of absolute values in a row of D^-1 A, always an upper bound. Equal inputs
        give equal bits.

    Raises
    ------
    ValueError
        If A holds NaN or infinity, or products overflow.

    Notes
    -----
    Lanczos' method for D^-1 A in the inner product of D: Saad, Numerical Methods for Large Eigenvalue
    Problems, second edition, algorithm 6.4.
    """
    inside = vectors["x"]
    with inside.device if is_cupy(inside) else nullcontext(), np.errstate(all="ignore"):
        inside[...] = space.asarray(inverse)
        found = _find_by_lanczos(operator, space, vectors)
        if found is None:  # the largest sum of a row of absolute values
            sizes = abs(to_host(inverse))
            found = float((sizes * (abs(A) @ np.ones_like(sizes))).max()) / UPPER
    if not math.isfinite(found):
        raise ValueError("A holds NaN or infinity, or its products overflow; finite numbers are needed")
    return found


class _Pair(NamedTuple):
    """The names of a vector r and of y = D^-1 r, a vector of Lanczos' basis."""

    r: str
    y: str


FIRST, SECOND = _Pair("b", "d"), _Pair("r", "step")
"""Neither holds x, which a GPU's passes load in a way of its own: so one kernel serves both orders."""


def _find_by_lanczos(operator: DeviceOperator, space: Space, vectors: Vectors) -> float | None:
    """Return the largest absolute eigenvalue of Lanczos' matrix, None if A is not Hermitian, or NaN if
    products are not finite."""

    @cache
    def prepare(one: _Pair, other: _Pair) -> tuple[Pass, Pass]:
        turn, divide = f"{other.r} = q - alpha {one.r} - beta {other.r}", f"{other.y} = x*{other.r}"
        return (
            space.eager(vectors, dots=(f"{one.y} q", f"{other.y} q")),
            space.eager(vectors, turn, divide, dots=(f"{other.r} {other.y}",)),
        )

    def measure(one: _Pair, other: _Pair) -> tuple[Any, ...]:
        """Return the inner products of q with both y; q is A times the first y."""
        return prepare(one, other)[0]()

    def extend(one: _Pair, other: _Pair, alpha: float, beta: float) -> np.float64:
        """Set the second pair to the next one of Lanczos' recurrence. Return its r'y."""
        return np.float64(prepare(one, other)[1](alpha=alpha, beta=beta)[0])

    q = vectors["q"]
    n, rough, count = len(q), float(np.finfo(q.dtype).eps), min(PERIOD, len(q))
    noise = np.random.default_rng(0).random(count, np.float32) - np.float32(0.5)
    q[:count] = namespace(q).asarray(noise, q.dtype)
    while count < n:  # copies, which a GPU makes without a kernel
        q[count : 2 * count] = q[: min(count, n - count)]
        count *= 2
    for name in (*FIRST, *SECOND):
        vectors[name][...] = 0
    last, following = SECOND, FIRST
    rho, beta = extend(last, following, 0.0, 0.0), np.float64(0.0)
    if rho == 0 and n:  # D is imaginary, or zero
        return None
    diagonal: list[np.float64] = []
    beside: list[np.float64] = []
    while len(diagonal) < min(STEPS, n) and rho != 0:
        last, following = following, last
        operator.multiply(vectors[last.y], q)
        along, back = measure(last, following)
        alpha = along / rho
        if not np.isfinite(alpha):
            return math.nan
        if beta < 0 or (diagonal and abs(back - rho) > SKEW * abs(rho)):
            return None
        diagonal.append(alpha)
        before, rho = rho, extend(last, following, alpha, beta)
        beta = rho / before
        beside.append(beta)
        if abs(beta) <= rough * alpha * alpha:  # no direction is left but rounding
            break
    off = np.sqrt(beside[: len(diagonal) - 1])
    return float(
        abs(np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))).max(initial=0)
    )
