"""The commands of `dasp`, and the options that several of them share: matrix, device, policy, form of output.

The module `dasp.cli.NAME` of a command is loaded only when the command is asked for, and nothing of dasp
before an option is used, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy

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
    "warmup": "compile what usual calls need, so that later processes find it on disk",
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


FORMATS = ("auto", "sell", "dasp")


class PolicyOption(NamedTuple):
    """An option for one field of `dasp.Policy`: its kind, the word for its value, and what it chooses."""

    kind: type
    metavar: str
    help: str


CHOICES: dict[str, dict[str, PolicyOption]] = {
    "the format sell, the default": {
        "steps": PolicyOption(int, "N", "longest slice, in steps of 32 slots, 1 to 4095"),
        "window": PolicyOption(int, "ROWS", "rows among which rows are sorted by length; 0 for none"),
        "narrow": PolicyOption(bool, "", "store values in fewer bits where that loses nothing (on)"),
        "warps": PolicyOption(int, "N", "slices to a block of threads on a GPU, 1 to 16"),
    },
    "the format dasp": {
        "long_row": PolicyOption(int, "N", "rows of more entries are long, 4 or more (256)"),
        "fill": PolicyOption(float, "SHARE", "entries that a regular tile needs, of its 32 slots (0.75)"),
        "segment": PolicyOption(int, "N", "entries of a long row that a warp sums, a multiple of 64 (1024)"),
        "row_blocks_2": PolicyOption(int, "ROWS", "medium rows from which a warp takes 2 row blocks (59990)"),
        "row_blocks_4": PolicyOption(int, "ROWS", "medium rows from which it takes 4 (400000)"),
    },
    "both formats": {
        "mma": PolicyOption(bool, "", "multiply tiles with tensor cores, on a GPU that has them for the type")
    },
}
"""Options of a policy, by the group that they stand in; what is left out is left to matrix and device."""


def add_matrix_option(parser: argparse.ArgumentParser) -> None:
    """Add the MATRIX argument and the seed of its model."""
    parser.add_argument(
        "matrix",
        metavar="MATRIX",
        help="a .mtx, .mtx.gz or .npz file, a name in DASP_MATRICES, or a model such as poisson3d:50",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of a random model and of random vectors (0)"
    )


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (the GPU if one works), cpu, cuda or cuda:N (default: auto)",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each choice of `dasp.Policy`, in groups."""
    packed = parser.add_argument_group("how the matrix is packed (see dasp.Policy)")
    packed.add_argument(
        "--format",
        choices=FORMATS,
        help="sell, slices that are cut to the matrix; dasp, the format of the DASP paper; auto (default): "
        "sell, where the matrix has fewer than 2^32 rows and columns",
    )
    for title, choices in CHOICES.items():
        group = parser.add_argument_group(title)
        for name, choice in choices.items():
            option = "--" + name.replace("_", "-")
            if choice.kind is bool:
                group.add_argument(option, action=argparse.BooleanOptionalAction, help=choice.help)
            else:
                group.add_argument(option, type=choice.kind, metavar=choice.metavar, help=choice.help)


def policy_from(arguments: argparse.Namespace) -> Policy | None:
    """Make the policy that the options ask for; None if they ask for nothing.

    Raises
    ------
    TypeError, ValueError
        As `dasp.Policy` does.
    """
    from dasp.matrix.policy import Policy

    names = ["format", *(name for choices in CHOICES.values() for name in choices)]
    given: dict[str, Any] = {
        name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None
    }
    return Policy(**given) if given else None


def plan_timed(matrix: csr_array, policy: Policy | None, device: str) -> tuple[SpMatrix, float]:
    """Return the planned matrix and the seconds of a second plan: the first may compile."""
    from dasp.matrix.matrix import SpMatrix

    SpMatrix.from_scipy(matrix, policy=policy, device=device)
    start = time.perf_counter()
    planned = SpMatrix.from_scipy(matrix, policy=policy, device=device)
    return planned, time.perf_counter() - start


def seed_from(arguments: argparse.Namespace) -> int:
    """Return the seed; ValueError if NumPy cannot take it."""
    seed: int = arguments.seed
    if seed < 0:
        raise ValueError(f"--seed is {seed}; it must be 0 or more")
    return seed


def shows_progress() -> bool:
    """Return True if a bar is shown: on a terminal's standard error, if tqdm is installed."""
    if not _on_terminal():
        return False
    try:
        importlib.import_module("tqdm")
    except ImportError:
        return False
    return True


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def positive(text: str) -> int:
    """Return a whole number from 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} was given; a whole number from 1 is needed")
    return value


def duration(text: str) -> float:
    """Return a time above 0, which may be infinite, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} was given; a number of seconds above 0 is needed")
    return value


def words(text: str) -> tuple[str, ...]:
    """Return the words between commas, for argparse."""
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def counts(text: str) -> tuple[int, ...]:
    """Return the whole numbers from 1 between commas, for argparse."""
    return tuple(positive(word) for word in words(text))
