"""Run a `dasp` command in this process, and return its status and output."""

from __future__ import annotations

import pytest

from dasp.cli import main as cli

CPU = ["--device", "cpu"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    output = capsys.readouterr()
    return status, output.out, output.err


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a mistaken command prints on stderr; it must be one line, and the exit status 2."""
    status, _, stderr = run(capsys, *words)
    assert status == 2
    assert stderr.startswith("dasp: error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    assert "Traceback" not in stderr
    return stderr
