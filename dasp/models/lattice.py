"""Matrices on regular grids: finite differences, finite elements, lattice field theory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasp.models.family import Family, Floats, SizeParameter, csr_from_slots, index_type

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Offsets = list[tuple[int, ...]]


def _find_neighbours(
    shape: tuple[int, ...], offsets: Offsets, periodic: bool = False
) -> tuple[NDArray, NDArray[np.bool_]]:
    """Find the neighbours of every node of a grid.

    Returns
    -------
    columns : integer array, shape (nodes, offsets)
        The node at each offset, nodes numbered in C order; meaningless where there is none.
    stored : bool array, shape (nodes, offsets)
        True if that neighbour exists: always, on a periodic grid.
    """
    nodes = int(np.prod(shape))
    kind = index_type(nodes, nodes, nodes)
    columns = np.zeros((*shape, len(offsets)), dtype=kind)
    stored = np.ones((*shape, len(offsets)), dtype=bool)
    stride = nodes
    for axis, length in enumerate(shape):
        stride //= length
        steps = np.array([offset[axis] for offset in offsets])
        place = np.arange(length)[:, None] + steps
        along = (slice(None), *[None] * (len(shape) - 1 - axis), slice(None))
        if periodic:
            place %= length
        else:
            stored &= ((place >= 0) & (place < length))[along]
        columns += (place * stride)[along].astype(kind)
    return columns.reshape(nodes, -1), stored.reshape(nodes, -1)


def _box(dimensions: int) -> Offsets:
    """Return the offsets to the 3^d nodes of the surrounding box, in column order."""
    return list(itertools.product((-1, 0, 1), repeat=dimensions))


def _star(dimensions: int) -> Offsets:
    """Return the offsets to the node itself and to its neighbours along the axes, in column order."""
    return [offset for offset in _box(dimensions) if np.abs(offset).sum() <= 1]


def _difference_matrix(shape: tuple[int, ...], offsets: Offsets) -> csr_array:
    """Build a matrix with -1 at each neighbour, and an inner node's number of neighbours on the diagonal.

    Symmetric and positive definite.
    """
    values = np.where(np.any(offsets, axis=1), -1.0, len(offsets) - 1.0)
    columns, stored = _find_neighbours(shape, offsets)
    return csr_from_slots(columns, stored, values, len(columns))


def poisson2d(_: np.random.Generator, n: int) -> csr_array:
    """Build Poisson's equation on an n x n grid, 5-point stencil."""
    return _difference_matrix((n, n), _star(2))


def poisson2d9(_: np.random.Generator, n: int) -> csr_array:
    """Build the 9-point stencil on an n x n grid."""
    return _difference_matrix((n, n), _box(2))


def poisson3d(_: np.random.Generator, n: int) -> csr_array:
    """Build Poisson's equation on an n x n x n grid, 7-point stencil."""
    return _difference_matrix((n, n, n), _star(3))


def stencil27(_: np.random.Generator, n: int) -> csr_array:
    """Build the 27-point stencil on an n x n x n grid, the matrix of the HPCG benchmark."""
    return _difference_matrix((n, n, n), _box(3))


def _brick_stiffness() -> Floats:
    """Return the stiffness of an elastic unit cube: modulus 1, trilinear, 2 x 2 x 2 Gauss points.

    Returns
    -------
    float64 array, shape (24, 24)
        Symmetric; unknown 3 c + i is displacement i of corner c, corners in C order of {0, 1}^3.
    """
    poisson_ratio = 0.3
    lame = poisson_ratio / ((1 + poisson_ratio) * (1 - 2 * poisson_ratio))
    shear = 1 / (2 * (1 + poisson_ratio))
    stiffness = np.zeros((8, 3, 8, 3))
    corners = np.array(list(itertools.product((0, 1), repeat=3)))
    gauss = (0.5 - 0.5 / np.sqrt(3), 0.5 + 0.5 / np.sqrt(3))
    for point in itertools.product(gauss, repeat=3):
        factor = np.where(corners, point, 1 - np.array(point))
        slope = 2.0 * corners - 1
        gradient = np.stack([slope[:, d] * np.delete(factor, d, 1).prod(1) for d in range(3)], axis=1)
        dots = gradient @ gradient.T
        stiffness += lame / 8 * np.einsum("ai,bj->aibj", gradient, gradient)
        stiffness += shear / 8 * np.einsum("aj,bi->aibj", gradient, gradient)
        stiffness += shear / 8 * np.einsum("ab,ij->aibj", dots, np.eye(3))
    square = stiffness.reshape(24, 24)
    return (square + square.T) / 2


def fem3(generator: np.random.Generator, n: int) -> csr_array:
    """Build linear elasticity on n x n x n nodes: trilinear bricks of random stiffness on soft ground.

    Symmetric and positive definite; a dense 3 x 3 block for each pair of nodes that share a brick.
    """
    offsets = _box(3)
    brick = _brick_stiffness().reshape(8, 3, 8, 3)
    modulus = generator.lognormal(sigma=0.5, size=(n - 1,) * 3)
    values = np.zeros((n, n, n, 3, 27, 3))
    for (a, left), (b, right) in itertools.product(enumerate(itertools.product((0, 1), repeat=3)), repeat=2):
        slot = offsets.index(tuple(r - q for q, r in zip(left, right, strict=True)))
        nodes: Any = tuple(slice(start, start + n - 1) for start in left)
        values[*nodes, :, slot, :] += modulus[..., None, None] * brick[a, :, b, :]
    for i in range(3):
        values[0, :, :, i, offsets.index((0, 0, 0)), i] += 0.1

    columns, stored = _find_neighbours((n, n, n), offsets)
    shape = (n**3, 3, 27, 3)
    unknowns = np.broadcast_to(3 * columns[:, None, :, None] + np.arange(3, dtype=columns.dtype), shape)
    stored = np.broadcast_to(stored[:, None, :, None], shape)
    rows = 3 * n**3
    return csr_from_slots(
        unknowns.reshape(rows, 81), stored.reshape(rows, 81), values.reshape(rows, 81), rows
    )


def fem1(generator: np.random.Generator, n: int) -> csr_array:
    """Build one implicit heat step on n x n x n randomly shifted nodes: six linear tetrahedra a cube (Kuhn).

    Symmetric and positive definite; at most 15 entries a row.
    """
    offsets = [o for o in _box(3) if min(o) >= 0 or max(o) <= 0]
    grid = np.stack(np.meshgrid(*[np.arange(n)] * 3, indexing="ij"), axis=-1)
    nodes = grid + generator.uniform(-0.2, 0.2, size=grid.shape)
    values = np.zeros((n, n, n, len(offsets)))
    middle = offsets.index((0, 0, 0))
    for order in itertools.permutations(range(3)):
        corners = np.zeros((4, 3), dtype=int)
        for step, axis in enumerate(order):
            corners[step + 1 :, axis] = 1
        places: list[Any] = [tuple(slice(start, start + n - 1) for start in corner) for corner in corners]
        volume, gradients = _tetrahedra([nodes[place] for place in places])
        for a, b in itertools.product(range(4), repeat=2):
            slot = offsets.index(tuple(corners[b] - corners[a]))
            values[*places[a], slot] += volume * np.einsum("...i,...i->...", gradients[a], gradients[b])
        for place in places:
            values[*place, middle] += volume / 4
    columns, stored = _find_neighbours((n, n, n), offsets)
    return csr_from_slots(columns, stored, values.reshape(n**3, -1), n**3)


def _tetrahedra(corners: list[Floats]) -> tuple[Floats, list[Floats]]:
    """Return the volumes of many tetrahedra, and the gradients of their four linear basis functions.

    Parameters
    ----------
    corners : list of 4 float64 arrays, shape (..., 3)
        The coordinates of the corners.
    """
    first, second, third = (corner - corners[0] for corner in corners[1:])
    crosses = [np.cross(second, third), np.cross(third, first), np.cross(first, second)]
    six_volumes = np.einsum("...i,...i->...", first, crosses[0])
    gradients = [cross / six_volumes[..., None] for cross in crosses]
    return np.abs(six_volumes) / 6, [-(gradients[0] + gradients[1] + gradients[2]), *gradients]


def qcd(generator: np.random.Generator, n: int) -> csr_array:
    """Build Wilson's hopping matrix on a periodic n^4 lattice: 4 spins, 3 colours a site, 39 entries a row.

    The pattern is that of the Dirac representation, where a spin hops with one or two partners; the
    values are real, a random 3 x 3 colour matrix for each link, transposed for the way back.
    """
    forward = [tuple(int(axis == d) for axis in range(4)) for d in range(4)]
    offsets = forward + [tuple(-step for step in offset) for offset in forward]
    sites, _ = _find_neighbours((n,) * 4, offsets, periodic=True)
    links = generator.standard_normal((4, n**4, 3, 3)) / np.sqrt(3)
    columns = np.empty((n**4, 4, 3, 13, 3), dtype=sites.dtype)
    values = np.empty((n**4, 4, 3, 13, 3))
    for spin in range(4):
        partners = [(hop, spin, 1.0) for hop in (0, 1, 2, 4, 5, 6)]
        for direction, partner in enumerate((3 - spin, 3 - spin, (spin + 2) % 4)):
            partners += [(direction, partner, 1.0), (direction + 4, partner, -1.0)]
        partners.append((7 if spin < 2 else 3, spin, 2.0))
        for slot, (hop, partner, sign) in enumerate(partners):
            columns[:, spin, :, slot, :] = 12 * sites[:, hop, None, None] + 3 * partner + np.arange(3)
            link = links[hop] if hop < 4 else links[hop - 4][sites[:, hop]].transpose(0, 2, 1)
            values[:, spin, :, slot, :] = sign * link
    rows = 12 * n**4
    stored = np.ones((rows, 39), dtype=bool)
    matrix = csr_from_slots(columns.reshape(rows, 39), stored, values.reshape(rows, 39), rows)
    matrix.sort_indices()
    return matrix


_SIDE = SizeParameter("n", minimum=1)
_ELEMENTS_SIDE = SizeParameter("n", minimum=2)

# fmt: off
FAMILIES = (
    Family("poisson2d", (_SIDE,), "5-point stencil on n^2 points: heat and pressure in the plane, SPD",
           "poisson2d:50", lambda n: (n**2, 5.0 * n**2), poisson2d),
    Family("poisson2d9", (_SIDE,), "9-point stencil on n^2 points: bilinear elements, image grids, SPD",
           "poisson2d9:50", lambda n: (n**2, 9.0 * n**2), poisson2d9),
    Family("poisson3d", (_SIDE,), "7-point stencil on n^3 points: pressure, reservoirs, SPD",
           "poisson3d:20", lambda n: (n**3, 7.0 * n**3), poisson3d),
    Family("stencil27", (_SIDE,), "27-point stencil on n^3 points: the HPCG benchmark, SPD",
           "stencil27:15", lambda n: (n**3, 27.0 * n**3), stencil27),
    Family("fem3", (_ELEMENTS_SIDE,),
           "elastic bricks on n^3 nodes, 3 unknowns each: structural mechanics, SPD", "fem3:10",
           lambda n: (3 * n**3, 243.0 * n**3), fem3),
    Family("fem1", (_ELEMENTS_SIDE,),
           "linear tetrahedra on n^3 nodes, 1 unknown each: heat in solids, SPD", "fem1:15",
           lambda n: (n**3, 15.0 * n**3), fem1),
    Family("qcd", (SizeParameter("n", minimum=3),),
           "n^4 lattice, 12 unknowns a site, 39 entries a row: quantum chromodynamics", "qcd:4",
           lambda n: (12 * n**4, 468.0 * n**4), qcd),
)
# fmt: on
