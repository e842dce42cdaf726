"""What is told while code is compiled."""

from __future__ import annotations

import io
import sys

import pytest

from dasp.runtime import log


class Terminal(io.StringIO):
    """A stream that somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("watched", [True, False])
def test_long_compiling_is_told_once_to_whoever_watches(
    monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    stderr = Terminal() if watched else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(log, "_compiled_for", 0.0)
    log.tell_compiling(0.9 * log.SECONDS)
    assert not stderr.getvalue()
    for _ in range(3):
        log.tell_compiling(0.9 * log.SECONDS)
    assert stderr.getvalue().count("dasp warmup") == watched


@pytest.mark.parametrize("close", [True, False])
def test_no_one_is_told_where_there_is_no_stderr(monkeypatch: pytest.MonkeyPatch, close: bool) -> None:
    stderr = Terminal()
    stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr if close else None)
    monkeypatch.setattr(log, "_compiled_for", 0.0)
    log.tell_compiling(2 * log.SECONDS)
