"""The measurements of the dense ladder: peak, the rows and tables of `dasp bench gemm`, and the search."""

import argparse
import csv
import math
import types

import numpy as np
import pytest

from dasp.bench import gemm as bench
from dasp.bench import peak as bench_peak
from dasp.bench import peak_cpu as peak
from dasp.bench import results
from dasp.bench.peak_cpu import gpu_gigaflops
from dasp.commands import tune as command
from dasp.dense import kernels


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


def test_the_peak_counts_two_operations_a_lane(monkeypatch):
    """By a clock that moves by a nanosecond for each turn of each thread's loop."""
    clock = types.SimpleNamespace(now=0.0)

    def chains(lanes, chains):
        def run(count, factor, term, target):
            clock.now += 1e-9 * count

        return run

    monkeypatch.setattr(peak, "_chains", chains)
    monkeypatch.setattr(peak, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))
    lanes = peak.host_tile(8).lanes
    assert peak.cpu_gigaflops("float64") == pytest.approx(2 * 12 * lanes)
    assert peak.cpu_gigaflops("float32") == pytest.approx(2 * 12 * 2 * lanes)


def test_a_gpus_peak_follows_its_rates():
    assert gpu_gigaflops("float32", (9, 0), 132, 1.98e9) == pytest.approx(66_908, rel=1e-3)
    assert math.isnan(gpu_gigaflops("float32", (3, 5), 10, 1e9))


def test_bench_gemm_writes_a_row_for_every_kernel(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(bench, "_peak", lambda device, dtype, threads: 50.0)
    words = ["--device", "cpu", "--sizes", "33,64", "--seconds", "0.01", "--csv", str(tmp_path / "rows.csv")]
    assert bench.run(parse(bench.add_arguments, [*words, "--plot", str(tmp_path / "figure.png")])) == 0
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
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert bench.markdown([row for row in rows if row["dtype"] == "float32"], "float32").count("\n") == (
        len(names) + 3
    )


def rows_of(kernel, device, speeds, **others):
    """Rows of a result file: GFLOP/s by size; the vendor's library reaches 100 at every size."""
    return [
        {
            "matrix": f"gemm:{size}",
            "dtype": "float32",
            "kernel": kernel,
            "size": str(size),
            "correct": "yes",
            "gflops": str(speed),
            "of_vendor": str(speed / 100),
            "of_peak": "nan" if device == "cuda" else str(speed / 200),
            "device": device,
            "machine": "a GPU" if device == "cuda" else "a CPU",
            "commit": "abc",
            **others,
        }
        for size, speed in speeds.items()
    ]


def test_the_table_is_drawn_from_the_file_alone(tmp_path, capsys):
    source, readme = tmp_path / "gemm.csv", tmp_path / "README.md"
    old = rows_of("auto", "cuda", {128: 7.0}, commit="old")
    new = rows_of("auto", "cuda", {128: 64.0, 4096: 81.0}) + rows_of("goto", "cpu", {128: 50.0}, threads="1")
    results.write(source, [*old, *rows_of("vendor", "cuda", {128: 100.0, 4096: 100.0}), *new])
    readme.write_text("<!-- results:gemm begin -->\n<!-- results:gemm end -->\n")
    words = ["--report-only", "--csv", str(source), "--readme", str(readme)]
    assert bench.run(parse(bench.add_arguments, words)) == 0
    text = readme.read_text()
    assert "| a GPU | float32 | 4096 | 81 | 81.0 | - | 72.0 |" in text
    assert "| a CPU, 1 thread | float32 | 128 | 50 | 50.0 | 25.0 | 50.0 |" in text
    assert "| auto | 64 (64) | 81 (81) | 72.0 |" in text
    assert "old" not in text
    assert "auto" in capsys.readouterr().out
    with pytest.raises(ValueError, match="pass --csv FILE"):
        bench.run(parse(bench.add_arguments, ["--report-only"]))
    with pytest.raises(ValueError, match="has no rows"):
        bench.run(parse(bench.add_arguments, ["--report-only", "--csv", str(tmp_path / "none.csv")]))


def test_bench_gemm_tells_a_wrong_product(monkeypatch, capsys):
    real = bench.gemm

    def wrong(a, b, *, out, kernel):
        real(a, b, out=out, kernel=kernel)
        if kernel == "square":
            out[-1, -1] += 1e-3 if out.dtype == np.float32 else 1e-9
        if kernel == "registers":
            out[7, 7] = np.nan

    monkeypatch.setattr(bench, "gemm", wrong)
    words = ["--device", "cpu", "--sizes", "40", "--seconds", "0.01", "--kernels", "dot,square,registers"]
    assert bench.run(parse(bench.add_arguments, words)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "WRONG" in line] == ["square", "registers"] * 2


def test_bench_gemm_stops_at_its_limit(capsys):
    words = ["--device", "cpu", "--sizes", "40", "--limit", "1e-9"]
    assert bench.run(parse(bench.add_arguments, words)) == 0
    assert "--limit is reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "0"], "--sizes is 0; whole numbers from 1"),
        (["--dtype", "float16"], "--dtype names float16; some of float32, float64"),
        (["--kernels", "fastest"], "--kernels names fastest; some of auto, dot"),
    ],
)
def test_bench_gemm_names_mistakes(words, message):
    with pytest.raises(ValueError, match=message):
        bench.run(parse(bench.add_arguments, ["--device", "cpu", *words]))


def test_bench_peak_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(bench_peak, "host_copy_bandwidth", lambda threads: 1e9 * threads)
    assert bench_peak.run(parse(bench_peak.add_arguments, ["--device", "cpu", "--threads", "2"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["CPU", "float32", "float64", "copy"]
    assert lines[3].split()[-2:] == ["1.0", "2.0"]


def test_the_search_says_what_it_needs():
    from dasp.backends.cuda.product import available

    if available()[0]:
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="; the search needs one"):
        command.run(parse(command.add_arguments, []))


@pytest.mark.cuda
def test_the_search_finds_a_right_setting(tmp_path, monkeypatch):
    from dasp.dense import settings
    from dasp.tuning import gemm as cuda_tune

    few = [
        settings.Setting(64, 64, 8, tm=4, tn=8, wm=32, wn=32),
        settings.Setting(32, 32, 8, tm=4, tn=4, wm=16, wn=32),
    ]
    monkeypatch.setattr(settings, "candidates", lambda rung, dtype: iter(few))
    table = cuda_tune.tune(["float32"], [128], tmp_path / "t.json", seconds=60, say=print, rungs=["split"])
    ((_, lines),) = table.items()
    assert lines["float32"]["128"]["kernel"] in ("split", "vendor")
    assert lines["float32"]["128"]["settings"]["split"]["bm"] in (32, 64)


@pytest.mark.cuda
def test_bench_gemm_on_the_gpu(capsys):
    words = [
        "--device",
        "cuda",
        "--sizes",
        "64,200",
        "--seconds",
        "0.01",
        "--dtype",
        "float32,float64,float16",
    ]
    assert bench.run(parse(bench.add_arguments, words)) == 0
    assert "tensor" in capsys.readouterr().out
