"""Attack with matrices made of matrices, and with values written in place; seeded.

    python -m tests.attack.relatives --seconds 600 --seed 7

A matrix has a model: its entries, in the order in which they were given. Every call changes both. Numbers are
small multiples of a quarter, so that sums are exact and each product must equal the model's bit for bit; in
half precision it is the exact sum, rounded once. Values that are written in place must reach the transposes
that know of the matrix and the matrices that share its arrays, and no others.
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dasp import Policy, SpMatrix
from dasp.runtime.dtypes import named, result_type, sum_type
from tests.attack._cases import Counts, attack_by_command, attack_with
from tests.attack.arrays import laid_out, wide
from tests.support.planned import Tuned

TYPES = tuple(map(named, ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")))
SCALES = (1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (0.5, -1.0), (0.0, 2.0)
STEPS = 12


class Entries:
    """The entries that a matrix and its transposes share: places, and values that may change."""

    def __init__(self, shape: tuple[int, int], rows: Any, columns: Any, values: Any) -> None:
        self.shape, self.rows, self.columns, self.values = shape, rows, columns, wide(values)


class Modelled:
    """A planned matrix and its model: entries, perhaps transposed, perhaps conjugated."""

    def __init__(self, matrix: Any, entries: Entries, turned: bool = False, conjugated: bool = False) -> None:
        self.matrix, self.entries, self.turned, self.conjugated = matrix, entries, turned, conjugated

    @property
    def places(self) -> tuple[Any, Any]:
        rows, columns = self.entries.rows, self.entries.columns
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def values(self) -> Any:
        return self.entries.values.conj() if self.conjugated else self.entries.values

    @property
    def dense(self) -> Any:
        shape = self.entries.shape[::-1] if self.turned else self.entries.shape
        found = np.zeros(shape, self.values.dtype)
        np.add.at(found, self.places, self.values)
        return found

    def alone(self, matrix: Any, values: Any) -> Modelled:
        """Return the model of a matrix with these places and values of its own."""
        return Modelled(matrix, Entries(self.dense.shape, *self.places, values))


def equal(what: str, got: Any, want: Any) -> None:
    got = np.asarray(got)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    wrong = np.argwhere(wide(got) != wide(want))
    assert not len(wrong), f"{what}: {len(wrong)} of {got.size} are wrong, the first at {tuple(wrong[0])}"


def draw_numbers(rng: random.Random, shape: Any, dtype: Any) -> Any:
    """Draw multiples of a quarter that a type holds: of many values, few, or one."""
    draw = np.random.default_rng(rng.getrandbits(32))
    least = rng.choice((-8, -8, -2))
    found = draw.integers(least, 1 - least, shape) / 4
    if rng.random() < 0.1:
        found = np.full(shape, rng.randint(-8, 8) / 4)
    if dtype.kind == "c" and rng.random() < 0.8:
        found = found + 1j * draw.integers(-4, 5, shape) / 4
    return found.astype(dtype)


def draw_places(rng: random.Random) -> tuple[tuple[int, int], Any, Any]:
    """Draw a shape and the places of entries, in any order, some twice, symmetric or not."""
    draw = np.random.default_rng(rng.getrandbits(32))
    m, n = rng.choice((0, 1, 2, 5, 31, 33, 64, 100)), rng.choice((0, 1, 3, 8, 40, 130))
    n = m if rng.random() < 0.4 else n
    count = rng.choice((0, 1, m, 4 * m)) if m and n else 0
    rows, columns = (draw.integers(0, max(size, 1), count) for size in (m, n))
    kind = rng.choice(("any", "whole", "diagonal", "row", "column", "symmetric"))
    if kind == "whole":
        rows, columns = np.repeat(np.arange(m), n), np.tile(np.arange(n), m)
    elif kind == "diagonal":
        rows = columns = np.arange(min(m, n))
    elif kind in ("row", "column") and m and n:
        rows = np.append(rows, np.full(n, m // 2) if kind == "row" else np.arange(m))
        columns = np.append(columns, np.arange(n) if kind == "row" else np.full(m, n // 2))
    elif kind == "symmetric" and m == n:
        rows, columns = np.append(rows, columns), np.append(columns, rows)
    order = draw.permutation(len(rows)) if rng.random() < 0.6 else np.argsort(rows, kind="stable")
    return (m, n), rows[order], columns[order]


def draw_policy(rng: random.Random) -> Policy | None:
    choices: dict[str, tuple[Any, ...]] = {"mma": (True, False)}
    layout = rng.choice(("auto", "sell", "dasp"))
    if layout == "sell":
        choices |= {
            "steps": (1, 2, 4095),
            "window": (0, 1, 7, 10**6),
            "narrow": (True, False),
            "warps": (1, 16),
        }
    elif layout == "dasp":
        choices |= {"long_row": (4, 5, 64), "fill": (0.01, 0.5, 1.0), "segment": (64, 1024)}
    taken = {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.5}
    return None if layout == "auto" else Tuned(layout, **taken)


def draw_matrix(rng: random.Random) -> Modelled:
    shape, rows, columns = draw_places(rng)
    dtype = rng.choice(TYPES)
    values, policy = draw_numbers(rng, len(rows), dtype), draw_policy(rng)
    if rng.random() < 0.3:  # equal values on both sides of the diagonal
        values = draw_numbers(rng, 7, dtype)[(rows + columns) % 7]
    if rng.random() < 0.5:
        matrix = SpMatrix.from_coo(values, (rows, columns), shape, policy=policy, device="cpu")
        return Modelled(matrix, Entries(shape, rows, columns, values))
    order = np.argsort(rows, kind="stable")
    rows, columns, values = rows[order], columns[order], values[order]
    indptr = np.searchsorted(rows, np.arange(shape[0] + 1))
    matrix = SpMatrix((values, columns, indptr), "cpu", shape=shape, policy=policy)
    return Modelled(matrix, Entries(shape, rows, columns, values))


# ---- checks -----------------------------------------------------------------------------------------------


def hold(rng: random.Random, one: Modelled) -> None:
    """Hold what is read of a matrix, and a product, to its model."""
    A, dense = one.matrix, one.dense
    equal("toarray", A.toarray(), dense.astype(sum_type(A.dtype)))
    for got, want in zip(A.coordinates(), one.places, strict=True):
        equal("coordinates", got, want)
    k = rng.randint(-3, 3)
    equal("diagonal", A.diagonal(k), np.diagonal(dense, k).astype(sum_type(A.dtype)))
    equal("sum", A.sum(), np.asarray(wide(dense).sum()).astype(A.dtype))
    x_type = rng.choice(TYPES)
    kind, columns = result_type(A.dtype, x_type), rng.choice(((), (), (0,), (1,), (2,), (5,), (17,)))
    side = rng.choice(("A @ x", "rmatvec", "A.T @ x", "x @ A"))
    size = A.shape[1] if side == "A @ x" else A.shape[0]
    x, _ = laid_out(draw_numbers(rng, (size, *columns), x_type), rng)
    if columns and rng.random() < 0.2:
        x = np.broadcast_to(x[:1] if size and rng.random() < 0.5 else x[:, :1], x.shape)
    products: dict[str, tuple[Callable[[], Any], Any]] = {
        "A @ x": (lambda: A @ x, dense),
        "rmatvec": (lambda: A.rmatvec(x), dense.conj().T),
        "A.T @ x": (lambda: A.T @ x, dense.T),
        "x @ A": (lambda: (x.T @ A).T, dense.T),
    }
    product, factor = products[side]
    got, want = product(), factor @ wide(x)
    assert got.dtype == kind, f"{side} has type {got.dtype}, not {kind}"
    equal(side, got, want.astype(kind))
    alpha, beta = rng.choice(SCALES)
    if side == "A @ x":
        before = draw_numbers(rng, want.shape, kind)
        out, way = laid_out(before.copy(), rng)
        if way != "read-only":
            out[...] = before if beta else np.nan
            assert A.matvec(x, out=out, alpha=alpha, beta=beta) is out
            equal("out", out, (alpha * want + (beta * wide(before) if beta else 0)).astype(kind))


def written(rng: random.Random, pool: list[Modelled], one: Modelled) -> None:
    """Write values in place; the matrices that must have them get them, and no others."""
    values = draw_numbers(rng, one.matrix.nnz, one.matrix.dtype)
    before = {id(each): each.dense for each in pool}
    try:
        assert one.matrix.with_values(values, out=one.matrix) is one.matrix
    except ValueError as error:
        if "does not hold the new ones" in str(error):
            return
        raise
    old, raw = one.entries, wide(values)
    new = Entries(old.shape, old.rows, old.columns, raw.conj() if one.conjugated else raw)
    for each in pool:
        if each.entries is not old:
            continue
        each.entries = new
        kind = sum_type(each.matrix.dtype)
        if not np.array_equal(each.matrix.toarray(), each.dense.astype(kind)):
            assert each.matrix is not one.matrix, "nothing was written"
            known = one.matrix.T, one.matrix.H
            assert all(other is not each.matrix for other in known), "a transpose is stale"
            equal("left alone", each.matrix.toarray(), before[id(each)].astype(kind))
            each.entries = Entries(old.shape, old.rows, old.columns, old.values)


# ---- steps ------------------------------------------------------------------------------------------------


def transposed(one: Modelled, name: str) -> Modelled | None:
    A = one.matrix
    B = getattr(A, name)
    assert getattr(B, name) is A, f"A.{name}.{name} is not A"
    if B is A:
        return None
    turned = one.turned if A.T is A else not one.turned  # A.H of a symmetric A is only its conjugate
    conjugated = one.conjugated != (name == "H" and A.dtype.kind == "c")
    return Modelled(B, one.entries, turned, conjugated)


def retyped(rng: random.Random, one: Modelled) -> Modelled | None:
    A, kind = one.matrix, rng.choice(TYPES)
    if kind == A.dtype or A.dtype.kind == "c" != kind.kind:
        return None
    return one.alone(A.astype(kind), one.values)


def other_values(rng: random.Random, one: Modelled) -> Modelled:
    values = draw_numbers(rng, one.matrix.nnz, rng.choice(TYPES))
    return one.alone(one.matrix.with_values(values), values)


def saved(one: Modelled) -> Modelled:
    with tempfile.TemporaryDirectory() as folder:
        one.matrix.save(Path(folder) / "a.npz")
        return one.alone(SpMatrix.load(Path(folder) / "a.npz", "cpu"), one.values)


def scaled(rng: random.Random, one: Modelled) -> Modelled | None:
    if abs(one.values).max(initial=0) > 4 or one.matrix.dtype.itemsize == 2:
        return None
    left, right = (np.array(rng.choices((1.0, -1.0, 2.0), k=size)) for size in one.matrix.shape)
    rows, columns = one.places
    return one.alone(one.matrix.scaled(left, right), one.values * left[rows] * right[columns])


def multiplied(rng: random.Random, one: Modelled) -> Modelled | None:
    values, factor = wide(one.values), rng.choice((2.0, -1.0, 0.5, 0.0, -0.0, 1j))
    if abs(values).max(initial=0) > 4 or (values * 8 != np.round(values * 8)).any():
        return None
    if factor == 1j and one.matrix.plan.format == "dasp":
        return None
    way = rng.choice(("A * x", "A / x", "abs"))
    if way == "abs":
        return None if values.dtype.kind == "c" else one.alone(abs(one.matrix), abs(one.values))
    made = one.matrix * factor if way == "A * x" or not factor else one.matrix / (1 / factor)
    return one.alone(made, (values * factor).astype(made.dtype))


def planned_anew(rng: random.Random, one: Modelled) -> None:
    """Hold the result of `to_scipy`, and the matrix planned by another policy, to the model."""
    found = one.matrix.to_scipy()
    equal("to_scipy", sp.csr_array(found).toarray(), one.dense.astype(found.dtype))
    B = SpMatrix(one.matrix, "cpu", policy=draw_policy(rng) or Policy())
    equal("planned anew", B.toarray(), one.dense.astype(B.dtype))


def shifted(rng: random.Random, one: Modelled) -> None:
    A = one.matrix
    if A.shape[0] == A.shape[1] and A.dtype.itemsize > 2:
        x, dense = draw_numbers(rng, A.shape[0], np.dtype(float)), one.dense + 2 * np.eye(A.shape[0])
        S = A.shifted(2.0)
        for got, want in ((S @ x, dense @ x), (x @ S, x @ dense), (S.rmatvec(x), dense.conj().T @ x)):
            equal("shifted", got, want)


def chain(rng: random.Random, counts: Counts) -> None:
    """Make a matrix, derive others from it, and hold each of them to its model to the end."""
    pool = [draw_matrix(rng)]
    made: dict[str, Callable[[Modelled], Modelled | None]] = {
        "T": lambda one: transposed(one, "T"),
        "H": lambda one: transposed(one, "H"),
        "astype": lambda one: retyped(rng, one),
        "with_values": lambda one: other_values(rng, one),
        "save": saved,
        "scaled": lambda one: scaled(rng, one),
        "multiplied": lambda one: multiplied(rng, one),
        "-A": lambda one: one.alone(-one.matrix, -one.values),
        "copy": lambda one: one.alone(one.matrix.copy(), one.values),
        "copy.copy": lambda one: one.alone(copy.copy(one.matrix), one.values),
        "deepcopy": lambda one: one.alone(copy.deepcopy(one.matrix), one.values),
        "pickle": lambda one: one.alone(pickle.loads(pickle.dumps(one.matrix, protocol=5)), one.values),
        "SpMatrix": lambda one: one.alone(SpMatrix(one.matrix, "cpu"), one.values),
        "written": lambda one: written(rng, pool, one),
        "planned anew": lambda one: planned_anew(rng, one),
        "shifted": lambda one: shifted(rng, one),
    }
    for _ in range(rng.randint(1, STEPS)):
        name = rng.choice((*made, "written", "written"))
        new = made[name](rng.choice(pool))
        if new is not None and all(new.matrix is not each.matrix for each in pool):
            pool.append(new)
            hold(rng, new)
        hold(rng, rng.choice(pool))
        counts[f"steps: {name}"] += 1
    for each in pool:
        hold(rng, each)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # NumPy warns when it makes complex numbers real
    sys.exit(attack_by_command("relatives", __doc__, attack_with([(chain, 1.0)])))
