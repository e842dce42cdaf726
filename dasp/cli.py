"""The `dasp` command: finds the sub-commands, runs one, turns errors into one line and an exit status.

A sub-command is a function `add_command(subparsers)` in the module that does the work. It adds a parser
and sets its default `run`, a function of the parsed arguments that returns the exit status: 0, or 1 if
the work was done and its result is bad (no convergence, a wrong product). What a user got wrong is raised
as TypeError, ValueError or RuntimeError and becomes exit status 2 here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Container, Sequence
from types import ModuleType
from typing import NoReturn

import dasp

COMMAND_MODULES = (
    "dasp.commands.info",
    "dasp.commands.solve",
    "dasp.commands.config",
    "dasp.commands.bench",
    "dasp.commands.tune",
    "dasp.commands.rs",
)

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EPILOG = """\
A MATRIX is a file (.mtx, .mtx.gz, or .npz of scipy.sparse.save_npz), a name found in the folder that the
environment variable DASP_MATRICES names, or a model:

{models}
"""


class UsageError(ValueError):
    """The command line cannot be understood."""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are exceptions, so that they come out as one line like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving the process."""
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
        The exit status: 0; 1 if the work was done and its result is bad; 2 for a user's error, reported as
        one line on stderr; 130 after Ctrl-C; 141 if the reader of our output went away.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        status = _run([word for word in words if word != "--debug"])
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("dasp: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except (ValueError, TypeError, RuntimeError, OSError, MemoryError, ModuleNotFoundError) as error:
        if debug or _is_ours(error):
            raise
        print(f"dasp: error: {_one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR


def _run(words: list[str]) -> int:
    parser, commands = build_parser()
    try:
        arguments = parser.parse_args(_join(words, commands))
    except SystemExit as leaving:  # --help and --version print and leave
        return leaving.code if isinstance(leaving.code, int) else 0
    status: int = arguments.run(arguments)
    return status


def build_parser() -> tuple[argparse.ArgumentParser, Container[str]]:
    """Return the parser with every sub-command, and their names."""
    parser = _Parser(
        prog="dasp",
        description=str(dasp.__doc__).partition("\n")[0],
        epilog=_EPILOG.format(models=_models()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dasp {dasp.__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _command_modules():
        module.add_command(subparsers)
    return parser, subparsers.choices


def _command_modules() -> list[ModuleType]:
    return [importlib.import_module(name) for name in COMMAND_MODULES]


def _join(words: list[str], commands: Container[str]) -> list[str]:
    """Make one word of the two of a command such as `bench gemm`."""
    first = " ".join(words[:2])
    return [first, *words[2:]] if len(words) > 1 and first in commands else words


def _models() -> str:
    from dasp.models import families

    width = max(map(len, families())) + 2
    return "\n".join(f"  {usage:<{width}}{summary}" for usage, summary in families().items())


def _is_ours(error: BaseException) -> bool:
    """Whether an error is a defect of dasp, not of what the user gave: a module of its own is missing."""
    return isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "dasp"


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; this command needs it; pip install 'dasp-spmv[bench]'"
    return text


def _discard_output() -> None:
    """Point stdout at nothing, so that Python's last flush does not complain of the pipe again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
