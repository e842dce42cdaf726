"""Threads that share work: every piece is done once, in time, whoever sleeps, is late or is interrupted."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dasp
from dasp import Policy, SpMatrix
from dasp.dense import gemm, gf256
from dasp.models import generate
from dasp.runtime.cpu import job as _job
from dasp.runtime.cpu import team as _team
from dasp.runtime.cpu import threads as _threads
from tests.support.planned import Tuned
from tests.support.reference import assert_close

pytestmark = pytest.mark.slow

needs_two = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a team needs two processors")
posix = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
DASP = Policy.dasp()
Product = tuple[Callable[[np.ndarray], Any], np.ndarray]
"""A product into an array, and its right result."""


@pytest.fixture
def long_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every product counts as long, so that the smallest one wakes the team."""
    monkeypatch.setattr("dasp.runtime.cpu.team.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("dasp.runtime.cpu.threads.SERIAL_ENTRIES", 1)
    monkeypatch.setattr("dasp.runtime.cpu.team.WAKING", 0.0)
    monkeypatch.setattr("dasp.runtime.cpu.team.AGAIN", 0.0)
    monkeypatch.setattr("dasp.runtime.cpu.team.CROWDED", float("inf"))
    monkeypatch.setattr(_team.team(), "_alone_until", 0.0)
    yield
    dasp.set_num_threads(None)


def prepared(spec: str, policy: Policy | None = None) -> tuple[SpMatrix, np.ndarray, np.ndarray]:
    """A matrix, a vector, and their product by one thread."""
    matrix = generate(spec)
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    planned = SpMatrix.from_scipy(matrix, policy=policy, device="cpu")
    dasp.set_num_threads(1)
    want = planned @ x
    dasp.set_num_threads(2)
    return planned, x, want


def all_sleep_through(products: int, planned: SpMatrix, x: np.ndarray, want: np.ndarray) -> bool:
    """Multiply until nobody is awake after so many products in a row; one woken earlier may come late."""
    team, until, alone = _team.team(), time.monotonic() + 20, 0
    while alone < products and time.monotonic() < until:
        np.testing.assert_array_equal(planned @ x, want)
        alone = 0 if team._awake[0] else alone + 1
    return alone == products


@needs_two
@pytest.mark.parametrize("spec", ["rmat:8", "spikes:3000:3:2000"])
@pytest.mark.parametrize("policy", [Tuned("sell", steps=2), DASP], ids=["sell", "dasp"])
def test_a_team_makes_the_bits_that_one_thread_makes(long_work: None, spec: str, policy: Policy) -> None:
    planned, x, want = prepared(spec, policy)
    assert_close(want, generate(spec), x)
    for threads in (2, 3):
        dasp.set_num_threads(threads)
        for _ in range(200):
            out = np.full(len(want), np.nan)
            np.testing.assert_array_equal(planned.matvec(x, out=out), want)


@needs_two
def test_products_of_several_matrices_follow_each_other(long_work: None) -> None:
    work = [prepared(spec) for spec in ("rmat:9", "poisson2d:30", "dense:60")]
    for _ in range(300):
        for planned, x, want in work:
            np.testing.assert_array_equal(planned @ x, want)


@needs_two
@pytest.mark.parametrize("policy", [None, DASP], ids=["sell", "dasp"])
def test_several_python_threads_share_one_team(long_work: None, policy: Policy | None) -> None:
    planned, x, want = prepared("rmat:9", policy)
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
def test_workers_that_never_come_hold_nobody_up(long_work: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_team.Team, "_wake", lambda self, parts, seconds: parts)
    planned, x, want = prepared("poisson2d:50")
    np.testing.assert_array_equal(planned @ x, want)


@needs_two
def test_a_failing_task_is_raised_when_all_have_ended() -> None:
    done: list[int] = []

    def task(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError
        time.sleep(0.01)
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        _threads.run([functools.partial(task, number) for number in range(5)])
    assert sorted(done) == [0, 2, 3, 4]


def test_tasks_may_share_their_work_again() -> None:
    done: list[int] = []

    def inner() -> None:
        done.append(1)

    _threads.run([lambda: _threads.run([inner] * 3)] * 4)
    assert len(done) == 12


@needs_two
@pytest.mark.parametrize("asked", [None, 2])
def test_tasks_keep_to_the_number_of_threads(asked: int | None) -> None:
    together = threading.Barrier(2)

    def meet() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(20 if asked else 0.1)

    dasp.set_num_threads(1)
    try:
        _threads.run([meet, meet], asked)
    finally:
        dasp.set_num_threads(None)
    assert together.broken == (asked is None)


# A job is what it is declared to be


def add_one(first, last, a, b, c, d, e, f, g, h, partials, x, y, scale):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        y[i] = scale[0] * x[i] + a[i] + b


ARGUMENTS: dict[str, Any] = dict.fromkeys("abcdefgh", int) | {"a": np.float64, "c": None}


@functools.cache
def shared() -> _job.SharedFunction:
    return _job.SharedFunction(add_one, ARGUMENTS, np.float64)


CUTS = np.array([0, 1, 2, 3, 4])
GIVEN: dict[str, Any] = dict.fromkeys("bdefgh", 1) | {"a": np.arange(4.0), "c": None}


def test_a_job_does_what_its_function_says() -> None:
    x = np.full(4, 10.0)
    for cuts in (CUTS, np.arange(9) // 2):
        y = np.full(4, np.nan)
        job = _job.Job(shared(), cuts, 1.0, **GIVEN)
        _team.team().multiply(job, np.empty(0), x, y, 2.0, 0.0)
        np.testing.assert_array_equal(y, [21, 22, 23, 24])


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ({"a": np.arange(4, dtype=np.float32)}, "a is float32"),
        ({"a": np.arange(8.0)[::2]}, "strides"),
        ({"a": [0.0] * 4}, "list"),
        ({"b": np.arange(4.0)}, "array"),
        ({"i": 3}, "i given or not"),
    ],
)
def test_a_slip_in_an_argument_is_an_exception(slip: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        _job.Job(shared(), CUTS, 1.0, **{**GIVEN, **slip})


def test_a_slip_in_a_declaration_is_an_exception() -> None:
    swapped = {name: ARGUMENTS[name] for name in "bacdefgh"}
    with pytest.raises(TypeError, match="first, last, b, a"):
        _job.SharedFunction(add_one, swapped, np.float64)
    with pytest.raises(TypeError, match="h given or not"):
        _job.Job(shared(), CUTS, 1.0, **{name: GIVEN[name] for name in "abcdefg"})
    for cuts in ([1, 2, 3, 4, 4], [0, 2, 1, 3, 4], [0, 1]):
        with pytest.raises(ValueError, match="rise from 0"):
            _job.Job(shared(), np.array(cuts), 1.0, **GIVEN)


# Processors


@pytest.mark.parametrize(
    ("text", "want"),
    [("max 100000", 8), ("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 8), ("", 8), (None, 8)],
)
def test_a_container_may_use_what_its_quota_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, text: str | None, want: int
) -> None:
    if text is not None:
        (tmp_path / "cpu.max").write_text(text + "\n")
    monkeypatch.setattr(_threads, "CPU_QUOTA", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(_threads, "_MOST", 8)
    _threads._quota.cache_clear()
    try:
        assert _threads._quota() == want
    finally:
        _threads._quota.cache_clear()


def test_no_more_threads_run_than_processors_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "count_processors", lambda: 2)
    dasp.set_num_threads(None)  # a benchmark before this one may have said how many
    try:
        assert [_threads.count_running(threads) for threads in (1, 2, 8)] == [1, 2, 2]
        dasp.set_num_threads(8)
        assert _threads.count_running(8) == 8
    finally:
        dasp.set_num_threads(None)


@needs_two
def test_a_stream_that_loses_its_processors_sends_its_workers_to_sleep(
    long_work: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, x, want = prepared("poisson2d:50")
    dasp.set_num_threads(None)
    monkeypatch.setattr(_threads, "get_num_threads", lambda: 2)
    monkeypatch.setattr(_threads, "count_processors", lambda: 1)
    woken: list[int] = []
    monkeypatch.setattr(_threads.Worker, "wake", lambda self: woken.append(1))
    assert all_sleep_through(100, planned, x, want)
    assert not woken


@needs_two
def test_a_stream_on_a_crowded_machine_goes_on_alone_and_comes_back(
    long_work: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, x, want = prepared("poisson2d:50")
    team = _team.team()
    counts = iter(range(0, 10**9, 10**6))  # at each look a million times more
    monkeypatch.setattr(_team, "CROWDED", 1200)
    monkeypatch.setattr(_team, "LOOKING", 0.0)
    monkeypatch.setattr(_threads, "count_preemptions", lambda: next(counts))
    woken: list[int] = []
    wake = _threads.Worker.wake
    monkeypatch.setattr(_threads.Worker, "wake", lambda self: woken.append(1) or wake(self))
    until = time.monotonic() + 20
    while (team._awake[0] or team._alone_until == 0.0) and time.monotonic() < until:
        np.testing.assert_array_equal(planned @ x, want)
    woken.clear()
    monkeypatch.setattr(team, "_alone_until", time.perf_counter() + 1000)
    assert all_sleep_through(100, planned, x, want)
    assert not woken
    monkeypatch.setattr(_threads, "count_preemptions", lambda: 0)
    monkeypatch.setattr(team, "_alone_until", 0.0)
    while not woken and time.monotonic() < until:
        np.testing.assert_array_equal(planned @ x, want)
    assert woken


@needs_two
def test_an_idle_process_uses_no_processor(long_work: None) -> None:
    planned, x, _ = prepared("poisson2d:50")
    spent = []
    for _ in range(5):
        for _ in range(100):
            planned @ x
        time.sleep(1e-3)
        start = time.process_time()
        time.sleep(0.1)
        spent.append(time.process_time() - start)
    # A thread that went on waiting would take 0.1 seconds. It is processor time, so that nobody else counts.
    assert min(spent) <= 1e-3


# Where no thread can be started


@needs_two
@pytest.mark.parametrize("policy", [None, DASP], ids=["sell", "dasp"])
def test_where_no_thread_can_be_started_products_are_made_alone(
    long_work: None, monkeypatch: pytest.MonkeyPatch, policy: Policy | None
) -> None:
    planned, x, want = prepared("poisson2d:60", policy)
    monkeypatch.setattr(_threads, "_helpers", [])
    monkeypatch.setattr(_threads, "_offered", type(_threads._offered)())
    monkeypatch.setattr(_team, "_made", {})
    tries = []

    def start(thread: threading.Thread) -> None:
        tries.append(thread)
        raise (MemoryError, RuntimeError)[len(tries) % 2]

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", start)
        given = [planned.matvec(x, out=np.full(len(want), np.nan)) for _ in range(50)]
        for out in given:
            np.testing.assert_array_equal(out, want)
        assert len(tries) > 1
        for out in given:
            out.fill(-1)
    # Threads can be started again: nothing that was left over is done, and workers come.
    until = time.monotonic() + 20
    while not any("dasp" in thread.name and thread.is_alive() for thread in threading.enumerate()):
        np.testing.assert_array_equal(planned @ x, want)
        assert time.monotonic() < until
    assert all((out == -1).all() for out in given)


# Signals


class Interrupt(BaseException):
    """What the handler of the test's timer raises."""


def interrupt(*_: object) -> None:
    raise Interrupt


def sparse(policy: Policy | None) -> Product:
    planned, x, want = prepared("poisson2d:150", policy)
    return lambda out: planned.matvec(x, out=out), want


def dense(n: int) -> Product:
    a = np.random.default_rng(n).standard_normal((n, n))
    return lambda out: gemm(a, a, out=out), gemm(a, a)


def codes() -> Product:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (4, 10), np.uint8), rng.integers(0, 256, (10, 1 << 17), np.uint8)
    return lambda out: gf256.matmul(a, b, out=out), gf256.matmul(a, b)


KINDS = {
    "sell": lambda: sparse(None),
    "dasp": lambda: sparse(DASP),
    "dense": lambda: dense(160),
    "other dense": lambda: dense(150),
    "codes": codes,
}


@needs_two
@posix
@pytest.mark.parametrize("name", ["sell", "dasp", "dense", "codes"])
def test_nothing_is_written_once_an_interrupt_has_been_raised(long_work: None, name: str) -> None:
    product, want = KINDS[name]()
    dasp.set_num_threads(2)
    out = np.zeros_like(want)
    before = signal.signal(signal.SIGALRM, interrupt)
    raised = 0
    gc.disable()  # what a handler raises in a callback of the collector, such as Hypothesis has, is lost
    try:
        for number in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 3e-5 * (number % 20))
                while True:
                    product(out)
            except Interrupt:
                raised += 1
            out.fill(7)
            time.sleep(0.002)
            assert (out == 7).all()
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised == 60
    product(out)
    np.testing.assert_array_equal(out, want)
    assert _team.team()._taken[0] == 0


@needs_two
@posix
@pytest.mark.parametrize(
    ("name", "inner"), [("sell", "sell"), ("dasp", "dasp"), ("dense", "other dense"), ("codes", "codes")]
)
def test_a_handler_may_multiply(long_work: None, name: str, inner: str) -> None:
    product, want = KINDS[name]()
    another, result = KINDS[inner]()
    seen: list[bool] = []

    def handle(*_: object) -> None:
        seen.append(np.array_equal(another(np.empty_like(result)), result))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.003)
        until = time.monotonic() + 30
        while len(seen) < 30 and time.monotonic() < until:
            np.testing.assert_array_equal(product(np.empty_like(want)), want)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 30
    assert all(seen)


# The ends of processes

START = """
import atexit, os, sys, threading, time
import numpy as np
import dasp
from dasp.dense import gemm, gf256
from dasp.models import generate

matrix = generate("poisson3d:30")
x = np.arange(float(matrix.shape[1]))
S = dasp.SpMatrix.from_scipy(matrix, device="cpu")
P = dasp.SpMatrix.from_scipy(matrix, device="cpu", policy=dasp.Policy.dasp())
a = np.arange(160.0 * 160).reshape(160, 160) % 7
b, c = np.ones((2, 10), np.uint8), np.ones((10, 1 << 17), np.uint8)
want = matrix @ x, a @ a
def products():
    right = [np.allclose(S @ x, want[0]), np.allclose(P @ x, want[0]), np.array_equal(gemm(a, a), want[1])]
    right.append(not gf256.matmul(b, c).any())
    os.write(1, b"True\\n" if all(right) else b"False\\n")
"""

ENDS = {
    "in turn": """
class Last:
    def __del__(self):
        products()
threading.Thread(target=lambda: (time.sleep(0.3), products())).start()
atexit.register(lambda: (dasp.runtime.cpu.threads._end(), products()))
atexit.register(products)
last = Last()
""",
    "daemon": """
def forever():
    while True:
        S @ x; P @ x
threading.Thread(target=forever, daemon=True).start()
products()
time.sleep(0.2)
""",
    "fork": """
if hasattr(os, "fork"):
    child = os.fork()
    products()
    if child:
        os.waitpid(child, 0)
    else:
        os._exit(0)
else:
    products(); products()
""",
}


# "in turn": by a thread, by what runs at the end, by what runs once the team has ended, and by a finalizer.
# Without an earlier product, a finalizer would need the compiler, which needs modules that are gone.
@pytest.mark.parametrize(
    ("end", "earlier"),
    [*((end, "products()") for end in ENDS), ("fork", "")],
    ids=lambda value: "" if value == "" else "later" if value == "products()" else value,
)
def test_products_are_right_until_the_very_end(end: str, earlier: str) -> None:
    program = "\n".join((START, "import dasp.runtime.cpu.threads", earlier, ENDS[end]))
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    lines = bool(earlier) + {"in turn": 4, "daemon": 1, "fork": 2}[end]
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["True"] * lines, "")


def test_threadpoolctl_limits_products() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    usual = dasp.get_num_threads()
    with threadpoolctl.threadpool_limits(3, user_api="dasp"):
        assert dasp.get_num_threads() == 3
        (known,) = (pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "dasp")
        assert known["num_threads"] == 3
        assert known["version"] == dasp.__version__
    assert dasp.get_num_threads() == usual
    assert _threads._threads is None
