"""The least-squares problem of a cycle of GMRES, on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class SmallProblem:
    """The least-squares problem of a cycle: a Hessenberg matrix that grows by a column an iteration.

    Parameters
    ----------
    norm : float
        Of the residual at the start.
    steps : int
        Columns at most.
    number : numpy.float64 or numpy.complex128
        Type of the columns; below the diagonal they are real and not negative, so that of each rotation the
        sine is real, and so are all norms of residuals.
    """

    def __init__(self, norm: float, steps: int, number: type[np.inexact[Any]] = np.float64) -> None:
        self._matrix = np.zeros((steps + 1, steps), number)
        self._rotations: list[tuple[Any, Any, float]] = []
        self.count, self.broken = 0, False
        self.residuals = [norm]
        self._norm = norm

    def add(self, column: np.ndarray[Any, Any]) -> None:
        """Take the next column, of `count` + 2 numbers, and turn it to know the residual."""
        k = self.count
        self._matrix[: k + 2, k] = column
        turned = np.array(column)
        for j, (c, conjugate, s) in enumerate(self._rotations):
            upper, lower = turned[j], turned[j + 1]
            turned[j], turned[j + 1] = conjugate * upper + s * lower, c * lower - s * upper
        length = math.hypot(abs(turned[k]), turned[k + 1].real)
        c, s = (turned[k] / length, turned[k + 1].real / length) if length > 0 else (1.0, 0.0)
        self._rotations.append((c, c.conjugate(), s))
        # A column that is 0 is no progress, and ends the cycle: A maps the basis into itself.
        self.residuals.append(self.residuals[-1] * (abs(s) if length > 0 else 1.0))
        self.broken = not column[-1].real > 1e-14 * np.linalg.norm(column)
        self.count += 1

    def solve(self, k: int) -> np.ndarray[Any, Any]:
        """Return the coefficients of the correction in the basis, from the first k columns."""
        matrix = self._matrix[: k + 1, :k]
        if not np.isfinite(matrix).all():
            return np.full(k, np.nan)
        right = np.zeros(k + 1, matrix.dtype)
        right[0] = self._norm
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=1e-14)[0])
