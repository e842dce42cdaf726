"""Conjugate gradients, for symmetric or Hermitian positive definite matrices.

The method has two forms. An iteration of `ConjugateGradients` takes one product and three passes over the
vectors, one of `PipelinedConjugateGradients` one product and one pass. The second form is for systems that
fit on a GPU's chip, where `dasp.solvers.persistent` makes it one launch, and for ranks that would wait for
sums. In exact arithmetic both forms are the same, but the second updates more vectors by recurrences, and so
drifts sooner from the true residual: if it gets stuck, the first goes on from its x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import any_complex, find_device_and_type, make_limits, one_call
from dasp.solvers.driver import BREAKDOWN, STAGNATION
from dasp.solvers.operator import DeviceOperator, Matrix
from dasp.solvers.scalars import OWN, RUNNING, Scalar, where
from dasp.solvers.space import Loop, State
from dasp.solvers.stats import Stats
from dasp.solvers.system import Method, System, solve
from dasp.solvers.workspace import Workspace


@one_call(ranks=True)
def cg(
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
    """Solve A x = b by conjugate gradients, for A symmetric or Hermitian, and positive definite.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (n, n)
        Anything with a shape, a dtype and `@`. Its symmetry is not checked. If a complex matrix is not
        Hermitian, the method usually notices and reports it in `stats`.
    b : array, shape (n,) or (n, 1)
        NumPy, or CuPy for a matrix on a GPU. A NumPy b is copied to the GPU, and x back to the host.
    x0 : array, shape (n,), optional
        Where to start; zeros by default. Not modified.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol * norm(b), atol).
    maxiter : int, optional
        Iterations at most, 10 n by default.
    M : matrix or linear operator, shape (n, n), optional
        Approximates the inverse of A; symmetric (Hermitian) and positive definite.
    callback : callable, optional
        Called with x after each check.
    check_every : int, optional
        Iterations between two checks, each an entry of `Stats.residuals` and a call of `callback`. By default
        1, and 32 with `progress` and no callback.
    workspace : Workspace, optional
        Keeps vectors and prepared passes for the next solve with A.
    progress : bool
        Show the residual as it falls (needs tqdm).

    Returns
    -------
    x : array, of the shape, kind and place of b
        float32 if A and b are, else float64; complex64 or complex128 if A, b or M is complex.
    stats : Stats
        Whether the method converged, in how many iterations, and why it stopped.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value. What goes wrong later is reported in `stats`.

    Notes
    -----
    Memory, in vectors of length n: 5, with a preconditioner 6, with Jacobi's 7. Small systems on a GPU take
    up to 8 without a preconditioner, and 9 with Jacobi's. The true residual is computed before convergence
    is claimed. If the residual that the method updates has drifted away from it, the method starts again
    from x.

    References
    ----------
    Hestenes and Stiefel (1952), doi:10.6028/jres.049.044; with a preconditioner as in Saad, Iterative Methods
    for Sparse Linear Systems, second edition, algorithm 9.1.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from dasp.solvers import cg
    >>> A = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(4, 4))
    >>> x, stats = cg(A, np.ones(4), rtol=1e-12)
    >>> x.round(9), stats.converged, stats.iterations
    (array([2., 3., 3., 2.]), True, 2)
    """
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress)
    plain = HermitianConjugateGradients if any_complex(A, b, M) else ConjugateGradients
    quick = _find_quick_form(A, b, M, seen=callback is not None or progress)
    x, stats = solve(A, b, x0, limits, M, workspace, *(quick or (plain,)))
    rest = replace(limits, maxiter=limits.maxiter - stats.iterations)
    stuck = stats.info in (STAGNATION, BREAKDOWN) and math.isfinite(stats.residual)
    if quick and stuck and rest.maxiter > 0:
        x, more = solve(A, b, x, rest, M, workspace, plain)
        stats = more.after(stats)
    return x, stats


def _find_quick_form(A: Matrix, b: ArrayLike, M: Matrix | None, *, seen: bool) -> tuple[Any, ...] | None:
    """Return a form of the method that is faster than the plain one here, with its options; or None.

    On several ranks it is the form whose sums no rank waits for, which pays if M is None and x is not `seen`
    by a callback or progress bar; on a GPU it is the form in one launch.
    """
    if any_complex(A, b, M):
        return None  # only the plain form checks whether A is Hermitian
    if hasattr(A, "solver_space"):
        pays = getattr(A, "hidden_sums", False) and M is None and not seen
        return (PipelinedConjugateGradients,) if pays else None
    device, dtype = find_device_and_type(A, b, M)
    if device == "cpu":
        return None
    # On a CPU the GPU's modules are not imported.
    from dasp.solvers.persistent import find_recipe

    recipe = find_recipe(A, M, dtype)
    return None if recipe is None else (PipelinedConjugateGradients, recipe.make_loop)


INDEFINITE, BAD_M, NOT_HERMITIAN = OWN, OWN + 1, OWN + 2

SKEW = {np.complex64: 1e-2, np.complex128: 1e-4}
"""An imaginary part of p' A p above this times p' p and the norm of A, estimated by the largest Rayleigh
quotient so far, is not due to rounding: that would take a p whose quotient is 1e-12 (in complex64 6e-6) of
the norm, and no p before it with a larger one."""


class ConjugateGradients(Method):
    """One product and three passes an iteration, four with a preconditioner that is no diagonal."""

    restarts = frozenset({INDEFINITE})
    words: ClassVar[dict[int, str]] = {
        INDEFINITE: "p' A p is not positive, so A is not positive definite (or is singular, and b out of its "
        "reach); minres takes symmetric matrices that are not",
        BAD_M: "r' M r is not positive, so M is not positive definite",
    }

    @classmethod
    def names(cls, M: DeviceOperator | None) -> tuple[str, ...]:
        """Return the vectors p and z = M r, and the diagonal d of a diagonal M."""
        if M is None:
            return ("p",)
        return ("p", "z") if M.diagonal is None else ("p", "z", "d")

    def __init__(self, system: System) -> None:
        self._system = system
        self._z = "r" if system.preconditioner is None else "z"
        fuse = system.vectors.fuse
        self._first = fuse(f"p = {self._z}", dots=(f"r {self._z}",))
        self._curvature = fuse(dots=("p q",))
        is_diagonal = system.diagonal is not None
        self._divide = fuse("z = d*r") if is_diagonal else None
        self._inner = fuse(dots=("r z",)) if self._z == "z" and not is_diagonal else None
        if is_diagonal:
            self._descend = fuse("r = r - alpha q", "z = d*r", dots=("r r", "r z"))
        else:
            self._descend = fuse("r = r - alpha q", dots=("r r",))
        self._advance = fuse("x = x + alpha p", f"p = {self._z} + beta p")

    def start(self, s: State) -> State:
        """Go down along M r."""
        if self._divide:
            self._divide()
        elif self._inner:
            self._system.precondition("r", "z")
        (rho,) = self._first()
        stopped = where(s["code"] > float(RUNNING), s["code"], float(BAD_M))
        return {"rho": rho, "code": where(rho > 0.0, s["code"], stopped)}

    def iterate(self, phase: int, s: State) -> State:
        """Step along p to where the error is least; then turn p."""
        self._system.multiply("p", "q")
        (curvature,) = self._curvature()
        self.alpha = alpha = where(curvature > 0.0, s["rho"] / curvature, 0.0)
        dots = self._descend(alpha=alpha)
        rr, rho = dots[0], dots[-1]
        if self._inner:
            self._system.precondition("r", "z")
            (rho,) = self._inner()
        beta = rho / s["rho"]
        self._advance(alpha=alpha, beta=beta)
        of_m = where(rho > 0.0, float(RUNNING), float(BAD_M))
        return {"rr": rr, "rho": rho, "code": where(curvature > 0.0, of_m, float(INDEFINITE))}


class HermitianConjugateGradients(ConjugateGradients):
    """Conjugate gradients whose pass for p' A p also computes p' p.

    With the real part as the inner product, the n complex numbers of a vector are 2 n real ones, and a
    Hermitian matrix is a symmetric matrix of size 2 n. So every coefficient is real, and except for products
    the iteration is the same. If A is not Hermitian, p' A p has an imaginary part.
    """

    words: ClassVar[dict[int, str]] = {
        **ConjugateGradients.words,
        NOT_HERMITIAN: "p' A p is not real, so A is not Hermitian; gmres and bicgstab take such matrices",
    }

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._skew = SKEW[system.space.dtype.type]
        self._look = system.vectors.fuse(dots=("p'q", "p p"))
        self._curvature = self._look_along

    def _look_along(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        self._seen = along, _ = self._look(**coefficients)
        return (along.real,)

    def start(self, s: State) -> State:
        """Begin with 0 as the estimate of the norm of A."""
        return {**super().start(s), "norm": 0.0}

    def iterate(self, phase: int, s: State) -> State:
        """Iterate as for a symmetric matrix, and check that p' A p was real."""
        new = super().iterate(phase, s)
        along, pp = self._seen
        norm = where(along.real > s["norm"] * pp, along.real / pp, s["norm"])
        skew = abs(along.imag) > self._skew * norm * pp
        return {**new, "norm": norm, "code": where(skew, float(NOT_HERMITIAN), new["code"])}


class PipelinedConjugateGradients(Method):
    """One product and one pass an iteration: the dot products need only vectors that are known at its start.

    An iteration is judged at the head of the next one; only a GPU's loop does that.
    Ghysels and Vanroose (2014), doi:10.1016/j.parco.2013.06.001, algorithm 3.
    """

    leaving = ("rr", "delta")
    restarts = ConjugateGradients.restarts
    words = ConjugateGradients.words

    @classmethod
    def names(cls, M: DeviceOperator | None, *options: Any) -> tuple[str, ...]:
        """Return the vectors of the recurrences, and the diagonal d of M, which must be diagonal."""
        return ("w", "z", "s", "p") if M is None else ("w", "z", "s", "p", "d")

    def __init__(self, system: System, make_loop: Callable[[System], Loop] | None = None) -> None:
        """Prepare the passes; `make_loop` makes the loop in place of the space."""
        self._make_loop = make_loop
        self._system, fuse = system, system.vectors.fuse
        dots = ("r r", "w r")
        self._clear = fuse("z = 0", "s = 0", "p = 0", dots=dots)
        self._advance = fuse(
            *("z = q + beta z", "s = w + beta s", "p = r + beta p"),
            *("x = x + alpha p", "r = r - alpha s", "w = w - alpha z"),
            dots=dots,
        )

    def make_loop(self, system: System) -> Loop:
        """Return the loop that repeats the iteration."""
        return super().make_loop(system) if self._make_loop is None else self._make_loop(system)

    def start(self, s: State) -> State:
        """Compute w = A r, and clear the vectors of the recurrences."""
        self._system.multiply("r", "w")
        rr, delta = self._clear()
        return {"rr": rr, "delta": delta, "last": 0.0, "alpha": 1.0}

    def iterate(self, phase: int, s: State) -> State:
        """Make the product, then everything else in one pass."""
        self._system.multiply("w", "q")
        rr: Scalar = s["rr"]
        beta = where(s["last"] > 0.0, rr / s["last"], 0.0)
        curvature = s["delta"] - beta * rr / s["alpha"]
        alpha = where(curvature > 0.0, rr / curvature, 0.0)
        code = where(curvature > 0.0, float(RUNNING), float(INDEFINITE))
        next_rr, delta = self._advance(alpha=alpha, beta=beta)
        return {"judge": rr, "rr": next_rr, "delta": delta, "last": rr, "alpha": alpha, "code": code}
