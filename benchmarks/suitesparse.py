"""Run the whole collection: every real matrix under DASP_MATRICES, and generated families at size.

    python benchmarks/suitesparse.py --device cuda --name h200
    python benchmarks/suitesparse.py --name h200 --report-only --anchors benchmarks/anchors_h200.csv

Rows go to `benchmarks/results/NAME.csv` as they are measured; a run that was interrupted goes on where it
stopped (rows of the same commit and machine are not measured again). The figure, and the table between the
README's markers `<!-- results:NAME begin -->` and `<!-- results:NAME end -->`, are drawn from the CSV file
alone.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dasp.bench import machine, results, session, table
from dasp.bench.figures import draw
from dasp.bench.readme import replace_between
from dasp.bench.table import Row, number, significant
from dasp.commands.bench import add_arguments, header, settings_of

HERE = Path(__file__).resolve().parent

FAMILIES = {
    "full": (
        "stencil27:100",
        "stencil27:60",
        "stencil27:24",
        "poisson3d:128",
        "poisson3d:40",
        "poisson2d:1500",
        "poisson2d9:1200",
        "fem3:48",
        "fem3:20",
        "fem1:100",
        "qcd:16",
        "triangles:1000000",
        "geometric:1000000",
        "rmat:19",
        "rmat:16",
        "powerlaw:1000000",
        "circuit:1000000",
        "kkt:1000000",
        "lp:100000:400000",
        "markov:1000000",
        "band:300000",
        "short:2000000",
        "spikes:400000:20:100000",
        "dense:3000",
        "random:300000:300000:0.00005",
    ),
    "small": (
        "stencil27:40",
        "poisson3d:50",
        "poisson2d:500",
        "poisson2d9:300",
        "fem3:20",
        "fem1:40",
        "qcd:6",
        "triangles:60000",
        "geometric:60000",
        "rmat:14",
        "powerlaw:60000",
        "circuit:60000",
        "kkt:60000",
        "lp:10000:40000",
        "markov:60000",
        "band:20000",
        "short:200000",
        "spikes:60000:5:20000",
        "dense:800",
        "random:30000:30000:0.0005",
    ),
}
"""The generated half of the collection, by `--scale`; most of `full` is beyond the cache of a large GPU."""

ANCHOR = "cuSPARSE 12.9 (from --anchors)"


def real_matrices(folder: str | None) -> list[str]:
    """The matrix files of a folder, sorted by name; none where there is no folder."""
    if not folder:
        return []
    found = [path for path in Path(folder).iterdir() if path.name.endswith((".npz", ".mtx", ".mtx.gz"))]
    return [str(path) for path in sorted(found, key=lambda path: path.name.lower())]


def read_anchors(path: Path) -> dict[str, float]:
    """Microseconds of the best cuSPARSE setting by matrix, float64, from an anchor table."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == "f64"]
    return {row["matrix"]: float(row["best_cusparse_us"]) for row in rows}


def with_anchors(rows: Sequence[Row], anchors: dict[str, float]) -> list[Row]:
    """Let an anchor stand in for SpMVOp where the row was measured without it and the anchor is faster."""
    made = []
    for row in rows:
        anchor = anchors.get(row["matrix"])
        measured = row.get("cusparse_spmvop1_us") or row.get("cusparse_spmvop2_us")
        eligible = row.get("device") == "cuda" and row.get("dtype") == "float64" and not measured
        if eligible and anchor is not None and not anchor >= number(row, "best_baseline_us"):
            ratio = anchor / number(row, "time_us")
            stood_in = {
                "best_baseline": ANCHOR,
                "best_baseline_us": f"{anchor:.6g}",
                "speedup_best": f"{ratio:.6g}",
            }
            row = {**row, **stood_in}
        made.append(row)
    return made


def provenance(rows: Sequence[Row], source: Path) -> str:
    """Where the rows come from: machines, versions, commits, file."""
    said = []
    for name in machine.PROVENANCE:
        values = sorted({row[name] for row in rows if row.get(name)})
        if values:
            said.append(f"{name} {' / '.join(values)}")
    return f"{', '.join(said)}. Rows: `{source.name}`."


def readme_text(rows: Sequence[Row], source: Path) -> str:
    """What goes between the markers: provenance, means, losses, and every matrix folded away."""
    cells = [
        "| matrices | count | x best baseline | x everyday | time / roofline | plan, products | bytes / CSR |"
    ]
    cells.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for title, part in [*table.groups(rows), ("all", list(rows))]:
        s = table.summarize(part)
        figures = (s.best, s.everyday, s.roofline, s.products, s.bytes_ratio)
        cells.append(
            f"| {title} | {s.matrices} | " + " | ".join(significant(value) for value in figures) + " |"
        )
    everyday = sorted({row["everyday"] for row in rows if row.get("everyday")})
    notes = [f"Geometric means; everyday is {' / '.join(everyday)}. {provenance(rows, source)}"]
    if any(row.get("best_baseline") == ANCHOR for row in rows):
        notes.append(
            "This cuSPARSE has no SpMVOp; where it was faster, the time of cuSPARSE 12.9 on the same kind of "
            "GPU stands in."
        )
    losses = table.summarize(rows).losses
    named = ", ".join(f"{name} ({significant(ratio)}, {by})" for name, ratio, by in losses) or "none"
    notes.append(f"Slower than the best baseline: {named}.")
    wrong = [row["matrix"] for row in rows if row.get("verified") != "yes"]
    if wrong:
        notes.append(f"Wrong, and not timed: {', '.join(wrong)}.")
    folded = [
        f"<details><summary>Every matrix, {title}</summary>\n\n{table.markdown_table(part)}\n\n</details>"
        for title, part in table.groups(rows)
    ]
    return "\n\n".join(["\n".join(cells), *notes, *folded])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrix", nargs="*", metavar="MATRIX", help="these instead of the collection")
    add_arguments(parser)
    parser.add_argument(
        "--scale", choices=tuple(FAMILIES), default="full", help="size of the generated families"
    )
    parser.add_argument(
        "--name", default="suitesparse", help="of the CSV file, the figure and the README's markers"
    )
    parser.add_argument("--csv", type=Path, help="instead of benchmarks/results/NAME.csv")
    parser.add_argument("--figure", type=Path, help="instead of the CSV file's name with .png")
    parser.add_argument("--readme", type=Path, help="rewrite the table between this file's markers")
    parser.add_argument(
        "--anchors", type=Path, help="CSV of cuSPARSE times that stand in for SpMVOp where it is absent"
    )
    parser.add_argument("--report-only", action="store_true", help="measure nothing; draw from the CSV file")
    args = parser.parse_args(arguments)
    args.csv = args.csv or HERE / "results" / f"{args.name}.csv"
    args.figure = args.figure or args.csv.with_suffix(".png")
    return args


def report(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Print the tables, draw the figure, rewrite the README."""
    print(table.report(rows))
    if table.timed(rows):
        draw(rows, args.figure)
        print(f"figure: {args.figure}", file=sys.stderr)
    if args.readme:
        replace_between(args.readme, args.name, readme_text(rows, args.csv))
        print(f"table: {args.readme}", file=sys.stderr)


def measure(args: argparse.Namespace) -> None:
    """Measure what the CSV file lacks."""
    device, settings = settings_of(args)
    print(header(device, settings), file=sys.stderr)
    specs = args.matrix or [*real_matrices(os.environ.get("DASP_MATRICES")), *FAMILIES[args.scale]]
    session.run(specs, device, settings, resume=True)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    try:
        if not args.report_only:
            measure(args)
        rows = results.latest(results.read(args.csv))
        if not rows:
            raise ValueError(f"{args.csv} has no rows; a run without --report-only is needed first")
        if args.anchors:
            rows = with_anchors(rows, read_anchors(args.anchors))
        report(rows, args)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"suitesparse.py: {error}", file=sys.stderr)
        return 2
    return 0 if session.verified(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
