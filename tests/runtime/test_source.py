"""Finding, signing and compiling the CUDA sources."""

import shutil
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

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


def test_find_names_the_folder_of_the_instruction_wrappers():
    assert (_source.find() / "mma.cuh").is_file()
    assert (_source.find() / "warp.cuh").is_file()


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


def test_digest_is_twelve_hexadecimal_digits_and_does_not_depend_on_the_place(copied):
    assert len(_source.digest(_source.find())) == 12
    int(_source.digest(_source.find()), 16)
    assert _source.digest(copied) == _source.digest(_source.find())


def test_digest_changes_with_a_header(copied):
    before = _source.digest(copied)
    header = copied / "mma.cuh"
    header.write_text(header.read_text() + "\n")
    assert _source.digest(copied) != before


def test_digest_changes_with_a_name_and_with_a_new_file(copied):
    before = _source.digest(copied)
    (copied / "warp.cuh").rename(copied / "worp.cuh")
    renamed = _source.digest(copied)
    (copied / "spmv").mkdir(exist_ok=True)
    (copied / "spmv" / "empty.cuh").touch()
    assert len({before, renamed, _source.digest(copied)}) == 3


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


def test_a_text_is_compiled_to_a_cubin_without_a_gpu():
    cubin, log, usage = compile_text(KERNEL, {"N": "3"}, "sm_90", title="small.cu")
    assert cubin[:4] == b"\x7fELF"
    assert log == ""
    assert len(usage) == 1


def test_the_constants_reach_the_compiler():
    with pytest.raises(RuntimeError, match="N is missing"):
        compile_text(KERNEL, {}, "sm_90", title="small.cu")


def test_a_source_that_does_not_compile_is_an_error_with_the_log():
    with pytest.raises(
        RuntimeError, match=r"(?s)broken.cu does not compile for sm_80.*broken.cu\(2\).*nonsense"
    ):
        compile_text("\nnonsense", {"N": "3"}, "sm_80", title="broken.cu")


def test_a_wrong_architecture_is_an_error():
    with pytest.raises(ValueError, match="'sm_90' is needed"):
        compile_text(KERNEL, {"N": "3"}, "hopper", title="small.cu")


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
        _source.load_all([*WANTED, *WANTED])
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
    ending = threading.Thread(target=_source.finish_loading)
    ending.start()
    ending.join(0.05)
    assert waiting.is_alive()
    assert ending.is_alive()
    go.set()
    for thread in (waiting, ending):
        thread.join(10)
        assert not thread.is_alive()
    codes = [one["code"] for one in counting.made]
    assert len(set(codes)) == len(codes)


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
