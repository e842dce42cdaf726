"""Write every table and figure of the documents from the CSV files in benchmarks/results/, and nothing else.

    python -m benchmarks.report                  # README.md, pages of docs/ and the figures
    python -m benchmarks.report --to FOLDER      # the same into another folder, to look at or to compare

A table stands between `<!-- results:NAME begin -->` and `<!-- results:NAME end -->`. NAME is that of a CSV
file, or one of these: `headline` sums up the sparse products of all machines (`front` on the site), `solves`
has the systems that cg solved on all machines, `whole` counts set-up for several right-hand sides,
`cg_NAME` and `multigrid_NAME` have some of the linear systems of `solvers_NAME.csv`, and `gains_h200` has the
largest ones of `scaling_h200.csv`.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import (
    figures,
    gemm_report,
    gf256,
    results,
    solver_tables,
    sparse_report,
)
from benchmarks.bench.columns import report as report_columns
from benchmarks.bench.report import Report, provenance
from benchmarks.bench.rows import Row, median
from benchmarks.bench.scaling_figures import draw_scaling
from benchmarks.bench.sparse_report import baselines, number, pays_against_all, speedup, timed
from dasp.cli.report import Table, geometric_mean, products, significant

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (
    "README.md",
    *(f"docs/{page}.md" for page in ("index", "benchmarks", "distributed", "dtypes", "faster", "solvers")),
)
MARKER = re.compile(r"<!-- results:(\w+) begin -->")
COLLECTIONS = ("cpu", "h200")

GAINS = (
    ("product of {}, times as fast as on one", "strong", "product", "product"),
    ("iteration of cg of {}, as fast as the same form on one", "strong", "cg", "cg"),
    ("the same, as fast as `dasp.SpMatrix` on one", "strong", "cg", "cg alone"),
    (
        "iteration of cg with {} M rows a GPU, share kept of the speed of the same form on one",
        "weak",
        "cg",
        "cg",
    ),
    ("the same, of `dasp.SpMatrix` on one", "weak", "cg", "cg alone"),
)
"""What several ranks are compared with one in: in words, the study, what they do, and what one does."""

ANCHOR = "cusparse_12.9"
"""The column that holds the times of a later cuSPARSE, from `anchors_NAME.csv`."""


def latest_rows(name: str) -> list[Row]:
    """Return the latest rows of a result file, by its stem."""
    return results.latest(results.read(RESULTS / f"{name}.csv"))


def sparse_rows(name: str) -> list[Row]:
    """Return the latest rows of a collection, with a later cuSPARSE's times if measured apart."""
    rows = latest_rows(name)
    path = RESULTS.parent / f"anchors_{name}.csv"
    if not path.exists():
        return rows
    with path.open(newline="", encoding="utf-8") as file:
        anchors = {one["matrix"]: one for one in csv.DictReader(file) if one["dtype"] == "f64"}
    return [
        with_anchor(row, number(anchors[row["matrix"]], "best_cusparse_us"))
        if row["matrix"] in anchors
        else row
        for row in rows
    ]


def with_anchor(row: Row, us: float) -> Row:
    """Return a row with a later cuSPARSE's microseconds as those of one more baseline."""
    found = {**row, f"{ANCHOR}_us": f"{us:.6g}", f"{ANCHOR}_best_us": f"{us:.6g}"}
    if us < number(row, "best_baseline_us"):
        ratio = us / number(row, "time_us")
        found |= {"best_baseline": ANCHOR, "best_baseline_us": f"{us:.6g}", "speedup_best": f"{ratio:.6g}"}
    return found


def sparse_text(name: str) -> str:
    """Return the tables of one collection."""
    rows = sparse_rows(name)
    found = sparse_report.report(rows)
    said = [provenance(rows, RESULTS / f"{name}.csv")]
    if any(ANCHOR in f"{row.get('best_baseline')}" for row in rows):
        said.append(
            f"`{ANCHOR}` is the best setting of a later cuSPARSE, whose SpMVOp the one measured here lacks, "
            f"on the same kind of GPU (`anchors_{name}.csv`); its set-up is not known and counts as nothing."
        )
    notes = [note for note in found.notes if not note.startswith("not run:")]
    return Report(found.summary, [*notes, *said]).markdown()


class Compared(NamedTuple):
    """One machine's products against a baseline: ratios over a collection, and when the plan has paid."""

    on: str
    against: str
    called: str
    ratios: list[float]
    plan_ms: float
    pays_after: float


def headline_text() -> str:
    """Return the front page's table of products, plans, and when they pay, a line a baseline."""
    counts = [f"`{name}.csv` ({len(timed(sparse_rows(name)))} matrices)" for name in COLLECTIONS]
    lines = []
    for one in compared_products():
        figures_of = (geometric_mean(one.ratios), min(one.ratios), max(one.ratios))
        times = [f"{significant(value, 2)} x" for value in figures_of]
        plan, pays = significant(one.plan_ms, 2), products(one.pays_after)
        lines.append((one.on, one.against, one.called, *times, plan, pays))
    headings = ("on", "against", "called", "faster", "least", "most", "plan ms", "pays after")
    table = Table("", headings, lines, frozenset({"against", "called"}))
    note = (
        "Float64. `faster` is a geometric mean over the collection. `plan ms` and `pays after` are medians: "
        "the time to make a plan, and the number of products that repay it, where each library's own set-up "
        f"counts too. Rows: {', '.join(counts)}. [docs/benchmarks.md](docs/benchmarks.md) names the losses."
    )
    return f"{table.markdown()}\n\n{note}"


BASELINES = (
    ("SciPy", "`A @ x`", "scipy"),
    ("MKL, optimised handle", "into a given y", "mkl"),
    ("best of cuSPARSE", "CUDA graph, into a given y", "cusparse"),
    ("CuPy", "`A @ x`", "cupy"),
)
"""In words, how each is called, and the beginning of the names of its settings."""


def compared_products() -> list[Compared]:
    """Compare products on each machine with each baseline, called as its users call it, and dasp alike."""
    found = []
    for rows in (timed(sparse_rows(name)) for name in COLLECTIONS):
        known = dict.fromkeys(name for row in rows for name in baselines(row))
        plan = median(number(row, "plan_ms") for row in rows)
        for against, called, start in BASELINES:
            names = [name for name in known if name.startswith(start)]
            if names:
                speedups = [[speedup(row, name) for name in names] for row in rows]
                ratios = [min(each for each in row if not math.isnan(each)) for row in speedups]
                pays = median(pays_against_all(row, names) for row in rows)
                on = solver_tables.machine_of(rows[0])
                found.append(Compared(on, against, called, ratios, plan, pays))
    return found


def transpose_text(rows: Sequence[Row]) -> str:
    """Sum up the products with the transpose in a sentence."""
    rows = sorted(rows, key=lambda row: number(row, "speedup_best"))
    ratios = [number(row, "speedup_best") for row in rows]
    plans = [number(row, "plan_ms") for row in rows]
    return (
        f"{len(rows)} matrices: {significant(geometric_mean(ratios))} x the speed of the fastest baseline in "
        f"the geometric mean, {significant(ratios[0])} x at least ({rows[0]['matrix']}), "
        f"{significant(ratios[-1])} x at most ({rows[-1]['matrix']}). The plan of the transpose took "
        f"{significant(min(plans))} to {significant(max(plans))} ms."
    )


def squares_text(rows: Sequence[Row]) -> str:
    """Sum up the plans of matrices times themselves, with columns as SciPy leaves them and sorted."""
    parts = [[row for row in rows if row["matrix"].endswith(" sorted") == is_sorted] for is_sorted in (0, 1)]
    means = [
        significant(
            geometric_mean(1e3 * number(row, "plan_ms") / number(row, "scipy_best_us") for row in part)
        )
        for part in parts
    ]
    return (
        f"A plan takes as long as {means[0]} products of SciPy with unsorted columns, and {means[1]} with "
        f"sorted ones (geometric means of {len(parts[0])} matrices)."
    )


def busy_text() -> str:
    """Return the cost of idle threads, and of products on too few processors, a line a matrix."""
    path = RESULTS / "busy_cpu.csv"
    rows = results.read(path)
    found = {(row["matrix"], row["case"], row["processes"], row["threads"]): row for row in rows}

    def ratio(*key: str) -> Callable[[str], str]:
        return lambda matrix: significant(number(found[matrix, *key], "ratio"), 2)

    (default,) = {row["threads"] for row in rows if row["case"] == "processes"}
    columns: list[tuple[str, Callable[[str], str]]] = [("matrix", lambda matrix: matrix)]
    for key in dict.fromkeys((row["case"], row["processes"], row["threads"]) for row in rows):
        if key[0] == "processes":
            columns.append((f"{key[1]} processes" if key[1] != "1" else "1 process", ratio(*key)))
        elif key[0] == "threads" and key[2] != default:
            columns.append((f"{key[2]} threads", ratio(*key)))
    table = Table.of("", columns, list(dict.fromkeys(row["matrix"] for row in rows))).markdown()
    idle = {row["matrix"]: number(row, "idle_us") for row in rows if row["case"] == "idle"}.values()
    note = (
        f"An idle process took {significant(min(idle), 2)} to {significant(max(idle), 2)} us of processor "
        "time in a second, from a millisecond after its products on (medians)."
    )
    return f"{table}\n\n{note} {provenance(rows, path)}"


def dtypes_text(rows: Sequence[Row]) -> str:
    """Return the mean over the best baseline of each type."""
    found = {
        kind: [row for row in rows if row["dtype"] == kind]
        for kind in dict.fromkeys(row["dtype"] for row in rows)
    }

    def least(kind: str) -> str:
        row = min(found[kind], key=lambda row: number(row, "speedup_best"))
        return f"{significant(number(row, 'speedup_best'))} ({row['matrix']})"

    columns: list[tuple[str, Callable[[str], str]]] = [
        ("type", lambda kind: kind),
        ("matrices", lambda kind: str(len(found[kind]))),
        (
            "times as fast",
            lambda kind: significant(geometric_mean(number(row, "speedup_best") for row in found[kind])),
        ),
        ("least", least),
    ]
    return Table.of("", columns, sorted(found), words=["least"]).markdown()


def values_text(rows: Sequence[Row]) -> str:
    """Return the cost of new values in products, by the way that values are stored."""

    def mean(coding: str, column: str) -> str:
        found = [row for row in rows if row["coding"] == coding]
        return significant(geometric_mean(number(row, column) / number(row, "product_us") for row in found))

    columns: list[tuple[str, Callable[[str], str]]] = [
        ("stored as", lambda coding: coding),
        ("measured", lambda coding: str(sum(row["coding"] == coding for row in rows))),
        ("in place, products", lambda coding: mean(coding, "into_us")),
        ("as a new matrix, products", lambda coding: mean(coding, "anew_us")),
    ]
    table = Table.of("", columns, list(dict.fromkeys(row["coding"] for row in rows))).markdown()
    most = max(number(row, "into_us") / number(row, "product_us") for row in rows)
    return f"{table}\n\nGeometric means; at most {significant(most)} products in place."


MESSAGES = ("sum of 1", "ring of 8", "ring of 4096", "ring of 262144", "ring of 134217728")
"""Messages between ranks that the page shows: sums of numbers, and bytes to the neighbours."""


def scaling_text(rows: Sequence[Row]) -> str:
    """Return two tables of ranks: products and iterations of cg, and messages; a column a number of ranks."""

    def table(found: Sequence[Row], first: str, second: str, labels: tuple[str, str]) -> str:
        """Return a line for each pair of two columns of rows: microseconds on each number of ranks."""
        times = {
            (row[first], row[second], int(row["ranks"])): significant(number(row, "us")) for row in found
        }
        counts = sorted({ranks for _, _, ranks in times})
        lines = [
            (one, other, *(times.get((one, other, ranks), "-") for ranks in counts))
            for one, other in dict.fromkeys((row[first], row[second]) for row in found)
        ]
        headings = (*labels, *(f"us on {ranks}" for ranks in counts))
        return Table("", headings, lines, frozenset(labels)).markdown()

    strong = [row for row in rows if row.get("study") == "strong" and row["kernel"] in ("product", "cg")]
    alone = {row["matrix"] for row in strong if row["ranks"] == "1"}
    systems = [row for row in strong if row["matrix"] in alone]
    messages = [row for row in rows if row["matrix"] in MESSAGES and row["ranks"] != "1"]
    parts = [
        table(systems, "matrix", "kernel", ("system", "what")),
        table(messages, "matrix", "links", ("message", "by")),
    ]
    return "\n\n".join(parts)


def gains_text() -> str:
    """Return the largest systems of each study: how many times as fast several ranks are as one."""
    rows = [row for row in latest_rows("scaling_h200") if row.get("study")]
    counts = sorted({int(row["ranks"]) for row in rows} - {1})

    def largest(study: str, kernel: str, ranks: int) -> Row:
        found = [r for r in rows if (r["study"], r["kernel"], r["ranks"]) == (study, kernel, str(ranks))]
        return max(found, key=lambda row: int(row["rows"]))

    used, lines = [], []
    for words, study, kernel, alone in GAINS:
        one, many = largest(study, alone, 1), [largest(study, kernel, ranks) for ranks in counts]
        system = one["matrix"] if study == "strong" else f"{int(one['rows']) / 1e6:.0f}"
        figures_of = (significant(number(one, "us") / number(row, "us")) for row in many)
        lines.append((words.format(system), *figures_of))
        used += [one, *many]
    table = Table("", ("on GPUs", *map(str, counts)), lines).markdown()
    return f"{table}\n\n{provenance(used, RESULTS / 'scaling_h200.csv')}"


WRITERS: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "cg": ("solvers", solver_tables.cg_text),
    "columns": ("columns", lambda rows: report_columns(rows).markdown()),
    "dtypes": ("dtypes", dtypes_text),
    "factor": ("factor", solver_tables.factor_text),
    "gemm": ("gemm", lambda rows: gemm_report.report(rows).markdown()),
    "helmholtz": ("helmholtz", solver_tables.helmholtz_text),
    "multigrid": ("solvers", solver_tables.multigrid_text),
    "planning": ("planning", sparse_report.planning_text),
    "scaling": ("scaling", scaling_text),
    "solvers": ("solvers", solver_tables.solvers_text),
    "squares": ("squares", squares_text),
    "transpose": ("transpose", transpose_text),
    "values": ("values", values_text),
}
"""By the beginning of a name: that of the CSV file, and the writer of its rows."""


WHOLE: dict[str, Callable[[], str]] = {
    "busy_cpu": busy_text,
    "front": lambda: headline_text().replace("[docs/benchmarks.md](docs/", "[Benchmarks]("),
    "gains_h200": gains_text,
    "headline": headline_text,
    "solves": solver_tables.solves_text,
    "whole": solver_tables.whole_text,
}
"""By name: the writers that find their rows, and say where they are from, themselves."""


def text(name: str) -> str:
    """Return the text between the markers of a name."""
    if name in WHOLE:
        return WHOLE[name]()
    first, _, rest = name.partition("_")
    if first not in WRITERS:
        return sparse_text(name)
    file, write = WRITERS[first]
    stem = f"{file}_{rest}" if rest else file
    rows = latest_rows(stem)
    return f"{write(rows)}\n\n{provenance(rows, RESULTS / f'{stem}.csv')}"


def draw_headline(path: Path, *, narrow: bool) -> None:
    """Draw the front page's bars: how many times as fast systems are solved, and products made."""
    systems = [
        (f"{one.system}, {one.library}", one.its_ms / one.dasp_ms, one.on)
        for one in solver_tables.solved_systems()
    ]
    names = {"MKL, optimised handle": "MKL", "best of cuSPARSE": "cuSPARSE"}
    means = [
        (names.get(one.against, one.against), geometric_mean(one.ratios), one.on)
        for one in compared_products()
    ]
    panels = [("One linear system, by cg, all counted", systems), ("One product, geometric mean", means)]
    figures.draw_speedups(panels, path, narrow)


def draw(folder: Path) -> None:
    """Draw every figure as PNG."""
    for name in COLLECTIONS:
        figures.draw_collection(sparse_rows(name), folder / f"{name}.png")
    draw_headline(folder / "headline.png", narrow=False)
    draw_headline(folder / "headline_narrow.png", narrow=True)
    for name in ("gemm", "gemm_cpu"):
        figures.draw_ladder(gemm_report.ladders(latest_rows(name)), folder / f"{name}.png")
    for name in ("gf256", "gf256_cpu"):
        figures.draw_bars(gf256.shapes(latest_rows(name)), folder / f"{name}.png")
    draw_scaling(latest_rows("scaling_h200"), folder / "scaling_h200.png")
    for name in solver_tables.SYSTEMS:
        figures.draw_systems(latest_rows(name), folder / f"{name}.png")


def replace_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- results:NAME begin -->` and `<!-- results:NAME end -->`.

    Parameters
    ----------
    path : pathlib.Path
        The Markdown file.
    name : str
        The markers' NAME.
    text : str
        What stands there afterwards, on lines of its own.

    Raises
    ------
    ValueError
        If the file does not hold both markers once each, in this order.
    """
    begin, end = f"<!-- results:{name} begin -->", f"<!-- results:{name} end -->"
    before = path.read_text(encoding="utf-8")
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise ValueError(f"{path} lacks the markers; {begin} and, after it, {end} are needed once each")
    head, _, rest = before.partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, help="write there in place of the checkout")
    parser.add_argument("--no-figures", action="store_true", help="write the tables alone")
    args = parser.parse_args(arguments)
    for document in DOCUMENTS:
        target = (args.to or ROOT) / document
        target.parent.mkdir(parents=True, exist_ok=True)
        written = (ROOT / document).read_text(encoding="utf-8")
        target.write_text(written, encoding="utf-8")
        for name in MARKER.findall(written):
            replace_between(target, name, text(name))
    if not args.no_figures:
        draw(args.to or RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
