"""Equal bits in every process: in the one that compiles, and in those that load what it kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dasp

pytestmark = pytest.mark.slow

ROOT = Path(dasp.__file__).parents[1]
PROGRAM = ROOT / "tests" / "support" / "bits_program.py"


def run(cache: Path) -> dict[str, str]:
    """Run the program in a fresh process with this folder for compiled code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASP_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_a_process_that_compiles_and_one_that_loads_have_equal_bits(tmp_path: Path) -> None:
    cold, warm = run(tmp_path), run(tmp_path)
    assert list(tmp_path.rglob("passes.*.nbc")), "the first process kept no compiled pass"
    assert len(cold) == 7
    assert cold == warm


def test_no_source_lets_the_compiler_reorder_or_fuse() -> None:
    sources = sorted((ROOT / "dasp").rglob("*.py"))
    found = [path.name for path in sources if re.search(r"fastmath\s*=|flags=\(", path.read_text("utf-8"))]
    assert len(sources) > 100
    assert found == []
