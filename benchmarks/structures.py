"""Structures that no choice was tuned on: files of matrices to be measured like any others.

    python -m benchmarks.structures FOLDER                          # all of them
    python -m benchmarks.structures FOLDER road_300_any,equal blocks_12k
    python -m benchmarks.bench sparse --device cuda --csv unseen_h200.csv FOLDER/*.npz

None of them is a model of `dasp.models`. A structure is a function of a random generator; what follows a
comma is the kind of the values (`VALUES`), which are random numbers otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Generator = np.random.Generator
Build = Callable[[Generator], Any]


def _csr(rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]) -> Any:
    """Each place once, with the value 1."""
    ones = np.ones(len(rows), np.int8)
    made = sp.coo_array((ones, (rows.astype(np.int32), columns.astype(np.int32))), shape=shape).tocsr()
    made.sum_duplicates()
    return sp.csr_array((np.ones(made.nnz), made.indices, made.indptr), shape=shape)


def _grid(sides: tuple[int, ...], offsets: list[tuple[int, ...]]) -> Any:
    """Points of a grid, each with itself and with those at some offsets, where they are in the grid."""
    numbers = np.arange(np.prod(sides)).reshape(sides)
    rows, columns = [], []
    for offset in offsets:
        here = tuple(slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, sides, strict=True))
        there = tuple(slice(max(0, o), n + min(0, o)) for o, n in zip(offset, sides, strict=True))
        rows.append(numbers[here].ravel())
        columns.append(numbers[there].ravel())
    return _csr(np.concatenate(rows), np.concatenate(columns), (numbers.size, numbers.size))


def _star(dimensions: int) -> list[tuple[int, ...]]:
    """A point and its neighbours along each axis."""
    steps = [tuple(s * (a == axis) for a in range(dimensions)) for axis in range(dimensions) for s in (-1, 1)]
    return [(0,) * dimensions, *steps]


def _permuted(rng: Generator, matrix: Any) -> Any:
    """Rows and columns renumbered at random, alike."""
    order = rng.permutation(matrix.shape[0])
    return sp.csr_array(matrix[order][:, order])


def _zipf(rng: Generator, count: int, most: int, power: float) -> NDArray[Any]:
    """Numbers below `most`, of which small ones are frequent."""
    chance = np.arange(1, most + 1) ** -power
    return np.searchsorted(np.cumsum(chance) / chance.sum(), rng.random(count)).clip(0, most - 1)


def holes(rng: Generator, n: int, half: int, kept: float) -> Any:
    """A band with random holes."""
    offsets = np.arange(-half, half + 1)
    columns = np.arange(n)[:, None] + offsets
    stored = (columns >= 0) & (columns < n) & ((rng.random(columns.shape) < kept) | (offsets == 0))
    rows = np.broadcast_to(np.arange(n)[:, None], columns.shape)
    return _csr(rows[stored], columns[stored], (n, n))


def arrow(rng: Generator, n: int, width: int) -> Any:
    """A diagonal, and a few full rows and columns."""
    every = np.arange(n)
    tips = np.arange(n - width, n)
    rows = np.concatenate((every, np.repeat(tips, n), np.tile(every, width)))
    columns = np.concatenate((every, np.tile(every, width), np.repeat(tips, n)))
    return _csr(rows, columns, (n, n))


def blocks(rng: Generator, count: int, least: int, most: int) -> Any:
    """Dense blocks of different sizes along the diagonal."""
    sizes = rng.integers(least, most + 1, count)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    of_row = np.repeat(np.arange(count), sizes)
    rows = np.repeat(np.arange(starts[-1]), sizes[of_row])
    first = np.repeat(np.cumsum(sizes[of_row]) - sizes[of_row], sizes[of_row])
    columns = starts[of_row[rows]] + np.arange(len(rows)) - first
    return _csr(rows, columns, (int(starts[-1]),) * 2)


def hypercube(rng: Generator, dimensions: int) -> Any:
    """Corners of a cube that differ in one bit."""
    every = np.arange(1 << dimensions)
    columns = np.concatenate([every ^ (1 << bit) for bit in range(dimensions)])
    return _csr(np.tile(every, dimensions), columns, (len(every),) * 2)


def spins(rng: Generator, sites: int) -> Any:
    """A ring of spins (Heisenberg): states with themselves, and those where two neighbours change places."""
    every = np.arange(1 << sites)
    rows, columns = [every], [every]
    for site in range(sites):
        bits = 1 << site | 1 << (site + 1) % sites
        differ = ((every & bits) != 0) & ((every & bits) != bits)
        rows.append(every[differ])
        columns.append(every[differ] ^ bits)
    return _csr(np.concatenate(rows), np.concatenate(columns), (len(every),) * 2)


def kronecker(rng: Generator, outer: int, inner: int) -> Any:
    """A random graph times a grid."""
    graph = sp.random_array((outer, outer), density=4 / outer, random_state=rng) + sp.eye_array(outer)
    return sp.csr_array(sp.kron(graph, _grid((inner, inner), _star(2))))


def road(rng: Generator, side: int, renumbered: bool) -> Any:
    """Crossings of a town, each with up to four ways to others; some are missing."""
    grid = sp.triu(_grid((side, side), _star(2)), 1).tocoo()
    kept = rng.random(grid.nnz) < 0.62
    ways = _csr(grid.coords[0][kept], grid.coords[1][kept], grid.shape)
    both = sp.csr_array(ways + ways.T)
    return _permuted(rng, both) if renumbered else both


def circuit(rng: Generator, n: int, nets: int) -> Any:
    """Nodes with a few near others, and some rows and columns that are nearly full."""
    near = np.repeat(np.arange(n), rng.integers(1, 5, n))
    away = np.rint(30 * rng.standard_cauchy(len(near))).clip(-n, n).astype(np.int64)
    other = np.clip(near + away, 0, n - 1)
    net = np.repeat(rng.integers(0, n, nets), n // 6)
    on_it = rng.integers(0, n, len(net))
    rows = np.concatenate((np.arange(n), near, other, net, on_it))
    columns = np.concatenate((np.arange(n), other, near, on_it, net))
    return _csr(rows, columns, (n, n))


def program(rng: Generator, constraints: int, unknowns: int, each: int) -> Any:
    """Constraints of a linear program: each unknown in a few of them, and some constraints over many."""
    columns = np.repeat(np.arange(unknowns), each)
    rows = (columns * constraints // unknowns + rng.integers(-40, 41, len(columns))) % constraints
    long = rng.choice(unknowns, unknowns // 5)
    rows = np.concatenate((rows, rng.integers(0, 5, len(long))))
    return _csr(rows, np.concatenate((columns, long)), (constraints, unknowns))


def chemistry(rng: Generator, atoms: int, reach: float) -> Any:
    """Atoms in a box, each with 4 to 14 orbitals, that overlap with those of atoms nearby."""
    from scipy.spatial import cKDTree

    side = atoms ** (1 / 3)
    places = rng.random((atoms, 3)) * side
    places = places[np.lexsort(np.floor(places / 4).T)]
    pairs = cKDTree(places).query_pairs(reach, output_type="ndarray")
    graph = _csr(
        np.concatenate((pairs[:, 0], pairs[:, 1], np.arange(atoms))),
        np.concatenate((pairs[:, 1], pairs[:, 0], np.arange(atoms))),
        (atoms, atoms),
    )
    sizes = rng.choice((4, 9, 14), atoms, p=(0.5, 0.4, 0.1))
    owner = np.repeat(np.arange(atoms), sizes)
    spread = sp.csr_array((np.ones(len(owner)), owner, np.arange(len(owner) + 1)), shape=(len(owner), atoms))
    return sp.csr_array(spread @ graph @ spread.T)


def _mesh(rng: Generator, points: int, dimensions: int) -> Any:
    """The graph of a Delaunay mesh of random points, numbered along cells of a grid."""
    from scipy.spatial import Delaunay

    places = rng.random((points, dimensions))
    cells = round((points / 20) ** (1 / dimensions))
    places = places[np.lexsort(np.floor(places * cells).T)]
    corners = Delaunay(places).simplices
    pairs = [(a, b) for a in range(dimensions + 1) for b in range(dimensions + 1)]
    rows = np.concatenate([corners[:, a] for a, _ in pairs])
    columns = np.concatenate([corners[:, b] for _, b in pairs])
    return _csr(rows, columns, (points, points))


def tetrahedra(rng: Generator, points: int, unknowns: int, renumbered: bool = False) -> Any:
    """Tetrahedra on random points with some unknowns a point."""
    mesh = _mesh(rng, points, 3)
    mesh = _permuted(rng, mesh) if renumbered else mesh
    return sp.csr_array(sp.kron(mesh, np.ones((unknowns, unknowns)), format="csr"))


def flat(rng: Generator, points: int, renumbered: bool) -> Any:
    """Triangles on random points."""
    mesh = _mesh(rng, points, 2)
    return _permuted(rng, mesh) if renumbered else mesh


def saddle(rng: Generator, side: int) -> Any:
    """Stokes's flow, [A B'; B 0]: two velocities, each a stencil, and a pressure."""
    star = _grid((side, side), _star(2))
    ahead = [_grid((side, side), [(0, 0), step]) for step in ((1, 0), (0, 1))]
    velocity = sp.block_diag((star, star))
    divergence = sp.hstack(ahead)
    return sp.csr_array(sp.block_array([[velocity, divergence.T], [divergence, None]]))


def _aggregation(rng: Generator, matrix: Any) -> Any:
    """A smoothed prolongation: aggregates around points drawn at random, then a step of Jacobi."""
    n = matrix.shape[0]
    rank = rng.permutation(n).astype(np.float64)
    with_ranks = sp.csr_array((rank[matrix.indices], matrix.indices, matrix.indptr), shape=matrix.shape)
    best = np.maximum.reduceat(with_ranks.data, matrix.indptr[:-1])
    again = np.maximum.reduceat(best[matrix.indices], matrix.indptr[:-1])
    _, group = np.unique(again, return_inverse=True)
    tentative = sp.csr_array((np.ones(n), group, np.arange(n + 1)), shape=(n, int(group.max()) + 1))
    return sp.csr_array(matrix @ tentative)


def prolongation(rng: Generator, side: int, transposed: bool) -> Any:
    """From a coarse level of multigrid to a fine one, or back."""
    made = _aggregation(rng, _grid((side,) * 3, _star(3)))
    return sp.csr_array(made.T) if transposed else made


def coarse(rng: Generator, side: int) -> Any:
    """A coarse level of multigrid, P'AP."""
    fine = _grid((side,) * 3, _star(3))
    up = _aggregation(rng, fine)
    return sp.csr_array(up.T @ fine @ up)


def documents(rng: Generator, count: int, terms: int, words: int) -> Any:
    """Which words a document has: Zipf's law for words, lengths by a lognormal one."""
    lengths = np.maximum(1, words * rng.lognormal(-0.3, 0.8, count)).astype(np.int64)
    rows = np.repeat(np.arange(count), lengths)
    return _csr(rows, rng.permutation(terms)[_zipf(rng, len(rows), terms, 1.0)], (count, terms))


def ratings(rng: Generator, users: int, items: int, total: int) -> Any:
    """Users and items, both by power laws."""
    rows = rng.permutation(users)[_zipf(rng, total, users, 0.7)]
    return _csr(rows, rng.permutation(items)[_zipf(rng, total, items, 0.9)], (users, items))


def stencil(rng: Generator, side: int, wide: bool) -> Any:
    """A stencil of 7 or 27 points, renumbered at random."""
    box = [(i, j, k) for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)]
    return _permuted(rng, _grid((side,) * 3, box if wide else _star(3)))


def economy(rng: Generator, n: int) -> Any:
    """Several diagonals with gaps, and some full columns."""
    offsets = np.array([0, 1, -1, 2, 9, -9, 40, -41, n // 7, -(n // 7), n // 3, -(n // 2)])
    columns = np.arange(n)[:, None] + offsets
    stored = (columns >= 0) & (columns < n) & (rng.random(columns.shape) < 0.75)
    rows = np.broadcast_to(np.arange(n)[:, None], columns.shape)
    some = rng.choice(n, n // 3)
    return _csr(
        np.concatenate((rows[stored], some)),
        np.concatenate((columns[stored], rng.integers(0, 6, len(some)))),
        (n, n),
    )


def permutation(rng: Generator, n: int) -> Any:
    """One entry in each row and column."""
    return _csr(np.arange(n), rng.permutation(n), (n, n))


def rows_of(rng: Generator, m: int, n: int, each: int) -> Any:
    """A matrix m x n with some entries anywhere in each row."""
    return _csr(np.repeat(np.arange(m), each), rng.integers(0, n, m * each), (m, n))


def emptied(rng: Generator, n: int, total: int) -> Any:
    """Mostly empty rows."""
    return _csr(rng.integers(0, n, total), rng.integers(0, n, total), (n, n))


def galerkin(rng: Generator, side: int, degree: int) -> Any:
    """Elements on a grid of cubes with dense blocks between neighbours: discontinuous Galerkin."""
    return sp.csr_array(sp.kron(_grid((side,) * 3, _star(3)), np.ones((degree, degree)), format="csr"))


def tomography(rng: Generator, side: int, angles: int) -> Any:
    """Rays through an image of side x side pixels: each pixel that a sampled ray meets."""
    along = np.linspace(-0.5, 0.5, 2 * side) * side
    rows, columns = [], []
    for nth, angle in enumerate(np.pi * np.arange(angles) / angles):
        offset = (np.arange(side) - side / 2)[:, None]
        x = np.floor(side / 2 + offset * np.cos(angle) - along * np.sin(angle)).astype(np.int64)
        y = np.floor(side / 2 + offset * np.sin(angle) + along * np.cos(angle)).astype(np.int64)
        inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
        rows.append(np.broadcast_to(nth * side + np.arange(side)[:, None], x.shape)[inside])
        columns.append((x * side + y)[inside])
    return _csr(np.concatenate(rows), np.concatenate(columns), (angles * side, side * side))


def blur(rng: Generator, side: int, reach: int) -> Any:
    """An image, each pixel of which becomes a mean of those around it."""
    steps = range(-reach, reach + 1)
    return _grid((side, side), [(i, j) for i in steps for j in steps])


def incidence(rng: Generator, nodes: int, edges: int, transposed: bool) -> Any:
    """Edges and the two nodes of each."""
    made = _csr(
        np.repeat(np.arange(edges), 2),
        np.stack((rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)), 1).ravel(),
        (edges, nodes),
    )
    return sp.csr_array(made.T) if transposed else made


def hubs(rng: Generator, nodes: int, total: int) -> Any:
    """A graph both of whose ends are drawn by a power law."""
    ends = [rng.permutation(nodes)[_zipf(rng, total, nodes, 0.8)] for _ in range(2)]
    return _csr(np.concatenate(ends), np.concatenate(ends[::-1]), (nodes, nodes))


def factor(rng: Generator, side: int) -> Any:
    """A triangular factor without fill of a stencil of 27 points."""
    box = [(i, j, k) for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)]
    return sp.csr_array(sp.tril(_grid((side,) * 3, [step for step in box if step <= (0, 0, 0)])))


def bimodal(rng: Generator, n: int, short: int, long: int, share: float, reach: int) -> Any:
    """Rows of two lengths in random order, with columns near the diagonal."""
    lengths = np.where(rng.random(n) < share, long, short)
    rows = np.repeat(np.arange(n), lengths)
    away = rng.integers(-reach, reach + 1, len(rows))
    return _csr(rows, np.clip(rows + away, 0, n - 1), (n, n))


def staircase(rng: Generator, n: int, most: int) -> Any:
    """Rows that grow from 1 entry to `most` and fall back again and again, along the diagonal."""
    rise = np.arange(n) % (2 * most)
    lengths = np.where(rise < most, rise + 1, 2 * most - rise)
    rows = np.repeat(np.arange(n), lengths)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return _csr(rows, (rows + 3 * place) % n, (n, n))


def neighbours(rng: Generator, points: int, count: int, renumbered: bool) -> Any:
    """Each point of a cloud with those nearest to it."""
    from scipy.spatial import cKDTree

    places = rng.random((points, 3))
    places = places[np.lexsort(np.floor(places * round((points / 30) ** (1 / 3))).T)]
    near = cKDTree(places).query(places, count)[1]
    made = _csr(np.repeat(np.arange(points), count), near.ravel(), (points, points))
    return _permuted(rng, made) if renumbered else made


def diagonals(rng: Generator, n: int, count: int) -> Any:
    """Some full diagonals anywhere."""
    offsets = np.unique(np.concatenate(([0], rng.integers(-n // 2, n // 2, count))))
    columns = np.arange(n)[:, None] + offsets
    stored = (columns >= 0) & (columns < n)
    return _csr(np.broadcast_to(np.arange(n)[:, None], columns.shape)[stored], columns[stored], (n, n))


def squared(rng: Generator, side: int, dimensions: int) -> Any:
    """Neighbours of neighbours on a grid."""
    star = _grid((side,) * dimensions, _star(dimensions))
    return sp.csr_array(star @ star)


def queues(rng: Generator, side: int) -> Any:
    """A chain of four queues: a job comes, moves on to the next one, or leaves."""
    moves = [(0, 0, 0, 0), (1, 0, 0, 0), (-1, 1, 0, 0), (0, -1, 1, 0), (0, 0, -1, 1), (0, 0, 0, -1)]
    return _grid((side,) * 4, moves)


def in_time(rng: Generator, side: int, steps: int) -> Any:
    """All time steps of a grid at once: each needs the one before."""
    star = _grid((side, side), _star(2))
    return sp.csr_array(
        sp.kron(sp.eye_array(steps), star) + sp.kron(sp.eye_array(steps, k=-1), sp.eye_array(side**2))
    )


def shells(rng: Generator, points: int) -> Any:
    """Triangles on random points, renumbered, with six unknowns a point, some of them missing."""
    mesh = _permuted(rng, _mesh(rng, points, 2))
    made = sp.csr_array(sp.kron(mesh, np.ones((6, 6)), format="csr"))
    kept = np.flatnonzero(rng.random(made.shape[0]) < 0.85)
    return sp.csr_array(made[kept][:, kept])


def refined(rng: Generator, elements: int) -> Any:
    """Elements in a line whose degree differs from one to the next: dense blocks between neighbours."""
    sizes = rng.choice((4, 10, 20, 35), elements, p=(0.4, 0.3, 0.2, 0.1))
    chain = sp.diags_array((1.0, 1.0, 1.0), offsets=(-1, 0, 1), shape=(elements, elements), format="csr")
    owner = np.repeat(np.arange(elements), sizes)
    spread = sp.csr_array(
        (np.ones(len(owner)), owner, np.arange(len(owner) + 1)), shape=(len(owner), elements)
    )
    return sp.csr_array(spread @ chain @ spread.T)


VALUES: dict[str, Callable[[Generator, int], NDArray[Any]]] = {
    "random": lambda rng, n: rng.standard_normal(n),
    "equal": lambda rng, n: np.full(n, 0.1),
    "few": lambda rng, n: rng.choice(rng.standard_normal(17), n),
    "single": lambda rng, n: rng.standard_normal(n).astype(np.float32).astype(np.float64),
    "integers": lambda rng, n: rng.integers(-100, 101, n).astype(np.float64),
}
"""What the entries are: random, all the same, some numbers, exact in float32, or small integers."""

STRUCTURES: dict[str, Build] = {
    "holes_20k": partial(holes, n=20_000, half=20, kept=0.5),
    "holes_400k": partial(holes, n=400_000, half=18, kept=0.6),
    "arrow_50k": partial(arrow, n=50_000, width=3),
    "arrow_1m": partial(arrow, n=1_000_000, width=3),
    "blocks_300": partial(blocks, count=300, least=3, most=50),
    "blocks_12k": partial(blocks, count=12_000, least=3, most=50),
    "blocks_5": partial(blocks, count=300_000, least=5, most=5),
    "hypercube_13": partial(hypercube, dimensions=13),
    "hypercube_17": partial(hypercube, dimensions=17),
    "hypercube_20": partial(hypercube, dimensions=20),
    "spins_14": partial(spins, sites=14),
    "spins_20": partial(spins, sites=20),
    "kronecker_100": partial(kronecker, outer=100, inner=20),
    "kronecker_600": partial(kronecker, outer=600, inner=25),
    "road_300": partial(road, side=300, renumbered=False),
    "road_2000": partial(road, side=2000, renumbered=False),
    "road_300_any": partial(road, side=300, renumbered=True),
    "road_1500_any": partial(road, side=1500, renumbered=True),
    "circuit_30k": partial(circuit, n=30_000, nets=5),
    "circuit_700k": partial(circuit, n=700_000, nets=8),
    "lp_wide": partial(program, constraints=20_000, unknowns=1_000_000, each=4),
    "lp_small": partial(program, constraints=1_500, unknowns=20_000, each=3),
    "chemistry_1k": partial(chemistry, atoms=1_000, reach=1.5),
    "chemistry_6k": partial(chemistry, atoms=6_000, reach=2.0),
    "tetrahedra_2k_4": partial(tetrahedra, points=2_000, unknowns=4),
    "tetrahedra_20k_5": partial(tetrahedra, points=20_000, unknowns=5),
    "tetrahedra_40k_6": partial(tetrahedra, points=40_000, unknowns=6),
    "tetrahedra_20k_5_any": partial(tetrahedra, points=20_000, unknowns=5, renumbered=True),
    "triangles_30k": partial(flat, points=30_000, renumbered=False),
    "triangles_200k_any": partial(flat, points=200_000, renumbered=True),
    "saddle_100": partial(saddle, side=100),
    "saddle_700": partial(saddle, side=700),
    "prolongation_80": partial(prolongation, side=80, transposed=False),
    "restriction_80": partial(prolongation, side=80, transposed=True),
    "coarse_40": partial(coarse, side=40),
    "coarse_100": partial(coarse, side=100),
    "documents_4k": partial(documents, count=4_000, terms=12_000, words=60),
    "documents_120k": partial(documents, count=120_000, terms=80_000, words=90),
    "ratings_6m": partial(ratings, users=200_000, items=20_000, total=6_000_000),
    "stencil7_any": partial(stencil, side=90, wide=False),
    "stencil27_any": partial(stencil, side=60, wide=True),
    "economy_30k": partial(economy, n=30_000),
    "economy_800k": partial(economy, n=800_000),
    "permutation_100k": partial(permutation, n=100_000),
    "permutation_3m": partial(permutation, n=3_000_000),
    "few_rows": partial(rows_of, m=40, n=1_000_000, each=120_000),
    "tall": partial(rows_of, m=1_500_000, n=60, each=5),
    "random_60k": partial(rows_of, m=60_000, n=60_000, each=30),
    "random_8": partial(rows_of, m=600_000, n=600_000, each=8),
    "random_200": partial(rows_of, m=30_000, n=30_000, each=200),
    "emptied_3m": partial(emptied, n=3_000_000, total=900_000),
    "galerkin_10": partial(galerkin, side=10, degree=10),
    "galerkin_16": partial(galerkin, side=16, degree=20),
    "tomography_200": partial(tomography, side=200, angles=60),
    "blur_200": partial(blur, side=200, reach=4),
    "incidence": partial(incidence, nodes=300_000, edges=2_000_000, transposed=False),
    "incidence_back": partial(incidence, nodes=300_000, edges=2_000_000, transposed=True),
    "hubs_50k": partial(hubs, nodes=50_000, total=400_000),
    "hubs_400k": partial(hubs, nodes=400_000, total=5_000_000),
    "bimodal_40k": partial(bimodal, n=40_000, short=2, long=60, share=0.1, reach=300),
    "bimodal_700k": partial(bimodal, n=700_000, short=3, long=90, share=0.05, reach=5_000),
    "staircase_30k": partial(staircase, n=30_000, most=40),
    "staircase_500k": partial(staircase, n=500_000, most=30),
    "neighbours_20k": partial(neighbours, points=20_000, count=16, renumbered=False),
    "neighbours_300k": partial(neighbours, points=300_000, count=16, renumbered=False),
    "neighbours_100k_any": partial(neighbours, points=100_000, count=24, renumbered=True),
    "diagonals_50k": partial(diagonals, n=50_000, count=12),
    "diagonals_600k": partial(diagonals, n=600_000, count=15),
    "squared_200": partial(squared, side=200, dimensions=2),
    "squared_70": partial(squared, side=70, dimensions=3),
    "queues_12": partial(queues, side=12),
    "queues_32": partial(queues, side=32),
    "in_time_60": partial(in_time, side=60, steps=40),
    "in_time_300": partial(in_time, side=300, steps=15),
    "shells_1k": partial(shells, points=1_500),
    "shells_20k": partial(shells, points=20_000),
    "refined_300": partial(refined, elements=300),
    "refined_10k": partial(refined, elements=10_000),
    "wide_2k": partial(rows_of, m=2_000, n=1_000_000, each=700),
    "factor_20": partial(factor, side=20),
    "factor_90": partial(factor, side=90),
}
"""By name, most of them in a size that lies in a large GPU's cache and in one that does not."""


def generate(name: str, seed: int = 0) -> Any:
    """A structure with values of a kind: `holes_20k` or `holes_20k,few`; equal names give equal matrices.

    Raises
    ------
    KeyError
        If there is no such structure, or no such kind of values.
    """
    structure, _, kind = name.partition(",")
    rng = np.random.default_rng([seed, *structure.encode()])
    matrix = STRUCTURES[structure](rng)
    matrix.sort_indices()
    values = VALUES[kind or "random"](rng, matrix.nnz)
    indices, indptr = (numbers.astype(np.int32) for numbers in (matrix.indices, matrix.indptr))
    return sp.csr_array((values, indices, indptr), matrix.shape)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", default=list(STRUCTURES), metavar="NAME")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        sp.save_npz(args.folder / f"{name}.npz", generate(name), compressed=False)


if __name__ == "__main__":
    main()
