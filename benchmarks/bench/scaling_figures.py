"""Pictures of scaling over ranks, as it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context

from benchmarks.bench.rows import Row, number
from benchmarks.bench.scaling import share, weak_edge
from dasp.cli.report import BLUE, COLOURS, STYLE, new_figure, save


@rc_context(STYLE)
def draw_scaling(rows: Sequence[Row], path: Path) -> None:
    """Draw the efficiency of cg over the number of ranks, a panel a study, a line a grid.

    Each point is the faster of the two forms of cg, against a cg on one rank that knows of no others.
    """
    studies = list(dict.fromkeys(row["study"] for row in rows if row["kernel"] == "cg"))
    figure, panels = new_figure(3.5 * len(studies), 2.6, len(studies))
    for axes, study in zip(panels, studies, strict=True):
        of_study = [row for row in rows if row["kernel"].startswith("cg") and row["study"] == study]
        alone = [row for row in of_study if row["kernel"] == "cg" and row["ranks"] == "1"]
        for colour, row in zip((BLUE, *COLOURS), alone, strict=False):
            n = int(number(row, "n"))
            label = f"{n**3 / 1e6:.3g} M rows" + (" a rank" if study == "weak" else "")
            ranks, shares = zip(*efficiencies(of_study, n), strict=True)
            axes.plot(ranks, shares, "o-", color=colour, linewidth=0.9, label=label)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="ranks (GPUs)", ylabel="efficiency", title=f"{study} scaling of cg", ylim=(0, 1.2))
        axes.legend(loc="lower left")
    save(figure, path)


def efficiencies(rows: Sequence[Row], n: int) -> list[tuple[int, float]]:
    """Return (ranks, efficiency) of the rows of one study whose grid has edge `n` on one rank."""
    best: dict[int, float] = {}
    for row in rows:
        ranks = int(number(row, "ranks"))
        if int(number(row, "n")) == (weak_edge(n, ranks) if row["study"] == "weak" else n):
            best[ranks] = max(best.get(ranks, 0.0), share(rows, row))
    return sorted(best.items())
