"""Attack on threads: storms of threads, interrupts, forks and endings; seeded.

    python -m tests.attack.threads --seconds 600 --seed 7

A case is a process of its own. The seed and its number determine it, so that `--case` reproduces one that
failed. It computes products of every kind while it is disturbed, and compares each with the product of one
undisturbed thread, bit for bit. The attack prints counts and ends with status 1 if anything was wrong.

Disturbances: other threads that multiply; signals whose handlers multiply or raise, after which a product may
write no more; forks while others multiply or compile; a system that starts no threads; processors that are
taken away; products while the process ends; Ctrl-C at any moment of a command, which must end with status 130
and one line, or as if nothing had happened.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.attack._cases import Counts, Draws, attack_by_command, attack_with

ROOT = Path(__file__).resolve().parents[2]
HANGS = 300
"""Seconds after which a case counts as hanging; each takes a few."""

PREPARE = """
import atexit, os, random, signal, sys, threading, time
import numpy as np
import dasp
from dasp import Policy, SpMatrix
from dasp.runtime.cpu import threads as _threads
from dasp.dense import gemm, gf256
from dasp.models import generate

draw = random.Random(int(sys.argv[1]))
SECONDS = float(sys.argv[2])
rng = np.random.default_rng(draw.randrange(2**32))
kinds = []

def sparse(policy):
    n = draw.randrange(20, 150)
    specs = f"poisson2d:{n}", f"rmat:{draw.randrange(8, 13)}", f"spikes:{20 * n}:3:{10 * n}", f"dense:{n}"
    spec = draw.choice(specs)
    matrix = SpMatrix.from_scipy(generate(spec, seed=1), policy=policy, device="cpu")
    x = rng.standard_normal(matrix.shape[1])
    return lambda out: matrix.matvec(x, out=out), np.empty(matrix.shape[0])

def dense():
    n = draw.randrange(100, 200)
    a = rng.standard_normal((n, n))
    return lambda out: gemm(a, a, out=out), np.empty((n, n))

def codes():
    a = rng.integers(0, 256, (4, 10), np.uint8)
    b = rng.integers(0, 256, (10, draw.randrange(1, 1 << 18)), np.uint8)
    return lambda out: gf256.matmul(a, b, out=out), np.empty((4, b.shape[1]), np.uint8)

dasp.set_num_threads(1)
for make in (lambda: sparse(None), lambda: sparse(Policy.dasp()), dense, codes):
    product, out = make()
    product(out)
    kinds.append((product, out.copy()))
dasp.set_num_threads(draw.choice([None, 2, 3, 8]))
counts = {"products": 0, "disturbed": 0, "wrong": 0}

def check(times=1):
    for _ in range(times):
        product, want = draw.choice(kinds)
        out = np.full_like(want, 77)
        product(out)
        counts["products"] += 1
        if out.tobytes() != want.tobytes():
            counts["wrong"] += 1

end = time.monotonic() + SECONDS
def going():
    return time.monotonic() < end
def report():
    os.write(1, (" ".join(f"{name}={count}" for name, count in counts.items()) + "\\n").encode())
"""

THREADS = """
def storm():
    while going():
        check()
threads = [threading.Thread(target=storm) for _ in range(draw.randrange(2, 9))]
for thread in threads: thread.start()
for thread in threads: thread.join()
counts["disturbed"] = len(threads)
report()
"""

INTERRUPTS = """
class Interrupt(BaseException):
    pass
def interrupt(*_):
    raise Interrupt
signal.signal(signal.SIGALRM, interrupt)
if draw.random() < 0.5:
    threading.Thread(target=lambda: [check() for _ in iter(going, False)], daemon=True).start()
while going():
    product, want = draw.choice(kinds)
    out = np.empty_like(want)
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(2e-5, 3e-3))
        while True:
            product(out)
    except Interrupt:
        counts["disturbed"] += 1
    out.fill(7)
    time.sleep(draw.uniform(1e-4, 3e-3))
    if (out != 7).any():
        counts["wrong"] += 1
    check(2)
report()
os._exit(0)
"""

HANDLERS = """
def handle(*_):
    counts["disturbed"] += 1
    check()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.002, draw.uniform(0.001, 0.01))
while going():
    check()
signal.setitimer(signal.ITIMER_REAL, 0)
report()
"""

FORKS = """
def compile_something():
    from dasp.runtime.cpu.compile import jit
    names = {}
    exec(f"def f(x):\\n    return x + {draw.random()}", names)
    jit(cache=False)(names["f"])(1)
def storm():
    while going():
        check()
        if draw.random() < 0.05:
            compile_something()
threads = [threading.Thread(target=storm, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
children = []
while going():
    time.sleep(draw.uniform(0, 0.05))
    child = os.fork()
    if child == 0:
        counts["wrong"] = 0
        check(4)
        compile_something()
        os._exit(min(counts["wrong"], 100))
    counts["disturbed"] += 1
    until = time.monotonic() + 120
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            counts["wrong"] += status != 0
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            counts["wrong"] += 1
            break
        time.sleep(0.001)
for thread in threads: thread.join()
report()
"""

STARVED = """
threading.stack_size(1 << 47)
while going():
    check()
    if draw.random() < 0.05:
        threading.stack_size(0 if draw.random() < 0.5 else 1 << 47)
        counts["disturbed"] += 1
report()
"""

PROCESSORS = """
allowed = sorted(os.sched_getaffinity(0))
dasp.set_num_threads(draw.choice([None, 2]))
while going():
    os.sched_setaffinity(0, draw.sample(allowed, draw.randrange(1, len(allowed) + 1)))
    counts["disturbed"] += 1
    check(draw.randrange(1, 50))
report()
"""

ENDINGS = """
check(draw.randrange(3))
class Last:
    def __del__(self):
        check(3)
        report()
for product, want in kinds:
    product(np.empty_like(want))
if draw.random() < 0.5:
    last = Last()
else:
    # A daemon that goes on keeps globals alive, so that no finalizer would run.
    atexit.register(report)
    threading.Thread(target=lambda: [check() for _ in iter(int, 1)], daemon=True).start()
atexit.register(check, 3)
threading.Thread(target=lambda: (time.sleep(draw.uniform(0, 0.3)), check(10))).start()
counts["disturbed"] = 1
"""

PROGRAMS = {
    "threads": THREADS,
    "interrupts": INTERRUPTS,
    "handlers": HANDLERS,
    "forks": FORKS,
    "starved": STARVED,
    "processors": PROCESSORS,
    "endings": ENDINGS,
}


def storm(name: str, draw: random.Random, counts: Counts) -> str:
    """Run one program; return what was wrong, or nothing."""
    seconds = draw.uniform(0.5, 3)
    command = [sys.executable, "-c", PREPARE + PROGRAMS[name], str(draw.randrange(2**31)), f"{seconds:.2f}"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(draw.choice([1, 2, 2, 4])),
        "PYTHONWARNINGS": "ignore",
    }
    # A fork while another thread is in a threaded BLAS hangs, even with NumPy alone.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS
        )
    except subprocess.TimeoutExpired:
        return "did not end"
    if done.returncode or done.stderr:
        return f"status {done.returncode}: {done.stderr[-2000:]}"
    words = dict(word.split("=") for word in done.stdout.split())
    if not words:
        return "said nothing"
    counts[f"{name}: products"] += int(words["products"])
    counts[f"{name}: disturbances"] += int(words["disturbed"])
    return "" if words["wrong"] == "0" else f"{words['wrong']} wrong"


COMMANDS = (
    ("info", "poisson3d:12", "--device", "cpu"),
    ("solve", "poisson3d:12", "--device", "cpu"),
    ("plan", "poisson3d:12", "{folder}/plan.npz", "--device", "cpu"),
    ("config",),
)


def interrupted_command(draw: random.Random, counts: Counts) -> str:
    """Press Ctrl-C at some moment of a command; return what was wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix="dasp-attack-") as folder:
        words = [word.format(folder=folder) for word in draw.choice(COMMANDS)]
        # While it starts, the interpreter answers Ctrl-C with a traceback; the attack begins at main().
        program = (
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may ignore the signal
            "from dasp.cli.main import main\n"
            "print('main', file=sys.stderr, flush=True)\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        environment = {**os.environ, "DASP_CACHE": draw.choice([os.path.join(folder, "cache"), "0"])}
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(draw.uniform(0.003, 4))
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"{' '.join(words)}: did not end"
        counts["commands interrupted"] += process.returncode == 130
        counts["commands that ended before"] += process.returncode == 0
        # Between the end of main() and the end of the process no Python can answer: status -2.
        if (process.returncode, said) in ((130, "dasp: interrupted\n"), (0, ""), (-signal.SIGINT, "")):
            return ""
        return f"{' '.join(words)}: status {process.returncode}: {said[-2000:]}"


def case(rng: Draws, counts: Counts) -> None:
    """Run one of the programs or a command, in turn."""
    name = [*PROGRAMS, "command"][rng.number % (len(PROGRAMS) + 1)]
    counts[f"{name}: cases"] += 1
    wrong = interrupted_command(rng, counts) if name == "command" else storm(name, rng, counts)
    assert not wrong, f"{name}: {wrong}"


if __name__ == "__main__":
    if not hasattr(os, "sched_setaffinity"):
        print("threads: skipped; the disturbances are those of Linux")
        sys.exit(0)
    sys.exit(attack_by_command("threads", __doc__, attack_with([(case, 1.0)])))
