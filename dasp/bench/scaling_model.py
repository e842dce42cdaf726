"""What an iteration of conjugate gradients takes on more ranks than there are: a model of what was measured.

    product   = max(interior, halo) + join
    iteration = product + vectors + sums * (time of one sum)      where these are waited for
              = max(product, sum) + vectors                       where one travels beside the product
    halo      = start + bytes / bandwidth, of a node's links or of the network between nodes

Everything on the right is a straight line in rows, bytes or the logarithm of ranks, fitted to rows of `dasp
bench scaling` on up to `FITTED` ranks; the others check it. A network between nodes is not measured here: its
latency and bandwidth are given. GPUs of one node that write in each other's memory all do so at once: their
sum takes the same for any number of them; beyond the node sums and messages are NCCL's.

Source: the alpha-beta model of messages (Hockney, Parallel Computing 20, 1994).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dasp.bench.report import Report
from dasp.bench.table import Row, Table, number, significant, whole

FITTED = 2
"""Ranks up to which measured rows make the model; those of more ranks check it."""

FORMS = {"cpu": {"cg": 2}, "cuda": {"cg": 2, "cg pipelined": 0}}
"""Of each form of cg on a device, how many sums an iteration waits for."""

PEERS = "peers"
"""What moves arrays between GPUs that write in each other's memory, in the column `links`."""

HALF = 0.5
"""The efficiency below which a number of ranks is said to be too many."""


@dataclass(frozen=True)
class Line:
    """start + slope * size, in microseconds."""

    start: float
    slope: float

    def __call__(self, size: float) -> float:
        """Return its height, which is never below 0."""
        return max(0.0, self.start + self.slope * size)


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """Return the line through points, relative errors weighed alike; through one point, from 0.

    Raises
    ------
    ValueError
        If there are none.
    """
    if not points:
        raise ValueError("there is nothing to fit a line to")
    x, y = (np.array(values, float) for values in zip(*points, strict=True))
    if len(set(x.tolist())) == 1:
        return Line(0.0, float(np.mean(y)) / x[0]) if x[0] else Line(float(np.mean(y)), 0.0)
    matrix = np.stack([1 / y, x / y], axis=1)
    start, slope = np.linalg.lstsq(matrix, np.ones(len(y)), rcond=None)[0]
    if start < 0:  # no time begins below nothing, and none falls with size
        return Line(0.0, float((x / y).sum() / ((x / y) ** 2).sum()))
    if slope < 0:
        return Line(float((1 / y).sum() / (1 / y**2).sum()), 0.0)
    return Line(float(start), float(slope))


@dataclass(frozen=True)
class Network:
    """What joins nodes.

    Attributes
    ----------
    ranks : int
        Of a node.
    latency : float
        Microseconds of a message from node to node.
    bandwidth : float
        Bytes a second for each rank.
    """

    ranks: int = 8
    latency: float = 5.0
    bandwidth: float = 50e9


@dataclass(frozen=True)
class Model:
    """The lines; see the head of this file.

    Attributes
    ----------
    interior : Line
        Of a rank's rows.
    vectors : dict of str to Line
        What each form does beside the product, of a rank's rows.
    halo : Line
        Of the bytes that a rank sends.
    join : float
        What a product takes beside the longer of the two.
    sums : Line
        One sum, of the logarithm of ranks.
    network : Network
    device : str
        `cpu` or `cuda`.
    near : float, optional
        One sum between GPUs of a node that write in each other's memory.
    far : Line, optional
        Of the bytes of a message between nodes, where `halo` is that of such GPUs.
    """

    interior: Line
    vectors: dict[str, Line]
    halo: Line
    join: float
    sums: Line
    network: Network
    device: str = "cuda"
    near: float | None = None
    far: Line | None = None

    @property
    def forms(self) -> dict[str, int]:
        """The forms of cg on this device."""
        return FORMS[self.device]

    def sum_us(self, ranks: int) -> float:
        """Return microseconds of a sum over ranks: up a tree and down, nodes by the network."""
        if self.near is not None and 1 < ranks <= self.network.ranks:
            return self.near
        inside = min(ranks, self.network.ranks)
        nodes = math.ceil(ranks / self.network.ranks)
        return self.sums(math.log2(inside)) + 2 * math.ceil(math.log2(nodes)) * self.network.latency

    def product_us(self, rows: float, halo: float, ranks: int) -> float:
        """Return microseconds of a product: `rows` of a rank, `halo` numbers that it sends."""
        if ranks == 1:
            return self.interior(rows)
        travel = self.halo(8 * halo)
        if ranks > self.network.ranks:
            travel = travel if self.far is None else self.far(8 * halo)
            travel += self.network.latency + 1e6 * 8 * halo / self.network.bandwidth
        return max(self.interior(rows), travel) + self.join

    def iteration_us(self, n: int, ranks: int, form: str = "cg") -> float:
        """Return microseconds of an iteration of a form of cg on an n x n x n grid."""
        rows, sums = n**3 / ranks, self.forms[form]
        product, one = self.product_us(rows, halo_of(n, ranks), ranks), self.sum_us(ranks)
        return (product + sums * one if sums else max(product, one)) + self.vectors[form](rows)


def halo_of(n: int, ranks: int) -> float:
    """Return how many numbers a rank of a grid sends: of slabs, or of cubes where these send less."""
    if ranks == 1:
        return 0.0
    slabs = (1 if ranks == 2 else 2) * float(n) ** 2
    cubes = 6 * (n**3 / ranks) ** (2 / 3)
    return slabs if ranks <= 4 else min(slabs, cubes)


def make_model(rows: Sequence[Row], network: Network) -> Model:
    """Return the model of measured rows.

    Raises
    ------
    ValueError
        If they lack what it is made of.
    """
    few = [row for row in rows if number(row, "ranks") <= FITTED]
    device = rows[0].get("device", "cuda") if rows else "cuda"

    def of(kernel: str, ranks: int | None = None) -> list[Row]:
        found = [
            row for row in few if row["kernel"] == kernel and (ranks in (None, int(number(row, "ranks"))))
        ]
        if not found:
            raise ValueError(
                f"the file has no {kernel} on {ranks or 'up to 2'} ranks; rows of dasp bench scaling "
                "--ranks 1,2 are needed"
            )
        return found

    products, pairs = of("product"), of("product", 2)
    each = {(row["matrix"], row["ranks"]): number(row, "us") for row in products}
    near = [number(row, "us") for row in of("sum") if row.get("links") == PEERS]
    slow = [row for row in of("sum") if row.get("links") != PEERS] or of("sum")
    sums = fit([(math.log2(number(row, "ranks")), number(row, "us")) for row in slow])
    vectors: dict[str, list[tuple[float, float]]] = {}
    for form, waited in FORMS[device].items():
        for row in of(form):  # on several ranks the slowest of them counts, here too
            ranks = number(row, "ranks")
            one = sums(0.0) if ranks == 1 else float(np.median(near)) if near else sums(math.log2(ranks))
            product = each[row["matrix"], row["ranks"]]
            rest = number(row, "us") - (product + waited * one if waited else max(product, one))
            vectors.setdefault(form, []).append((number(row, "rows") / ranks, max(rest, 1e-3)))
    messages = [
        (number(row, "bytes"), number(row, "us"))
        for row in few
        if row["kernel"] == "message" and row.get("links") != PEERS
    ]
    joins = [number(row, "us") - max(number(row, "interior_us"), number(row, "halo_us")) for row in pairs]
    return Model(
        interior=fit([(number(r, "rows") / number(r, "ranks"), number(r, "interior_us")) for r in products]),
        vectors={form: fit(points) for form, points in vectors.items()},
        halo=fit([(8 * number(row, "halo"), number(row, "halo_us")) for row in pairs]),
        join=max(0.0, float(np.median(joins))),
        sums=sums,
        network=network,
        device=device,
        near=float(np.median(near)) if near else None,
        far=fit(messages) if near and messages else None,
    )


def simulate(rows: Sequence[Row], network: Network, most: int) -> Report:
    """Check the model against what was measured; with each study's largest grid go on to `most` ranks."""
    model = make_model(rows, network)
    measured = [row for row in rows if row["kernel"] in model.forms]
    check: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row["matrix"]),
        ("form", lambda row: row["kernel"]),
        ("ranks", lambda row: row["ranks"]),
        ("measured us", lambda row: significant(number(row, "us"))),
        ("model us", lambda row: significant(_predicted(model, row))),
        ("off by", lambda row: f"{100 * (_predicted(model, row) / number(row, 'us') - 1):+.0f}%"),
    ]
    alone = sorted((row for row in measured if row["ranks"] == "1"), key=lambda row: number(row, "n"))
    largest = {row["study"]: (row["matrix"], int(number(row, "n"))) for row in alone}
    tables = [
        Table.of("an iteration of cg, measured and by the model", check, measured, words=["system", "form"])
    ]
    notes = [_constants(model)]
    for study, (name, n) in largest.items():
        tables.append(_ahead(model, name, study, n, most))
        notes.append(_where_it_stops(model, name, study, n, most))
    return Report(tables, notes)


def _predicted(model: Model, row: Row) -> float:
    return model.iteration_us(int(number(row, "n")), int(number(row, "ranks")), row["kernel"])


def doublings(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`."""
    return [1 << k for k in range(most.bit_length()) if 1 << k <= most]


def edge(study: str, n: int, ranks: int) -> int:
    """Return the edge of the grid of a study."""
    return round(n * ranks ** (1 / 3)) if study == "weak" else n


def efficiency(model: Model, study: str, n: int, ranks: int) -> float:
    """Return the share of the ranks' time that is not lost: against one rank, the best of the forms."""
    alone = model.iteration_us(n, 1)
    best = min(model.iteration_us(edge(study, n, ranks), ranks, form) for form in model.forms)
    return alone / best / (1 if study == "weak" else ranks)


def _ahead(model: Model, name: str, study: str, n: int, most: int) -> Table:
    headings = (
        "ranks",
        "rows a rank",
        "sent by a rank",
        *(f"{form} us" for form in model.forms),
        "efficiency",
    )
    lines = []
    for ranks in doublings(most):
        grid = edge(study, n, ranks)
        forms = [significant(model.iteration_us(grid, ranks, form)) for form in model.forms]
        share = f"{efficiency(model, study, n, ranks):.2f}"
        lines.append((str(ranks), whole(grid**3 / ranks), whole(halo_of(grid, ranks)), *forms, share))
    return Table(f"{name}, {study} scaling by the model", headings, lines, frozenset())


def _constants(model: Model) -> str:
    network, interior, halo = model.network, model.interior, model.halo
    return (
        f"a product takes {interior.start:.1f} us and {1e3 * interior.slope:.3f} ns a row; "
        f"a halo {halo.start:.1f} us and {1e3 * halo.slope:.4f} ns a byte; "
        f"joining them {model.join:.1f} us; a sum over two ranks {model.sum_us(2):.1f} us. "
        f"Between nodes of {network.ranks}: {network.latency:g} us and "
        f"{network.bandwidth / 1e9:g} GB/s a rank, given, not measured."
    )


def _where_it_stops(model: Model, name: str, study: str, n: int, most: int) -> str:
    late = [ranks for ranks in doublings(most) if efficiency(model, study, n, ranks) < HALF]
    if not late:
        return f"{name}, {study}: above {HALF:.0%} up to {most} ranks."
    grid = edge(study, n, late[0])
    rows = grid**3 / late[0]
    costs = {
        "the sums": model.forms["cg"] * model.sum_us(late[0]),
        "the halo": model.product_us(rows, halo_of(grid, late[0]), late[0]) - model.interior(rows),
        "what a launch takes": model.interior.start + model.vectors["cg"].start,
    }
    worst = max(costs, key=costs.__getitem__)
    return f"{name}, {study}: below {HALF:.0%} from {late[0]} ranks; most is lost to {worst}."
