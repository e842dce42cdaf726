"""Matrices without a story: each one loads a single part of the format, with random normal values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dasp.models.assembly import Integers, csr_from_pairs, index_type
from dasp.models.family import Family, SizeParameter

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def _around_diagonal(
    generator: np.random.Generator, lengths: Integers, halfwidth: int
) -> tuple[Integers, Integers]:
    """Draw `lengths[i]` columns within `halfwidth` of i; those beyond the edge fall on the edge."""
    n = len(lengths)
    rows = np.repeat(np.arange(n), lengths)
    columns = rows + generator.integers(-halfwidth, halfwidth + 1, size=len(rows))
    return rows, np.clip(columns, 0, n - 1)


def band(generator: np.random.Generator, n: int, mean: float, halfwidth: int) -> csr_array:
    """Geometric row lengths, columns uniform within a band, duplicates merged."""
    lengths = np.minimum(generator.geometric(1 / mean, size=n), 2 * halfwidth + 1)
    rows, columns = _around_diagonal(generator, lengths, halfwidth)
    return csr_from_pairs(generator, rows, columns, (n, n))


def short(generator: np.random.Generator, n: int) -> csr_array:
    """Rows of 1 to 4 draws, columns within 500 of the diagonal, duplicates merged."""
    rows, columns = _around_diagonal(generator, generator.integers(1, 5, size=n), 500)
    return csr_from_pairs(generator, rows, columns, (n, n))


def spikes(generator: np.random.Generator, n: int, k: int, length: int) -> csr_array:
    """Four draws within 20 of the diagonal in every row, `length` draws anywhere in k of them, merged."""
    rows, columns = _around_diagonal(generator, np.full(n, 4), 20)
    long = np.repeat(generator.choice(n, size=min(k, n), replace=False), length)
    anywhere = generator.integers(0, n, size=len(long))
    return csr_from_pairs(
        generator, np.concatenate((rows, long)), np.concatenate((columns, anywhere)), (n, n)
    )


def dense(generator: np.random.Generator, n: int) -> csr_array:
    """Every entry of an n x n matrix."""
    from scipy.sparse import csr_array

    kind = index_type(n, n, n * n)
    indices = np.tile(np.arange(n, dtype=kind), n)
    indptr = np.arange(0, n * n + 1, n, dtype=kind)
    return csr_array((generator.standard_normal(n * n), indices, indptr), shape=(n, n))


def random(generator: np.random.Generator, m: int, n: int, density: float) -> csr_array:
    """Each entry of an m x n matrix present with the same chance, independently.

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
        # A gap that leaves the matrix ends it; cutting it there keeps the running sum within 64 bits.
        more = last + np.cumsum(np.minimum(gaps, total))
        places.append(more[more < total])
        last = int(more[-1])
    rows, columns = np.divmod(np.concatenate(places), n)
    return csr_from_pairs(generator, rows, columns, (m, n))


_SIDE = SizeParameter("n", minimum=1)

# fmt: off
FAMILIES = (
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
