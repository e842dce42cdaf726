"""The commands of `dasp`, and the options that several of them share.

The module of a command is loaded only when the command is given, and the rest of dasp only when an option is
used, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.matrix.matrix import SpMatrix

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = argparse._SubParsersAction


class Command(NamedTuple):
    """A command: the module of `dasp.cli` that has its function `add_NAME`, and a summary."""

    module: str
    summary: str


COMMANDS = {
    "info": Command("info", "show a matrix: its row lengths and its plan"),
    "solve": Command("solve", "solve A x = b by an iterative method and report the true residual"),
    "plan": Command("files", "plan a matrix and keep the plan in a file"),
    "fetch": Command("files", "fetch matrices of the SuiteSparse collection by name"),
    "partition": Command("files", "cut a matrix into files for ranks, with about as many entries each"),
    "bench": Command("bench", "plan, verify and time matrices against other libraries"),
    "config": Command("machine", "say which devices and libraries were found, and why not"),
    "warmup": Command("machine", "compile what usual calls need, so that later processes find it on disk"),
    "tune": Command("tune", "measure what choices depend on, on this machine"),
}
"""The commands, in the order of `dasp --help`."""

FORMATS = ("auto", "sell", "dasp")


def add_parser(subparsers: Subparsers, name: str, more: str = "") -> argparse.ArgumentParser:
    """Add the parser of a command; its `--help` begins with its summary and goes on with `more`."""
    summary = COMMANDS[name].summary
    description = f"{summary[0].upper()}{summary[1:]}{more}."
    return subparsers.add_parser(name, help=summary, description=description)


def add_matrix_option(parser: argparse.ArgumentParser) -> None:
    """Add the MATRIX argument and the seed of its model."""
    parser.add_argument(
        "matrix",
        metavar="MATRIX",
        help="a .mtx, .mtx.gz or .npz file, a name in DASP_MATRICES, or a model such as poisson3d:50",
    )
    add_seed_option(parser)


def add_seed_option(parser: argparse.ArgumentParser) -> None:
    """Add --seed."""
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="of a random model and of random vectors (0)"
    )


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (the GPU if one works), cpu, cuda or cuda:N (default: auto)",
    )


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Add --format."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="how matrices are packed: sell, slices that are cut to the matrix; dasp, the format of the DASP "
        "paper; auto (default), sell for fewer than 2^32 rows and columns",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")


def check_file(option: str, path: str, endings: Sequence[str] = (), reads: Sequence[str] = ()) -> None:
    """Check that a file can be written, before the work whose result it will hold.

    Parameters
    ----------
    option : str
        The option that named it.
    path : str
    endings : sequence of str
        Those that its name may have; any by default.
    reads : sequence of str
        Names of matrices and files that are read, none of which must be the same file.

    Raises
    ------
    ValueError
        If the name has another ending or is that of a folder, of a pipe, of a device or of a file that is
        read, or if its folder does not exist or cannot be written.
    """
    from dasp.io.matrices import find_file

    target = Path(path)
    if endings and target.suffix.lower() not in endings:
        *most, last = endings
        raise ValueError(f"{option} is {path!r}; its name must end in {', '.join(most)} or {last}")
    if target.exists() and not target.is_file():
        raise ValueError(f"{option} is {path!r}, which is a folder, a pipe or a device; it must be a file")
    if not target.parent.is_dir():
        raise ValueError(f"{option} is {path!r}; the folder {target.parent} must exist; make it first")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"{option} is {path!r}; the folder {target.parent} must be writable; name another")
    if target.exists() and any(target.samefile(file) for file in map(find_file, reads) if file):
        raise ValueError(f"{option} is {path!r}, which is read; another name is needed")


def load_and_plan(arguments: argparse.Namespace) -> tuple[csr_array, SpMatrix, float]:
    """Load the matrix that the options name and plan it as they say.

    Returns
    -------
    matrix : scipy.sparse.csr_array
    planned : SpMatrix
    seconds : float
        Time of a second planning: the first may compile.
    """
    from dasp.io.matrices import load_matrix
    from dasp.matrix.planning import find_device

    device = find_device(arguments.device)
    matrix = load_matrix(arguments.matrix, seed=arguments.seed)
    return matrix, *plan_timed(matrix, arguments.format, device)


def plan_timed(matrix: csr_array, format: str, device: str) -> tuple[SpMatrix, float]:
    """Plan a matrix twice; return it and the seconds of the second planning: the first may compile."""
    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy

    policy = Policy(format=format)
    SpMatrix(matrix, device, policy=policy)
    start = time.perf_counter()
    planned = SpMatrix(matrix, device, policy=policy)
    return planned, time.perf_counter() - start


def positive(text: str) -> int:
    """Return the whole number in a text, at least 1, for argparse."""
    return _read_integer(text, 1)


def seed(text: str) -> int:
    """Return the whole number in a text, at least 0, for argparse."""
    return _read_integer(text, 0)


def _read_integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} was given; a whole number from {least} is needed")
    return value


def duration(text: str) -> float:
    """Return the seconds in a text, above 0 and perhaps infinite, for argparse."""
    value = _read_float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} was given; a number of seconds above 0 is needed")
    return value


def share(text: str) -> float:
    """Return the number in a text, between 0 and 1, for argparse."""
    value = _read_float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} was given; a number above 0 and below 1 is needed")
    return value


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
