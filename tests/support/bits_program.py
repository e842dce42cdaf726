"""A program that solves small systems and prints a digest of the bits of each result.

    python tests/support/bits_program.py

tests/test_bits.py runs it in fresh processes, whose results must be equal. Each case is solved twice with
two threads and once with one, and must give the same bits all three times.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

import dasp
from dasp import preconditioners, solvers

SIDE = 101
"""Nodes along a side: 10,201 unknowns are ten blocks of a pass, the last one no whole number of lanes, and
enough for two threads."""

Case = tuple[str, str, str]

CASES: tuple[Case, ...] = (
    ("cg", "float64", "multigrid"),
    ("cg", "complex64", "chebyshev"),
    ("gmres", "complex64", "chebyshev"),
    ("block_cg", "float64", "incomplete"),
    ("block_cg", "complex64", "none"),
    ("lsqr", "float64", "none"),
    ("lsqr", "complex64", "none"),
)
"""A solver, its type and its preconditioner; complex numbers have one type, so that less is compiled."""

UNSYMMETRIC = ("gmres", "lsqr")
WITHOUT_M = ("lsqr",)
ITERATIONS = {"gmres": 35, "block_cg": 6}


@cache
def system(kind: str, symmetric: bool) -> Any:
    """Return a positive definite matrix with a varying diagonal, with a skew part unless `symmetric`."""
    steps = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE))
    flow = sp.diags_array([-0.3, 0.3], offsets=[-1, 1], shape=(SIDE, SIDE))
    eye = sp.eye_array(SIDE)
    A = sp.kron(steps, eye) + sp.kron(eye, steps)
    A = A + sp.diags_array(0.2 * np.random.default_rng(1).random(SIDE * SIDE))
    skew = sp.kron(flow, eye)
    if np.dtype(kind).kind == "c":
        A = A + 0.5j * skew
    return sp.csr_array(A if symmetric else A + skew).astype(kind)


@cache
def hierarchy(kind: str) -> Any:
    """Return a hierarchy of three levels for the symmetric system, aggregated without PyAMG."""
    levels, A = [], system(kind, True)
    for _ in range(2):
        n = A.shape[0]
        P = sp.csr_array((np.ones(n, A.dtype), np.arange(n) // 16, np.arange(n + 1)))
        levels.append(Level(A, P, P.T.tocsr()))
        A = sp.csr_array(P.T @ A @ P)
    levels.append(Level(A))
    return Hierarchy(levels)


class Level:
    """A level: its matrix A, and P and R to the level below."""

    def __init__(self, A: Any, P: Any = None, R: Any = None) -> None:
        self.A, self.P, self.R = A, P, R


class Hierarchy:
    """A hierarchy as `dasp.preconditioners.multigrid` takes it."""

    def __init__(self, levels: list[Level]) -> None:
        self.levels = levels


@cache
def preconditioner(name: str, kind: str, symmetric: bool) -> Any:
    A = system(kind, symmetric)
    made: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "chebyshev": lambda: preconditioners.chebyshev(A, device="cpu"),
        "incomplete": lambda: (preconditioners.ic0 if symmetric else preconditioners.ilu0)(A, device="cpu"),
        "multigrid": lambda: preconditioners.multigrid(hierarchy(kind), device="cpu", dtype=kind),
    }
    return made[name]()


@cache
def planned(kind: str, symmetric: bool) -> dasp.SpMatrix:
    return dasp.SpMatrix(system(kind, symmetric), device="cpu")


def solve(case: Case) -> bytes:
    """Return the bits of a solver's results and residuals."""
    name, kind, M = case
    symmetric = name not in UNSYMMETRIC
    A, n = planned(kind, symmetric), SIDE * SIDE
    rng = np.random.default_rng(0)
    shape = (n, 3) if name == "block_cg" else (n,)
    b = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if kind.startswith("c") else 0)
    options: dict[str, Any] = {"maxiter": ITERATIONS.get(name, 12), "rtol": 1e-14}
    if name not in WITHOUT_M:
        options["M"] = preconditioner(M, kind, symmetric)
    *found, stats = getattr(solvers, name)(A, b.astype(kind), **options)
    parts = [np.asarray(part).tobytes() for part in found]
    return b"".join([*parts, np.asarray(stats.residuals).tobytes()])


def digests(cases: tuple[Case, ...]) -> dict[str, str]:
    """Return a digest for each case.

    Raises
    ------
    ValueError
        If a case has different bits in another call or with one thread.
    """
    found = {}
    for case in cases:
        bits = []
        for threads in (2, 2, 1):
            dasp.set_num_threads(threads)
            bits.append(solve(case))
        if len(set(bits)) > 1:
            equal = [each == bits[0] for each in bits]
            raise ValueError(f"{case}: a call has other bits; equal to the first are {equal}")
        found[" ".join(case)] = hashlib.sha256(bits[0]).hexdigest()
    return found


if __name__ == "__main__":
    warnings.simplefilter("error")
    print(json.dumps(digests(CASES)))
