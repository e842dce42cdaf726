"""Attack on planning: whatever the matrix, a GPU makes the plan that the CPU makes, bit for bit; seeded.

    python -m tests.attack.plans --seconds 600 --seed 7

It runs on a GPU if one works, else by the same kernels in the emulator of `tests/simt`, with smaller
matrices. They have rows of every kind of length, columns at every distance, values at the ends of every
compression, and indices of every type; every choice of the policy is drawn. Every array is compared by type,
shape and bits, and so is every number: of the plan, of a plan with other values, with values written in
place, and of the transpose; and on a GPU of the matrices that the calls of `dasp.SpMatrix` make of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import pickle
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix

from dasp import Policy, SpMatrix
from dasp.formats.backend_cpu import CpuBackend
from dasp.formats.cost import H200, ZEN4
from dasp.formats.csr.matrix import Csr
from dasp.formats.sell import SELL
from dasp.formats.sell.cpu import primitives as cpu
from dasp.formats.sell.cuda.primitives import CudaPrimitives, find_primitives
from dasp.runtime import sizes as _integers
from dasp.runtime.dtypes import named
from tests.attack._cases import (
    GPU,
    Counts,
    Draws,
    attack_by_command,
    attack_with,
    on_host,
    written_in_graphs,
)
from tests.attack._cases import xp as cupy
from tests.support.gallery import LENGTHS
from tests.support.pack_device import PackingDevice
from tests.support.planned import Tuned

TYPES = tuple(map(named, ("float64", "float32", "complex128", "float16", "complex64", "bfloat16")))
IN_A_ROW = 400 if GPU else 40
"""Consecutive cases that share their types, each of which has its own kernels to compile."""

ROWS = (0, 1, 2, 31, 32, 33, 64, 100, 300)
MANY_ROWS = (1000, 2047, 2049, 8191, 8193, 20_000, 65_536, 100_001, 200_000)
MOST = 400_000 if GPU else 6_000
"""About the most entries of a matrix; a few matrices have more."""

COLUMNS = (1, 2, 7, 40, 255, 256, 257, 3000, 65_535, 65_537, 70_000, 1_000_000)
HUGE = 2**31 - 1, 2**31 + 9, 2**32 - 2
GAPS = 0, 1, 2, 31, 32, 253, 254, 255, 256, 65_533, 65_534, 65_535, 65_536


# ---- matrices ------------------------------------------------------------------------------------


def draw_lengths(rng: random.Random, draw: np.random.Generator) -> Any:
    """Draw the number of entries of each row."""
    m = rng.choice((*ROWS, *MANY_ROWS) if GPU else ROWS)
    few = rng.sample((*LENGTHS, 600, 1023, 1025), rng.randint(1, 5))
    lengths = {
        "few": lambda: draw.choice(few, m),
        "one": lambda: np.full(m, few[0]),
        "heavy": lambda: np.minimum(draw.pareto(0.7, m) * 2, 5000).astype(np.int64),
        "mostly empty": lambda: np.where(draw.random(m) < 0.02, draw.choice(few, m), 0),
        "falling": lambda: np.sort(draw.choice(few, m))[::-1],
        "rising": lambda: np.sort(draw.choice(few, m)),
        "short": lambda: draw.integers(0, rng.choice((2, 4, 9)), m),
    }[rng.choice(("few", "few", "one", "heavy", "mostly empty", "falling", "rising", "short"))]()
    most = 10 * MOST if GPU and rng.random() < 0.02 else MOST
    if lengths.sum() > most:
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), most))].copy()
    if len(lengths) and rng.random() < 0.4:
        longer = rng.choice((1500, 4097, 33_000, 140_000) if GPU else (1500, 4097))
        for row in draw.integers(0, len(lengths), rng.choice((1, 1, 2, 5))):
            lengths[row] = rng.randint(longer // 3, longer)
    return lengths.astype(np.int64)


def draw_columns(rng: random.Random, draw: np.random.Generator, indptr: Any, n: int) -> Any:
    """Draw the column of each entry, at all sorts of distances, in order or not."""
    count, lengths = int(indptr[-1]), np.diff(indptr)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    nth = np.arange(count) - np.repeat(indptr[:-1], lengths)
    near = rows * n // max(len(lengths), 1)
    columns = {
        "any": lambda: draw.integers(0, n, count),
        "band": lambda: near + draw.integers(0, rng.choice((3, 40, 300, 70_000)), count),
        "run": lambda: near + nth,
        "same": lambda: np.full(count, rng.randrange(n)),
        "steps": lambda: near + nth * rng.choice((2, 3, 32)),
        "gap": lambda: near + rng.choice(GAPS) * (nth == np.repeat(lengths, lengths) - 1) + nth,
        "gaps": lambda: near + draw.choice(GAPS, count),
        "ends": lambda: draw.choice((0, n - 1), count),
    }[rng.choice(("any", "any", "band", "band", "run", "same", "steps", "gap", "gaps", "ends"))]()
    columns = columns % n
    order = rng.random()
    if order < 0.6:
        columns = columns[np.lexsort((columns, rows))]
        if order < 0.1 and count:  # all in order but one
            columns[rng.randrange(count)] = rng.randrange(n)
    return columns


def draw_values(rng: random.Random, draw: np.random.Generator, count: int, dtype: Any) -> Any:
    """Draw values that some compression holds, or would hold but for a few."""
    kind = named("float32") if dtype.name == "complex64" else np.dtype(float) if dtype.kind == "c" else dtype
    with np.errstate(all="ignore"):
        values = _parts(rng, draw, count, kind)
        if dtype.kind == "c":
            way, parts = rng.random(), np.zeros((count, 2), kind)
            parts[:, 0] = values
            if way < 0.4:
                parts[:, 1] = _parts(rng, draw, count, kind)
            elif way < 0.5:
                parts[:, 1] = -parts[:, 1]
            elif way < 0.6 and count:
                parts[rng.randrange(count), 1] = rng.choice((-0.0, 1e-40, np.nan))
            values = parts.view(dtype)[:, 0]
    spoilt = rng.random()
    if count and spoilt < 0.25:
        found = rng.choice((-0.0, np.nan, -np.nan, np.inf, 1 / 3, 128, -129, 1e-320, 5e-8, 65_519.9, 1e39))
        with np.errstate(all="ignore"):
            values[draw.integers(0, count, rng.choice((1, 3)))] = found
    return values


def _parts(rng: random.Random, draw: np.random.Generator, count: int, kind: Any) -> Any:
    """Draw real values of one kind."""
    words = draw.integers(0, 2**63, count, np.uint64) * np.uint64(2) + draw.integers(0, 2, count, np.uint64)

    def any_bits(given: Any) -> Any:
        return words.astype(f"u{given.itemsize}").view(given).astype(kind)

    def few() -> Any:
        table = any_bits(kind)[: rng.choice((2, 3, 40, 254, 255, 256, 257, 300))]
        return table[draw.integers(0, len(table), count)]

    def nans() -> Any:
        raw = words.astype(f"u{kind.itemsize}")
        quiet = np.full(count, np.nan, kind).view(raw.dtype)
        return (quiet | (raw if rng.random() < 0.5 else raw & raw.dtype.type(3))).view(kind)

    return {
        "bits": lambda: any_bits(kind),
        "normal": lambda: draw.standard_normal(count).astype(kind),
        "equal": lambda: np.full(count, any_bits(kind)[0] if count else 0, kind),
        "bytes": lambda: draw.integers(-128, 128, count).astype(kind),
        "few": few if count else lambda: np.zeros(0, kind),
        "halves": lambda: any_bits(np.dtype(np.float16)),
        "singles": lambda: any_bits(np.dtype(np.float32)),
        "NaNs": nans,
        "zeros": lambda: draw.choice((0.0, -0.0, 0.0, 1.0), count).astype(kind),
        "subnormal": lambda: (draw.standard_normal(count) * np.finfo(np.float16).tiny / 4).astype(kind),
    }[
        rng.choice(
            ("bits", "normal", "equal", "bytes", "few", "halves", "singles", "NaNs", "zeros", "subnormal")
        )
    ]()


INTEGERS = (
    (np.int32, np.int32, False),
    (np.int64, np.int64, False),
    (np.int32, np.int32, True),
    (np.int64, np.int32, False),
)
"""Types of row pointers and of columns, and whether all other numbers of entries, rows and columns take 64
bits, as if there were that many."""


class Types(NamedTuple):
    """The types of a matrix, as in `INTEGERS`; `IN_A_ROW` cases share them."""

    values: Any
    starts: Any
    columns: Any
    wide: bool


def types_of(rng: Draws) -> Types:
    turn = rng.run + rng.number // IN_A_ROW
    starts, columns, wide = INTEGERS[turn // len(TYPES) % len(INTEGERS)]
    return Types(TYPES[turn % len(TYPES)], np.dtype(starts), np.dtype(columns), wide)


def draw_matrix(rng: Draws, draw: np.random.Generator) -> Csr:
    dtype, start, column, _ = types_of(rng)
    indptr = np.concatenate([[0], np.cumsum(draw_lengths(rng, draw))])
    n = rng.choice(COLUMNS)
    if column == np.int64 and rng.random() < 0.1:
        n = rng.choice(HUGE)
    if not indptr[-1] and rng.random() < 0.5:
        n = 0
    columns = draw_columns(rng, draw, indptr, n) if indptr[-1] else np.zeros(0, np.int64)
    shape = len(indptr) - 1, n
    data = draw_values(rng, draw, int(indptr[-1]), dtype)
    return Csr(shape, indptr.astype(start), columns.astype(column), data)


def draw_choices(rng: random.Random) -> dict[str, Any]:
    """Draw options of the SELL format."""
    drawn: dict[str, tuple[Any, ...]] = {
        "steps": (1, 1, 2, 5, 40, 4095),
        "window": (0, 1, 3, 50, 128, 8192, 10**6, 2**32 - 1),
        "narrow": (True, False),
        "warps": (1, 4, 16),
        "mma": (True, False),
    }
    return {name: rng.choice(values) for name, values in drawn.items() if rng.random() < 0.2}


# ---- comparisons ---------------------------------------------------------------------------------


def same(what: str, got: Any, want: Any) -> int:
    """Hold arrays, numbers and parts of plans to be the same, bit for bit; return how many there were."""
    got, want = on_host(got), on_host(want)
    if dataclasses.is_dataclass(want):
        assert type(got) is type(want), f"{what}: {type(got)}, not {type(want)}"
        names = [field.name for field in dataclasses.fields(want)]
        return sum(same(f"{what}.{name}", getattr(got, name), getattr(want, name)) for name in names)
    if not isinstance(want, np.ndarray):
        assert got == want, f"{what} is {got}, not {want}"
        return 1
    assert isinstance(got, np.ndarray), f"{what} is a {type(got)}"
    known = [(each.dtype, each.shape) for each in (got, want)]
    assert known[0] == known[1], f"{what} is {known[0]}, not {known[1]}"
    ours, theirs = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (got, want))
    if not np.array_equal(ours, theirs):
        wrong = np.flatnonzero(ours != theirs) // want.itemsize
        at = wrong[0]
        raise AssertionError(
            f"{what}: {len(np.unique(wrong))} of {want.size} differ, the first at {at}: "
            f"{got.reshape(-1)[at]!r}, not {want.reshape(-1)[at]!r}"
        )
    return 1


def same_but_for_tables(what: str, got: Any, want: Any, numbers: Callable[[], tuple[Any, Any]]) -> int:
    """As `same`, for plans whose values were written in place: a table that holds the new values may stay.

    Then the values of the entries are held to be the same, not their codes.
    """
    if want.format != "sell" or want.values.coding.name != "DICTIONARY":
        return same(what, got, want)
    names = [field.name for field in dataclasses.fields(want) if field.name != "values"]
    count = sum(same(f"{what}.{name}", getattr(got, name), getattr(want, name)) for name in names)
    for each in (got, want):
        assert each.values.coding == want.values.coding, f"{what}: {each.values.coding.name}"
    return count + same(f"{what}: entries", *numbers())


def places(rng: Draws) -> Any:
    """Return a context in which numbers of entries, rows and columns have the types of the case."""
    if types_of(rng).wide:
        return mock.patch.object(_integers, "_MOST_INT32", -1)
    return contextlib.nullcontext()


def told(csr: Csr, *more: Any) -> str:
    kinds = csr.indptr.dtype, csr.indices.dtype, csr.data.dtype
    return f"{csr.shape}, {len(csr.data)} entries, {', '.join(map(str, (*kinds, *more)))}"


# ---- cases ---------------------------------------------------------------------------------------


class Side:
    """A device, and its primitives."""

    def __init__(self, rng: random.Random) -> None:
        if GPU:
            self.on, self.put = find_primitives(0), cupy.asarray
        else:
            device = PackingDevice(rng.choice((None, rng.getrandbits(31))))
            self.on, self.put = CudaPrimitives(device), np.array


def attempt(function: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return the message by which a call refuses its arguments, or "done" if it takes them."""
    try:
        function(*given, **named)
    except ValueError as error:
        return str(error)
    return "done"


def primitives(rng: Draws, counts: Counts) -> None:
    """Plan, write other values, unpack and transpose by the primitives of both devices, for any machine."""
    draw, side = np.random.default_rng(rng.getrandbits(64)), Side(rng)
    csr = draw_matrix(rng, draw)
    machine, choices = rng.choice((H200, H200, ZEN4)), draw_choices(rng)
    new = [draw_values(rng, draw, len(csr.data), csr.data.dtype) for _ in range(2)]
    with places(rng):
        try:
            counts["numbers compared"] += _by_primitives(csr, machine, choices, new, side, rng)
        except Exception as error:
            what = told(csr, machine.name, choices, types_of(rng))
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    counts["plans by primitives"] += 1


def _by_primitives(csr: Csr, machine: Any, choices: Any, new: Any, side: Side, rng: random.Random) -> int:
    on, put, options = side.on, side.put, SELL.options(**choices)
    there = Csr(csr.shape, *map(put, csr[1:]))
    want = SELL.pack(csr, options, machine, cpu)
    got = SELL.pack(there, options, machine, on)
    count = same("plan", got, want)
    slots, slots_there = SELL.find_slots(want, cpu), SELL.find_slots(got, on)
    other = SELL.values_from(want, new[0], slots, cpu)
    other_there = SELL.values_from(got, put(new[0]), slots_there, on)
    count += same("values_from", other_there, other)
    want, got = dataclasses.replace(want, values=other), dataclasses.replace(got, values=other_there)
    for values in (new[1], new[0]):
        ways = [
            attempt(SELL.values_into, want, values, slots, cpu),
            attempt(SELL.values_into, got, put(values), slots_there, on),
        ]
        assert ways[0] == ways[1], f"values_into: {ways[1]!r} on the GPU, {ways[0]!r} on the CPU"
        count += same_but_for_tables(
            "values_into", got, want, lambda: (SELL.unpack(got, on)[2], SELL.unpack(want, cpu)[2])
        )
    ours, theirs = SELL.unpack(got, on), SELL.unpack(want, cpu)
    for name, mine, other in zip(("indptr", "indices", "data"), ours, theirs, strict=True):
        count += same(f"unpack: {name}", mine, other)
    if csr.shape[1] <= 2_000_000:
        turned, turned_there = (
            each.transpose(Csr(csr.shape, *unpacked)) for each, unpacked in ((cpu, theirs), (on, ours))
        )
        told = "its own transpose" if turned_there is None else "another matrix"
        assert (turned is None) == (turned_there is None), f"the transpose is {told} on the GPU alone"
        if turned is not None:
            parts = zip(turned_there[0], turned[0], strict=True)
            count += sum(same(f"turned {k}", a, b) for k, (a, b) in enumerate(parts))
            count += same("order of the turned", turned_there[1], turned[1])
    return count


# ---- calls of SpMatrix, on a GPU -----------------------------------------------------------------

OTHERS = "bsr", "dia", "lil", "dok"
"""SciPy's formats that are converted first."""


class Twins:
    """A matrix on the CPU, planned as for a GPU, and the same on a GPU."""

    def __init__(self, rng: random.Random, counts: Counts, csr: Csr, policy: Policy | None) -> None:
        self.rng, self.counts, self.csr, self.written = rng, counts, csr, False
        self.draw, self.makers = np.random.default_rng(rng.getrandbits(64)), None
        self.here, self.there = self._planned(policy)
        self.compare("planned")

    def _planned(self, policy: Policy | None) -> tuple[SpMatrix, SpMatrix]:
        """Plan the matrix from a random form of it, views and unsorted entries included."""
        rng, (shape, indptr, indices, data) = self.rng, self.csr
        known = data.dtype.name in ("float64", "float32", "complex64", "complex128")
        ways = ["tuple", "tuple", "steps", "coo"]
        ways += ["scipy", "csc", "coo_array"] * known + ["cupy"] * (known and indices.dtype == np.int32) * 2
        ways += ["dense", "dense", *OTHERS] * (known and 0 < shape[0] * shape[1] <= 100_000)
        way = rng.choice(ways)
        self.counts[f"from {way}"] += 1
        if way == "dense":
            dense = csr_array((data, indices, indptr), shape=shape).toarray()
            if rng.random() < 0.5:
                return SpMatrix(dense, "cpu", policy=policy), SpMatrix(cupy.asarray(dense), policy=policy)
            return self.both(lambda device: SpMatrix.from_dense(dense, policy=policy, device=device))
        if way in OTHERS:
            given = csr_array((data, indices, indptr), shape=shape).asformat(way)
            return self.both(lambda device: SpMatrix.from_scipy(given, policy=policy, device=device))
        if way in ("coo", "coo_array"):
            rows = np.repeat(np.arange(shape[0]), np.diff(indptr)).astype(indices.dtype)
            order = self.draw.permutation(len(data)) if rng.random() < 0.7 else np.arange(len(data))
            coords = rows[order], indices[order]
            if way == "coo":
                return self.both(
                    lambda device: SpMatrix.from_coo(data[order], coords, shape, policy=policy, device=device)
                )
            given = coo_array((data[order], coords), shape=shape)
            return self.both(lambda device: SpMatrix.from_scipy(given, policy=policy, device=device))
        if way == "steps":
            data, indices, indptr = (
                np.repeat(each, 2)[::2] if rng.random() < 0.5 else each[::-1].copy()[::-1]
                for each in (data, indices, indptr)
            )
        if way in ("tuple", "steps"):
            given = data, indices, indptr
            return self.both(lambda device: SpMatrix(given, device, shape=shape, policy=policy))
        if way == "csc":
            if shape[1] > 2_000_000:
                shape = shape[0], 2_000_000
                indices = indices % shape[1]
            given = csc_array(csr_array((data, indices, indptr), shape=shape))
            return self.both(lambda device: SpMatrix.from_scipy(given, policy=policy, device=device))
        given = rng.choice((csr_array, csr_matrix))((data, indices, indptr), shape=shape)
        here = SpMatrix.from_scipy(given, policy=policy, device="cpu")
        if way == "scipy":
            return here, SpMatrix.from_scipy(given, policy=policy, device="cuda")
        from cupyx.scipy.sparse import csr_matrix as on_gpu

        there = on_gpu(
            tuple(map(cupy.asarray, (data, indices.astype(np.int32), indptr.astype(np.int32)))), shape=shape
        )
        return here, SpMatrix.from_cupy(there, policy=policy)

    def both(self, make: Callable[[str], SpMatrix]) -> tuple[SpMatrix, SpMatrix]:
        return make("cpu"), make("cuda")

    def compare(self, what: str) -> None:
        self.counts["numbers compared"] += self.alike(what, self.there, self.here)
        self.counts["plans of SpMatrix"] += 1

    def alike(self, what: str, there: SpMatrix, here: SpMatrix) -> int:
        """Hold the plans to be the same; return how many numbers were compared."""
        if not self.written:
            return same(what, there.plan, here.plan)
        return same_but_for_tables(what, there.plan, here.plan, lambda: (there._values(), here._values()))

    def values(self) -> Any:
        return draw_values(self.rng, self.draw, self.here.nnz, self.here.dtype)

    def tame(self) -> bool:
        """Return True if arithmetic gives the same bits on both: no number is NaN, huge or subnormal."""
        data = self.here.tocsr().data
        if self.here.plan.format == "sell":  # the table may keep an old number that is unused
            data = np.concatenate([data, self.here.plan.values.table.astype(data.dtype)])
        parts = np.abs(data.view(data.real.dtype))
        return bool(
            np.isfinite(parts).all() and ((parts == 0) | (parts > 1e-30)).all() and (parts < 1e30).all()
        )


def others(twins: Twins) -> None:
    values = twins.values()
    twins.here, twins.there = twins.here.with_values(values), twins.there.with_values(cupy.asarray(values))


def written(twins: Twins) -> None:
    """Write values in place; transposes that exist must get them too."""
    if twins.rng.random() < 0.3 and twins.here.shape[1] <= 2_000_000:
        assert (twins.here.T is twins.here) == (twins.there.T is twins.there), "one is its own transpose"
    values, twins.written = twins.values(), True
    ways = [
        attempt(twins.here.with_values, values, out=twins.here),
        attempt(twins.there.with_values, cupy.asarray(values), out=twins.there),
    ]
    assert ways[0] == ways[1], f"in place: {ways[1]!r} on the GPU, {ways[0]!r} on the CPU"
    transposed = [each._find_derived("T") for each in (twins.here, twins.there)]
    assert (transposed[0] is None) == (transposed[1] is None), "one transpose was let go"
    if transposed[0] is not None:
        twins.alike("the transpose's", transposed[1], transposed[0])


def captured(twins: Twins) -> None:
    """Write values in a graph, several times."""
    if twins.there.plan.format != "sell" or not written_in_graphs(twins.there) or not twins.here.nnz:
        return
    data, stream = cupy.asarray(twins.values()), cupy.cuda.Stream(non_blocking=True)
    twins.there.with_values(data, out=twins.there)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        twins.there.with_values(data, out=twins.there)
        graph = stream.end_capture()
        for _ in range(2):
            values = twins.values()
            data.set(values)
            graph.launch(stream)
            stream.synchronize()
            twins.here.with_values(values, out=twins.here)
            twins.compare("in a graph")


def turned(twins: Twins) -> None:
    if twins.here.shape[1] > 2_000_000:
        return
    name = twins.rng.choice("TTH") if twins.tame() else "T"
    here, there = getattr(twins.here, name), getattr(twins.there, name)
    assert (here is twins.here) == (there is twins.there), "one is its own transpose"
    # A transpose's own transpose is the old matrix while that lives; planned anew it has another order.
    twins.makers = (twins.here, twins.there) if twins.rng.random() < 0.5 else None
    twins.here, twins.there = here, there
    gc.collect()  # the old matrices are gone on both devices or on none


def computed(twins: Twins) -> None:
    """Compute with powers of two alone, which round nothing."""
    if not twins.tame():
        return
    rows, columns = twins.here.shape
    scales = [2.0 ** twins.draw.integers(-2, 3, size) for size in (rows, min(columns, 2_000_000))]
    scales = [each.astype(twins.here.dtype) for each in scales]
    ways: list[Callable[[SpMatrix, Any], Any]] = [
        lambda A, put: -A,
        lambda A, put: A.conj(),
        lambda A, put: A.astype("complex128" if A.dtype.kind == "c" else "float64"),
    ]
    if twins.here.dtype.kind != "c":  # a product of complex numbers may have a zero of another sign
        ways += [
            lambda A, put: abs(A),
            lambda A, put: A * 2.0,
            lambda A, put: A / -4.0,
            lambda A, put: A * 0.0,
            lambda A, put: A.scaled(put(scales[0]), None),
        ]
        if columns <= 2_000_000:
            ways.append(lambda A, put: A.scaled(put(scales[0]), put(scales[1])))
    way = twins.rng.choice(ways)
    twins.here, twins.there = way(twins.here, np.asarray), way(twins.there, cupy.asarray)


def carried(twins: Twins) -> None:
    """Copy, pickle, save, or take to the other device and back."""
    way = twins.rng.choice(("copy", "pickle", "file", "device", "swap"))
    if way == "copy":
        twins.here, twins.there = twins.here.copy(), twins.there.copy()
    elif way == "pickle":
        twins.here, twins.there = (pickle.loads(pickle.dumps(each)) for each in (twins.here, twins.there))
    elif way == "file":
        with tempfile.TemporaryDirectory() as folder:
            for name, each in (("here", twins.here), ("there", twins.there)):
                each.save(Path(folder) / name)
            twins.here = SpMatrix.load(Path(folder) / "here", "cpu")
            twins.there = SpMatrix.load(Path(folder) / "there", "cuda")
    elif way == "device":
        twins.here = twins.here.copy()  # which leaves its transpose behind too
        twins.there = twins.there.to_device("cpu").to_device("cuda")
    else:
        twins.here, twins.there = twins.there.to_device("cpu"), twins.here.to_device("cuda")


def read(twins: Twins) -> None:
    """Compare what is read of a matrix."""
    for name, mine, other in zip(
        ("rows", "columns"), twins.there.coordinates(), twins.here.coordinates(), strict=True
    ):
        same(name, mine, other)
    ours, theirs = twins.there.tocsr(), twins.here.tocsr()
    if theirs.data.dtype == twins.here.dtype or twins.tame():  # converting half precision may change NaNs
        same("data", ours.data, theirs.data)
    if len(theirs.data) and max(twins.here.shape) < 2**31:
        same("indices", ours.indices.astype(np.int64), theirs.indices.astype(np.int64))
    if twins.tame() and max(twins.here.shape) < 2_000_000:
        k = twins.rng.choice((0, 0, 1, -3, 100))
        if -twins.here.shape[0] < k < twins.here.shape[1]:
            mine, other = (on_host(each.diagonal(k)) for each in (twins.there, twins.here))
            np.testing.assert_allclose(mine.astype(complex), other.astype(complex), 1e-2, 1e25)


STEPS = others, others, written, written, captured, turned, computed, carried, read


def calls(rng: Draws, counts: Counts) -> None:
    """Make the same calls on both devices: plans must stay the same, and no memory may be left."""
    pool, state, left = cupy.get_default_memory_pool(), rng.getstate(), []
    for _ in range(3):
        rng.setstate(state)
        _calls(rng, counts)
        gc.collect()
        left.append(pool.used_bytes())
        if len(left) > 1 and left[-1] <= left[-2]:
            return
        if len(left) == 1 and left[0] <= counts["bytes in use"]:
            return
        counts["bytes in use"] = max(counts["bytes in use"], left[-1])
    raise AssertionError(f"memory is not given back: {left} bytes in use")


def _calls(rng: Draws, counts: Counts) -> None:
    draw, done = np.random.default_rng(rng.getrandbits(64)), []
    csr = draw_matrix(rng, draw)
    policy = rng.choice((None, Policy(narrow=rng.random() < 0.5), Tuned("sell", **draw_choices(rng))))
    if rng.random() < 0.05 and csr.shape[1] < 2**31:
        policy = Tuned("dasp", segment=rng.choice((64, 1024)), long_row=rng.choice((4, 64, 256)))
    with places(rng), mock.patch.object(CpuBackend, "cost_model", H200):
        try:
            done.append("planned")
            twins = Twins(rng, counts, csr, policy)
            for step in rng.choices(STEPS, k=rng.randrange(1, 6)):
                done.append(step.__name__)
                counts[step.__name__] += 1
                step(twins)
                twins.compare(step.__name__)
        except Exception as error:
            what = told(csr, policy, types_of(rng), done)
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


BREAKS = "negative", "large", "falls", "ends", "begins", "short", "shape", "dtype"


def refused(rng: Draws, counts: Counts) -> None:
    """Break a matrix; both devices must raise the same error."""
    draw = np.random.default_rng(rng.getrandbits(64))
    shape, indptr, indices, data = draw_matrix(rng, draw)
    indptr, indices, way = indptr.copy(), indices.copy(), rng.choice(BREAKS)
    at, row = rng.randrange(max(len(data), 1)), rng.randrange(len(indptr))
    if way in ("negative", "large") and len(data):
        indices[at] = (
            rng.choice((-1, -7, -(2**31)))
            if way == "negative"
            else min(shape[1] + rng.choice((0, 1, 999)), 2**31 - 1)
        )
    elif way == "falls":
        indptr[row] += rng.choice((-1, 1, 5, -1000, 2**30))
    elif way == "ends":
        indptr[-1] += rng.choice((-1, 1, 1000))
    elif way == "begins":
        indptr[0] += rng.choice((-1, 1))
    elif way == "short":
        indices = indices[:-1]
    elif way == "shape":
        shape = shape[0] + rng.choice((-1, 1)), shape[1]
    else:
        indices = indices.astype(rng.choice((np.float64, np.uint64, np.int16, ">i4")))
    told = []
    for device in ("cpu", "cuda"):
        try:
            SpMatrix((data, indices, indptr), device, shape=shape)
        except (TypeError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")
        else:
            told.append("taken")
    counts["refused" if told[0] != "taken" else "broken, and taken"] += 1
    assert told[0] == told[1], f"{way}: {told[1]!r} on the GPU, {told[0]!r} on the CPU"


def exhausted(rng: Draws, counts: Counts) -> None:
    """Plan, transpose and write values with too little memory, and again at once with enough."""
    draw, pool = np.random.default_rng(rng.getrandbits(64)), cupy.get_default_memory_pool()
    csr, options = draw_matrix(rng, draw), SELL.options(**draw_choices(rng))
    with places(rng), mock.patch.object(CpuBackend, "cost_model", H200):
        plan = SELL.pack(csr, options, H200, cpu)
        here = SpMatrix(plan, "cpu")
        there = Csr(csr.shape, *map(cupy.asarray, csr[1:]))
        values = draw_values(rng, draw, len(csr.data), csr.data.dtype)
        makes: dict[str, Callable[[], SpMatrix]] = {
            "planned": lambda: SpMatrix(SELL.pack(there, options, H200, Side(rng).on), "cuda"),
            "others": lambda: SpMatrix(plan, "cuda").with_values(cupy.asarray(values)),
            "turned": lambda: SpMatrix(plan, "cuda").T,
        }
        wants = {
            "planned": lambda: here,
            "others": lambda: here.with_values(values),
            "turned": lambda: here.T,
        }
        size = 2 * sum(array.nbytes for array in csr[1:]) + 100_000
        for name in ("planned", "others", *["turned"] * (csr.shape[1] <= 2_000_000)):
            want = wants[name]().plan
            for _ in range(3):
                pool.free_all_blocks()
                pool.set_limit(size=pool.total_bytes() + rng.randrange(size) + 1)
                try:
                    makes[name]()
                except cupy.cuda.memory.OutOfMemoryError:
                    counts["out of memory"] += 1
                finally:
                    pool.set_limit(size=0)
                got = makes[name]()
                counts["numbers compared"] += same(f"{name} again", got.plan, want)
    counts["exhausted"] += 1


CASES = ((primitives, 2.0), (calls, 3.0), (refused, 0.5), (exhausted, 0.5)) if GPU else ((primitives, 1.0),)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(attack_by_command("plans", __doc__, attack_with(CASES)))
