"""The commands of `dasp`: a summary of each, and the parser that begins with it.

The module `dasp.cli.NAME` of a command is loaded only when the command is asked for.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = argparse._SubParsersAction

COMMANDS = {
    "info": "show a matrix: its row lengths and its plan",
    "solve": "solve A x = b by an iterative method and report the true residual",
    "plan": "plan a matrix and keep the plan in a file",
    "fetch": "fetch matrices of the SuiteSparse collection by name",
    "config": "say which devices and libraries were found, and why not",
    "bench": "plan, verify and time matrices against other libraries",
    "partition": "cut a matrix into files for ranks, balanced by entries or by a graph partitioner",
    "tune": "measure what choices depend on, on this machine",
}
"""A summary of each command, in the order in which `dasp --help` names them."""


def add_parser(subparsers: Subparsers, name: str, description: str | None = None) -> argparse.ArgumentParser:
    """Add the parser of a command to those of `dasp`.

    Parameters
    ----------
    subparsers : argparse._SubParsersAction
    name : str
        A key of `COMMANDS`.
    description : str, optional
        The beginning of `--help`; by default the command's summary, as a sentence. One that begins with a
        comma or a semicolon goes on from the summary.
    """
    summary = COMMANDS[name]
    sentence = f"{summary[0].upper()}{summary[1:]}"
    if description is None:
        description = f"{sentence}."
    elif description.startswith((",", ";")):
        description = sentence + description
    return subparsers.add_parser(name, help=summary, description=description)
