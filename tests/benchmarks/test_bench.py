"""The benchmark is tested like a product: what it must catch, it is shown; what it must count, is counted."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from benchmarks import report as documents
from benchmarks.bench import (
    baselines_cpu,
    command,
    results,
    sparse,
    sparse_report,
)
from benchmarks.bench.device import HostDevice
from benchmarks.bench.sparse import measure
from dasp.cli import measure as core
from dasp.cli import timing
from dasp.cli.timing import Candidate

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
    makers = baselines_cpu.build(csr, x)
    assert tuple(makers) == baselines_cpu.NAMES
    for name, make in makers.items():
        if name == "mkl" and baselines_cpu.load_mkl() is None:
            continue
        candidate = make()
        for _ in range(2):
            assert core.check_rows(candidate.product(), reference_of(csr, x)).passed, name
        if candidate.close:
            candidate.close()


# --- one matrix -------------------------------------------------------------------------------------------


def test_a_right_matrix_is_timed_beside_its_baselines(host):
    found, row = measure("example", matrix(), host, plan=RowLoop, samples=3)
    assert found.verified.passed
    assert {"dasp", "dasp_new", "scipy", "numba_csr"} <= set(found.timings)
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
    found, row = measure("example.T", matrix(), host, samples=3, transpose=True)
    assert found.verified.passed
    assert {"dasp", "dasp_new", "scipy"} <= set(found.timings)
    assert (row["rows"], row["cols"], row["entries"]) == ("50", "60", str(matrix().nnz))
    assert float(row["plan_ms"]) > 0
    assert "no product with the transpose" in row["missing"]
    csr = matrix()
    csr.data[7] *= 2  # a transpose of other values is wrong
    wrong, _ = measure(
        "wrong", matrix(), host, plan=lambda _: dasp.SpMatrix(csr, "cpu"), samples=3, transpose=True
    )
    assert not wrong.verified.passed
    assert wrong.timings == {}


@pytest.mark.parametrize("operator", [Skewed, Forgetful, Spoiled, Elsewhere, Misshapen])
def test_a_wrong_product_is_caught_and_not_timed(operator, host):
    found, row = measure("wrong", matrix(), host, plan=operator, samples=3)
    assert not found.verified.passed
    assert found.timings == {}
    assert row["verified"] == "no"
    assert row["time_us"] == ""
    assert not results.right(row)
    assert "WRONG, and not timed: wrong" in sparse_report.report([row]).text()


def test_a_wrong_baseline_is_left_out(host, monkeypatch):
    def cheat(csr, x, names, **_):
        wrong = Candidate("scipy", lambda: None, np.zeros(csr.shape[0]))
        return baselines_cpu.build(csr, x, names=["numba_csr"]) | {"scipy": lambda: wrong}

    monkeypatch.setattr(host, "all_baselines", cheat)
    found, _ = measure("cheated", matrix(), host, plan=RowLoop, samples=3)
    assert "scipy" not in found.timings
    assert found.best_baseline == "numba_csr"
    assert found.missing["scipy"].startswith("wrong in ")


def test_patterns_are_promoted_and_float32_is_bounded_by_its_own_unit(host):
    pattern = scipy.sparse.csr_array((np.ones(4, np.int8), ([0, 0, 1, 2], [0, 1, 1, 2])), shape=(3, 3))
    found, _ = measure("pattern", pattern, host, plan=RowLoop, samples=3, baselines=["scipy"])
    assert found.verified.passed
    assert set(found.timings) == {"dasp", "dasp_new", "scipy"}
    narrow, row = measure("narrow", matrix(), host, plan=RowLoop, dtype=np.float32, samples=3)
    assert narrow.verified.passed
    assert row["dtype"] == "float32"


def test_the_collection_is_measured_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)
    monkeypatch.setattr(sparse, "FAMILIES", {"small": "poisson2d:9"})
    monkeypatch.setenv("DASP_MATRICES", str(tmp_path))
    scipy.sparse.save_npz(tmp_path / "box.npz", matrix())
    words = ["sparse", "poisson2d:5^2", "--collection", "small", "--repeat", "3", "--baselines", "scipy"]
    words += ["--device", "cpu", "--threads", "1", "--resume", "--csv"]
    for _ in range(2):  # the second time there is nothing left to measure
        assert command.main([*words, str(tmp_path / "box.csv")]) == 0
    rows = results.read(tmp_path / "box.csv")
    assert [row["matrix"] for row in rows] == ["poisson2d:5^2", "box", "poisson2d:9"]
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    assert "Rows: `box.csv`" in documents.text("box")
    assert command.main([*words, str(tmp_path / "no" / "box.csv")]) == 2
    assert "make it first" in capsys.readouterr().err


def test_a_square_has_columns_as_scipy_leaves_them_or_sorted():
    plain, square, in_order = (sparse.load(f"fem1:3{which}", 0) for which in ("", "^2", "^2 sorted"))
    assert not square.has_sorted_indices
    assert in_order.has_sorted_indices
    for made in (square, in_order):
        assert np.allclose(made.toarray(), plain.toarray() @ plain.toarray())


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


def test_registering_commands_loads_nothing_heavy():
    program = (
        "import sys, dasp.cli.bench, dasp.cli.files, dasp.cli.info; "
        "print([m for m in ('numpy', 'numba', 'cupy', 'scipy', 'matplotlib', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
