"""Attack on matrices over ranks: random ones, cut at random, called in random order and wrongly; seeded.

    python -m tests.attack.ranks --seconds 600 --seed 7

Ranks are threads. If one of them is given a wrong argument, all must raise the same words, none may wait for
another in vain, and all must multiply afterwards; each row of a product is held to its bound.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dasp import Policy, distributed, solvers
from dasp.distributed import RankError, SpMatrix
from tests.attack._cases import Counts, attack_by_command, attack_with
from tests.support import reference
from tests.support.ranks import ThreadCommunicator, run_ranks

SECONDS = 30.0
"""How long a rank waits for another; no call here takes so long."""

TYPES = "f4", "f8", "c8", "c16"

Work = Callable[[ThreadCommunicator, Any], None]


def starts(rng: random.Random, n: int, ranks: int) -> list[int]:
    """Draw where the rows of ranks begin: nearly alike, anywhere, or all with one rank."""
    kind = rng.randrange(3)
    cuts = [n * k // ranks for k in range(1, ranks)]
    if kind == 1:
        cuts = sorted(rng.randint(0, n) for _ in cuts)
    if kind == 2:
        owner = rng.randrange(ranks)
        cuts = [n if k >= owner else 0 for k in range(ranks - 1)]
    return [0, *cuts, n]


class System:
    """A matrix, and where its rows are cut for the ranks."""

    def __init__(self, rng: random.Random, ranks: int, *, square: bool) -> None:
        self.rng, self.ranks = rng, ranks
        self.draw = np.random.default_rng(rng.getrandbits(32))
        m = rng.choice([0, 1, 3, 17, 60])
        n = m if square else rng.choice([0, 1, 5, 40])
        A = sp.random_array(
            (m, n), density=rng.choice([0.0, 0.05, 0.3, 1.0]), random_state=self.draw, format="csr"
        )
        if rng.random() < 0.3 and m == n > 1:
            A = sp.csr_array(sp.diags_array([np.ones(n)] * 3, offsets=[-1, 0, 1], shape=(n, n)))
        self.A = self.typed(A, rng.choice(TYPES))
        self.rows = starts(rng, m, ranks)
        self.columns = self.rows if m == n else starts(rng, n, ranks)
        self.policy = rng.choice([None, None, Policy(narrow=False), Policy.dasp()])

    def typed(self, A: Any, kind: str) -> Any:
        data = self.numbers(A.nnz, kind)
        return sp.csr_array((data, A.indices, A.indptr), shape=A.shape)

    def numbers(self, shape: Any, kind: str) -> Any:
        found = self.draw.standard_normal(shape)
        if np.dtype(kind).kind == "c":
            found = found + 1j * self.draw.standard_normal(shape)
        return np.asarray(found, kind)

    def matrix(self, comm: ThreadCommunicator) -> SpMatrix:
        root = self.ranks - 1
        given = self.A if comm.rank == root else None
        ends = {"rows": self.rows, "columns": self.columns}
        return SpMatrix.from_scipy(given, comm, root=root, policy=self.policy, device="cpu", **ends)


def held(A: Any, D: SpMatrix, way: str, x: Any, y: Any) -> None:
    """Hold this rank's part of a product to its bound."""
    whole = {"": A, "T": A.T, "H": A.conj().T}[way]
    local = sp.csr_array(whole)[slice(*_span(D.columns if way else D.rows))]
    columns = x[:, None] if x.ndim == 1 else x
    got = y[:, None] if y.ndim == 1 else y
    terms = 2 * np.diff(local.indptr) + 3
    for k in range(columns.shape[1]):
        want, size = reference.product(local, columns[:, k])
        bound = reference.gamma(terms, got.dtype) * size
        assert (abs(got[:, k].real - want.real) <= bound.real).all(), way
        assert (abs(got[:, k].imag - want.imag) <= bound.imag).all(), way


def _span(parts: Any) -> tuple[int, int]:
    return parts.first, parts.first + parts.count


def _raised(comm: ThreadCommunicator, call: Callable[[], Any]) -> None:
    """Hold a call to raise the same error on all ranks; those that hear of it name the rank."""
    told = "nothing", ""
    try:
        call()
    except (TypeError, ValueError, RankError) as error:
        told = type(error).__name__, re.sub(r"^rank \d+: ", "", str(error))
    every = comm.gather(told)
    assert len(set(every)) == 1, every
    assert told[0] != "nothing"
    assert "in vain" not in told[1], told


def _multiply(system: System, comm: ThreadCommunicator, D: SpMatrix, plan: dict[str, Any]) -> None:
    way, x = plan["way"], plan["x"]
    of_rows = bool(way)
    mine = x[slice(*_span(D.rows if of_rows else D.columns))]
    if plan["strided"] and x.ndim == 1:
        mine = np.repeat(mine, 2)[::2]
    operator = getattr(D, way) if way else D
    y = operator @ mine
    held(system.A, D, way, x, y)
    assert (operator @ mine).tobytes() == y.tobytes()
    if plan["out"]:
        out = np.full_like(y, np.nan)
        assert operator.matvec(mine, out=out) is out
        assert out.tobytes() == y.tobytes()


def _values(system: System, comm: ThreadCommunicator, D: SpMatrix, plan: dict[str, Any]) -> None:
    """Multiply by other values of the same pattern."""
    other = plan["matrix"]
    part = slice(*other.indptr[list(_span(D.rows))])
    made = D.with_values(other.data[part])
    x = plan["x"]
    y = made @ x[slice(*_span(D.columns))]
    held(other, D, "", x, y)
    held(system.A, D, "", x, D @ x[slice(*_span(D.columns))])


def _solve(system: System, comm: ThreadCommunicator, D: SpMatrix, plan: dict[str, Any]) -> None:
    """Solve, or refuse with the same words on all ranks."""
    if D.shape[0] != D.shape[1]:
        return
    b = plan["b"][slice(*_span(D.rows))]
    try:
        x, stats = getattr(solvers, plan["method"])(D, b, rtol=1e-3, maxiter=plan["most"])
    except (TypeError, ValueError) as error:
        told: Any = type(error).__name__, str(error)
    else:
        told = "solved", (stats.iterations, stats.converged, stats.residual, stats.reason)
        assert x.shape == b.shape
    assert len(set(map(repr, comm.gather(told)))) == 1, told


def _wrong(system: System, comm: ThreadCommunicator, D: SpMatrix, plan: dict[str, Any]) -> None:
    """Give one rank an argument that does not fit."""
    bad = comm.rank == plan["rank"]
    k = 7 + plan["rank"]  # a number of columns that no rank has multiplied before
    rows, columns = D.local_shape
    b: Any = np.ones(rows + bad)
    calls: list[Callable[[], Any]] = [
        lambda: D @ np.ones((columns + bad, k)),
        lambda: D @ (np.full((columns, k), None) if bad else np.ones((columns, k))),
        lambda: D.T @ np.ones((rows + bad, k)),
        lambda: D.matvec(np.ones((columns, k)), out=np.ones((rows, k + bad))),
        lambda: D.with_values(np.ones(D.interior.nnz + D.halo.nnz + bad)),
        lambda: solvers.cg(D, b),
        lambda: solvers.gmres(D, "b" if bad else np.ones(rows)),
        lambda: SpMatrix.from_local_rows(7 if bad else sp.eye_array(rows).tocsr(), comm, device="cpu"),
        lambda: SpMatrix.from_files("/nowhere", comm, device="cpu"),
        lambda: distributed.preconditioners.block_jacobi(D, block=0 if bad else 2),
        lambda: distributed.preconditioners.chebyshev(D, degree=0 if bad else 3),
        lambda: solvers.cg(D, np.ones(rows), rtol=2e-3 if bad else 1e-3, maxiter=-1),
    ]
    for name in ("rows", "columns"):
        starts = getattr(system, name)
        for wrong in (starts[1:], "half", [0.5 * k for k in starts], [*starts[:-1], starts[-1] + 1]):
            root = plan["rank"]
            given = {"rows": system.rows, "columns": system.columns} | {name: wrong if bad else starts}
            A = system.A if bad else None
            calls.append(partial(SpMatrix.from_scipy, A, comm, root=root, device="cpu", **given))
    if system.ranks > 1:
        calls.append(lambda: D @ np.ones((columns, k), "f4" if bad else "f8"))
        calls.append(lambda: D @ np.ones((columns, k + bad)))
    _raised(comm, calls[plan["which"] % len(calls)])


def _plan(system: System, rng: random.Random) -> tuple[Work, dict[str, Any]]:
    """Draw a call, the same on all ranks."""
    m, n = system.A.shape
    way = rng.choice(["", "", "T", "H"])
    shape = rng.choice([(), (), (1,), (2,), (5,)])
    plan = {
        "way": way, "x": system.numbers(((m if way else n), *shape), rng.choice(TYPES)),
        "strided": rng.random() < 0.2, "out": rng.random() < 0.4,
        "rank": rng.randrange(system.ranks), "which": rng.randrange(100), "b": system.numbers(m, "f8"),
        "method": rng.choice(["cg", "minres", "bicgstab", "gmres", "lsqr"]), "most": rng.choice([0, 1, 40]),
        "matrix": system.typed(system.A, rng.choice(TYPES)),
    }  # fmt: skip
    work = rng.choices([_multiply, _values, _solve, _wrong], [4, 1, 1, 2])[0]
    if work is _values:
        plan["x"] = system.numbers((n, *shape), rng.choice(TYPES))
    return partial(work, system), plan


def chain(rng: random.Random, counts: Counts) -> None:
    """Call one matrix, then another, and then both in turn."""
    ranks = rng.choice([1, 2, 3, 5])
    systems = [System(rng, ranks, square=rng.random() < 0.6) for _ in range(2)]
    calls = []
    for _ in range(rng.randrange(1, 9)):
        which = rng.randrange(2)
        calls.append((which, *_plan(systems[which], rng)))
        counts[calls[-1][1].func.__name__.strip("_")] += 1  # type: ignore[attr-defined]

    def run(comm: ThreadCommunicator) -> None:
        comm.timeout = SECONDS
        matrices = [system.matrix(comm) for system in systems]
        for which, work, plan in calls:
            work(comm, matrices[which], plan)  # type: ignore[call-arg]

    run_ranks(ranks, run, leave=True)


if __name__ == "__main__":
    sys.exit(attack_by_command("ranks", __doc__, attack_with([(chain, 1.0)])))
