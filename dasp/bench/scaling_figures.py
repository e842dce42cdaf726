"""Pictures of scaling over ranks: what was measured, and the model made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dasp.bench.figures import BLUE, COLOURS, new_figure, save, styled
from dasp.bench.scaling import share
from dasp.bench.scaling_model import Network, doublings, edge, efficiency, make_model
from dasp.bench.table import Row, number


@styled
def draw_scaling(rows: Sequence[Row], network: Network, most: int, path: Path) -> None:
    """Draw the efficiency of cg over ranks: measured as points, by the model as lines, a panel a study.

    A measured point is the better of the two forms of cg, against a cg on one rank that knows of no others.
    """
    model = make_model(rows, network)
    studies = list(dict.fromkeys(row["study"] for row in rows if row["kernel"] == "cg"))
    figure, panels = new_figure(3.5 * len(studies), 2.6, len(studies))
    ranks = doublings(most)
    for axes, study in zip(panels, studies, strict=True):
        alone = [
            row for row in rows if row["kernel"] == "cg" and row["study"] == study and row["ranks"] == "1"
        ]
        for colour, row in zip((BLUE, *COLOURS), alone, strict=False):
            n = int(number(row, "n"))
            axes.plot(ranks, [efficiency(model, study, n, one) for one in ranks], color=colour, linewidth=0.9)
            points = _measured(rows, study, row)
            label = f"{n**3 / 1e6:.3g} M rows" + (" a rank" if study == "weak" else "")
            axes.plot(*zip(*points, strict=True), "o", color=colour, label=label)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="ranks (GPUs)", ylabel="efficiency", title=f"{study} scaling of cg", ylim=(0, 1.2))
        axes.legend(loc="upper right", title="points: measured; lines: model")
    save(figure, path)


def _measured(rows: Sequence[Row], study: str, first: Row) -> list[tuple[int, float]]:
    """Return (ranks, efficiency) of the cases that began with a row on one rank."""
    base = round(number(first, "rows"))
    found: dict[int, float] = {}
    for row in rows:
        if not row["kernel"].startswith("cg") or row["study"] != study:
            continue
        count = int(number(row, "ranks"))
        wanted = edge(study, int(number(first, "n")), count)
        if int(number(row, "n")) == wanted and base:
            value: Any = share(rows, row)
            found[count] = max(found.get(count, 0.0), float(value))
    return sorted(found.items())
