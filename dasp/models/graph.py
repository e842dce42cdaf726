"""Matrices of meshes without a grid and of graphs: triangles, neighbours in the plane, networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dasp.models.assembly import Floats, Integers, csr_from_pairs, csr_from_sums
from dasp.models.family import Family, SizeParameter

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CHUNK = 1 << 16
"""Edges drawn at a time, so that a draw stays in the cache."""


def _points_in_curve_order(generator: np.random.Generator, n: int) -> Floats:
    """Random points of the unit square, numbered along Morton's curve as a mesher would leave them."""
    points = generator.random((n, 2))
    cells = (points * 65536).astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        cells = (cells | (cells << np.uint64(shift))) & np.uint64(mask)
    return points[np.argsort(cells[:, 0] | (cells[:, 1] << np.uint64(1)), kind="stable")]


def triangles(generator: np.random.Generator, n: int) -> csr_array:
    """One implicit heat step on the Delaunay triangles of n random points: stiffness and lumped mass."""
    from scipy.spatial import Delaunay

    points = _points_in_curve_order(generator, n)
    corners = Delaunay(points).simplices
    opposite = points[corners[:, [2, 0, 1]]] - points[corners[:, [1, 2, 0]]]
    area = np.abs(opposite[:, 0, 0] * opposite[:, 1, 1] - opposite[:, 0, 1] * opposite[:, 1, 0]) / 2
    corners, opposite, area = corners[area > 0], opposite[area > 0], area[area > 0]
    stiffness = np.einsum("tai,tbi->tab", opposite, opposite) / (4 * area[:, None, None])
    # The step in time is such that mass and stiffness weigh alike on a triangle of average size.
    stiffness[:, [0, 1, 2], [0, 1, 2]] += (area * n / 3)[:, None]
    rows = np.repeat(corners, 3, axis=1)
    columns = np.tile(corners, (1, 3))
    return csr_from_sums(stiffness.ravel(), rows.ravel(), columns.ravel(), (n, n))


def geometric(generator: np.random.Generator, n: int, mean: float) -> csr_array:
    """Symmetric weights between all pairs of n random points nearer than a radius; `mean` neighbours each."""
    from scipy.spatial import cKDTree

    points = _points_in_curve_order(generator, n)
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
    """Draw edges whose every bit falls in a quarter with chances .57, .19, .19, .05."""
    rows, columns = np.zeros((2, pairs), dtype=np.int64)
    quarters = (np.cumsum((0.57, 0.19, 0.19)) * 65536).astype(np.uint16)
    for start in range(0, pairs, _CHUNK):
        here = slice(start, min(start + _CHUNK, pairs))
        for _ in range(scale):
            draw = generator.integers(0, 65536, size=here.stop - start, dtype=np.uint16)
            low = draw >= quarters[1]
            right = (draw >= quarters[0]) ^ low | (draw >= quarters[2])
            rows[here] = 2 * rows[here] + low
            columns[here] = 2 * columns[here] + right
    return rows, columns


def rmat(generator: np.random.Generator, scale: int, edges: int) -> csr_array:
    """A Kronecker graph of 2^scale shuffled vertices, directed, duplicates merged.

    Notes
    -----
    Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004, with the
    parameters of the Graph500 benchmark.
    """
    vertices = 1 << scale
    rows, columns = _kronecker_pairs(generator, scale, edges * vertices)
    names = generator.permutation(vertices)
    return csr_from_pairs(generator, names[rows], names[columns], (vertices, vertices))


def _hosts(generator: np.random.Generator, n: int) -> tuple[Integers, Integers]:
    """Cut n pages into hosts of Pareto-distributed sizes; give each page its host's first page and size."""
    largest = max(1, n // 20)
    # A host has at least 5 pages where n allows it, so this many draws cover n pages.
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
    """A web-like graph: three links of four stay in their host, the rest go to popular pages anywhere.

    Row lengths and column lengths both have heavy tails; some rows are empty.
    """
    exponent = 1.7
    drawn = generator.pareto(exponent, size=n) * mean * (exponent - 1)
    lengths = np.minimum(np.round(drawn), max(1, n // 4)).astype(np.int64)
    rows = np.repeat(np.arange(n), lengths)
    start, size = _hosts(generator, n)
    draw = generator.random(len(rows))
    inside = start[rows] + (size[rows] * draw**2).astype(np.int64)
    popular = generator.permutation(n)
    anywhere = popular[(n * draw**4).astype(np.int64)]
    columns = np.where(generator.random(len(rows)) < 0.75, inside, anywhere)
    return csr_from_pairs(generator, rows, columns, (n, n))


# fmt: off
FAMILIES = (
    Family("triangles", (SizeParameter("n", minimum=4),),
           "linear elements on the Delaunay triangles of n points: plane meshes, SPD", "triangles:2000",
           lambda n: (n, 20.0 * n), triangles),
    Family("geometric", (SizeParameter("n", minimum=1), SizeParameter("mean", 0.1, 15.0, 10_000, real=True)),
           "pairs of near points in the plane, mean neighbours each: mesh and road graphs",
           "geometric:2000", lambda n, mean: (n, mean * n), geometric),
    Family("rmat", (SizeParameter("scale", 1, None, 40), SizeParameter("edges", 1, 16)),
           "Kronecker graph of 2^scale shuffled vertices: social networks", "rmat:10",
           lambda scale, edges: (2.0**scale, edges * 2.0**scale), rmat),
    Family("powerlaw", (SizeParameter("n", minimum=1), SizeParameter("mean", 0.1, 12.0, 10_000, real=True)),
           "links inside hosts and to popular pages: web and citation graphs", "powerlaw:3000",
           lambda n, mean: (n, mean * n), powerlaw),
)
# fmt: on
