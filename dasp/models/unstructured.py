"""Unstructured matrices: meshes, networks, engineered systems, and purely synthetic patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dasp.models.family import (
    Family,
    Floats,
    Integers,
    SizeParameter,
    csr_from_pairs,
    csr_from_slots,
    csr_from_sums,
    index_type,
    laplacian,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# ---- meshes and networks ---------------------------------------------------------------------------------


def _draw_points(generator: np.random.Generator, n: int) -> Floats:
    """Draw points of the unit square, numbered along Morton's curve as a mesher would number them."""
    points = generator.random((n, 2))
    cells = (points * 65536).astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        cells = (cells | (cells << np.uint64(shift))) & np.uint64(mask)
    return points[np.argsort(cells[:, 0] | (cells[:, 1] << np.uint64(1)), kind="stable")]


def triangles(generator: np.random.Generator, n: int) -> csr_array:
    """Build one implicit heat step on the Delaunay triangles of n points: stiffness and lumped mass."""
    from scipy.spatial import Delaunay

    points = _draw_points(generator, n)
    corners = Delaunay(points).simplices
    opposite = points[corners[:, [2, 0, 1]]] - points[corners[:, [1, 2, 0]]]
    area = np.abs(opposite[:, 0, 0] * opposite[:, 1, 1] - opposite[:, 0, 1] * opposite[:, 1, 0]) / 2
    corners, opposite, area = corners[area > 0], opposite[area > 0], area[area > 0]
    stiffness = np.einsum("tai,tbi->tab", opposite, opposite) / (4 * area[:, None, None])
    # The time step makes mass and stiffness weigh alike on a triangle of average size.
    stiffness[:, [0, 1, 2], [0, 1, 2]] += (area * n / 3)[:, None]
    rows = np.repeat(corners, 3, axis=1)
    columns = np.tile(corners, (1, 3))
    return csr_from_sums(stiffness.ravel(), rows.ravel(), columns.ravel(), (n, n))


def geometric(generator: np.random.Generator, n: int, mean: float) -> csr_array:
    """Build symmetric weights between those of n random points that are near: `mean` neighbours each."""
    from scipy.spatial import cKDTree

    points = _draw_points(generator, n)
    radius = np.sqrt(mean / (np.pi * n))
    left, right = cKDTree(points).query_pairs(radius, output_type="ndarray").T
    weights = generator.standard_normal(len(left))
    return csr_from_sums(
        np.concatenate((weights, weights)),
        np.concatenate((left, right)),
        np.concatenate((right, left)),
        (n, n),
    )


def _kronecker_pairs(generator: np.random.Generator, scale: int, pairs: int) -> tuple[Integers, Integers]:
    """Draw edges: each bit of row and column picks a quarter by the chances .57, .19, .19, .05."""
    rows, columns = np.zeros((2, pairs), dtype=np.int64)
    quarters = (np.cumsum((0.57, 0.19, 0.19)) * 65536).astype(np.uint16)
    for start in range(0, pairs, 1 << 16):  # the edges of one turn stay in the cache
        here = slice(start, min(start + (1 << 16), pairs))
        for _ in range(scale):
            draw = generator.integers(0, 65536, size=here.stop - start, dtype=np.uint16)
            low = draw >= quarters[1]
            right = (draw >= quarters[0]) ^ low | (draw >= quarters[2])
            rows[here] = 2 * rows[here] + low
            columns[here] = 2 * columns[here] + right
    return rows, columns


def rmat(generator: np.random.Generator, scale: int, edges: int) -> csr_array:
    """Build a directed Kronecker graph of 2^scale shuffled vertices; merge duplicates.

    Notes
    -----
    Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004, with the
    parameters of the Graph500 benchmark.
    """
    vertices = 1 << scale
    rows, columns = _kronecker_pairs(generator, scale, edges * vertices)
    names = generator.permutation(vertices)
    return csr_from_pairs(generator, names[rows], names[columns], (vertices, vertices))


def _cut_hosts(generator: np.random.Generator, n: int) -> tuple[Integers, Integers]:
    """Cut n pages into hosts of Pareto-distributed sizes; return first page and size of each page's host."""
    largest = max(1, n // 20)
    # A host has at least 5 pages if n allows it, so this many draws cover n pages.
    sizes = np.minimum(5 + 40 * generator.pareto(1.4, size=n // 5 + 1), largest).astype(np.int64)
    sizes = np.maximum(sizes, 1)
    ends = np.cumsum(sizes)
    if ends[-1] < n:
        ends = np.append(ends, n)
    ends = np.minimum(ends[: np.searchsorted(ends, n) + 1], n)
    starts = np.concatenate(([0], ends[:-1]))
    sizes = ends - starts
    return np.repeat(starts, sizes), np.repeat(sizes, sizes)


def powerlaw(generator: np.random.Generator, n: int, mean: float) -> csr_array:
    """Build a web-like graph: three of four links stay in their host, the others go to popular pages.

    Row lengths and column lengths both have heavy tails; some rows are empty.
    """
    exponent = 1.7
    drawn = generator.pareto(exponent, size=n) * mean * (exponent - 1)
    lengths = np.minimum(np.round(drawn), max(1, n // 4)).astype(np.int64)
    rows = np.repeat(np.arange(n), lengths)
    start, size = _cut_hosts(generator, n)
    draw = generator.random(len(rows))
    inside = start[rows] + (size[rows] * draw**2).astype(np.int64)
    popular = generator.permutation(n)
    anywhere = popular[(n * draw**4).astype(np.int64)]
    columns = np.where(generator.random(len(rows)) < 0.75, inside, anywhere)
    return csr_from_pairs(generator, rows, columns, (n, n))


# ---- circuits, optimisation, Markov chains ---------------------------------------------------------------


def _draw_near(generator: np.random.Generator, places: Integers, n: int) -> Integers:
    """Draw for each place another one of 0..n-1, mostly near, sometimes far (heavy-tailed distances)."""
    distance = 1 + np.minimum(3 * generator.pareto(0.9, size=len(places)), n).astype(np.int64)
    return (places + np.where(generator.random(len(places)) < 0.5, distance, -distance)) % n


def circuit(generator: np.random.Generator, n: int) -> csr_array:
    """Build a circuit's nodal matrix: resistors between near nodes, four supply nets, controlled sources.

    A supply net joins one node in sixteen: its row and its column are nearly dense. Conductances and the
    leak to the ground make the diagonal dominant; a controlled source adds an unsymmetric pair.
    """
    nodes = np.arange(n)
    wires = np.repeat(nodes, generator.integers(1, 3, size=n))
    nets = np.repeat(generator.integers(0, n, size=min(4, n)), n // 16)
    left = np.concatenate((wires, nets))
    right = np.concatenate((_draw_near(generator, wires, n), generator.integers(0, n, size=len(nets))))
    weights = generator.lognormal(sigma=1.5, size=len(left))
    resistors = laplacian(weights, left, right, generator.lognormal(mean=-3, size=n))
    driven = generator.integers(0, n, size=n // 8)
    source = _draw_near(generator, driven, n)
    gain = 0.05 * generator.standard_normal(len(driven))
    sources = csr_from_sums(
        np.concatenate((gain, -gain)), np.tile(driven, 2), np.concatenate((source, (source + 1) % n)), (n, n)
    )
    return (resistors + sources).tocsr()


def kkt(generator: np.random.Generator, n: int) -> csr_array:
    """Build the optimality system [H A^T; A 0] of a quadratic program: n unknowns, n // 2 constraints.

    H is symmetric and positive definite. A has full row rank: its even columns hold one slack each, its odd
    columns three random coefficients a row, and two constraints run over a tenth of all unknowns. The whole
    is symmetric, indefinite and regular, of order n + n // 2, with nothing stored in the last block.
    """
    from scipy.sparse import block_array

    unknowns = np.repeat(np.arange(n), 2)
    hessian = laplacian(
        generator.lognormal(size=2 * n),
        unknowns,
        _draw_near(generator, unknowns, n),
        generator.lognormal(size=n),
    )
    m = n // 2
    constraints = np.arange(m)
    rows = np.concatenate((np.repeat(constraints, 3), np.repeat(constraints[:2], n // 20)))
    near = _draw_near(generator, rows[: 3 * m], m)
    far = generator.integers(0, m, size=len(rows) - 3 * m)
    coefficients = csr_from_pairs(generator, rows, 2 * np.concatenate((near, far)) + 1, (m, n))
    slacks = csr_from_sums(-np.ones(m), constraints, 2 * constraints, (m, n))
    equations = coefficients + slacks
    return block_array([[hessian, equations.T], [equations, None]], format="csr")


def lp(generator: np.random.Generator, m: int, n: int) -> csr_array:
    """Build the constraints of a linear program: m rows, n columns of six entries on average.

    Five of six entries lie on a staircase: their row is near m / n times their column. The others lie in a
    few coupling rows, which get long.
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
    """Build the transition matrix of n states: rows of up to 17 chances that sum to 1, symmetric pattern.

    A state is linked to the states at eight distances between 1 and n^(7/8), each with probability 0.85, as
    in a queueing network or a polymer.
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


# ---- patterns that load a single part of a format, with random normal values -----------------------------


def _draw_around_diagonal(
    generator: np.random.Generator, lengths: Integers, halfwidth: int
) -> tuple[Integers, Integers]:
    """Draw `lengths[i]` columns within `halfwidth` of i; move those beyond an edge onto it."""
    n = len(lengths)
    rows = np.repeat(np.arange(n), lengths)
    columns = rows + generator.integers(-halfwidth, halfwidth + 1, size=len(rows))
    return rows, np.clip(columns, 0, n - 1)


def band(generator: np.random.Generator, n: int, mean: float, halfwidth: int) -> csr_array:
    """Build rows of geometric length with uniform columns within a band; merge duplicates."""
    lengths = np.minimum(generator.geometric(1 / mean, size=n), 2 * halfwidth + 1)
    rows, columns = _draw_around_diagonal(generator, lengths, halfwidth)
    return csr_from_pairs(generator, rows, columns, (n, n))


def short(generator: np.random.Generator, n: int) -> csr_array:
    """Build rows of 1 to 4 draws within 500 of the diagonal; merge duplicates."""
    rows, columns = _draw_around_diagonal(generator, generator.integers(1, 5, size=n), 500)
    return csr_from_pairs(generator, rows, columns, (n, n))


def spikes(generator: np.random.Generator, n: int, k: int, length: int) -> csr_array:
    """Build rows of 4 draws within 20 of the diagonal, k of them with `length` draws more anywhere; merge."""
    rows, columns = _draw_around_diagonal(generator, np.full(n, 4), 20)
    long = np.repeat(generator.choice(n, size=min(k, n), replace=False), length)
    anywhere = generator.integers(0, n, size=len(long))
    return csr_from_pairs(
        generator, np.concatenate((rows, long)), np.concatenate((columns, anywhere)), (n, n)
    )


def dense(generator: np.random.Generator, n: int) -> csr_array:
    """Build an n x n matrix with every entry stored."""
    from scipy.sparse import csr_array

    kind = index_type(n, n, n * n)
    indices = np.tile(np.arange(n, dtype=kind), n)
    indptr = np.arange(0, n * n + 1, n, dtype=kind)
    return csr_array((generator.standard_normal(n * n), indices, indptr), shape=(n, n))


def random(generator: np.random.Generator, m: int, n: int, density: float) -> csr_array:
    """Build an m x n matrix whose entries are each present with chance `density`, independently.

    Notes
    -----
    The gaps between the entries of such a matrix, read row by row, are geometric: time and memory grow
    with the entries, not with m n.
    """
    total = m * n
    places = []
    last = -1
    while last < total - 1:
        expected = density * (total - 1 - last)
        gaps = generator.geometric(density, size=int(expected + 4 * np.sqrt(expected) + 4))
        # The first gap that leaves the matrix is the last; clipped gaps keep the running sum within 64 bits.
        more = last + np.cumsum(np.minimum(gaps, total))
        places.append(more[more < total])
        last = int(more[-1])
    rows, columns = np.divmod(np.concatenate(places), n)
    return csr_from_pairs(generator, rows, columns, (m, n))


# ---- the table -------------------------------------------------------------------------------------------

_SIDE = SizeParameter("n", minimum=1)

# fmt: off
FAMILIES = (
    Family("triangles", (SizeParameter("n", minimum=4),),
           "linear elements on the Delaunay triangles of n points: plane meshes, SPD", "triangles:2000",
           lambda n: (n, 20.0 * n), triangles),
    Family("geometric", (_SIDE, SizeParameter("mean", 0.1, 15.0, 10_000, real=True)),
           "pairs of near points in the plane, mean neighbours each: mesh and road graphs",
           "geometric:2000", lambda n, mean: (n, mean * n), geometric),
    Family("rmat", (SizeParameter("scale", 1, None, 40), SizeParameter("edges", 1, 16)),
           "Kronecker graph of 2^scale shuffled vertices: social networks", "rmat:10",
           lambda scale, edges: (2.0**scale, edges * 2.0**scale), rmat),
    Family("powerlaw", (_SIDE, SizeParameter("mean", 0.1, 12.0, 10_000, real=True)),
           "links inside hosts and to popular pages: web and citation graphs", "powerlaw:3000",
           lambda n, mean: (n, mean * n), powerlaw),
    Family("circuit", (SizeParameter("n", minimum=2),),
           "n nodes, few entries a row, four nearly dense rows and columns: circuits", "circuit:3000",
           lambda n: (n, 5.0 * n), circuit),
    Family("kkt", (SizeParameter("n", minimum=2),),
           "[H A^T; A 0] with n unknowns and n // 2 constraints: optimisation, indefinite", "kkt:2000",
           lambda n: (1.5 * n, 9.5 * n), kkt),
    Family("lp", (SizeParameter("m", minimum=1), _SIDE),
           "m x n staircase with long coupling rows: linear programs, rectangular", "lp:500:2000",
           lambda m, n: (m + n, 6.0 * n), lp),
    Family("markov", (_SIDE,),
           "n states, up to 17 transitions each, rows sum to 1: Markov chains", "markov:2000",
           lambda n: (n, 17.0 * n), markov),
    Family("band", (_SIDE, SizeParameter("mean", 1.0, 40.0, 1e9, real=True),
            SizeParameter("halfwidth", 0, 3000)),
           "rows of geometric length (mean 40) within +-3000: irregular but local", "band:2000",
           lambda n, mean, halfwidth: (n, n * mean), band),
    Family("short", (_SIDE,), "rows of 1 to 4 within +-500: the short categories alone", "short:5000",
           lambda n: (n, 2.5 * n), short),
    Family("spikes", (_SIDE, SizeParameter("k", 0, 20), SizeParameter("len", 0, 100_000)),
           "4 near the diagonal, and k rows of len draws: a few very long rows", "spikes:5000:3:2000",
           lambda n, k, length: (n, 4.0 * n + min(k, n) * float(length)), spikes),
    Family("dense", (_SIDE,), "all n^2 entries: long rows alone", "dense:100",
           lambda n: (n, float(n) ** 2), dense),
    Family("random",
           (SizeParameter("m", 1, None, 2**30), SizeParameter("n", 1, None, 2**30),
            SizeParameter("density", 1e-18, None, 1.0, real=True)),
           "m x n, each entry present with chance density: no locality at all", "random:500:400:0.02",
           lambda m, n, density: (m, 16 + float(m) * n * density), random),
)
# fmt: on
