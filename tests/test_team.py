"""The threads that share a product: every chunk is done once, whoever sleeps, is late, or calls at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import dasp
from dasp import Policy, SpMatrix
from dasp.backends.cpu import team as _team
from dasp.models import generate
from tests.reference import assert_close

needs_two = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a team needs two processors")


@pytest.fixture
def long_work(monkeypatch):
    """Every product counts as long, so that the smallest one wakes the team."""
    monkeypatch.setattr("dasp.backends.cpu.sliced.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("dasp.backends.cpu.team.WAKING", 0.0)
    yield
    dasp.set_num_threads(None)


@needs_two
@pytest.mark.parametrize("spec", ["rmat:8", "dense:70", "poisson2d:40", "spikes:3000:3:2000"])
def test_a_team_makes_the_bits_that_one_thread_makes(long_work, spec):
    matrix = generate(spec)
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    planned = SpMatrix.from_scipy(matrix, policy=Policy(layout="slices", steps=2), device="cpu")
    dasp.set_num_threads(1)
    want = planned @ x
    assert_close(want, matrix, x)
    for threads in (2, 3):
        dasp.set_num_threads(threads)
        for _ in range(200):
            out = np.full(matrix.shape[0], np.nan)
            np.testing.assert_array_equal(planned.matvec(x, out=out), want)


@needs_two
def test_products_of_several_matrices_follow_each_other_on_one_board(long_work):
    dasp.set_num_threads(2)
    rng = np.random.default_rng(1)
    work = []
    for spec in ("rmat:9", "poisson2d:30", "dense:60"):
        matrix = generate(spec)
        x = rng.standard_normal(matrix.shape[1])
        work.append((SpMatrix.from_scipy(matrix, device="cpu"), x, matrix @ x))
    for _ in range(300):
        for planned, x, want in work:
            np.testing.assert_allclose(planned @ x, want, rtol=1e-9, atol=1e-9)


@needs_two
def test_several_python_threads_share_one_team(long_work):
    matrix = generate("rmat:9")
    planned = SpMatrix.from_scipy(matrix, device="cpu")
    x = np.random.default_rng(2).standard_normal(matrix.shape[1])
    want = planned @ x
    wrong = []

    def multiply() -> None:
        for _ in range(300):
            if not np.array_equal(planned @ x, want):
                wrong.append(1)

    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_two
def test_members_that_never_come_hold_nobody_up(long_work, monkeypatch):
    monkeypatch.setattr(_team.Team, "_wake", lambda self, parts, seconds: None)
    dasp.set_num_threads(2)
    matrix = generate("poisson2d:50")
    x = np.random.default_rng(3).standard_normal(matrix.shape[1])
    assert_close(SpMatrix.from_scipy(matrix, device="cpu") @ x, matrix, x)


PROGRAM = """
import os, time
import numpy as np
import dasp
from dasp.models import generate

A = dasp.SpMatrix.from_scipy(generate("poisson3d:30"), device="cpu")
x = np.ones(A.shape[1])
want = A @ x
for _ in range(50):
    A @ x
child = os.fork() if hasattr(os, "fork") else 0
same = np.array_equal(A @ x, want)
if child:
    _, status = os.waitpid(child, 0)
    print(same, status)
elif hasattr(os, "fork"):
    os._exit(0 if same else 1)
else:
    print(same, 0)
"""


def test_a_forked_child_has_a_team_of_its_own_and_the_process_ends():
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stdout.split()) == (0, ["True", "0"]), answer.stderr
