"""Where dasp starts: without a folder for compiled code, without a home, and what `dasp --help` imports."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import extending, types
from scipy.sparse import random_array

import dasp
from dasp.formats import backends
from dasp.formats.sell.cpu import primitives
from dasp.runtime import process
from dasp.runtime.cpu.compile import c_function, jit
from dasp.runtime.process import Deferred, as_raised

pytestmark = pytest.mark.slow

ROOT = Path(dasp.__file__).parents[1]

MULTIPLY = """
import numpy as np
import dasp
A = dasp.models.generate("poisson2d:30")
x = np.arange(900.0)
P = dasp.SpMatrix.from_scipy(A, device="cpu")
assert abs(P @ x - A @ x).max() <= 1e-9
print("right")
"""
COMPILE = """
import numpy as np
from dasp.formats import backends
from dasp.formats.dasp.cpu import count_tiles
from dasp.formats.sell.cpu import store
assert backends.find("cpu").cost_model.kind == "cpu"
stored = np.zeros(3)
store.scatter(np.ones(3), np.arange(3), stored)
assert stored.all()
assert count_tiles(np.full(8, 4, np.int32), 1)[0] == 1
print("right")
"""
"""Compiles two functions, where `MULTIPLY` compiles twenty."""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package beside whose sources nothing can be written, not even by root."""
    folder = tmp_path_factory.mktemp("closed")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "dasp", folder / "dasp", ignore=ignore)
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=ignore)
    for place in [folder / "dasp", *(folder / "dasp").rglob("*/")]:
        if place.is_dir():
            (place / "__pycache__").touch()
    return folder


def start(
    folder: Path, cwd: Path, *words: str, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run Python where HOME is a file; a value of None leaves a variable out."""
    own = ("NUMBA_CACHE_DIR", "DASP_CACHE", "DASP_COST_MODEL", "XDG_CACHE_HOME")
    usual = {name: value for name, value in os.environ.items() if name not in own}
    given = {**usual, "PYTHONPATH": str(folder), "HOME": "/dev/null/home", **environment}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={name: value for name, value in given.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
    )


posix = pytest.mark.skipif(os.name != "posix", reason="the places that cannot be written are POSIX's")


@posix
def test_nothing_can_be_written(closed: Path, tmp_path: Path) -> None:
    done = start(closed, tmp_path, "-m", "dasp", "info", "poisson3d:20", "--format", "dasp")
    assert done.returncode == 0, done.stderr
    assert "8,000 x 8,000" in done.stdout
    assert done.stderr.startswith("dasp: warning: no folder that keeps compiled code can be written; ")
    assert "DASP_CACHE" in done.stderr
    assert done.stderr.count("\n") == 1


@posix
def test_no_home_at_all(closed: Path, tmp_path: Path) -> None:
    program = "import os, pwd\n" + COMPILE
    if os.getuid() == 0:  # a user that no table knows; the interpreter itself need not be open to it
        program = (
            "import os, pwd\n"
            "def nobody(uid):\n"
            "    raise KeyError(uid)\n"
            "pwd.getpwuid = nobody\n"
            "access = os.access\n"
            "os.access = lambda path, mode: 'closed' not in str(path) and access(path, mode)\n"
        ) + COMPILE
    done = start(closed, tmp_path, "-c", program, HOME=None)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert list(tmp_path.iterdir()) == []  # and no folder called ~


@posix
@pytest.mark.parametrize("value", ["", "0", "False"])
def test_no_cache_is_wanted(closed: Path, tmp_path: Path, value: str) -> None:
    done = start(closed, tmp_path, "-W", "error", "-c", "import dasp; dasp.SpMatrix", DASP_CACHE=value)
    assert (done.returncode, done.stderr) == (0, "")


@posix
def test_a_named_folder_is_used_and_mended(closed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def multiply() -> subprocess.CompletedProcess[str]:
        done = start(
            closed, tmp_path, "-c", COMPILE, DASP_CACHE="cache", NUMBA_CACHE_DIR=str(tmp_path / "no")
        )
        assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
        return done

    assert multiply().stderr == ""
    assert not (tmp_path / "no").exists()
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert len(kept) >= 2
    assert multiply().stderr == ""
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == kept
    for number, path in enumerate(kept):
        path.write_bytes(path.read_bytes()[: number % 40] if number % 2 else b"no pickle")
    done = multiply()
    assert done.stderr.count("RuntimeWarning") == 1
    assert "cannot be read" in done.stderr
    assert multiply().stderr == ""


@posix
def test_a_named_folder_that_cannot_be_written(closed: Path, tmp_path: Path) -> None:
    done = start(closed, tmp_path, "-c", COMPILE, DASP_CACHE="/dev/null/cache", NUMBA_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert "DASP_CACHE is '/dev/null/cache'; a folder that can be written is needed" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


@posix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_is_no_error(closed: Path, tmp_path: Path) -> None:
    program = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    ) + COMPILE
    done = start(closed, tmp_path, "-c", program, DASP_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert "cannot be kept" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


BROKEN_CUPY = """
import sys
import numpy as np, scipy.sparse as sp, dasp
from dasp.runtime.cuda.gpus import try_gpu
for folder in sys.argv[1:]:
    sys.modules.pop("cupy", None)
    try_gpu.cache_clear()
    sys.path[0] = folder
    print(try_gpu())
    print(dasp.SpMatrix.from_scipy(sp.eye_array(3, format="csr")) @ np.ones(3))
"""


def test_a_broken_cupy_leaves_the_cpu(tmp_path: Path) -> None:
    reasons = {
        "libcudart": "raise ImportError('libcudart.so.12: no such file')",
        "CUPY_CACHE_DIR": "raise OSError(13, 'Permission denied', '/home/x/.cupy')",
        "SystemError": "raise SystemError",
        "no attribute": "",
    }
    for number, source in enumerate(reasons.values()):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cupy.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_CUPY, *(str(tmp_path / str(number)) for number in range(4))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1::2] == 4 * ["[1. 1. 1.]"]
    for reason, answer in zip(reasons, lines[::2], strict=True):
        assert answer.startswith("(False, ")
        assert reason in answer


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nosuch"], []])
def test_help_imports_neither_numba_nor_scipy(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from dasp.cli.main import main\n"
        "main(sys.argv[1:])\n"
        "print(sorted({'numba', 'llvmlite', 'scipy', 'cupy'} & set(sys.modules)))\n"
    )
    done = start(ROOT, ROOT, "-c", program, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    done = start(ROOT, tmp_path, "-c", MULTIPLY, NUMBA_DISABLE_JIT="1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: NUMBA_DISABLE_JIT is set; ")


# Signals


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_signals_wait_and_none_is_lost() -> None:
    seen: list[str] = []

    class TimeIsUp(Exception):
        pass

    def alarm(*_: object) -> None:
        seen.append("alarm")
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, alarm)
    usual = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(BaseException) as caught, Deferred():  # noqa: PT011, PT012
            with Deferred():
                signal.raise_signal(signal.SIGALRM)
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            seen.append("inner context ended")
        chain = {type(caught.value), type(caught.value.__context__)}
        assert chain == {KeyboardInterrupt, TimeIsUp}
        assert seen == ["inner context ended", "alarm"]
        assert signal.getsignal(signal.SIGALRM) is alarm
        assert signal.getsignal(signal.SIGINT) is usual
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_handler_that_raises_while_signals_are_held_back_leaves_none_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, original = signal.getsignal(signal.SIGINT), process._set

    def set_and_be_interrupted(number: int, handler: Any) -> None:
        monkeypatch.undo()
        original(number, handler)
        raise TimeoutError

    monkeypatch.setattr(process, "_set", set_and_be_interrupted)
    with pytest.raises(TimeoutError), Deferred():
        pytest.fail("the handler's error came out too late")
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_of_compiled_code_is_one() -> None:
    ring = ctypes.CDLL(None)["raise"]
    ring.argtypes = [ctypes.c_int]
    number = int(signal.SIGINT)

    @jit(cache=False)
    def interrupted() -> Any:
        ring(number)
        return np.zeros(3)

    interrupted.compile(())
    with pytest.raises(KeyboardInterrupt), backends.find("cpu").use_primitives():
        interrupted()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_only_what_came_of_an_interrupt_is_let_out_as_one() -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    def end_badly() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            fail("the archive is still open")

    with pytest.raises(KeyboardInterrupt), as_raised():
        end_badly()
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        with pytest.raises(ValueError, match="of its own"), as_raised():
            fail("of its own")


def ringing(number: int) -> Any:
    """A function for Numba that sends this process a signal while it is compiled."""

    @extending.intrinsic
    def ring(_: Any) -> Any:
        def generate(context: Any, *_: Any) -> Any:
            signal.raise_signal(number)
            return context.get_dummy_value()

        return types.void(), generate

    return ring


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_waits_for_the_compiler() -> None:
    ring = ringing(signal.SIGINT)

    def function(x):  # type: ignore[no-untyped-def]
        ring()
        return x + 1

    lazy = jit(cache=False)(function)
    with pytest.raises(KeyboardInterrupt):
        lazy(1)
    assert len(lazy.overloads) == 1
    assert lazy(1) == 2
    for compile_at_once in (
        lambda: jit(types.int64(types.int64), cache=False)(function),
        lambda: c_function(types.int64(types.int64), function),
    ):
        with pytest.raises(KeyboardInterrupt):
            compile_at_once()


FORK = """
import os, threading, time
import dasp.runtime.cpu.compile
def compile_much():
    for number in range(6):
        names = {}
        exec(f"def f(x):\\n    for i in range(x):\\n        x += i * {number}\\n    return x", names)
        dasp.runtime.cpu.compile.jit(cache=False)(names["f"])(3)
thread = threading.Thread(target=compile_much)
thread.start()
children = []
while thread.is_alive() and len(children) < 4:
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        compile_much()
        os._exit(0)
    children.append(child)
print(len(children), [os.waitpid(child, 0)[1] for child in children].count(0) == len(children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_another_thread_compiles_can_compile() -> None:
    done = start(ROOT, ROOT, "-W", "ignore", "-c", FORK)
    assert done.returncode == 0, done.stderr
    count, works = done.stdout.split()
    assert int(count) >= 1
    assert works == "True"


FIRST_PRODUCT = """
import os, sys, threading, time
import numpy as np
import dasp
started = threading.Event()
def multiply():
    started.set()
    dasp.SpMatrix.from_dense(np.eye(40), device="cpu") @ np.ones((40, 3))
thread = threading.Thread(target=multiply)
thread.start()
started.wait()
time.sleep(float(sys.argv[1]))
child = os.fork()
if child == 0:
    multiply()
    os._exit(0)
thread.join()
until = time.monotonic() + 240
while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
    time.sleep(0.01)
if not ended[0]:
    os.kill(child, 9)
print(ended[1] if ended[0] else "hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seconds", ["0.02", "0.3"])
def test_a_child_forked_during_the_first_product_of_another_thread_can_multiply(seconds: str) -> None:
    kept = os.environ.get("NUMBA_CACHE_DIR")
    done = start(ROOT, ROOT, "-W", "ignore", "-c", FIRST_PRODUCT, seconds, NUMBA_CACHE_DIR=kept)
    assert (done.stdout.strip(), done.stderr) == ("0", "")


HELD_LOCKS = """
import os, threading
import numpy as np
import dasp
A = dasp.SpMatrix(dasp.models.generate("poisson2d:12"), device="cpu")
M = dasp.preconditioners.jacobi(A)
b = np.ones(A.shape[0])
A.T @ b, M @ b
B, N = A.copy(), dasp.preconditioners.jacobi(A)
held, done = threading.Event(), threading.Event()
def hold():
    with B._lock.get(), B._shared.lock.get(), N._lock.get():
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    import faulthandler
    faulthandler.dump_traceback_later(100, exit=True)
    same = np.array_equal(B.T @ b, A.T @ b) and np.array_equal(N @ b, M @ b)
    os._exit(0 if same else 3)
print(os.waitpid(child, 0)[1])
done.set()
thread.join()
print(np.array_equal(B.T @ b, A.T @ b))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_uses_what_another_thread_had_locked_at_the_fork() -> None:
    kept = os.environ.get("NUMBA_CACHE_DIR")
    done = start(ROOT, ROOT, "-W", "ignore", "-c", HELD_LOCKS, NUMBA_CACHE_DIR=kept)
    assert (done.stdout.split(), done.stderr) == (["0", "True"], "")


FINALIZER = """
import numpy as np
import dasp
A = dasp.SpMatrix(dasp.models.generate("poisson2d:20"), device="cpu")
b = np.ones(A.shape[0])
names = "cg minres bicgstab gmres chebyshev lsqr lsmr"
methods = [getattr(dasp.solvers, name) for name in names.split()]
def solve():
    return [bool(method(A, b)[1].converged) for method in methods]
solve()
class Last:
    def __del__(self):
        print(all(solve()))
last = Last()
"""


def test_a_finalizer_at_the_end_of_the_process_can_solve() -> None:
    done = start(
        ROOT, ROOT, "-W", "ignore", "-c", FINALIZER, NUMBA_CACHE_DIR=os.environ.get("NUMBA_CACHE_DIR")
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


def test_the_log_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    cache = os.environ.get("NUMBA_CACHE_DIR", str(tmp_path))
    program = "import dasp; dasp.SpMatrix.from_dense([[1.0]], device='cpu')"
    told = start(ROOT, tmp_path, "-c", program, DASP_LOG="info", NUMBA_CACHE_DIR=cache)
    assert "dasp INFO: planned 1 x 1 with 1 entries as sell" in told.stderr, told.stderr
    assert not start(ROOT, tmp_path, "-c", program, NUMBA_CACHE_DIR=cache).stderr
    wrong = start(ROOT, tmp_path, "-c", program, DASP_LOG="loud", NUMBA_CACHE_DIR=cache)
    assert "DASP_LOG is 'loud'; debug, info, warning or error is needed" in wrong.stderr


@pytest.mark.parametrize("kept", [np.int32, np.int64])
def test_what_plans_a_matrix_plans_its_transpose_and_coordinates_uncompiled(
    monkeypatch: pytest.MonkeyPatch, kept: Any
) -> None:
    matrix = random_array((60, 40), density=0.1, format="csr", random_state=np.random.default_rng(0))
    matrix.indices = matrix.indices.astype(np.int32)
    coordinates = (
        matrix.data,
        (np.repeat(np.arange(60, dtype=np.int32), np.diff(matrix.indptr)), matrix.indices),
    )
    matrix.indptr = matrix.indptr.astype(kept)
    seen = []
    survey = primitives.survey
    monkeypatch.setattr(primitives, "survey", lambda csr, *rest: seen.append(csr) or survey(csr, *rest))
    transpose = dasp.SpMatrix(matrix, device="cpu").T
    dasp.SpMatrix(coordinates, device="cpu", shape=(60, 40))
    assert transpose.shape == (40, 60)
    types_of = {tuple((array.dtype.name, array.flags.writeable) for array in csr[1:]) for csr in seen}
    assert len(seen) == 3
    assert types_of == {(("int32", True), ("int32", True), ("float64", True))}


DENSE = """
import gc
import numpy as np
from numba.core.dispatcher import Dispatcher
from dasp.dense import gemm, gf256
gemm(np.ones((130, 130)), np.ones((130, 130)), kernel="goto")
gf256.matmul(np.ones((3, 5), np.uint8), np.ones((5, 1000), np.uint8))
made = [each for each in gc.get_objects() if isinstance(each, Dispatcher) and each.signatures]
print(sorted(each.py_func.__name__ for each in made if each.stats.cache_misses))
print(len(made))
"""


def test_dense_products_compile_nothing_a_second_time(tmp_path: Path) -> None:
    environment = {**os.environ, "DASP_CACHE": str(tmp_path)}
    for missed in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", DENSE],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        names, count = done.stdout.splitlines()
        assert ("multiply_block" in names) == missed
        assert int(count) >= 4
    assert names == "[]"
