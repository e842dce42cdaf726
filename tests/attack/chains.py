"""Attack with chains of calls: plan a matrix, then multiply, convert and write to it in turn; seeded.

    python -m tests.attack.chains --seconds 600 --seed 7

The calls run on a GPU if one works, on streams of every kind, in graphs, from several threads, and with
memory that is given back while products are queued; else on the CPU. A CSR matrix of NumPy arrays goes
through the same changes, and each row of a product is held to its bound around that matrix's product in
long double.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import dasp
from dasp import Policy, SpMatrix
from dasp.runtime.dtypes import result_type, sum_type
from tests.attack._cases import (
    DEVICE,
    GPU,
    Counts,
    Draws,
    attack_by_command,
    attack_with,
    do_all,
    on_host,
    written_in_graphs,
    xp,
)
from tests.support.gallery import GALLERY, LENGTHS, from_lengths
from tests.support.planned import Tuned
from tests.support.reference import assert_close, assert_same_entries, entries_of
from tests.support.threads import products_in_threads

DTYPES = "float64", "float32", "complex128", "float16", "complex64", "bfloat16"
IN_A_ROW = 100
"""Consecutive chains that share their types on a GPU, where each type has its own kernels."""

MODELS = "poisson2d:30", "rmat:10", "fem3:5", "spikes:800:3:700", "triangles:1500", "kkt:1500", "lp:300:900"
DASP: tuple[dict[str, Any], ...] = {}, {"segment": 64}, {"fill": 0.4}, {"long_row": 8}, {"mma": False}
SLICES: tuple[dict[str, Any], ...] = {"steps": 2}, {"window": 64}, {"warps": 16}, {"mma": False}
POLICIES = (
    *3 * [None],
    Policy(narrow=False),
    *(Tuned("dasp", **each) for each in DASP),
    *(Tuned("sell", **each) for each in SLICES),
)
COLUMNS = 0, 0, 0, 1, 2, 3, 5, 8, 16, 17, 33


def wide(array: Any) -> Any:
    """Return numbers in half precision as float32, which SciPy's matrices can hold."""
    return array.astype(sum_type(array.dtype))


def words(array: Any) -> Any:
    flat = xp.ascontiguousarray(array).ravel()
    return flat.view(f"u{min(flat.dtype.itemsize, 4)}")


class Chain:
    """A planned matrix, and the CSR matrix that it must equal."""

    def __init__(self, rng: Draws, counts: Counts) -> None:
        self.rng, self.counts = rng, counts
        self.draw = np.random.default_rng(rng.getrandbits(32))
        turn = rng.run + rng.number // IN_A_ROW
        self.kinds = (DTYPES[turn % 6], DTYPES[(turn // 6 + turn) % 6]) if GPU else DTYPES
        self.kind = rng.choice((*self.kinds, self.kinds[0]))
        self.pattern = self._pattern()
        data = self.values()
        given = self._matrix(data if self.kind != "bfloat16" else wide(data))
        self.A = SpMatrix.from_scipy(given, policy=rng.choice(POLICIES), device=DEVICE).astype(self.kind)
        self.csr = self._matrix(wide(data))

    def _pattern(self) -> csr_array:
        rng, way = self.rng, self.rng.random()
        if way < 0.15:
            return entries_of(GALLERY[rng.choice([*GALLERY])])
        if way < 0.4:
            return dasp.models.generate(rng.choice(MODELS), seed=rng.randrange(1000))
        lengths = rng.choices(rng.sample(LENGTHS, rng.randint(1, 6)), k=rng.choice((1, 31, 200, 1500)))
        if rng.random() < 0.3:
            lengths[rng.randrange(len(lengths))] = rng.choice((1500, 20_000))
        return from_lengths(lengths, rng.choice((1, 7, 100, 3000)), rng.getrandbits(32))

    def _matrix(self, data: Any) -> csr_array:
        return csr_array((data, self.pattern.indices, self.pattern.indptr), shape=self.pattern.shape)

    def values(self) -> Any:
        """Draw a value for each entry, so that some compression may hold them."""
        count, draw = self.pattern.nnz, self.draw
        data = {
            "any": lambda: draw.standard_normal(count),
            "halves": lambda: draw.standard_normal(count).astype(np.float16),
            "bytes": lambda: draw.integers(-128, 128, count),
            "few": lambda: draw.standard_normal(40)[draw.integers(0, 40, count)],
            "equal": lambda: np.full(count, draw.standard_normal()),
        }[self.rng.choice(("any", "any", "halves", "bytes", "few", "equal"))]()
        turned = 1j * draw.standard_normal(count) if self.kind.startswith("complex") else 0
        return (data + turned).astype(self.kind)

    def numbers(self, shape: Any, kind: str) -> Any:
        parts = self.draw.standard_normal(shape)
        if kind.startswith("complex"):
            parts = parts + 1j * self.draw.standard_normal(shape)
        return parts.astype(kind)

    def becomes(self, A: Any, data: Any, kind: str | None = None) -> None:
        self.kind = kind or self.kind
        self.A, self.csr = A, self._matrix(wide(data.astype(self.kind)))

    def laid_out(self, array: Any) -> Any:
        """Return equal numbers in a random memory layout."""
        way = self.rng.choice(("C", "F", "steps", "backwards", "inside"))
        if way == "C" or not array.size:
            return xp.array(array)
        if way == "F":
            return xp.array(array, order="F")
        room = xp.zeros([2 * size + 3 for size in array.shape], array.dtype)
        first, step = {"steps": (1, 2), "backwards": (-1, -1), "inside": (2, 1)}[way]
        view = room[(slice(first, None, step),) * array.ndim][tuple(slice(size) for size in array.shape)]
        view[...] = xp.asarray(array)
        return view

    def assert_product(self, got: Any, csr: csr_array, x: Any, *more: Any) -> None:
        """Hold a vector, or the first, the last and another one of several columns, to its bound."""
        got, x = on_host(got), wide(x)
        assert got.shape == (csr.shape[0], *x.shape[1:])
        if x.ndim == 1:
            return assert_close(got, csr, x, *more)
        alpha, beta, y = more or (1.0, 0.0, None)
        for j in {0, x.shape[1] - 1, self.rng.randrange(x.shape[1])}:
            column = np.ascontiguousarray(x[:, j])
            assert_close(
                np.ascontiguousarray(got[:, j]), csr, column, alpha, beta, None if y is None else y[:, j]
            )

    def transposed(self, conjugated: bool) -> csr_array:
        """Return the transpose of the CSR matrix, with all duplicates."""
        csr = self.csr
        rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
        order = np.lexsort((rows, csr.indices))
        starts = np.searchsorted(csr.indices[order], np.arange(csr.shape[1] + 1))
        data = csr.data[order].conj() if conjugated else csr.data[order]
        return csr_array((data, rows[order], starts), shape=csr.shape[::-1])


# ---- links of a chain ----------------------------------------------------------------------------


def multiply(chain: Chain) -> None:
    rng, A = chain.rng, chain.A
    way = rng.choice(("A", "A", "A", "T", "H", "left"))
    csr = chain.csr if way == "A" else chain.transposed(way == "H")
    k, kind = rng.choice(COLUMNS), rng.choice((chain.kind, chain.kind, *chain.kinds))
    x = chain.numbers((csr.shape[1], k) if k else csr.shape[1], kind)
    there = chain.laid_out(x)
    if way == "left":
        y = (there.T if k else there) @ A
        return chain.assert_product(y.T if k else y, csr, x)
    factor = {"A": A, "T": A.T, "H": A.H}[way] if way != "A" else A
    if rng.random() < 0.4:
        y = factor @ there
        chain.assert_product(y, csr, x)
        assert bool((words(factor @ there) == words(y)).all()), "two products have other bits"
        return None
    alpha, beta = rng.choice((1.0, 1.0, -1.0, 0.37)), rng.choice((0.0, 0.0, 1.0, -0.5))
    before = chain.numbers((csr.shape[0], *x.shape[1:]), result_type(A.dtype, there.dtype).name)
    out = chain.laid_out(before)
    if beta == 0:
        out[...] = xp.nan
    assert factor.matvec(there, out=out, alpha=alpha, beta=beta) is out
    return chain.assert_product(out, csr, x, alpha, beta, wide(before))


def write(chain: Chain) -> None:
    data = chain.values()
    there = chain.laid_out(data)
    if chain.rng.random() < 0.4:
        return chain.becomes(chain.A.with_values(there), data)
    if chain.rng.random() < 0.3:
        assert chain.A.T is not None  # so that the transpose exists, and must get the values too
    try:
        assert chain.A.with_values(there, out=chain.A) is chain.A
    except ValueError as error:
        if "does not hold the new ones" not in str(error):
            raise
    else:
        chain.becomes(chain.A, data)
    return None


def convert(chain: Chain) -> None:
    kinds = [kind for kind in chain.kinds if "complex" in kind or "complex" not in chain.kind]
    kind = chain.rng.choice(kinds or [chain.kind])
    chain.becomes(chain.A.astype(kind), chain.csr.data, kind)


def change(chain: Chain) -> None:
    A, data, way = chain.A, chain.csr.data, chain.rng.choice(("negative", "conjugate", "twice", "scaled"))
    if way == "negative":
        return chain.becomes(-A, -data)
    if way == "conjugate":
        return chain.becomes(A.conj(), data.conj())
    if way == "twice":
        twice = A * -2.0
        return chain.becomes(twice, data * data.dtype.type(-2), twice.dtype.name)
    left, right = (2.0 ** chain.draw.integers(-2, 3, size) for size in A.shape)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(chain.csr.indptr))
    factors = (xp.asarray(each.astype(chain.kind)) for each in (left, right))
    scaled = wide((data * left[rows].astype(data.dtype)).astype(chain.kind))  # rounded twice if subnormal
    return chain.becomes(A.scaled(*factors), scaled * right[chain.csr.indices].astype(data.dtype))


def go_and_come_back(chain: Chain) -> None:
    A, way = chain.A, chain.rng.choice(("pickle", "file", "device", "entries", "coordinates"))
    if way == "pickle":
        chain.A = pickle.loads(pickle.dumps(A))
    elif way == "file":
        with tempfile.TemporaryDirectory() as folder:
            A.to_device("cpu").save(Path(folder) / "plan.npz")
            chain.A = SpMatrix.load(Path(folder) / "plan.npz", device=DEVICE)
    elif way == "device":
        chain.A = A.to_device("cpu").to_device(DEVICE)
    elif way == "entries":
        assert_same_entries(A.to_scipy(), chain.csr)
    else:
        rows, columns = map(on_host, A.coordinates())
        np.testing.assert_array_equal(rows, np.repeat(np.arange(A.shape[0]), np.diff(chain.csr.indptr)))
        np.testing.assert_array_equal(columns, chain.csr.indices)


def overlap(chain: Chain) -> None:
    m, n = chain.A.shape
    if not m or not n:
        return
    room = xp.ones(m + n, chain.kind)
    start = chain.rng.randrange(n)
    try:
        chain.A.matvec(room[:n], out=room[start : start + m])
    except ValueError as error:
        if "overlaps x" not in str(error):
            raise
    else:
        raise AssertionError("an out that overlaps x was taken")
    assert bool((room == 1).all())


def thread(chain: Chain) -> None:
    """Multiply the matrix in several threads, on streams of their own."""
    xs = [chain.numbers(chain.csr.shape[1], chain.kind) for _ in range(4)]
    streams: Callable[[], Any] = contextlib.nullcontext
    if GPU:
        streams = chain.rng.choice((lambda: xp.cuda.Stream(non_blocking=True), lambda: xp.cuda.Stream.ptds))
    wait_for_all()
    for x, results in zip(xs, products_in_threads(chain.A, xs, 10, streams), strict=True):
        for y in results:
            assert_close(y, chain.csr, wide(x))


# ---- links that only a GPU has ---------------------------------------------------------------------


def wait_for_all() -> None:
    if GPU:
        xp.cuda.Device().synchronize()


def capture(chain: Chain) -> None:
    """Write values and multiply in a graph; memory that is allocated later must not be the graph's."""
    A, stream = chain.A, xp.cuda.Stream(non_blocking=True)
    plain = written_in_graphs(A)
    k = chain.rng.choice((0, 16))
    x = chain.numbers((A.shape[1], k) if k else A.shape[1], chain.kind)
    there, data = chain.laid_out(x), chain.laid_out(chain.csr.data.astype(chain.kind))
    y = chain.laid_out(np.empty((A.shape[0], *x.shape[1:]), chain.kind))
    A.with_values(data, out=A)
    if chain.rng.random() < 0.5:
        A.matvec(there, out=y)
    wait_for_all()
    with stream:
        stream.begin_capture()
        if plain:
            A.with_values(data, out=A)
        A.matvec(there, out=y)
        graph = stream.end_capture()
        others = [xp.full(2**k, 7.0) for k in range(3, 16)]
        for _ in range(2):
            if plain:
                new = chain.numbers(chain.csr.nnz, chain.kind)
                data[...] = xp.asarray(new)
                chain.becomes(A, new)
            y[...] = xp.nan
            graph.launch(stream)
            chain.assert_product(y, chain.csr, x)
        assert all(bool((other == 7).all()) for other in others), "a graph wrote to others' memory"
        del graph
        stream.synchronize()


def give_back(chain: Chain) -> None:
    """Free a matrix and its vector while their product is queued, and let others take their memory."""
    x = chain.numbers(chain.csr.shape[1], chain.kind)
    there, other = xp.asarray(x), chain.A.copy()
    for _ in range(20):
        y = other @ there
    del other, there
    others = [xp.full(max(size, 1), xp.nan) for size in (*chain.csr.shape, chain.csr.nnz, 64)]
    assert_close(on_host(y), chain.csr, wide(x))
    del others


LINKS: list[tuple[Callable[[Chain], None], int]] = [
    (multiply, 10),
    (write, 4),
    (convert, 2),
    (change, 3),
    (go_and_come_back, 3),
    (overlap, 1),
    (thread, 1),
]
if GPU:
    LINKS += [(capture, 4), (give_back, 1)]


def chain_of_calls(rng: Draws, counts: Counts) -> None:
    """Plan a matrix, do random links of a chain, and end with a product."""
    stream: Any = contextlib.nullcontext()
    if GPU and rng.random() < 0.5:
        stream = xp.cuda.Stream(non_blocking=True) if rng.random() < 0.7 else xp.cuda.Stream.ptds
    with stream, np.errstate(over="ignore"):
        chain = Chain(rng, counts)
        done = [f"{chain.A.shape}, {chain.csr.nnz} entries, {chain.kind}, {chain.A.plan.format}"]
        links, weights = zip(*LINKS, strict=True)
        do_all((*rng.choices(links, weights, k=rng.randrange(2, 7)), multiply), chain, done, counts)


CASES = ((chain_of_calls, 1.0),)

if __name__ == "__main__":
    sys.exit(attack_by_command("chains", __doc__, attack_with(CASES)))
