"""Pieces of HTML that describe a matrix and its plan: for a notebook, and for the page of `dasp info --html`.

A piece carries its own style and needs no script, no font and no file beside it. Pictures are SVG in the
colours of the page around them, so they can be read in the light and in the dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#7F7F7F")
"""Those of Okabe and Ito, which the colour-blind tell apart; then two for what is rarely there."""

STYLE = """
.dasp { font-family: system-ui, sans-serif; font-size: 0.95rem; line-height: 1.45; }
.dasp table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.dasp th, .dasp td { padding: 0.15rem 0.7rem 0.15rem 0; text-align: right; white-space: nowrap; }
.dasp th { border-bottom: 1px solid; font-weight: 600; }
.dasp th:first-child, .dasp td:first-child { text-align: left; }
.dasp .wide { overflow-x: auto; margin-bottom: 0.8rem; }
.dasp .bar { display: flex; height: 1.1rem; max-width: 40rem; border-radius: 3px; overflow: hidden; }
.dasp .legend { list-style: none; padding: 0; margin: 0.2rem 0 0.8rem; display: flex; flex-wrap: wrap; }
.dasp .legend li { margin: 0 1.1rem 0 0; white-space: nowrap; }
.dasp .legend i { display: inline-block; width: 0.75em; height: 0.75em; margin-right: 0.4em; }
.dasp .length { min-width: 9rem; }
.dasp .length span { display: block; height: 0.8rem; background: #0072B2; border-radius: 2px; }
@media (max-width: 480px) {
  .dasp { font-size: 0.85rem; }
  .dasp th, .dasp td { padding-right: 0.4rem; }
  .dasp .length { min-width: 5rem; }
}
.dasp svg { display: block; max-width: 100%; height: auto; }
.dasp svg text { fill: currentColor; font-size: 12px; font-family: system-ui, sans-serif; }
"""

PAGE = """
:root { color-scheme: light dark; }
body { margin: 0; }
main.dasp { max-width: 52rem; margin: 0 auto; padding: 1rem 1.2rem 3rem; }
.dasp h1 { font-size: 1.5rem; overflow-wrap: anywhere; margin: 0.5rem 0; }
.dasp h2 { font-size: 1.15rem; margin: 1.8rem 0 0.5rem; }
.dasp figure { margin: 0; }
.dasp figcaption, .dasp small { opacity: 0.8; }
"""

_LEVELS = 5
"""Steps of grey of a picture of entries."""


def document(title: str, sections: Iterable[str]) -> str:
    """Return a whole page; `title` is text, the sections are HTML."""
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{PAGE}</style>\n</head>\n"
        f'<body><main class="dasp">\n{body}\n</main></body>\n</html>\n'
    )


def fragment(sections: Iterable[str]) -> str:
    """Return sections with their style, for a notebook."""
    body = "\n".join(sections)
    return f'<div class="dasp"><style>{STYLE}</style>\n{body}\n</div>'


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of texts; the first column names the line."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{rows}\n</table></div>'


def share_bars(shares: Mapping[str, Mapping[str, int]]) -> str:
    """Return a bar for each thing that is shared out, with the names and percentages of its shares below."""
    pieces = []
    for what, parts in shares.items():
        total = sum(parts.values())
        if not total:
            continue
        bars, names = [], []
        for i, (name, count) in enumerate(parts.items()):
            colour, share = COLOURS[i % len(COLOURS)], count / total
            bars.append(f'<span style="width:{100 * share:.2f}%;background:{colour}"></span>')
            names.append(f'<li><i style="background:{colour}"></i>{escape(name)} {share:.1%}</li>')
        heading = f"<b>{total:,} {escape(what)}</b>"
        pieces.append(
            f'{heading}<div class="bar">{"".join(bars)}</div><ul class="legend">{"".join(names)}</ul>'
        )
    return "\n".join(pieces)


def length_table(classes: Sequence[tuple[int, int, int, int]]) -> str:
    """Return row lengths as a table of bars; a class is its first and last length, its rows and entries."""
    most = max((rows for _, _, rows, _ in classes), default=0) or 1
    total = sum(entries for *_, entries in classes) or 1
    lines = []
    for first, last, rows, entries in classes:
        label = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        bar = f'<td class="length"><span style="width:{100 * rows / most:.2f}%"></span></td>'
        lines.append(f"<tr><td>{label}</td>{bar}<td>{rows:,}</td><td>{entries / total:.1%}</td></tr>")
    head = "<tr><th>entries in a row</th><th></th><th>rows</th><th>of all entries</th></tr>"
    return f'<div class="wide"><table>{head}\n{chr(10).join(lines)}\n</table></div>'


def spy(shares: Any) -> str:
    """Return a picture of where entries are: the darker a cell, the larger its share of entries.

    Parameters
    ----------
    shares : numpy.ndarray, shape (down, across)
        Share of a cell's places that hold an entry.
    """
    down, across = shares.shape
    filled = shares[shares > 0]
    low = min(float(filled.min()), 0.5) if filled.size else 0.5
    runs: list[list[str]] = [[] for _ in range(_LEVELS)]
    for y in range(down):
        x = 0
        while x < across:
            level, start = _level(float(shares[y, x]), low), x
            while x < across and _level(float(shares[y, x]), low) == level:
                x += 1
            if level >= 0:
                runs[level].append(f"M{start} {y}h{x - start}v1h-{x - start}z")
    paths = "".join(
        f'<path fill="currentColor" fill-opacity="{0.2 + 0.8 * i / (_LEVELS - 1):.2f}" d="{"".join(run)}"/>'
        for i, run in enumerate(runs)
        if run
    )
    longest = max(down, across)
    width, height = 420 * across / longest, 420 * down / longest
    edge = f'<rect width="{across}" height="{down}" fill="none" stroke="currentColor" stroke-width="0.4"/>'
    label = f"{down} by {across} cells; the darker, the more entries"
    return (
        f'<svg role="img" aria-label="{label}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="-0.5 -0.5 {across + 1} {down + 1}" shape-rendering="crispEdges">{edge}{paths}</svg>'
    )


def _level(share: float, low: float) -> int:
    """Return the step of grey of a share, by its logarithm between `low` and 1; -1 for an empty cell."""
    if share <= 0:
        return -1
    depth = 1.0 if low >= 1 else 1.0 - math.log(min(share, 1.0)) / math.log(low)
    return min(int(depth * _LEVELS), _LEVELS - 1)


_LEFT, _TOP, _RIGHT, _BOTTOM = 74, 12, 428, 232
"""Edges of the area of curves, in pixels of a picture of 440 by 280."""


def total_times(curves: Mapping[str, tuple[float, float]], most: float = 1e6) -> str:
    """Return a picture of total time over the number of products, both logarithmic.

    Parameters
    ----------
    curves : mapping
        By name: milliseconds once, and microseconds a product.
    most : float
        Products at the right end.
    """
    ends = [[1e3 * once + each * n for n in (1.0, most)] for once, each in curves.values()]
    low = math.floor(math.log10(min(e[0] for e in ends)))
    high = math.ceil(math.log10(max(e[1] for e in ends)))
    decades = math.log10(most)

    def place(n: float, us: float) -> str:
        x = _LEFT + (_RIGHT - _LEFT) * math.log10(n) / decades
        y = _BOTTOM - (_BOTTOM - _TOP) * (math.log10(us) - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    pieces = []
    for d in range(round(decades) + 1):
        x = _LEFT + (_RIGHT - _LEFT) * d / decades
        pieces.append(f'<path d="M{x:.1f} {_TOP}V{_BOTTOM}" stroke="currentColor" stroke-opacity="0.15"/>')
        pieces.append(f'<text x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{_count(d)}</text>')
    for d in range(low, high + 1):
        y = _BOTTOM - (_BOTTOM - _TOP) * (d - low) / (high - low)
        pieces.append(f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>')
        pieces.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_duration(d)}</text>')
    for i, (name, (once, each)) in enumerate(curves.items()):
        points = " ".join(
            place(n, 1e3 * once + each * n) for n in (10 ** (k / 8) for k in range(round(8 * decades) + 1))
        )
        colour, x, y = COLOURS[i % len(COLOURS)], _LEFT + 12, _TOP + 16 + 18 * i
        pieces.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        pieces.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="2"/>')
        pieces.append(f'<text x="{x + 24}" y="{y}">{escape(name)}</text>')
    pieces.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="272" text-anchor="middle">products</text>')
    middle = (_TOP + _BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {middle})"'
    pieces.append(f'<text x="12" y="{middle}" text-anchor="middle" {turned}>total time</text>')
    return (
        '<svg role="img" aria-label="total time over the number of products" width="440" height="280" '
        f'viewBox="0 0 440 280">{"".join(pieces)}</svg>'
    )


def _count(decade: int) -> str:
    """Return a power of ten, short.

    Examples
    --------
    >>> [_count(d) for d in (0, 2, 3, 5, 6)]
    ['1', '100', '1k', '100k', '1M']
    """
    return f"{10 ** (decade % 3)}{'kMG'[decade // 3 - 1] if decade >= 3 else ''}"


def _duration(decade: int) -> str:
    """Return a power of ten of microseconds as a time.

    Examples
    --------
    >>> [_duration(d) for d in (-1, 0, 2, 3, 6, 8)]
    ['100 ns', '1 us', '100 us', '1 ms', '1 s', '100 s']
    """
    unit = max(-1, min(decade // 3, 2))
    return f"{10 ** (decade - 3 * unit)} {('us', 'ms', 's', 'ns')[unit]}"
