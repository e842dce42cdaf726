"""The measurements of the dense ladder: peak, the rows and tables of dense products, and the search."""

import argparse
import csv

import numpy as np
import pytest

from benchmarks.bench import command, peak
from benchmarks.bench import gemm as bench
from benchmarks.bench import gf256 as bench_codes
from benchmarks.bench.device import HostDevice
from benchmarks.bench.figures import draw_bars
from dasp.cli.main import main
from dasp.dense import kernels

pytestmark = pytest.mark.slow


def parse(add_arguments, words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_peak_multiplies_and_adds_in_every_lane(dtype):
    lanes = peak.host_tile(np.dtype(dtype).itemsize).lanes
    sums = np.zeros(12 * lanes, dtype)
    factor, term = sums.dtype.type(0.5), sums.dtype.type(1)
    peak._chains(lanes, 12)(3, factor, term, sums.ctypes.data)
    assert (sums == 1.875).all()  # 1, then three times half of it and 1 more
    assert peak.cpu_gigaflops(dtype, samples=1) > 0


@pytest.fixture
def quick(monkeypatch):
    """No waiting, and a machine of known peak and bandwidth."""
    monkeypatch.setattr(bench, "COOLDOWN_SECONDS", 0)
    monkeypatch.setattr(HostDevice, "peak_gigaflops", lambda self, dtype: 50.0)
    monkeypatch.setattr(HostDevice, "bandwidth", 14e9)
    return ["--device", "cpu", "--seconds", "0.01"]


def test_bench_gemm_writes_a_row_for_every_kernel(tmp_path, capsys, quick):
    words = [*quick, "--sizes", "33,64", "--csv", str(tmp_path / "rows.csv")]
    assert command.main(["gemm", *words]) == 0
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ["vendor", *(kernel.name for kernel in kernels("cpu")), "auto"]
    assert [row["kernel"] for row in rows] == names * 4
    for row in rows:
        assert row["correct"] == "yes"
        assert float(row["gflops"]) == pytest.approx(
            2e-3 * int(row["size"]) ** 3 / float(row["median_us"]), rel=1e-3
        )
        assert float(row["of_peak"]) == pytest.approx(float(row["gflops"]) / 50, rel=1e-3)
    text = capsys.readouterr().out
    assert text.count("goto") == 2
    assert "% of peak" in text
    assert max(map(len, text.splitlines())) <= 100
    command.main(["gemm", *words, "--resume"])
    with open(tmp_path / "rows.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)


def test_bench_gemm_tells_a_wrong_product(monkeypatch, capsys, quick):
    real = bench.gemm

    def wrong(a, b, *, out, kernel):
        real(a, b, out=out, kernel=kernel)
        if kernel == "square":
            out[-1, -1] += 1e-3 if out.dtype == np.float32 else 1e-9
        if kernel == "registers":
            out[7, 7] = np.nan

    monkeypatch.setattr(bench, "gemm", wrong)
    words = [*quick, "--sizes", "40", "--kernels", "dot,square,registers"]
    assert command.main(["gemm", *words]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "WRONG" in line] == ["square", "registers"] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gemm", "--sizes", "0"], "--sizes: 0 was given; a whole number from 1 is needed"),
        (["gemm", "--dtype", "float16"], "--dtype names float16; some of float32, float64"),
        (["gemm", "--kernels", "fastest"], "--kernels names fastest; some of auto, dot"),
        (["gf256", "--kernels", "fastest"], "--kernels names fastest; some of log_exp"),
        (["gf256", "--data", "300"], "--data and --parity make 304 shards; at most 256"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(words, message, monkeypatch, capsys):
    monkeypatch.setattr(HostDevice, "bandwidth", property(lambda self: pytest.fail("measured")))
    assert command.main([*words, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_without_threadpoolctl_there_is_no_fair_comparison(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command.main(["gemm", "--device", "cpu"]) == 2
    assert "threadpoolctl is not installed; it gives NumPy's BLAS" in capsys.readouterr().err


def test_bench_gf256_verifies_and_times_every_kernel(tmp_path, capsys, quick, monkeypatch):
    words = ["gf256", *quick, "--columns", "1000", "--csv", str(tmp_path / "rows.csv")]
    assert command.main([*words, "--repeat", "3"]) == 0
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["matrix"] for row in rows} == {"gf256:4x10x1000"}
    for row in rows:
        assert row["correct"] == "yes"
        assert float(row["copy_limit_gbs"]) == pytest.approx(10)  # 10 bytes of 14 that move are data
        assert float(row["of_limit"]) == pytest.approx(float(row["data_gbs"]) / 10, rel=1e-3)
    assert "% of what copying allows" in capsys.readouterr().out
    draw_bars(bench_codes.shapes(rows), tmp_path / "bars.png")
    real = bench_codes.gf256.matmul

    def wrong(a, b, *, kernel="auto", **others):
        made = real(a, b, kernel=kernel, **others)
        if kernel == "log_exp":
            others["out"][0, 0] ^= 1
        return made

    monkeypatch.setattr(bench_codes.gf256, "matmul", wrong)
    assert command.main(["gf256", *quick, "--columns", "1000", "--kernels", "log_exp,doubling"]) == 1
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["log_exp", "WRONG"] in lines
    assert ["doubling", "WRONG"] not in lines


def test_the_search_says_what_it_needs(capsys, monkeypatch, tmp_path):
    from dasp.runtime.cuda.gpus import try_gpu

    if try_gpu()[0]:
        pytest.skip("there is a GPU")
    monkeypatch.setenv("DASP_TUNED", str(tmp_path / "t.json"))
    assert main(["tune", "gemm"]) == 2
    assert "device is 'cuda'; a working GPU is needed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.cuda
def test_the_search_finds_a_right_setting(tmp_path, monkeypatch):
    from dasp.cli import tune_gemm as cuda_tune
    from dasp.dense.gemm import rungs_cuda

    few = [
        rungs_cuda.TileSizes(64, 64, 8, tm=4, tn=8, wm=32, wn=32),
        rungs_cuda.TileSizes(32, 32, 8, tm=4, tn=4, wm=16, wn=32),
    ]
    monkeypatch.setattr(cuda_tune, "list_candidates", lambda rung, dtype: few)
    monkeypatch.setattr(rungs_cuda, "SIZES", (128,))
    table = cuda_tune.tune(["float32"], tmp_path / "t.json", seconds=60, say=print)
    ((_, lines),) = table.items()
    assert lines["float32"]["128"]["kernel"] in ("split", "vendor")
    assert lines["float32"]["128"]["settings"]["split"]["bm"] in (32, 64)


@pytest.mark.cuda
def test_bench_gemm_on_the_gpu(capsys):
    words = ["--sizes", "64,200", "--seconds", "0.01", "--dtype", "float32,float64,float16"]
    assert command.main(["gemm", "--device", "cuda", *words]) == 0
    assert "tensor" in capsys.readouterr().out
