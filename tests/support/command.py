"""A `dasp` command run in this process: its status and what it prints."""

from __future__ import annotations

import pytest

from dasp.cli import main as cli

CPU = ["--device", "cpu"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    output = capsys.readouterr()
    return status, output.out, output.err


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a mistake prints on stderr; it must be one, with exit status 2."""
    status, _, stderr = run(capsys, *words)
    assert status == 2
    assert stderr.startswith("dasp: error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    assert "Traceback" not in stderr
    return stderr
