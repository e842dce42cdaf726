"""Finding, signing and compiling the CUDA sources."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from dasp.runtime.cuda import driver as _driver
from dasp.runtime.cuda import source as _source
from tests.support.nvrtc import compile_text


def gpu_works() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:
        return False


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the sources that a test may change."""
    return Path(shutil.copytree(_source.find(), tmp_path / "kernels"))


def test_find_prefers_the_folder_inside_the_package(tmp_path):
    package = tmp_path / "dasp"
    for folder in (package / "kernels", tmp_path / "kernels"):
        folder.mkdir(parents=True)
    (tmp_path / "kernels" / "mma.cuh").touch()
    assert _source.find(package) == tmp_path / "kernels"
    (package / "kernels" / "mma.cuh").touch()
    assert _source.find(package) == package / "kernels"


def test_find_is_not_content_with_a_folder_of_that_name(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").touch()
    with pytest.raises(RuntimeError, match="sources are missing from"):
        _source.find(tmp_path / "dasp")


def test_digest_depends_on_names_and_contents_and_not_on_the_place(copied):
    digests = [_source.digest(copied)]
    assert digests[0] == _source.digest(_source.find())
    header = copied / "mma.cuh"
    header.write_text(header.read_text() + "\n")
    digests.append(_source.digest(copied))
    header.rename(copied / "mmb.cuh")
    digests.append(_source.digest(copied))
    (copied / "spmv" / "empty.cuh").touch()
    digests.append(_source.digest(copied))
    assert len(set(digests)) == 4


def test_digest_tells_where_one_file_ends(tmp_path):
    for name, first, second in (("a", b"xy", b"z"), ("b", b"x", b"yz")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "1").write_bytes(first)
        (folder / "2").write_bytes(second)
    assert _source.digest(tmp_path / "a") != _source.digest(tmp_path / "b")


def test_a_source_is_read_by_its_name():
    assert "mma_m8n8k4" in _source.read("mma.cuh")
    with pytest.raises(FileNotFoundError, match=r"spmv/absent.cu"):
        _source.read("spmv/absent.cu")


def test_options_carry_the_digest_and_the_folder():
    one = _source.options()
    assert "-std=c++17" in one
    assert f"-I{_source.find()}" in one
    assert f"-DDASP_SOURCES={_source.digest(_source.find())}" in one


def test_constants_stand_before_the_source_in_one_order():
    text = _source.with_constants("int n;", {"DASP_VALUE": "double", "DASP_INDEX": "int"}, "a.cu")
    assert text == '#define DASP_INDEX int\n#define DASP_VALUE double\n#line 1 "a.cu"\nint n;'


def test_the_constants_reach_the_compiler():
    with pytest.raises(RuntimeError, match="N is missing"):
        compile_text(KERNEL, {}, "sm_90", title="small.cu")


def test_a_source_that_does_not_compile_is_an_error_with_the_log():
    with pytest.raises(
        RuntimeError, match=r"(?s)broken.cu does not compile for sm_80.*broken.cu\(2\).*nonsense"
    ):
        compile_text("\nnonsense", {"N": "3"}, "sm_80", title="broken.cu")


class CountingCupy:
    """As much of CuPy as `load` uses, to count what is compiled."""

    def __init__(self):
        self.made = []
        self.device = 0
        self.cuda = self
        self.runtime = self
        self.compiler = self
        self.CUDARuntimeError = self.CompileException = RuntimeError

    def getDevice(self):
        return self.device

    def Device(self):
        return nullcontext()

    def RawModule(self, **arguments):
        self.made.append(arguments)
        return self

    def compile(self):
        pass


@pytest.fixture
def counting(monkeypatch):
    cupy = CountingCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_source, "_modules", {})
    monkeypatch.setattr(_source, "in_relaxed_mode", nullcontext)
    return cupy


def test_load_compiles_once_per_device_and_set_of_constants(counting):
    _source.load("mma.cuh", {"A": "1", "B": "2"})
    _source.load("mma.cuh", {"B": "2", "A": "1"})
    assert len(counting.made) == 1
    assert counting.made[0]["backend"] == "nvrtc"
    assert counting.made[0]["options"] == _source.options()
    assert counting.made[0]["code"].startswith("#define A 1\n#define B 2\n")
    _source.load("mma.cuh", {"A": "2", "B": "2"})
    counting.device = 1
    _source.load("mma.cuh", {"A": "1", "B": "2"})
    assert len(counting.made) == 3


WANTED = [("mma.cuh", {"A": "1"}), ("warp.cuh", {}), ("spmv/slices.cuh", {}), ("mma.cuh", {"A": "2"})]


def test_several_sources_are_loaded_beside_each_other_once(counting):
    for _ in range(2):
        _source.begin_loading([*WANTED, *WANTED])
        for wanted in WANTED:
            _source.load(*wanted)
    assert len(counting.made) == len(WANTED)


def test_loads_go_on_while_others_wait_for_what_they_need(counting, monkeypatch):
    """A source that is being loaded is waited for, and not compiled again."""
    slow, go = threading.Event(), threading.Event()

    def compile_slowly():
        slow.set()
        assert go.wait(10)

    monkeypatch.setattr(counting, "compile", compile_slowly)
    _source.begin_loading(WANTED)
    assert slow.wait(10)
    waiting = threading.Thread(target=_source.load, args=WANTED[0])
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    go.set()
    waiting.join(10)
    assert not waiting.is_alive()
    codes = [one["code"] for one in counting.made]
    assert len(set(codes)) == len(codes)


def test_an_error_that_a_helper_met_reaches_whoever_needs_the_source(counting, monkeypatch):
    met = threading.Event()

    def fail():
        met.set()
        raise counting.CompileException("nonsense")

    monkeypatch.setattr(counting, "compile", fail)
    _source.begin_loading(WANTED[:1])
    assert met.wait(10)
    with pytest.raises(RuntimeError, match=r"mma.cuh does not compile with {'A': '1'}: nonsense"):
        _source.load(*WANTED[0])


def test_a_module_is_loaded_in_relaxed_mode(counting, monkeypatch):
    """As the driver has it: the mode that a call leaves is the one before it."""
    mode, seen = 0, []

    def exchange(other):
        nonlocal mode
        mode, other._obj.value = other._obj.value, mode
        return 0

    driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    monkeypatch.setattr(_source, "in_relaxed_mode", _driver.in_relaxed_mode)
    monkeypatch.setattr(_driver, "driver", lambda: driver)
    monkeypatch.setattr(counting, "compile", lambda: seen.append(mode))
    _source.load("mma.cuh", {})
    assert (seen, mode) == ([_driver.RELAXED], 0)


BESIDE = """
import os, sys, threading, time
from contextlib import nullcontext
from dasp.runtime.cpu import threads
from dasp.runtime.cuda import source
from tests.runtime.test_source import WANTED, CountingCupy
cupy = sys.modules["cupy"] = CountingCupy()
source.in_relaxed_mode = nullcontext
begun, ended = threading.Event(), []
def compile_slowly():
    begun.set()
    time.sleep(0.5)
    os.write(1, b"compiled ")
cupy.compile = compile_slowly
threads.set_num_threads(2)
threads._MOST = 1  # one helper
source.begin_loading(WANTED)
begun.wait()
"""


FORK = """
child, done = os.fork(), []
if child == 0:
    threads.run([lambda: done.append(1)] * 4)
    os.write(1, b"child " * (len(done) == 4))
else:
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize(("then", "printed"), [("sys.exit()", "compiled"), (FORK, "child compiled")])
def test_a_process_that_ends_or_forks_while_a_helper_compiles(then, printed):
    """It waits for that helper, leaves the other sources out, and a child has nothing to wait for."""
    if then is FORK and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    done = subprocess.run(
        [sys.executable, "-c", BESIDE + then], capture_output=True, text=True, timeout=60, check=True
    )
    words = done.stdout.split()
    assert list(dict.fromkeys(words)) == printed.split(), done.stderr
    assert words.count("compiled") < len(WANTED)
    assert not done.stderr


def test_load_from_several_threads_compiles_once(counting):
    start = threading.Barrier(8)

    def work():
        start.wait()
        _source.load("mma.cuh", {})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counting.made) == 1


@pytest.mark.cuda
@pytest.mark.skipif(not gpu_works(), reason="no GPU")
def test_load_on_a_gpu_gives_kernels_that_run(tmp_path, monkeypatch):
    import cupy

    shutil.copytree(_source.find(), tmp_path / "kernels")
    (tmp_path / "kernels" / "small.cu").write_text(KERNEL)
    found, options = _source.find(tmp_path / "dasp"), _source.options.__wrapped__
    monkeypatch.setattr(_source, "find", lambda: found)
    monkeypatch.setattr(_source, "options", options)
    x = cupy.arange(32, dtype=cupy.float64)
    _source.load("small.cu", {"N": "3"}).get_function("small")((1,), (32,), (x,))
    assert (x.get() == 3.0 * cupy.arange(32).get()).all()


KERNEL = """
#ifndef N
#error N is missing
#endif
#include "warp.cuh"
extern "C" __global__ void small(double* x) { x[lane_id()] *= N; }
"""
