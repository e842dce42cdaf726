"""Conjugate gradients, for symmetric or Hermitian positive definite matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import any_complex, make_limits, one_call, place_and_type
from dasp.solvers.driver import BREAKDOWN, STAGNATION
from dasp.solvers.operator import Matrix
from dasp.solvers.persistent.cg import PersistentLoop
from dasp.solvers.pipelined import PipelinedConjugateGradients
from dasp.solvers.plain import conjugate_gradients, names_with
from dasp.solvers.space import Loop
from dasp.solvers.stats import Stats
from dasp.solvers.system import Method, System, solve
from dasp.solvers.workspace import Workspace


@one_call
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
        Anything with a shape, a dtype and `@`. Its symmetry is not checked. A complex matrix that is not
        Hermitian is mostly noticed, and then reported in `stats`.
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
        Iterations between two checks that are seen outside: entries of `Stats.residuals`, calls of
        `callback`.
    workspace : Workspace, optional
        Keeps vectors and prepared passes for the next solve with A.
    progress : bool
        Show the residual as it falls (needs tqdm).

    Returns
    -------
    x : array, of the shape, kind and place of b
        float32 if A and b are, else float64; complex64 or complex128 if A, b or M is complex.
    stats : Stats
        If it converged, in how many iterations, and in words why it stopped.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value. What goes wrong later is reported in `stats`.

    Notes
    -----
    Memory, in vectors of length n: 5, with a preconditioner 6, with Jacobi's 7. Small systems on a GPU take
    up to 8 without a preconditioner, and 9 with Jacobi's. The true residual is computed before convergence
    is claimed. If the residual that was carried along has drifted away from it, the method starts again
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
    n = int(getattr(A, "shape", (0,))[0])
    limits = make_limits(n, rtol, atol, maxiter, check_every, callback, progress, A)
    plain = CgForm(conjugate_gradients, names_with(M))
    form = _find_quick_form(A, b, n, M, seen=callback is not None or progress) or plain
    x, stats = solve(A, b, x0, limits, M, workspace, *form)
    rest = replace(limits, maxiter=limits.maxiter - stats.iterations)
    stuck = stats.info in (STAGNATION, BREAKDOWN) and math.isfinite(stats.residual)
    if form is not plain and stuck and rest.maxiter > 0:
        x, more = solve(A, b, x, rest, M, workspace, *plain)
        stats = more.after(stats)
    return x, stats


class CgForm(NamedTuple):
    """A form of the method: the last arguments of `dasp.solvers.system.solve`."""

    method: Callable[[System], Method]
    names: tuple[str, ...]
    key: tuple[Any, ...] = ()
    loop: Callable[[System], Loop] | None = None


def _find_quick_form(A: Matrix, b: ArrayLike, n: int, M: Matrix | None, *, seen: bool) -> CgForm | None:
    """Return a form of the method that is faster than the plain one here, or None.

    On several ranks it is the form whose sums no rank waits for; on a GPU the form in one launch, else that
    in one pass. With M, or where x is seen on the way, the one launch alone can be faster.
    """
    if any_complex(A, b, M):
        return None  # the plain form alone looks whether A is Hermitian
    quick = CgForm(PipelinedConjugateGradients, PipelinedConjugateGradients.names)
    if hasattr(A, "solver_space"):
        pays = bool(getattr(A, "hidden_sums", False))
    else:
        device, dtype = place_and_type(A, b, M)
        if device == "cpu":
            return None
        # A GPU's modules are not for a CPU.
        from dasp.solvers.cuda.space import ONE_PASS_ROWS
        from dasp.solvers.persistent.kernel import find_recipe

        recipe = find_recipe(A, M, dtype)
        if recipe is not None:
            names = quick.names if M is None else (*quick.names, "d")
            return CgForm(quick.method, names, ("cg in one launch",), partial(PersistentLoop, recipe=recipe))
        # In float32 what is carried along in one pass drifts away so soon that it takes more iterations.
        pays = n <= ONE_PASS_ROWS and dtype == np.float64
    return quick if pays and M is None and not seen else None
