"""The logger `dasp`: which device and plan were chosen, what was compiled, how a solve ended.

Silent unless the program sets the `logging` module up, or the environment variable `DASP_LOG` names a level
(`debug`, `info`, `warning`): then lines go to stderr.
"""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("dasp")
logger.addHandler(logging.NullHandler())


def to_stderr(level: str) -> None:
    """Write the lines of a level and above to stderr.

    Raises
    ------
    ValueError
        For no level of `logging`.
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
