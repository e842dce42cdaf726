"""Text between two markers of a Markdown file, rewritten by the benchmark that it reports."""

from __future__ import annotations

from pathlib import Path


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
