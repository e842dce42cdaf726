"""The logger `dasp`: which device and plan were chosen, what was compiled, how a solve ended.

Silent unless the program sets the `logging` module up, or the environment variable `DASP_LOG` names a level
(`debug`, `info`, `warning`): then lines go to stderr.
A user at a terminal or a prompt is told once in a process that code is being compiled.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys

SECONDS = 1.0
"""Seconds of compiling after which a process tells its user."""

_NOTICE = "dasp: compiling for this machine, which takes seconds once; `dasp warmup` compiles beforehand"

logger = logging.getLogger("dasp")
logger.addHandler(logging.NullHandler())

_compiled_for = 0.0


def tell_compiling(seconds: float) -> None:
    """Count seconds of compiling; when they reach `SECONDS`, say so on stderr to a terminal or a prompt."""
    global _compiled_for
    before, _compiled_for = _compiled_for, _compiled_for + seconds
    if not before < SECONDS <= _compiled_for:
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is closed, or is None
        if sys.stderr.isatty() or hasattr(sys, "ps1"):
            print(_NOTICE, file=sys.stderr)


def to_stderr(level: str) -> None:
    """Write the lines of a level and above to stderr.

    Raises
    ------
    ValueError
        If `level` is not a level of `logging`.
    """
    number = logging.getLevelNamesMapping().get(level.strip().upper())
    if number is None:
        raise ValueError(f"DASP_LOG is {level!r}; debug, info, warning or error is needed")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s dasp %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(number)


if os.environ.get("DASP_LOG"):
    to_stderr(os.environ["DASP_LOG"])
