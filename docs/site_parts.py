"""Additions to Sphinx: figures, equations, commands' help, tables of ladders, the order of the gallery."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path
from typing import Any

import draw
import latex2mathml.converter
from docutils import nodes
from docutils.parsers.rst import Directive

from benchmarks.bench import gemm_report, results
from benchmarks.bench.rows import Row, number
from dasp import dense
from dasp.cli import main as cli
from dasp.cli.report import significant
from dasp.dense import gf256

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_equation, None))
    app.connect("builder-inited", lambda _: draw.draw_all(HERE / "drawn"))
    app.add_directive("commands", Commands)
    app.add_directive("rung", Rung)
    app.add_directive("ladder", Ladder)
    # Before numpydoc's own: a bar is an absolute value in our docstrings, never a substitution.
    app.connect("autodoc-process-docstring", keep_bars, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_inline(writer: Any, node: nodes.math) -> None:
    """Write a formula within a sentence as MathML, which browsers draw without a script."""
    writer.body.append(write_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def write_equation(writer: Any, node: nodes.math_block) -> None:
    """Write an equation on a line of its own."""
    writer.body.append(write_mathml(node.astext(), "block"))
    raise nodes.SkipNode


def write_mathml(text: str, display: str) -> str:
    """Return a formula as MathML. A bar stands close to its letters: it is that of an absolute value."""
    bar = '<mo stretchy="false">&#x0007C;</mo>'
    close = bar.replace("<mo ", '<mo lspace="0" rspace="0" ')
    return latex2mathml.converter.convert(text, display=display).replace(bar, close)


def keep_bars(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Escape the bars of a docstring where they are text: not in code, and not in an example."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "|")):
            parts = re.split(r"(`[^`]*`)", line)
            lines[i] = "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


class GalleryOrder:
    """The order of the examples: that in which examples/README.rst names them."""

    def __init__(self, _: str) -> None:
        self._text = (HERE.parent / "examples" / "README.rst").read_text(encoding="utf-8")

    def __call__(self, name: str) -> int:
        """Return the key by which sphinx-gallery sorts a file's name."""
        return self._text.find(name)


def style_figures(_: Any, __: Any) -> None:
    """Give every example the look of the benchmarks' figures, with letters for a narrow screen."""
    import matplotlib

    matplotlib.rcParams.update(draw.STYLE)


# ---- the command line ----------------------------------------------------------------------------


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of a command that can be run: itself, or those of its sub-commands."""
    below = [
        each
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for each in action.choices.values()
    ]
    return [leaf for each in below for leaf in parsers(each)] or [parser]


class Commands(Directive):
    """The help of every `dasp` command, a section each."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        os.environ["COLUMNS"] = "88"
        sections: list[nodes.Node] = []
        for command in cli.COMMANDS:
            group = cli.build_parser(command)._subparsers._group_actions[0].choices[command]
            for parser in parsers(group):
                section = nodes.section(ids=[parser.prog.replace(" ", "-")])
                section += nodes.title(text=parser.prog)
                section += nodes.literal_block(text=parser.format_help(), language="none")
                sections.append(section)
        return sections


# ---- ladders -------------------------------------------------------------------------------------


class Rung(Directive):
    """The summary of a rung of a ladder of matrix products, and its speed: `{rung} FILE NAME`.

    FILE is the stem of a result file. The size is the largest one, up to 4096, at which this rung and the one
    before were measured.
    """

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Return the summary and a table of figures."""
        file, name = self.arguments
        summary, headings, lines = dense_lines(file, name)
        self.state.document.settings.env.note_dependency(str(RESULTS / f"{file}.csv"))
        return [nodes.paragraph("", "", nodes.strong(text=summary)), table(headings, lines)]


class Ladder(Directive):
    """A table of the kernels over GF(2^8), the plainest first: `{ladder} FILE`, the stem of a result file."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        (file,) = self.arguments
        self.state.document.settings.env.note_dependency(str(RESULTS / f"{file}.csv"))
        return [
            table(["kernel", "in words", "GB/s of data", "the step", "of the copy limit"], code_lines(file))
        ]


def measured(file: str) -> list[Row]:
    """The latest rows of a result file whose products were right."""
    return [row for row in results.latest(results.read(RESULTS / f"{file}.csv")) if results.right(row)]


def dense_lines(file: str, name: str) -> tuple[str, list[str], list[list[str]]]:
    """Summary, headings and lines of a rung of a floating-point ladder."""
    rungs = dense.kernels("cpu" if file.endswith("cpu") else "cuda")
    lines = []
    for machine, dtype, part in gemm_report.ladders(measured(file)):
        names, sizes, found = gemm_report.cells(part)
        if name not in names:
            continue
        before = names[names.index(name) - 1]
        below = "" if before == gemm_report.VENDOR else before
        size = max(s for s in sizes if s <= 4096 and {(name, s), (below or name, s)} <= found.keys())
        row = found[name, size]
        speed, share = number(row, "gflops"), 100 * number(row, "of_vendor")
        step = f"{speed / number(found[below, size], 'gflops'):.2f} x {below}" if below else ""
        lines.append([f"{dtype}, {machine}", str(size), significant(speed, 3), step, f"{share:.3g} %"])
    summary = next(each.summary for each in rungs if each.name == name)
    return summary, ["type, machine", "size", "GFLOP/s", "the step", "of the vendor's library"], lines


def code_lines(file: str) -> list[list[str]]:
    """Return a line for each kernel over GF(2^8), at the largest shape that was measured."""
    rows = measured(file)
    longest = max(rows, key=lambda row: int(row["matrix"].rpartition("x")[2]))["matrix"]
    found = {row["kernel"]: row for row in rows if row["matrix"] == longest}
    lines = []
    before = math.nan
    for kernel in gf256.kernels("cpu" if file.endswith("cpu") else "cuda"):
        row = found[kernel.name]
        speed = number(row, "data_gbs")
        step = "" if math.isnan(before) else f"{speed / before:.2f} x"
        share = f"{100 * number(row, 'of_limit'):.3g} %"
        lines.append([kernel.name, kernel.summary, significant(speed), step, share])
        before = speed
    return lines


def table(headings: list[str], lines: list[list[str]]) -> nodes.table:
    """A table of texts."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in headings), cols=len(headings))
    group += nodes.thead("", _line(headings))
    group += nodes.tbody("", *(_line(line) for line in lines))
    return nodes.table("", group)


def _line(texts: list[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=text)) for text in texts))
