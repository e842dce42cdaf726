"""Compiled code on disk."""

from __future__ import annotations

import logging

import numpy as np
from numba.core.caching import IndexDataCacheFile

from dasp.runtime.cpu.compile import _Cache, jit


def take_second(x):
    return x[1]


def test_processes_that_compile_at_once_keep_each_its_own_code(monkeypatch, tmp_path):
    """What another process has kept since a process began to compile is not seen by it."""
    monkeypatch.setenv("DASP_CACHE", str(tmp_path))
    arrays = [np.arange(8, dtype=kind) + kind(0.5) for kind in (np.float32, np.float64, np.complex64)]
    with monkeypatch.context() as at_once:
        at_once.setattr(IndexDataCacheFile, "_load_index", lambda self: {})
        for x in arrays:
            assert jit()(take_second)(x) == x[1]
    known, before = jit()(take_second), _Cache.saves
    assert [known(x) for x in arrays] == [x[1] for x in arrays]
    assert _Cache.saves == before, "compiled again"


def test_code_that_is_not_kept_counts_as_compiled(monkeypatch, caplog):
    """Else a process that keeps no code would compile for seconds without a word."""
    monkeypatch.setenv("DASP_CACHE", "0")
    told = []
    monkeypatch.setattr("dasp.runtime.cpu.compile.tell_compiling", told.append)
    with caplog.at_level(logging.DEBUG, "dasp"):
        assert jit()(take_second)(np.arange(3)) == 1
    assert [seconds > 0 for seconds in told] == [True]
    assert caplog.messages[-1].startswith("compiled take_second in")
