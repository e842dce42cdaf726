"""The `dasp` command: run a sub-command; turn an error into one line and an exit status.

A sub-command is a row of `COMMANDS`. Its module has a function `add_NAME(subparsers)`, which adds a parser
and sets its default `run`, a function of the parsed arguments that returns the exit status: 0, or 1 if the
work was done and its result is bad (no convergence, a wrong product). A user's mistake is raised as
TypeError, ValueError or RuntimeError and becomes exit status 2 here. Only the module of the given
command is imported, so that `dasp --help` needs neither Numba nor SciPy.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TextIO

import dasp
from dasp.cli.options import COMMANDS, add_parser
from dasp.runtime.ranks import is_raised_everywhere, speaks

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

PATIENCE = 2.0
"""Seconds that other ranks wait before they exit, while rank 0 reports an error: a launcher ends all ranks
when one exits."""

_EPILOG = """\
A MATRIX is a file (.mtx, .mtx.gz, or .npz of scipy.sparse.save_npz), a name found in the folder that the
environment variable DASP_MATRICES names, or a model:

{models}

Exit status: 0; 1 if the work was done and its result is bad (no convergence, a wrong product);
2 for an error.
"""


class UsageError(ValueError):
    """The command line cannot be understood."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that `main` prints them on one line like all others.

    Of several ranks only rank 0 prints help. An error in printing it is raised, which argparse would hide.
    """

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if speaks():
            print(message, end="", file=file or sys.stderr)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and ending the process."""
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `dasp` command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of this process by default.

    Returns
    -------
    int
        The exit status: 0; 1 if the work was done and its result is bad; 2 for a user's error, or for output
        that cannot be written; 130 after Ctrl-C; 141 if the reader of the output went away. An error is one
        line on stderr, from rank 0 alone if all ranks raise it.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stderr is None:  # the caller closed it; print would take stdout in its place
        sys.stderr = io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that it has no characters for
    debug = "--debug" in words
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _show_warning
            status = _run([word for word in words if word != "--debug"])
            if sys.stdout is not None:  # None if the caller closed it
                sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("dasp: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except (ValueError, TypeError, RuntimeError, OSError, MemoryError, ImportError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _discard_output()
        if debug:
            raise
        if isinstance(error, UsageError) and not speaks():
            time.sleep(PATIENCE)
        elif speaks() or not is_raised_everywhere(error):
            with suppress(OSError):  # stderr cannot be written either
                print(f"dasp: error: {_shorten_error(error)}", file=sys.stderr)
        return EXIT_USER_ERROR


def _discard_output() -> None:
    """Point stdout at the null device, so that Python's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    command = next((word for word in words if not word.startswith("-")), None)
    try:
        arguments, others = build_parser(command).parse_known_args(words)
    except SystemExit as leaving:  # --help and --version print and exit
        return leaving.code if isinstance(leaving.code, int) else 0
    if others:
        raise UsageError(f"unrecognized arguments: {' '.join(others)}; see dasp {command} --help")
    status: int = arguments.run(arguments)
    return status


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser: every command with its name and summary, `command` with its arguments too."""
    parser: argparse.ArgumentParser = _Parser(
        prog="dasp",
        description=str(dasp.__doc__).partition("\n")[0],
        epilog=_EPILOG.format(models=_list_models()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dasp {dasp.__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, _) in COMMANDS.items():
        if name == command:
            getattr(importlib.import_module(f"dasp.cli.{module}"), f"add_{name}")(subparsers)
        else:
            add_parser(subparsers, name)
    return parser


def _list_models() -> str:
    from dasp.models import families

    width = max(map(len, families())) + 2
    return "\n".join(f"  {usage:<{width}}{summary}" for usage, summary in families().items())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Write the first line of a warning, without the place in the source that Python adds."""
    print(f"dasp: warning: {str(message).partition(chr(10))[0]}", file=file or sys.stderr)


def _shorten_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = str(error.filename or "")
        return ": ".join(filter(None, (name if name.isprintable() else repr(name), error.strerror)))
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; this command needs it; pip install {error.name or 'it'}"
    return text


if __name__ == "__main__":
    sys.exit(main())
