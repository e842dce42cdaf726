"""The benchmark is tested like a product: what it must catch, it is shown; what it must count, is counted."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import subprocess
import sys
import time
import types
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from benchmarks.bench import (
    baselines_cpu,
    baselines_cuda,
    cold,
    command,
    cusparse,
    figures,
    machine,
    memory,
    results,
    sparse,
    sparse_report,
)
from benchmarks.bench.device import CudaDevice, HostDevice, open_device
from benchmarks.bench.markers import replace_between
from benchmarks.bench.report import as_json
from benchmarks.bench.session import Session
from benchmarks.bench.sparse import Settings, Sparse, measure
from dasp.cli import bench as bench_command
from dasp.cli import measure as core
from dasp.cli import report, timing
from dasp.cli.devices import Baselines
from dasp.cli.timing import Candidate
from dasp.runtime.dtypes import TABLE

ROOT = Path(__file__).resolve().parents[2]


def matrix(rows=60, cols=50, seed=0, dtype=np.float64):
    """Rows of 0 to 30 entries, one heavy row, an empty last row."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, cols)) * (rng.random((rows, cols)) < rng.random((rows, 1)) * 0.6)
    dense[3], dense[-1] = rng.standard_normal(cols), 0
    return scipy.sparse.csr_array(dense.astype(dtype))


def reference_of(csr, x):
    return core.reference_product(csr.data, csr.indices, csr.indptr, x)


class RowLoop:
    """An honest operator: SciPy's product with the interface of SpMatrix."""

    def __init__(self, csr):
        self.csr, self.nbytes = csr, csr.data.nbytes

    def matvec(self, x, *, out):
        out[:] = self.csr @ x
        return out

    def __matmul__(self, x):
        return self.csr @ x


class Skewed(RowLoop):
    """One row is wrong by a few hundred units in the last place."""

    def matvec(self, x, *, out):
        out[:] = self.csr @ x
        out[3] *= 1 + 1e-13
        return out


class Forgetful(RowLoop):
    """One empty row is never written."""

    def matvec(self, x, *, out):
        out[:-1] = (self.csr @ x)[:-1]
        return out


class Spoiled(RowLoop):
    """One row is not a number."""

    def matvec(self, x, *, out):
        out[:] = self.csr @ x
        out[0] = np.nan
        return out


class Elsewhere(RowLoop):
    """Right, but not written where it was asked for."""

    def matvec(self, x, *, out):
        return self.csr @ x


class Misshapen(RowLoop):
    """`A @ x` has a row too many."""

    def __matmul__(self, x):
        return np.append(self.csr @ x, 0.0)


@pytest.fixture(scope="module")
def host():
    device = HostDevice(1, seconds=0.002)
    device.bandwidth = 1e10
    return device


# --- verification -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
    chunk=st.integers(1, 30),
)
def test_reference_is_exact_to_long_double_however_it_is_cut(lengths, seed, chunk):
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = rng.standard_normal(indptr[-1]) * 10.0 ** rng.integers(-8, 8, indptr[-1])
    indices = rng.integers(0, 12, indptr[-1]).astype(np.int32)
    x = rng.standard_normal(12)
    saved, core.CHUNK_ENTRIES = core.CHUNK_ENTRIES, chunk
    try:
        got = core.reference_product(data, indices, indptr, x)
    finally:
        core.CHUNK_ENTRIES = saved
    unit = Fraction(float(np.finfo(np.longdouble).eps))
    for row, (first, last) in enumerate(pairwise(indptr)):
        terms = [Fraction(data[k]) * Fraction(x[indices[k]]) for k in range(first, last)]
        high = Fraction(float(got.want[row]))
        low = Fraction(float(got.want[row] - np.longdouble(float(got.want[row]))))
        scale = sum(map(abs, terms), Fraction(0))
        assert abs(high + low - sum(terms, Fraction(0))) <= 12 * unit * scale
        if scale:
            assert float(got.bound[row]) >= (len(terms) + 2) * 2.0**-53 * float(scale) * (1 - 1e-12)
            assert float(got.bound[row]) <= (len(terms) + 2) * 2.0**-53 * float(scale) * 1.01 + 1e-300


def test_every_kind_of_wrong_row_fails():
    csr = matrix()
    x = np.random.default_rng(1).standard_normal(csr.shape[1])
    reference = reference_of(csr, x)
    right = csr @ x
    assert core.check_rows(right, reference).passed
    assert core.check_rows(right, reference).worst <= 1
    for row, value in [(0, np.nan), (5, np.inf), (59, 1e-300), (3, right[3] * (1 + 1e-13)), (7, -right[7])]:
        wrong = right.copy()
        wrong[row] = value
        found = core.check_rows(wrong, reference)
        assert not found.passed
        assert found.rows_failed == 1
        assert found.worst > 1
    assert core.check_rows(right[:-1], reference).rows_failed == 60
    assert core.check_rows(right[:, None], reference).rows_failed == 60
    assert core.check_rows(np.array(0.0), reference).rows_failed == 60
    permuted = core.check_rows(right[::-1], reference)
    assert permuted.rows_failed > 40


def test_no_rows_and_no_entries():
    nothing = core.reference_product(np.zeros(0), np.zeros(0, int), np.zeros(1, int), np.ones(4))
    assert core.check_rows(np.zeros(0), nothing).passed
    empty = core.reference_product(np.zeros(0), np.zeros(0, int), np.zeros(4, int), np.ones(4))
    assert core.check_rows(np.zeros(3), empty).passed
    assert core.check_rows(np.array([0, 1e-310, 0]), empty).rows_failed == 1


def test_a_quarter_of_a_million_entries_are_checked_in_chunks():
    csr = scipy.sparse.random_array(
        (20_000, 20_000), density=6.25e-4, random_state=np.random.default_rng(0), format="csr"
    )
    x = np.random.default_rng(1).standard_normal(20_000)
    assert csr.nnz > core.CHUNK_ENTRIES
    assert core.check_rows(csr @ x, reference_of(csr, x)).passed


# --- timing and roofline ----------------------------------------------------------------------------------


class Clock:
    """A clock that only moves when something runs, so that a busy machine changes no result."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def candidate(self, name, seconds):
        """A candidate whose n-th run takes `seconds`, and every fifth run twice as long."""

        def run():
            self.log.append(name)
            self.sleep(seconds * (2 if self.log.count(name) % 5 == 0 else 1))

        return Candidate(name, run, lambda: None, cooldown_seconds=0.5)


@pytest.fixture
def clock(monkeypatch):
    stand_in = Clock()
    monkeypatch.setattr(timing, "time", stand_in)
    return stand_in


def test_timing_orders_and_counts(clock):
    found = timing.time_host([clock.candidate("slow", 4e-3), clock.candidate("quick", 1e-3)], samples=9)
    for name, microseconds in (("slow", 4e3), ("quick", 1e3)):
        assert found[name].best_us == pytest.approx(microseconds)
        assert microseconds <= found[name].median_us * (1 + 1e-9) <= 1.5 * microseconds
        assert found[name].samples == 9
        assert clock.log.count(name) == 1 + 3 + 9 * found[name].products + 3 * 2
        assert found[name].spread >= 0


def test_short_products_are_timed_in_batches(clock):
    found = timing.time_host([clock.candidate("short", 2e-6)], samples=3)["short"]
    assert found.products == math.ceil(timing.SAMPLE_SECONDS / 2e-6)
    assert found.best_us == pytest.approx(2 * 1.2, rel=0.01)  # every fifth takes twice as long


def test_samples_are_taken_by_the_real_clock():
    start = time.perf_counter()
    taken = timing.elapsed(lambda: time.sleep(1e-3), 3)
    assert 3e-3 <= taken <= time.perf_counter() - start


def test_summary_of_samples():
    found = timing.summarize([1.0, 2.0, 3.0, 4.0, 5.0], 20, "graph")
    assert (found.median_us, found.best_us, found.samples, found.products) == (3.0, 1.0, 5, 20)
    assert found.spread == pytest.approx(2 / 3)


def test_roofline_bytes_are_the_documented_ones():
    assert timing.product_bytes(10, 20, 100, 8) == 12 * 100 + 4 * 11 + 8 * 30
    assert timing.product_bytes(10, 20, 100, 4) == 8 * 100 + 4 * 11 + 4 * 30
    assert timing.csr_bytes(10, 100, 8) == 12 * 100 + 4 * 11
    assert timing.roofline_us(4_270_000, 4.27e12) == pytest.approx(1.0)


def test_copy_bandwidth_is_measured():
    assert 1e8 < timing.host_copy_bandwidth(2, size=1 << 22) < 1e13


# --- machine ----------------------------------------------------------------------------------------------


def test_last_level_cache_is_the_highest_data_cache(tmp_path):
    for number, (level, size, kind) in enumerate(
        [
            ("1", "32K", "Data"),
            ("1", "64K", "Instruction"),
            ("3", "36608K", "Unified"),
            ("2", "1M", "Unified"),
        ]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("size", size), ("type", kind)):
            (folder / name).write_text(text + "\n")
    assert machine.last_level_cache_bytes(tmp_path) == 36608 << 10
    assert machine.last_level_cache_bytes(tmp_path / "nowhere") == 32 << 20


def test_machine_columns_name_what_ran(monkeypatch):
    monkeypatch.setenv("DASP_COMMIT", "0123456789ab")
    columns = machine.host_columns(2)
    assert columns["commit"] == "0123456789ab"
    assert columns["threads"] == "2"
    assert columns["numpy"] == np.__version__
    assert columns["machine"]


# --- baselines on the host --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(60, 50), (1, 1), (8, 300)])
def test_host_baselines_are_right(shape, dtype):
    rng = np.random.default_rng(2)
    csr = (
        matrix(dtype=dtype)
        if shape == (60, 50)
        else scipy.sparse.csr_array(rng.standard_normal(shape, dtype))
    )
    x = rng.standard_normal(shape[1]).astype(dtype)
    made = baselines_cpu.build(csr, x)
    assert {c.name for c in made.candidates} | {m.name for m in made.missing} == set(baselines_cpu.NAMES)
    assert {"scipy", "numba_csr"} <= {c.name for c in made.candidates}
    for candidate in made.candidates:
        candidate.poison()
        candidate.run()
        candidate.run()
        assert core.check_rows(candidate.result(), reference_of(csr, x)).passed, candidate.name
        candidate.close()


def test_missing_mkl_is_said(monkeypatch):
    monkeypatch.setattr(baselines_cpu, "load_mkl", lambda: None)
    made = baselines_cpu.build(matrix(), np.ones(50), names=("mkl", "scipy"))
    assert [c.name for c in made.candidates] == ["scipy"]
    assert "MKL was not found" in made.missing[0].reason


# --- one matrix -------------------------------------------------------------------------------------------


def test_a_right_matrix_is_timed_beside_its_baselines(host):
    found = measure("example", matrix(), host, plan=RowLoop, samples=3)
    assert found.verified.passed
    assert {"dasp", "dasp_new", "scipy", "numba_csr"} <= set(found.timings)
    row = found.row()
    assert row["verified"] == "yes"
    assert row["in_cache"] == "yes"
    assert (row["rows"], row["cols"], row["row_min"], row["row_max"]) == ("60", "50", "0", "50")
    assert row["best_baseline"] in ("scipy", "numba_csr", "mkl")
    best = min(float(row[f"{name}_us"]) for name in ("scipy", "numba_csr", "mkl") if f"{name}_us" in row)
    assert float(row["speedup_best"]) == pytest.approx(best / float(row["dasp_us"]), rel=1e-4)
    assert float(row["roofline_us"]) == pytest.approx(
        timing.product_bytes(60, 50, matrix().nnz, 8) / 1e10 * 1e6, rel=1e-4
    )


@pytest.mark.slow
def test_the_product_with_the_transpose_is_timed_beside_its_baselines(host):
    found = measure("example.T", matrix(), host, samples=3, transpose=True)
    assert found.verified.passed
    assert {"dasp", "dasp_new", "scipy"} <= set(found.timings)
    row = found.row()
    assert (row["rows"], row["cols"], row["entries"]) == ("50", "60", str(matrix().nnz))
    assert float(row["plan_ms"]) > 0
    assert "no product with the transpose" in row["missing"]
    csr = matrix()
    csr.data[7] *= 2  # a transpose of other values is wrong
    wrong = measure(
        "wrong", matrix(), host, plan=lambda _: dasp.SpMatrix(csr, "cpu"), samples=3, transpose=True
    )
    assert not wrong.verified.passed
    assert wrong.timings == {}


@pytest.mark.parametrize("operator", [Skewed, Forgetful, Spoiled, Elsewhere, Misshapen])
def test_a_wrong_product_is_caught_and_not_timed(operator, host):
    found = measure("wrong", matrix(), host, plan=operator, samples=3)
    assert not found.verified.passed
    assert found.timings == {}
    row = found.row()
    assert row["verified"] == "no"
    assert row["time_us"] == ""
    assert not results.right(row)
    assert "WRONG, and not timed: wrong" in sparse_report.report([row]).text()


def test_a_wrong_baseline_is_left_out(host, monkeypatch):
    def cheat(csr, x, names, **_):
        y = np.zeros(csr.shape[0])
        return Baselines(
            [Candidate("scipy", lambda: None, lambda: y), *baselines_cpu.build(csr, x).candidates[1:2]]
        )

    monkeypatch.setattr(host, "all_baselines", cheat)
    found = measure("cheated", matrix(), host, plan=RowLoop, samples=3)
    assert "scipy" not in found.timings
    assert found.best_baseline == "numba_csr"
    assert found.missing[0].reason.startswith("wrong in ")


def test_patterns_are_promoted_and_float32_is_bounded_by_its_own_unit(host):
    pattern = scipy.sparse.csr_array((np.ones(4, np.int8), ([0, 0, 1, 2], [0, 1, 1, 2])), shape=(3, 3))
    found = measure("pattern", pattern, host, plan=RowLoop, samples=3, baselines=["scipy"])
    assert found.verified.passed
    assert set(found.timings) == {"dasp", "dasp_new", "scipy"}
    narrow = measure("narrow", matrix(), host, plan=RowLoop, dtype=np.float32, samples=3)
    assert narrow.verified.passed
    assert narrow.dtype == "float32"


def test_warm_up_plans_rows_of_every_category(host):
    seen = []
    sparse.warm_up(lambda csr: seen.append(np.diff(csr.indptr)) or RowLoop(csr), host)
    assert {0, 1, 2, 3, 4, 5, 33, 300} <= set(seen[0].tolist())


# --- rows in a file ---------------------------------------------------------------------------------------


def a_row(name, **others):
    return {"matrix": name, "commit": "c", "machine": "m", "time_us": "2", "verified": "yes", **others}


def test_rows_are_appended_and_new_columns_widen_the_file(tmp_path):
    path = tmp_path / "rows.csv"
    assert results.read(path) == []
    results.append(path, a_row("a"))
    results.append(path, a_row("b, with a comma", mkl_us="3"))
    results.append(path, a_row("c"))
    rows = results.read(path)
    assert [row["matrix"] for row in rows] == ["a", "b, with a comma", "c"]
    assert [row["mkl_us"] for row in rows] == ["", "3", ""]


def test_a_line_cut_short_is_measured_again(tmp_path):
    path = tmp_path / "rows.csv"
    results.append(path, a_row("a"))
    whole = path.read_text()
    path.write_text(whole + "b,")
    assert [row["matrix"] for row in results.read(path)] == ["a"]
    results.append(path, a_row("b"))
    assert [row["matrix"] for row in results.read(path)] == ["a", "b"]
    assert path.read_text().count("\n") == 3


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name,size\nx,1\n")
    with pytest.raises(ValueError, match="has no column `matrix`"):
        results.read(path)


def test_latest_keeps_one_row_a_matrix_and_machine():
    rows = [
        a_row("a", time_us="1"),
        a_row("b"),
        a_row("a", time_us="3", commit="d"),
        a_row("a", machine="other"),
    ]
    assert [(row["matrix"], row["time_us"]) for row in results.latest(rows)] == [
        ("b", "2"),
        ("a", "3"),
        ("a", "2"),
    ]


def test_a_session_resumes(tmp_path, host, monkeypatch):
    monkeypatch.setenv("DASP_COMMIT", "first")
    loaded = []

    def load(spec, seed):
        loaded.append(spec)
        if spec == "stop":
            raise KeyboardInterrupt
        return matrix(seed=seed)

    def subject(*specs):
        return Sparse(specs, host, Settings(samples=3, baselines=["scipy"]), loader=load, plan=RowLoop)

    resumed = Session(csv=tmp_path / "rows.csv", resume=True)
    with pytest.raises(KeyboardInterrupt):
        resumed.run(subject("one", "two", "stop"))
    rows = resumed.run(subject("one", "two", "three"))
    assert loaded == ["one", "two", "stop", "three"]
    assert [row["matrix"] for row in rows] == ["one", "two", "three"]
    monkeypatch.setenv("DASP_COMMIT", "second")
    resumed.run(subject("one"))
    assert loaded[-1] == "one"


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, host):
    never = Sparse(["one"], host, loader=lambda spec, seed: pytest.fail("measured"), plan=RowLoop)
    with pytest.raises(ValueError, match="nosuch must exist; make it first"):
        Session(csv=tmp_path / "nosuch" / "rows.csv").run(never)
    with pytest.raises(ValueError, match="is a folder"):
        Session(csv=tmp_path).run(never)
    assert list(tmp_path.iterdir()) == []


def test_every_library_has_the_same_threads():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    np.ones((2, 2)) @ np.ones((2, 2))  # NumPy's BLAS is there
    with HostDevice(1).alone():
        counts = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    assert counts == {1}


# --- planning ---------------------------------------------------------------------------------------------


def test_the_peak_of_memory_counts_what_was_freed_again():
    with memory.HostMemory() as watched:
        np.ones(1 << 22).sum()  # 32 MiB, gone at once
    if sys.platform == "linux":
        assert 30 << 20 < watched.bytes < 128 << 20
    else:
        assert math.isnan(watched.bytes)


def test_the_peak_of_a_gpus_memory_is_counted_by_cupys_hook():
    pytest.importorskip("cupy")
    with memory.CudaMemory() as watched:
        hook = watched._hook
        for size in (100, 50):
            hook.malloc_postprocess(device_id=0, size=size, mem_size=size, mem_ptr=1, pmem_id=1)
        hook.free_postprocess(device_id=0, mem_size=100, mem_ptr=1, pmem_id=1)
        hook.malloc_postprocess(device_id=0, size=20, mem_size=20, mem_ptr=1, pmem_id=1)
    assert watched.bytes == 150


@pytest.mark.cuda
def test_the_peak_of_a_gpus_memory_is_what_was_taken():
    import cupy

    with memory.CudaMemory() as watched:
        cupy.ones(1 << 20, cupy.uint8).sum()
    assert 1 << 20 <= watched.bytes < 1 << 21


def test_planning_is_measured_from_both_sides(host, monkeypatch):
    asked = []

    def plan(csr):
        asked.append(csr)
        return RowLoop(csr)

    monkeypatch.setattr(host, "resident", lambda csr: csr.copy())
    csr = matrix()
    _, planning = sparse.measure_planning(plan, csr, host)
    from_host = [each is csr for each in asked]
    assert from_host == sorted(from_host)
    assert 2 <= from_host.count(False) <= core.PLAN_TRIES
    assert 3 <= from_host.count(True) <= core.PLAN_TRIES + 1
    assert min(planning.host_ms, planning.device_ms, planning.upload_ms) > 0
    monkeypatch.undo()
    _, planning = sparse.measure_planning(plan, csr, host)
    assert math.isnan(planning.device_ms)
    assert math.isnan(planning.upload_ms)
    assert planning.bytes == csr.data.nbytes


def test_a_plan_pays_when_both_sets_up_are_counted():
    row = {"statistic": "best", "plan_ms": "10", "plan_device_ms": "2", "upload_ms": "3"}
    row |= {"dasp_best_us": "5", "dasp_new_best_us": "10", "cupy_best_us": "30"}
    row |= {"cusparse_alg1_best_us": "10", "cusparse_alg1_setup_ms": "0.5"}
    row |= {"cusparse_sell_best_us": "7", "cusparse_sell_setup_ms": "60", "cusparse_alg2_best_us": "4"}
    assert sparse_report.pays(row, "cusparse_alg1") == pytest.approx((10 - 3 - 0.5) * 1e3 / 5)
    assert sparse_report.pays(row, "cusparse_alg1", from_device=True) == pytest.approx((2 - 0.5) * 1e3 / 5)
    assert sparse_report.pays(row, "cusparse_sell") == 0
    assert sparse_report.pays(row, "cusparse_alg2") == math.inf
    assert sparse_report.pays(row, "cupy") == pytest.approx((10 - 3) * 1e3 / 20)  # a call against a call
    assert math.isnan(sparse_report.pays(row, "mkl"))
    both = ["cusparse_alg1", "cusparse_sell", "mkl"]
    assert sparse_report.pays_against_all(row, both) == sparse_report.pays(row, "cusparse_alg1")


def test_when_plans_pay_that_are_made_on_a_gpu_is_said_in_means():
    def row(name, plan, inside):
        known = {"matrix": name, "device": "cuda", "verified": "yes", "in_cache": inside, "statistic": "best"}
        known |= {"plan_device_ms": plan, "time_us": "5", "dasp_best_us": "5", "cusparse_alg1_best_us": "10"}
        return known | {"cusparse_alg1_setup_ms": "0.5", "plan_bytes": "9", "bytes_ratio": "0.5"}

    rows = [row("a", "1.1", "no"), row("b", "2.5", "no"), row("c", "0.1", "yes"), row("d", "", "yes")]
    said = sparse_report.planning_report(rows)
    assert "after 220 products beyond the cache (geometric mean of 2 matrices)" in said.notes[0]
    assert "1 products in the cache (geometric mean of 1 matrices)" in said.notes[0]
    assert [line[0] for table in said.details for line in table.lines] == ["a", "b", "c"]


def test_planning_is_timed_again_where_the_first_time_took_long(monkeypatch):
    monkeypatch.setattr(core, "PLAN_SECONDS", 0.0)
    made = []
    device = types.SimpleNamespace(synchronize=lambda: None)
    assert core.best_ms(lambda: made.append(1), device)[1] >= 0
    assert len(made) == 2
    monkeypatch.setattr(core, "PLAN_SECONDS", 60.0)
    core.best_ms(lambda: made.append(1), device)
    assert len(made) == 2 + core.PLAN_TRIES


def test_from_then_on_every_baseline_is_slower_in_all():
    rng = np.random.default_rng(0)
    for plan, ours, setup, theirs in rng.uniform(0.1, 10, (200, 4)):
        products = core.break_even(plan, ours, setup, theirs)
        if products < math.inf:
            for count, sign in ((products + 1, 1), (products - 1, -1)):
                ahead = (setup + 1e-3 * theirs * count) - (plan + 1e-3 * ours * count)
                assert sign * ahead >= 0 or products == 0
        else:
            assert ours >= theirs


# --- tables, figures, README ------------------------------------------------------------------------------


def timed(name, speedup, *, inside="no", **others):
    return a_row(
        name,
        in_cache=inside,
        device="cpu",
        rows="10",
        entries="100",
        statistic="median",
        dasp_us="2",
        dasp_new_us="2",
        scipy_us=str(4 * speedup),
        scipy_best_us=str(4 * speedup),
        speedup_best=str(speedup),
        time_over_roofline="0.5",
        roofline_us="4",
        moved_bytes="1000",
        best_baseline="mkl",
        best_baseline_us=str(2 * speedup),
        plan_products="8",
        bytes_ratio="0.9",
        **others,
    )


def test_the_report_names_groups_means_and_losses():
    rows = [
        timed("big", 2.0),
        timed("bigger", 8.0),
        timed("small", 0.5, inside="yes"),
        a_row("bad", verified="no"),
    ]
    rows[-1]["rows_failed"] = "7"
    found = sparse_report.report(rows)
    lines = {line.split("  ")[0]: line.split() for line in found.summary[0].text().splitlines()}
    assert lines["beyond the cache"][3:6] == ["2", "4.00", "8.00"]
    assert lines["all"][1:4] == ["3", "2.00", "4.00"]
    assert "Slower than the best baseline: small (0.500, mkl)" in found.text()
    assert "WRONG, and not timed: bad (7 rows)" in found.text()
    assert sparse_report.summarize(rows).losses == (("small", 0.5, "mkl"),)
    assert max(map(len, found.text().splitlines())) <= report.WIDTH
    for part in (*found.summary, *found.details):
        assert len({line.count("|") for line in part.markdown().splitlines()}) == 1


def test_a_wide_table_goes_on_below():
    headings = ("name", *(f"column {i}" for i in range(20)))
    wide = report.Table("title", headings, [("a", *(str(i) for i in range(20))), ("b" * 90, *["-"] * 20)])
    lines = wide.text().splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("name") for line in lines) > 1
    shown = " ".join(lines)
    assert all(heading in shown for heading in headings)
    assert "b..." in shown
    assert "b" * 90 in wide.markdown()


def test_rows_as_json_are_typed():
    rows = [{"matrix": "a", "time_us": "2.5", "rows": "60", "verified": "yes", "plan_ms": "", "of": "inf"}]
    found = json.loads(as_json("sparse", rows))
    assert found["subject"] == "sparse"
    assert found["rows"] == [
        {"matrix": "a", "time_us": 2.5, "rows": 60, "verified": True, "plan_ms": None, "of": None}
    ]


def test_a_reason_with_a_semicolon_is_one_line():
    reason = "MKL was not found; `pip install mkl` or a path in MKL_RT is needed"
    both = f"mkl: {reason}; cusparse_alg1: no GPU; pass --device cpu"
    rows = [timed("a", 2.0, missing=f"mkl: {reason}"), timed("b", 2.0, missing=both), timed("c", 2.0)]
    assert sparse_report.missing_lines(rows) == [
        f"not run: mkl: {reason} [a, b]",
        "not run: cusparse_alg1: no GPU; pass --device cpu [b]",
    ]
    assert sparse_report.missing_lines(rows[:1]) == [f"not run: mkl: {reason}"]


def test_a_policys_name_is_its_layout(host):
    csr = matrix(rows=200)
    for name in ("auto", "sell", "dasp"):
        planned = bench_command.planner("cpu", name)(csr)
        assert planned.plan.format == ("dasp" if name == "dasp" else "sell")
    with pytest.raises(ValueError, match="'fast'"):
        bench_command.planner("cpu", "fast")


def test_the_number_of_threads_is_everybodys(monkeypatch):
    monkeypatch.setattr("dasp.runtime.cpu.threads._threads", None)
    device = open_device("cpu", threads=1)
    assert (dasp.get_num_threads(), device.columns()["threads"]) == (1, "1")


def test_geometric_mean_ignores_what_is_not_there():
    assert report.geometric_mean([2.0, 8.0, math.nan]) == pytest.approx(4)
    assert math.isnan(report.geometric_mean([]))


def test_readme_is_rewritten_between_its_markers(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# Top\n<!-- results:cpu begin -->\nold\n<!-- results:cpu end -->\nbottom\n")
    for _ in range(2):
        replace_between(path, "cpu", "new table")
    assert path.read_text() == (
        "# Top\n<!-- results:cpu begin -->\nnew table\n<!-- results:cpu end -->\nbottom\n"
    )
    with pytest.raises(ValueError, match="lacks the markers"):
        replace_between(path, "h200", "text")


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_figure_is_drawn(tmp_path, ending, start):
    path = tmp_path / f"figure.{ending}"
    figures.draw_collection([timed("big", 2.0), timed("small", 0.5, inside="yes")], path)
    assert path.read_bytes().startswith(start)
    with pytest.raises(ValueError, match="no row was timed"):
        figures.draw_collection([a_row("bad", time_us="")], path)


@given(st.lists(st.floats(0, 100), max_size=12).map(sorted), st.floats(0.1, 20))
def test_labels_are_moved_apart_and_stay_in_order(places, gap):
    moved = figures.spread(places, gap, -250.0, 100.0)
    assert len(moved) == len(places)
    assert all(later - earlier >= gap * (1 - 1e-9) for earlier, later in pairwise(moved))
    assert max(moved, default=0.0) <= 100 + 1e-9
    if all(later - earlier >= gap for earlier, later in pairwise(places)):
        assert moved == pytest.approx(places, abs=1e-9)


def load_program(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def suitesparse():
    return load_program("suitesparse")


@pytest.fixture(scope="module")
def documents():
    return load_program("report")


def test_the_collection_is_measured_into_its_file(tmp_path, suitesparse, monkeypatch, capsys):
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)
    words = ["poisson2d:9", "--csv", str(tmp_path / "box.csv"), "--repeat", "3", "--baselines", "scipy"]
    for _ in range(2):  # the second time there is nothing left to measure
        assert suitesparse.main([*words, "--device", "cpu", "--threads", "1"]) == 0
    assert [row["matrix"] for row in results.read(tmp_path / "box.csv")] == ["poisson2d:9"]
    assert suitesparse.main([*words[:1], "--csv", str(tmp_path / "no" / "box.csv"), "--device", "cpu"]) == 2
    assert "make it first" in capsys.readouterr().err


@pytest.mark.slow
def test_squares_come_with_their_columns_unsorted_and_sorted(tmp_path, suitesparse, documents, monkeypatch):
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)
    made = [suitesparse.load_square(f"poisson2d:9{which}", 0) for which in ("^2", "^2 sorted")]
    assert [bool(square.has_sorted_indices) for square in made] == [False, True]
    assert (made[0] != made[1]).nnz == 0
    words = ["poisson2d:9", "--square", "--repeat", "3", "--baselines", "scipy", "--device", "cpu"]
    assert suitesparse.main([*words, "--csv", str(tmp_path / "squares_box.csv")]) == 0
    rows = results.read(tmp_path / "squares_box.csv")
    assert [row["matrix"] for row in rows] == ["poisson2d:9^2", "poisson2d:9^2 sorted"]
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    plans = (1e3 * float(row["plan_ms"]) / float(row["scipy_best_us"]) for row in rows)
    unsorted, in_order = (documents.significant(plan) for plan in plans)
    told = f"as {unsorted} products of SciPy with unsorted columns, and {in_order} with sorted ones"
    assert told in documents.text("squares_box")


def test_the_documents_are_written_from_the_files_alone(tmp_path, documents, monkeypatch):
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    results.write(tmp_path / "box.csv", [timed("big", 2.0), timed("small", 0.5, inside="yes")])
    text = documents.text("box")
    assert "| beyond the cache | 1 | 2.00 | 4.00 |" in text
    assert "small (0.500, mkl)" in text
    assert "Rows: `box.csv`" in text


def test_the_front_page_holds_like_against_like(documents, monkeypatch):
    def compare(row):
        monkeypatch.setattr(documents, "COLLECTIONS", ("box",))
        monkeypatch.setattr(documents, "sparse_rows", lambda name: [row])
        return [
            (one.against, one.called, *one.ratios, one.pays_after) for one in documents.compared_products()
        ]

    host = {**timed("a", 2.0), "mkl_us": "8", "dasp_new_us": "4", "plan_ms": "1", "mkl_setup_ms": "0.4"}
    host["mkl_best_us"] = "8"
    assert compare(host) == [
        ("SciPy", "`A @ x`", 2.0, 250.0),  # 8 us against 4, both making a new y
        ("MKL, optimised handle", "into a given y", 4.0, 100.0),  # 8 us against 2
    ]
    gpu = {key: value for key, value in timed("a", 2.0).items() if not key.startswith("scipy")}
    gpu |= {"device": "cuda", "statistic": "best", "plan_ms": "1", "cupy_us": "90", "cupy_best_us": "90"}
    gpu |= {"dasp_best_us": "2", "dasp_new_us": "9", "dasp_new_best_us": "9"}
    assert [one[:3] for one in compare(gpu)] == [("CuPy", "`A @ x`", 10.0)]  # never a graph against calls


def test_anchors_stand_in_only_where_spmvop_is_missing(tmp_path, documents):
    path = tmp_path / "anchors.csv"
    path.write_text("dtype,matrix,best_cusparse_us\nf64,a,3\nf64,b,3\nf16,c,1\nf64,d,9\n")
    gpu = {"device": "cuda", "dtype": "float64"}
    rows = [{**timed(name, 2.0), **gpu} for name in "abcd"]  # 2 us against 4 us
    rows[1]["cusparse_spmvop1_us"] = "4"
    found = documents.with_anchors(rows, documents.read_anchors(path))
    assert [row["best_baseline"] == documents.ANCHOR for row in found] == [True, False, False, False]
    assert float(found[0]["speedup_best"]) == 1.5
    assert documents.ANCHOR in sparse_report.baselines(found[3])
    assert documents.ANCHOR not in sparse_report.baselines(found[1])


def test_the_anchors_name_members_of_the_collection(suitesparse, documents):
    anchors = documents.read_anchors(ROOT / "benchmarks" / "anchors_h200.csv")
    models = {name for name in anchors if ":" in name}
    assert models <= set(suitesparse.FAMILIES["full"])
    assert (len(anchors), len(models)) == (41, 10)


def test_the_collection_has_forty_matrices(suitesparse, tmp_path):
    for name in ("b.npz", "A.mtx.gz", "notes.txt"):
        (tmp_path / name).touch()
    assert [Path(p).name for p in suitesparse.real_matrices(str(tmp_path))] == ["A.mtx.gz", "b.npz"]
    assert suitesparse.real_matrices(None) == []
    from dasp.models import is_model

    for specs in suitesparse.FAMILIES.values():
        assert len(set(specs)) == len(specs) >= 20
        assert all(is_model(spec) for spec in specs)


# --- the command ------------------------------------------------------------------------------------------


def parsed(*words):
    return command.build_parser().parse_args(["sparse", *words])


def test_the_command_prints_a_table_and_answers_with_its_status(tmp_path, monkeypatch, capsys):
    pytest.importorskip("dasp.matrix.matrix")
    words = ("poisson2d:20", "--device", "cpu", "--threads", "1", "--repeat", "3", "--baselines", "scipy")
    args = parsed(*words, "--csv", str(tmp_path / "rows.csv"))
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)
    assert args.run(args) == 0
    out = capsys.readouterr().out
    assert "poisson2d:20" in out
    assert "x SciPy" in out
    assert [row["matrix"] for row in results.read(tmp_path / "rows.csv")] == ["poisson2d:20"]
    monkeypatch.setattr(sparse, "planner", lambda device, policy: Skewed)
    assert args.run(args) == 1
    assert "WRONG" in capsys.readouterr().out


def test_unknown_baselines_threads_and_counts_are_refused():
    args = parsed("poisson2d:5", "--device", "cpu", "--baselines", "scipy, blas")
    assert args.baselines == ("scipy", "blas")
    with pytest.raises(ValueError, match="--baselines names blas; some of scipy, numba_csr, mkl are needed"):
        args.run(args)
    with pytest.raises(ValueError, match="threads were asked for"):
        HostDevice(100_000)
    with pytest.raises(SystemExit):
        parsed("--repeat", "0")


@pytest.mark.parametrize("spec", ["nosuch", "poisson3d:x", "nosuch:5"])
def test_a_matrix_that_is_not_there_is_refused_before_the_machine_is_measured(spec, monkeypatch):
    monkeypatch.setattr("benchmarks.bench.device.open_device", lambda *_, **__: pytest.fail("measured"))
    args = parsed("poisson2d:5", spec)
    with pytest.raises(ValueError, match=spec.partition(":")[0]):
        args.run(args)


def test_json_is_all_that_the_command_prints(monkeypatch, capsys):
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)
    words = ("poisson2d:9", "--device", "cpu", "--threads", "1", "--repeat", "3", "--baselines", "scipy")
    args = parsed(*words, "--json")
    assert args.run(args) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["matrix"], row["verified"], row["rows"]) == ("poisson2d:9", True, 81)
    assert row["plan_ms"] > 0


def test_every_type_of_a_sparse_matrix_can_be_measured():
    assert tuple(TABLE) == bench_command.DTYPES


def test_registering_commands_loads_nothing_heavy():
    program = (
        "import sys, dasp.cli.bench, dasp.cli.files, dasp.cli.info; "
        "print([m for m in ('numpy', 'numba', 'cupy', 'scipy', 'matplotlib', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- cuSPARSE through ctypes, against a stand-in library ---------------------------------------------------

STAND_IN = Path(__file__).with_name("cusparse_stand_in.c")


class OnDevice:
    """A NumPy array that looks like CuPy's: `array.data.ptr` is its address."""

    def __init__(self, values):
        self.values = np.ascontiguousarray(values)
        self.data = types.SimpleNamespace(ptr=self.values.ctypes.data)
        self.size, self.dtype = self.values.size, self.values.dtype
        self.fill, self.view = self.values.fill, self.values.view


class Stream:
    """A stream that runs at once, and a graph of what was run while it captured."""

    ptr = 0

    def __init__(self, non_blocking=False):
        self.captured = None

    def synchronize(self):
        pass

    def use(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def begin_capture(self):
        self.captured = []

    def end_capture(self):
        captured, self.captured = self.captured, None
        return types.SimpleNamespace(launch=lambda stream: Event.advance(5e-3 * 20), captured=captured)


class Event:
    """An event of a clock that only moves when it is told to, in milliseconds."""

    now = 0.0

    @classmethod
    def advance(cls, milliseconds):
        cls.now += milliseconds

    def record(self, stream):
        self.time = Event.now

    def synchronize(self):
        pass


@pytest.fixture
def cupy_stand_in(monkeypatch):
    fake = types.ModuleType("cupy")
    fake.uint8, fake.float64 = np.uint8, np.float64
    fake.asarray = OnDevice
    fake.empty = fake.zeros = lambda size, dtype: OnDevice(np.zeros(size, dtype))
    fake.cuda = types.SimpleNamespace(
        get_current_stream=Stream,
        Stream=Stream,
        Event=Event,
        get_elapsed_time=lambda start, stop: stop.time - start.time,
        Device=lambda: types.SimpleNamespace(attributes={"L2CacheSize": 1 << 20}, synchronize=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture(scope="module")
def stand_in_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cusparse")
    path = folder / "libstand_in.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, STAND_IN], check=True)
    return path


def open_stand_in(path, version):
    library = ctypes.CDLL(str(path))
    ctypes.c_int.in_dll(library, "version").value = version
    return library, cusparse.CuSparse(library)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_cusparse_setting_passes_its_arguments_in_order(
    stand_in_path, cupy_stand_in, monkeypatch, dtype
):
    library, opened = open_stand_in(stand_in_path, 12801)
    monkeypatch.setattr(baselines_cuda, "load", lambda: opened)
    assert opened.version_text == "12.8.1"
    csr = matrix(rows=75, dtype=dtype)  # the last slice of 32 rows is not full
    x = np.random.default_rng(4).standard_normal(50).astype(dtype)
    wanted = [name for name in baselines_cuda.NAMES if name != "cupy"]
    made = baselines_cuda.build(csr, OnDevice(x), names=wanted)
    assert made.missing == []
    assert [c.name for c in made.candidates] == wanted
    for candidate in made.candidates:
        candidate.poison()
        assert not core.check_rows(candidate.result().values, reference_of(csr, x)).passed
        candidate.run()
        assert core.check_rows(candidate.result().values, reference_of(csr, x)).passed, candidate.name
        assert candidate.setup_ms > 0
        candidate.close()
    assert ctypes.c_int.in_dll(library, "alive").value == 0


@pytest.mark.parametrize(("version", "said"), [(12603, "12.6.3"), (12710, "12.7.10"), (13000, "13.0.0")])
def test_spmvop_is_left_out_where_its_interface_is_another(
    stand_in_path, cupy_stand_in, monkeypatch, version, said
):
    _, opened = open_stand_in(stand_in_path, version)
    monkeypatch.setattr(baselines_cuda, "load", lambda: opened)
    made = baselines_cuda.build(matrix(), OnDevice(np.ones(50)), names=("cusparse_alg1", "cusparse_spmvop1"))
    assert [c.name for c in made.candidates] == ["cusparse_alg1"]
    assert f"not available in cuSPARSE {said}" in made.missing[0].reason


def test_a_failed_call_names_itself(stand_in_path):
    _, opened = open_stand_in(stand_in_path, 12801)
    with pytest.raises(RuntimeError, match=r"cusparseSetStream returned status 3 \(invalid value\)"):
        opened.set_stream(8)


def test_sliced_ell_holds_every_entry_once_and_refuses_waste():
    csr = matrix(rows=70)
    values, columns, offsets = baselines_cuda.sliced_ell(csr)
    assert np.count_nonzero(columns >= 0) == csr.nnz
    assert len(offsets) == 4
    assert offsets[-1] == len(values) == len(columns)
    assert np.all(values[columns < 0] == 0)
    spike = scipy.sparse.csr_array((np.ones(5000), ([0] * 5000, range(5000))), shape=(64, 5000))
    with pytest.raises(RuntimeError, match="slots for 5000 entries"):
        baselines_cuda.sliced_ell(spike)


def test_the_gpu_clock_replays_a_graph_of_twenty(cupy_stand_in):
    ran = []
    found = timing.time_cuda([Candidate("one", lambda: ran.append(1), lambda: None)])["one"]
    assert len(ran) == 2 + 20
    assert (found.method, found.products, found.samples) == ("graph", 20, 7)
    assert found.best_us == pytest.approx(5.0)


def test_what_cannot_be_captured_is_timed_by_events(cupy_stand_in):
    def refuse(stream=Stream()):  # noqa: B008
        raise RuntimeError("operation not permitted when stream is capturing")

    assert timing.capture(refuse, Stream()) is None
    calls = []

    def run():
        calls.append(1)
        Event.advance(7e-3)

    loop = Candidate("loop", run, lambda: None, capturable=False)
    found = CudaDevice().time([loop], None)["loop"]
    assert found.method == "events"
    assert found.best_us == pytest.approx(7.0)
    assert found.cold_us == pytest.approx(7.0)
    assert len(calls) == 2 + 20 * (1 + 7) + cold.SAMPLES
