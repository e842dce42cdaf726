"""Matrices of engineered systems: circuits, optimisation, Markov chains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dasp.models.assembly import Integers, csr_from_pairs, csr_from_slots, csr_from_sums, laplacian
from dasp.models.family import Family, SizeParameter

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def _near(generator: np.random.Generator, places: Integers, n: int) -> Integers:
    """For each place another one of 0..n-1, mostly close by, sometimes far (heavy-tailed distances)."""
    distance = 1 + np.minimum(3 * generator.pareto(0.9, size=len(places)), n).astype(np.int64)
    return (places + np.where(generator.random(len(places)) < 0.5, distance, -distance)) % n


def circuit(generator: np.random.Generator, n: int) -> csr_array:
    """Nodal analysis of a circuit: resistors between near nodes, four supply nets, some controlled sources.

    A supply net joins one node in sixteen: its row and its column are nearly dense. Conductances and the
    leak to the ground make the diagonal dominant; a controlled source adds an unsymmetric pair.
    """
    nodes = np.arange(n)
    wires = np.repeat(nodes, generator.integers(1, 3, size=n))
    nets = np.repeat(generator.integers(0, n, size=min(4, n)), n // 16)
    left = np.concatenate((wires, nets))
    right = np.concatenate((_near(generator, wires, n), generator.integers(0, n, size=len(nets))))
    weights = generator.lognormal(sigma=1.5, size=len(left))
    resistors = laplacian(weights, left, right, generator.lognormal(mean=-3, size=n))
    driven = generator.integers(0, n, size=n // 8)
    source = _near(generator, driven, n)
    gain = 0.05 * generator.standard_normal(len(driven))
    sources = csr_from_sums(
        np.concatenate((gain, -gain)), np.tile(driven, 2), np.concatenate((source, (source + 1) % n)), (n, n)
    )
    return (resistors + sources).tocsr()


def kkt(generator: np.random.Generator, n: int) -> csr_array:
    """The optimality system [H A^T; A 0] of a quadratic program: n unknowns, n // 2 constraints.

    H is symmetric and positive definite. A has full row rank: its even columns hold one slack each, its odd
    columns three random coefficients a row, and two constraints run over a tenth of all unknowns. The whole
    is symmetric, indefinite and regular, of order n + n // 2, with nothing stored in the last block.
    """
    from scipy.sparse import block_array

    unknowns = np.repeat(np.arange(n), 2)
    hessian = laplacian(
        generator.lognormal(size=2 * n), unknowns, _near(generator, unknowns, n), generator.lognormal(size=n)
    )
    m = n // 2
    constraints = np.arange(m)
    rows = np.concatenate((np.repeat(constraints, 3), np.repeat(constraints[:2], n // 20)))
    near = _near(generator, rows[: 3 * m], m)
    far = generator.integers(0, m, size=len(rows) - 3 * m)
    coefficients = csr_from_pairs(generator, rows, 2 * np.concatenate((near, far)) + 1, (m, n))
    slacks = csr_from_sums(-np.ones(m), constraints, 2 * constraints, (m, n))
    equations = coefficients + slacks
    return block_array([[hessian, equations.T], [equations, None]], format="csr")


def lp(generator: np.random.Generator, m: int, n: int) -> csr_array:
    """The constraints of a linear program: m rows, n columns of six entries on average.

    Five entries of six lie on a staircase (the row near column m / n times the column), the rest in
    a few coupling rows that get long.
    """
    lengths = np.minimum(generator.geometric(1 / 6, size=n), m)
    columns = np.repeat(np.arange(n), lengths)
    stair = (columns * (m / n)).astype(np.int64) + generator.integers(
        -(m // 50) - 1, m // 50 + 2, len(columns)
    )
    coupling = (m * generator.random(len(columns)) ** 6).astype(np.int64)
    rows = np.where(generator.random(len(columns)) < 5 / 6, np.clip(stair, 0, m - 1), coupling)
    return csr_from_pairs(generator, rows, columns, (m, n))


def markov(generator: np.random.Generator, n: int) -> csr_array:
    """The transition matrix of n states: rows of up to 17 chances that sum to 1, symmetric pattern.

    A state reaches those at eight distances between 1 and n^(7/8), as the states of a queueing network or
    of a polymer do, each with probability 0.85.
    """
    hops = np.unique(np.round(float(n) ** (np.arange(8) / 8)).astype(np.int64))
    hops = hops[hops < n]
    steps = np.concatenate((-hops[::-1], [0], hops))
    columns = np.arange(n)[:, None] + steps
    stored = (columns >= 0) & (columns < n)
    for slot, hop in enumerate(hops):
        allowed = generator.random(n) < 0.85
        stored[:, len(hops) + 1 + slot] &= allowed
        stored[hop:, len(hops) - 1 - slot] &= allowed[: n - hop]
    rates = np.where(stored, generator.exponential(size=columns.shape), 0.0)
    return csr_from_slots(columns, stored, rates / rates.sum(axis=1, keepdims=True), n)


# fmt: off
FAMILIES = (
    Family("circuit", (SizeParameter("n", minimum=2),),
           "n nodes, few entries a row, four nearly dense rows and columns: circuits", "circuit:3000",
           lambda n: (n, 5.0 * n), circuit),
    Family("kkt", (SizeParameter("n", minimum=2),),
           "[H A^T; A 0] with n unknowns and n // 2 constraints: optimisation, indefinite", "kkt:2000",
           lambda n: (1.5 * n, 9.5 * n), kkt),
    Family("lp", (SizeParameter("m", minimum=1), SizeParameter("n", minimum=1)),
           "m x n staircase with long coupling rows: linear programs, rectangular", "lp:500:2000",
           lambda m, n: (m + n, 6.0 * n), lp),
    Family("markov", (SizeParameter("n", minimum=1),),
           "n states, up to 17 transitions each, rows sum to 1: Markov chains", "markov:2000",
           lambda n: (n, 17.0 * n), markov),
)
# fmt: on
