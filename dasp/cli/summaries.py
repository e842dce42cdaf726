"""A summary of each sub-command of `dasp`, for its own help and for that of `dasp`.

Nothing else of a command is loaded before it is asked for.
"""

from __future__ import annotations

from typing import Any

SUMMARIES = {
    "info": "show a matrix: its row lengths and its plan",
    "solve": "solve A x = b by an iterative method and report the true residual",
    "plan": "plan a matrix and keep the plan in a file",
    "fetch": "fetch matrices of the SuiteSparse collection by name",
    "config": "say which devices and libraries were found, and why not",
    "bench": "plan, verify and time matrices against other libraries",
    "partition": "cut a matrix into files for ranks, balanced by entries or by a graph partitioner",
    "tune": "measure what choices depend on, on this machine",
    "completion": "print what a shell must run to complete dasp's words",
}
"""A line for each command, in the order in which `dasp --help` names them."""


def add_parser(subparsers: Any, name: str, description: str | None = None) -> Any:
    """Add the parser of a command to those of `dasp`; its table says what it does.

    Parameters
    ----------
    subparsers : argparse._SubParsersAction
    name : str
        A key of `SUMMARIES`.
    description : str, optional
        The beginning of `--help`; by default the command's summary, as a sentence. One that begins with a
        comma or a semicolon goes on from the summary.

    Returns
    -------
    argparse.ArgumentParser
    """
    summary = SUMMARIES[name]
    sentence = f"{summary[0].upper()}{summary[1:]}"
    if description is None:
        description = f"{sentence}."
    elif description.startswith((",", ";")):
        description = sentence + description
    return subparsers.add_parser(name, help=summary, description=description)
