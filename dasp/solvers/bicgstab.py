"""BiCGSTAB, for square matrices that need not be symmetric.

Preconditioned from the right, so that the residual stays that of A x = b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import make_limits, one_call
from dasp.solvers.operator import DeviceOperator, Matrix
from dasp.solvers.scalars import OWN, RUNNING, square, where
from dasp.solvers.space import State
from dasp.solvers.stats import Stats
from dasp.solvers.system import Method, System, solve
from dasp.solvers.workspace import Workspace

SHADOW, STEP, TURN = OWN, OWN + 1, OWN + 2

TINY = 1e-36
"""A dot product breaks the method down if its square is below this times the squares of both norms.

That is below the rounding error of most dot products in float64. With a larger number the method stopped on
systems of convection and diffusion that it solves.
"""


class BiconjugateGradientsStabilized(Method):
    """Two products and five passes an iteration."""

    restarts = frozenset({SHADOW, STEP, TURN})
    words: ClassVar[dict[int, str]] = {
        SHADOW: "the residual is orthogonal to the first one (rho is 0), and starting again does not help; "
        "try gmres",
        STEP: "A p is orthogonal to the first residual, and starting again does not help; try gmres",
        TURN: "A r is orthogonal to r (omega is 0), and starting again does not help; try gmres",
    }

    @classmethod
    def names(cls, M: DeviceOperator | None) -> tuple[str, ...]:
        """Return the vectors w (the shadow), p and v = A p; and with an M those for M p and M r."""
        return ("w", "p", "v") if M is None else ("w", "p", "v", "ph", "sh")

    def __init__(self, system: System) -> None:
        self._system = system
        self._plain = system.preconditioner is None
        ph, sh = ("p", "r") if self._plain else ("ph", "sh")
        self._ph, self._sh = ph, sh
        fuse = system.vectors.fuse
        self._first = fuse("w = r", "p = r", dots=("r'r",))
        self._along = fuse(dots=("w'v", "v v"))
        self._half = fuse("r = r - alpha v", dots=("r r",))
        self._smooth = fuse(dots=("q'r", "q q"))
        self._step = fuse(f"x = x + alpha {ph} + omega {sh}", "r = r - omega q", dots=("r r", "w'r"))
        self._turn = fuse("p = r + beta p - both v")

    def start(self, s: State) -> State:
        """Take the first residual as the shadow, and as p."""
        (rho,) = self._first()
        return {"rho": rho, "ww": rho.real}

    def iterate(self, phase: int, s: State) -> State:
        """Step along p, then along r to where the residual is least."""
        rho, ww = s["rho"], s["ww"]
        if not self._plain:
            self._system.precondition("p", self._ph)
        self._system.multiply(self._ph, "v")
        wv, vv = self._along()
        can_step = square(wv) > TINY * ww * vv
        alpha = where(can_step, rho / wv, 0.0)
        (half,) = self._half(alpha=alpha)
        if not self._plain:
            self._system.precondition("r", self._sh)
        self._system.multiply(self._sh, "q")
        qr, qq = self._smooth()
        can_turn = square(qr) > TINY * half * qq
        omega = where(can_turn, qr / qq, 0.0)
        rr, next_rho = self._step(alpha=alpha, omega=omega)
        has_shadow = square(next_rho) > TINY * rr * ww
        beta = where(can_turn, (next_rho / rho) * (alpha / omega), 0.0)
        self._turn(beta=beta, both=beta * omega)
        shadow = where(has_shadow, float(RUNNING), float(SHADOW))
        turn = where(can_turn, shadow, float(TURN))
        return {"rr": rr, "rho": next_rho, "ww": ww, "code": where(can_step, turn, float(STEP))}


@one_call(ranks=True)
def bicgstab(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Matrix | None = None,
    callback: Callable[[Any], None] | None = None,
    check_every: int | None = None,
    workspace: Workspace | None = None,
    progress: bool = False,
) -> tuple[Array, Stats]:
    """Solve A x = b by BiCGSTAB, for any square A.

    Parameters, results and errors are those of `dasp.solvers.cg`; M need not be symmetric.

    Notes
    -----
    Memory, in vectors of length n: 7, with a preconditioner 9. An iteration takes two products with A. At a
    breakdown (a division by 0) the method starts again from the x that it has, as long as that helps.

    References
    ----------
    Van der Vorst (1992), doi:10.1137/0913035; preconditioned from the right.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import bicgstab
    >>> x, stats = bicgstab(np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([3.0, 4.0]))
    >>> x.round(9), stats.converged
    (array([1., 1.]), True)
    """
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress)
    return solve(A, b, x0, limits, M, workspace, BiconjugateGradientsStabilized)
