"""Attack with chains of solves: values that change, workspaces that are shared, threads, streams; seeded.

    python -m tests.attack.solves --seconds 600 --seed 7

It runs on a GPU if one works, else on the CPU. Every method solves a system in turn, with and without a
preconditioner, a workspace, a first x and a callback; the matrix gets values in place, is scaled and
transposed. A solve that says that it converged is held to its residual in double precision, by SciPy's
product with a copy of the matrix. Equal calls must give equal bits, and calls that are refused, or that an
exception ends, must change nothing.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import dasp
from dasp import Policy, SpMatrix, preconditioners, solvers
from tests.attack._cases import (
    DEVICE,
    GPU,
    Counts,
    Draws,
    attack_by_command,
    attack_with,
    do_all,
    on_host,
    xp,
)
from tests.support.planned import Tuned

IN_A_ROW = 60
"""Consecutive chains that share their type, each of which has its own kernels."""

DTYPES = "float64", "float32", "complex128", "complex64"
MODELS = (
    "poisson2d:12",
    "poisson2d:45",
    "poisson3d:9",
    "fem3:5",
    "fem3:8",
    "triangles:700",
    "stencil27:7",
    "short:900",
)
POLICIES = None, None, Policy(narrow=False), Tuned("sell", steps=2), Tuned("dasp", long_row=8)
DEFINITE = solvers.cg, solvers.minres
SQUARE = (*DEFINITE, solvers.bicgstab, solvers.gmres)
PRECONDITIONERS = (
    preconditioners.jacobi,
    partial(preconditioners.block_jacobi, block=4),
    preconditioners.chebyshev,
    preconditioners.ic0,
)


class Stopped(Exception):
    """The error that a callback raises."""


class System:
    """A planned matrix, symmetric or Hermitian and definite, and a copy of it on the host."""

    def __init__(self, rng: Draws, counts: Counts) -> None:
        self.rng, self.counts = rng, counts
        self.draw = np.random.default_rng(rng.getrandbits(32))
        self.kind = np.dtype(DTYPES[(rng.run + rng.number // IN_A_ROW) % 4])
        csr = self.definite(sp.csr_array(dasp.models.generate(rng.choice(MODELS), seed=rng.randrange(100))))
        self.csr = csr.astype(self.kind)
        self.A = SpMatrix.from_scipy(self.csr, policy=rng.choice(POLICIES), device=DEVICE)
        self.workspaces = [solvers.Workspace() for _ in range(2)]
        self.M: Any = None
        self.told: list[str] = []

    def definite(self, csr: Any) -> Any:
        """Return a matrix of the pattern of csr + csr' whose diagonal outweighs the rest of each row."""
        csr = sp.csr_array(csr + csr.T)
        csr.data = self.draw.uniform(-1, 1, csr.nnz)
        if self.kind.kind == "c":
            csr = csr * (1 + 0j)
            csr.data += 1j * self.draw.uniform(-1, 1, csr.nnz)
        csr = csr + csr.conj().T
        csr.setdiag(0)
        return sp.csr_array(csr + sp.diags_array(abs(csr).sum(axis=1) * self.draw.uniform(1.02, 2) + 0.1))

    def vector(self) -> Any:
        parts = self.draw.standard_normal(self.csr.shape[0])
        if self.kind.kind == "c":
            parts = parts + 1j * self.draw.standard_normal(len(parts))
        return parts.astype(self.kind)

    @property
    def rtol(self) -> float:
        single = self.kind.name in ("float32", "complex64")
        return self.rng.choice((1e-2, 1e-4) if single else (1e-3, 1e-6, 1e-10))

    def hold(self, x: Any, stats: Any, b: Any, rtol: float, *, must: bool) -> None:
        """Hold an answer to its residual."""
        assert type(x) is type(b), f"x is a {type(x)}, b a {type(b)}"
        assert (x.shape, x.dtype) == (b.shape, self.kind)
        x, b = on_host(x).ravel(), on_host(b).ravel()
        wide = self.csr.astype(np.result_type(self.kind, np.float64))
        if not np.isfinite(x).all():
            raise AssertionError(f"x is not finite: {stats}")
        residual = np.linalg.norm(b - wide @ x) / np.linalg.norm(b)
        room = 1.02 * rtol + 30 * np.finfo(self.kind).eps
        assert not stats.converged or residual <= room, f"residual {residual:.3g} of {rtol}: {stats}"
        assert stats.converged or not must, f"it did not converge: {stats}"


def solve(system: System) -> None:
    """Solve, perhaps twice."""
    rng, rtol, b = system.rng, system.rtol, system.vector()
    method, given = rng.choice(SQUARE), b if rng.random() < 0.2 else xp.asarray(b)
    if rng.random() < 0.1:
        given = given[:, None]
    named: dict[str, Any] = {"rtol": rtol, "maxiter": 5000}
    if rng.random() < 0.6:
        named["workspace"] = rng.choice(system.workspaces)
    if rng.random() < 0.2:
        named["x0"] = xp.asarray(system.vector())
    if rng.random() < 0.2:
        named["check_every"] = rng.choice((1, 3, 1000))
    seen: list[int] = []
    if rng.random() < 0.2:
        named["callback"] = lambda x: seen.append(len(x))
    if system.M is not None and rng.random() < 0.6:
        named["M"] = system.M
    system.told.append(f"{method.__name__}({', '.join(sorted(named))})")
    before = on_host(given).copy()
    x, stats = method(system.A, given, **named)
    np.testing.assert_array_equal(on_host(given), before)
    system.hold(x, stats, given, rtol, must=method in DEFINITE)
    if rng.random() < 0.4:
        again, others = method(system.A, given, **named)
        assert (others.iterations, others.reason) == (stats.iterations, stats.reason), (
            f"{stats}, then {others}"
        )
        np.testing.assert_array_equal(on_host(again), on_host(x))


def written(system: System) -> None:
    """Write values in place; a preconditioner of the old values stays, and is still definite."""
    system.csr = system.csr * system.kind.type(system.rng.choice((0.5, 3.0, 1e3)))
    rows, columns = map(on_host, system.A.coordinates())
    data = xp.asarray(np.asarray(system.csr[rows, columns]).ravel().astype(system.kind))
    try:
        system.A.with_values(data, out=system.A)
    except ValueError as error:
        if "does not hold the new ones" not in str(error):
            raise
        system.A = system.A.with_values(data)


def scaled(system: System) -> None:
    factors = 2.0 ** system.draw.integers(-1, 2, system.csr.shape[0])
    system.csr = sp.csr_array(sp.diags_array(factors) @ system.csr @ sp.diags_array(factors)).astype(
        system.kind
    )
    given = xp.asarray(factors.astype(system.kind))
    system.A = system.A.scaled(given, given)
    system.M = None


def transposed(system: System) -> None:
    system.A, system.csr = system.A.T, sp.csr_array(system.csr.T)
    system.M = None


def preconditioned(system: System) -> None:
    make = system.rng.choice(PRECONDITIONERS)
    system.told.append(getattr(make, "__name__", "block_jacobi"))
    system.M = None if system.rng.random() < 0.2 else make(system.A)


def refused(system: System) -> None:
    """Solve with wrong arguments, and with an exception in the middle."""
    rng, b = system.rng, xp.asarray(system.vector())
    workspace = rng.choice(system.workspaces)

    def stop(x: Any) -> None:
        if rng.random() < 0.5:
            raise Stopped

    wrong: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, lambda: solvers.cg(system.A, b[:-1], workspace=workspace)),
        (ValueError, lambda: solvers.gmres(system.A, b, rtol=-1.0, workspace=workspace)),
        (ValueError, lambda: solvers.minres(system.A, b, xp.ones(3), workspace=workspace)),
        (TypeError, lambda: solvers.bicgstab(system.A, b, M=3, workspace=workspace)),
        (
            Stopped,
            lambda: [rng.choice(SQUARE)(system.A, b, rtol=1e-14, callback=stop, workspace=workspace)] * 99,
        ),
    ]
    error, call = rng.choice(wrong)
    try:
        call()
    except error:
        return
    assert error is Stopped, "a wrong argument was taken"


def not_a_number(system: System) -> None:
    b = xp.asarray(system.vector())
    b[system.rng.randrange(len(b))] = system.rng.choice((np.nan, np.inf))
    _, stats = system.rng.choice(SQUARE)(system.A, b, workspace=system.rng.choice(system.workspaces))
    assert not stats.converged, f"a b with NaN was solved: {stats}"


def in_threads(system: System) -> None:
    """Solve with one matrix in several threads, each with a workspace of its own or none."""
    rng, rtol = system.rng, system.rtol
    bs, methods = [system.vector() for _ in range(3)], rng.choices(DEFINITE, k=3)
    spaces = [rng.choice((None, solvers.Workspace())) for _ in bs]
    streams = [xp.cuda.Stream(non_blocking=True) if GPU else contextlib.nullcontext() for _ in bs]
    if GPU:
        xp.cuda.Device().synchronize()

    def one(nth: int) -> Any:
        with streams[nth]:
            b = xp.asarray(bs[nth])
            for _ in range(2):
                x, stats = methods[nth](system.A, b, rtol=rtol, maxiter=5000, workspace=spaces[nth])
            return on_host(x), stats

    with ThreadPoolExecutor(3) as pool:
        for (x, stats), b in zip(pool.map(one, range(3)), bs, strict=True):
            system.hold(x, stats, b, rtol, must=True)


LINKS: tuple[tuple[Callable[[System], None], int], ...] = (
    (solve, 10),
    (written, 4),
    (scaled, 1),
    (transposed, 1),
    (preconditioned, 3),
    (refused, 2),
    (not_a_number, 1),
    (in_threads, 1),
)


def chain_of_solves(rng: Draws, counts: Counts) -> None:
    """Make a system, do random steps, and end with a solve."""
    stream: Any = contextlib.nullcontext()
    if GPU and rng.random() < 0.5:
        stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        system = System(rng, counts)
        system.told.append(
            f"{system.csr.shape}, {system.csr.nnz} entries, {system.kind}, {system.A.plan.format}"
        )
        links, weights = zip(*LINKS, strict=True)
        do_all((*rng.choices(links, weights, k=rng.randrange(2, 8)), solve), system, system.told, counts)


CASES = ((chain_of_solves, 1.0),)

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # SciPy warns when a diagonal is written
    sys.exit(attack_by_command("solves", __doc__, attack_with(CASES)))
