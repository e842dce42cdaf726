"""`dasp solve`: methods, files of vectors, verdicts by the true residual, and other solvers beside ours."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csr_array

from dasp.cli import compare, solve, systems
from dasp.cli.compare import SHARED
from dasp.models import generate
from dasp.preconditioners.automatic import METHODS
from tests.support.command import CPU, error, run


def test_a_comparison_gives_every_blas_one_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[bool] = [False]
    seen: list[str] = []

    @contextlib.contextmanager
    def limited() -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    def watch(name: str) -> None:
        real = getattr(solve, name)

        def look(*given: Any, **options: Any) -> Any:
            seen.extend([name] * inside[0])
            return real(*given, **options)

        monkeypatch.setattr(solve, name, look)

    threads = "BLAS limited to 1 thread for all solvers"
    monkeypatch.setattr(solve, "one_blas_thread", lambda: (limited(), threads))
    for name in ("preconditioner", "solve", "solve_by_others"):
        watch(name)
    status, out, _ = run(capsys, "solve", "poisson2d:9", *CPU, "--precond", "jacobi", "--compare")
    assert (status, threads in out) == (0, True)
    assert list(dict.fromkeys(seen)) == ["preconditioner", "solve", "solve_by_others"]


def test_what_a_solve_compiles_is_compiled_before_it_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    types: list[str] = []
    real = solve.solve

    def look(A: Any, b: Any, **options: Any) -> Any:
        types.append(b.dtype.name)
        return real(A, b, **options)

    monkeypatch.setattr(solve, "solve", look)
    np.save(tmp_path / "b.npy", np.full(16, 1j))
    for rhs, dtype in (("ones", "float64"), (str(tmp_path / "b.npy"), "complex128")):
        types.clear()
        assert run(capsys, "solve", "poisson2d:4", *CPU, "--rhs", rhs)[0] == 0
        assert types == [dtype] * 2
    types.clear()
    assert run(capsys, "solve", "poisson2d:4", *CPU, "--precond", "jacobi", "--compare")[0] == 0
    assert types == ["float64"] * 4  # with a preconditioner and without, each compiled first


def test_a_blas_has_one_thread() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    limit, said = compare.one_blas_thread()
    with limit:
        pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    assert {pool["num_threads"] for pool in pools} == {1}
    assert said == "BLAS limited to 1 thread for all solvers"


@pytest.mark.parametrize(
    ("spec", "method", "options"),
    [
        ("poisson3d:8", "cg: A is symmetric", []),
        ("circuit:400", "bicgstab with jacobi: A is not", []),
        ("circuit:400", "bicgstab: A is not", ["--precond", "none"]),
        ("fem3:5", "cg with jacobi: ", ["--precond", "jacobi"]),
        ("poisson2d:20", "cg with multigrid: ", ["--precond", "multigrid"]),
        ("poisson2d:12", "cg with chebyshev: ", ["--precond", "chebyshev"]),
        ("poisson2d:12", "cg with ic0: ", ["--precond", "ic0"]),
        (
            "fem3:5",
            "minres with block-jacobi: as asked",
            ["--method", "minres", "--precond", "block-jacobi"],
        ),
        ("fem3:5", "cg with block-jacobi: ", ["--precond", "block-jacobi", "--block", "5"]),
        ("triangles:400", "cg", ["--rhs", "random", "--seed", "3"]),
        ("poisson2d:12", "bicgstab", ["--method", "bicgstab"]),
        ("circuit:400", "bicgstab", ["--precond", "jacobi"]),
        ("circuit:400", "gmres", ["--method", "gmres", "--precond", "jacobi"]),
    ],
)
def test_solve_reports_a_true_residual(
    capsys: pytest.CaptureFixture[str], spec: str, method: str, options: list[str]
) -> None:
    status, out, err = run(capsys, "solve", spec, *CPU, "--rtol", "1e-6", *options)
    assert (status, err) == (0, "")
    assert f"\n{method}" in out
    residual = float(out.split("true residual ")[1].split()[0])
    assert 0 < residual <= 1e-5
    assert "not converged" not in out


@pytest.mark.parametrize("suffix", [".npy", ".mtx"])
def test_a_solution_goes_to_a_file_and_b_comes_from_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    matrix = generate("poisson2d:15")
    b = np.random.default_rng(0).standard_normal(225)
    systems.write_vector(str(tmp_path / f"b{suffix}"), b)
    names = ["--rhs", str(tmp_path / f"b{suffix}"), "--out", str(tmp_path / f"x{suffix}")]
    status, _, err = run(capsys, "solve", "poisson2d:15", *CPU, "--rtol", "1e-12", *names)
    assert (status, err) == (0, "")
    x = systems.read_vector(str(tmp_path / f"x{suffix}")).reshape(-1)
    np.testing.assert_allclose(x, scipy.sparse.linalg.spsolve(matrix.tocsc(), b), rtol=1e-8)
    assert systems.true_residual(matrix, x, b) <= 2e-12
    assert systems.true_residual(matrix, 0 * x, b) == 1
    assert "holds 225 numbers" in error(capsys, "solve", "poisson2d:9", *CPU, *names)


def test_files_of_vectors_are_read_strictly_and_written_with_care(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, other = tmp_path / "a.mtx", tmp_path / "b.mtx"
    text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 2\n"
    matrix.write_text(text)
    words = ["solve", str(matrix), *CPU]
    other.write_text("%%MatrixMarket matrix array real general\n2 1\n1d1\n4\n")  # as Fortran writes 10
    assert run(capsys, *words, "--rhs", str(other), "--out", str(tmp_path / "x.npy"))[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), [10.0, 2.0], rtol=1e-7)
    assert "which is read" in error(capsys, *words, "--out", str(matrix))
    assert "which is read" in error(capsys, *words, "--rhs", str(other), "--out", str(other))
    assert matrix.read_text() == text
    assert "is 2 x 2; a vector is needed" in error(capsys, *words, "--rhs", str(matrix))
    assert "must exist" in error(capsys, *words, "--out", str(tmp_path / "no" / "x.npy"))
    (tmp_path / "folder.mtx").mkdir()
    assert "is a folder" in error(capsys, *words, "--out", str(tmp_path / "folder.mtx"))
    os.mkfifo(tmp_path / "pipe.npy")
    status, out, err = run(capsys, *words, "--out", str(tmp_path / "pipe.npy"))
    assert (status, out, "a pipe" in err) == (2, "", True)  # before the solve
    (tmp_path / "named").mkdir()
    inside = tmp_path / "named" / "named.mtx"
    inside.write_text(text)
    told = error(capsys, "solve", str(inside.parent), *CPU, "--out", str(inside))
    assert "which is read" in told
    monkeypatch.setenv("DASP_MATRICES", str(tmp_path))
    assert "which is read" in error(capsys, "plan", "a", str(matrix), *CPU)
    assert inside.read_text() == matrix.read_text() == text
    np.save(tmp_path / "o.npy", np.array([1, None]), allow_pickle=True)
    assert "o.npy is damaged" in error(capsys, *words, "--rhs", str(tmp_path / "o.npy"))
    (tmp_path / "long.npy").write_bytes((tmp_path / "x.npy").read_bytes() + b"1")
    assert "goes on after its end" in error(capsys, *words, "--rhs", str(tmp_path / "long.npy"))


@pytest.mark.parametrize("method", METHODS)
def test_solve_knows_every_method(capsys: pytest.CaptureFixture[str], method: str) -> None:
    status, out, err = run(
        capsys, "solve", "poisson2d:9", *CPU, "--method", method, "--compare", "--rtol", "1e-6"
    )
    assert (status, err) == (0, "")
    assert f"dasp {method}" in out
    assert (f"SciPy {method}" in out) == (method in SHARED)


@pytest.mark.parametrize("shape", [(60, 9), (9, 60), (9, 9)])
def test_least_squares_are_judged_by_the_true_gradient(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(5)
    A = rng.standard_normal(shape)
    A[:, -1] = A[:, 0]
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array(A))
    words = ["solve", str(tmp_path / "a.npz"), *CPU, "--rtol", "1e-10", "--out", str(tmp_path / "x.npy")]
    status, out, err = run(capsys, *words, *(["--method", "lsqr"] if shape == (9, 9) else []), "--json")
    (ours,) = json.loads(out)["solvers"]
    assert (status, err, ours["converged"]) == (0, "", True)
    assert ours["gradient"] is None if shape[0] < shape[1] else ours["gradient"] <= 1e-9
    want = np.linalg.lstsq(A, np.ones(shape[0]), rcond=1e-12)[0]
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), want, rtol=1e-6, atol=1e-8)
    assert systems.true_gradient(csr_array(A), want + 1, np.ones(shape[0])) > 1e-2


def test_solve_takes_complex_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    laplacian, rng = generate("poisson2d:12"), np.random.default_rng(0)
    b = rng.standard_normal(144) + 1j * rng.standard_normal(144)
    phases = scipy.sparse.diags_array(np.exp(1j * np.arange(144)))
    matrices = {
        "cg": phases @ laplacian @ phases.conj(),
        "bicgstab": laplacian - (0.3 - 0.4j) * scipy.sparse.eye_array(144),
    }
    systems.write_vector(str(tmp_path / "b.mtx"), b)
    names = ["--rhs", str(tmp_path / "b.mtx"), "--out", str(tmp_path / "x.npy"), "--precond", "jacobi"]
    for method, matrix in matrices.items():
        scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(matrix))
        status, out, err = run(capsys, "solve", str(tmp_path / "a.npz"), *CPU, "--compare", *names)
        assert (status, err) == (0, "")
        assert f"\n{method} with jacobi" in out
        assert f"SciPy {method}" in out
        x = systems.read_vector(str(tmp_path / "x.npy"))
        assert np.linalg.norm(b - matrix @ x) <= 1.01e-8 * np.linalg.norm(b)
    status, out, err = run(capsys, "solve", "poisson2d:12", *CPU, "--compare", *names)
    assert (status, err) == (0, "")
    assert "SciPy cg" in out
    assert systems.read_vector(str(tmp_path / "x.npy")).dtype == np.complex128


def test_others_solve_the_same_system(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["solve", "poisson2d:30", *CPU, "--compare", "--rtol", "1e-9"]
    status, out, _ = run(capsys, *words, "--precond", "multigrid", "--plot", str(tmp_path / "history.pdf"))
    assert status == 0
    cells = [re.split(" {2,}", line) for line in out.splitlines()[4:] if line]
    rows = {name: row for name, *row in cells}
    others = {"dasp cg", "SciPy cg", "PyAMG cg with its cycle"}
    assert set(rows) == {"solver", "dasp cg with multigrid"} | others
    assert all(float(row[-1]) <= 1.1e-9 for name, row in rows.items() if name != "solver")
    assert int(rows["dasp cg with multigrid"][0]) < int(rows["SciPy cg"][0]) / 3
    assert abs(int(rows["dasp cg"][0]) - int(rows["SciPy cg"][0])) <= 1
    assert (tmp_path / "history.pdf").stat().st_size > 1000
    status, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    assert (status, found["matrix"], found["rows"], found["device"]) == (0, "poisson2d:30", 900, "cpu")
    assert [one["solver"] for one in found["solvers"]] == ["dasp cg", "SciPy cg", "PyAMG cg with its cycle"]
    assert all(one["converged"] for one in found["solvers"])
    assert len(found["residuals"]) == found["solvers"][0]["iterations"] + 1
    assert found["choice"] == "cg: A is symmetric with a positive diagonal; its diagonal is constant"


def test_not_converging_is_exit_status_1_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "solve", "poisson3d:10", *CPU, "--maxiter", "3")
    assert (status, err) == (1, "")
    lines = [line for line in out.splitlines() if line.startswith("not converged:")]
    assert len(lines) == 1
    assert "3 iterations were made" in lines[0]


def test_a_solution_is_judged_by_its_true_residual(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = solve.solve
    for wrong in (np.full(25, np.nan), np.zeros(25), np.full(25, np.inf), None):

        def lie(*given: Any, wrong: Any = wrong, **options: Any) -> Any:
            x, stats = real(*given, **options)
            return x + 1e-6 if wrong is None else wrong, stats

        monkeypatch.setattr(solve, "solve", lie)
        status, out, _ = run(capsys, "solve", "poisson2d:5", *CPU)
        assert status == 1
        assert "\nnot converged: " in out


def test_a_solve_without_numbers_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array([[np.nan, 0.0], [0.0, 1.0]]))
    status, out, _ = run(capsys, "solve", str(tmp_path / "a.npz"), *CPU, "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert (status, found["solvers"][0]["true_residual"]) == (1, None)
    assert None in found["residuals"]


def test_a_bar_is_shown_on_a_terminal_if_tqdm_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "on_terminal", lambda: True)
    assert "iterations" in run(capsys, "solve", "poisson2d:12", *CPU)[2]
    monkeypatch.setitem(sys.modules, "tqdm", None)
    status, _, stderr = run(capsys, "solve", "poisson2d:12", *CPU)
    assert (status, stderr) == (0, "")


def test_single_precision_gets_a_tolerance_it_can_reach(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", generate("poisson3d:8").astype(np.float32))
    status, out, _ = run(capsys, "solve", str(tmp_path / "a.npz"), *CPU)
    assert status == 0
    assert "1.0e-04" in out


@pytest.mark.parametrize(
    ("spec", "rows"), [("poisson2d:12", 144), ("poisson3d:40", 7_400), ("dense:500", 100)]
)
def test_rows_of_the_matrix_are_solved_with_first(spec: str, rows: int) -> None:
    """So that seconds that are told are none of the compiler."""
    matrix = generate(spec)
    first = solve.leading_rows(matrix)
    assert abs(first.shape[0] - rows) <= 100
    assert first.nnz <= solve.COMPILING + 500
    assert solve.leading_rows(csr_array((0, 3))).shape == (0, 3)
    assert solve.leading_rows(csr_array(np.ones((3, 2 * solve.COMPILING)))).shape[0] == 1


def test_a_preconditioner_is_compiled_before_it_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, make = [], solve.preconditioner

    def counted(kind: str, matrix: csr_array, *rest: Any) -> Any:
        rows.append(matrix.shape[0])
        return make(kind, matrix, *rest)

    monkeypatch.setattr(solve, "preconditioner", counted)
    assert run(capsys, "solve", "poisson2d:12", "--precond", "ic0", *CPU)[0] == 0
    assert rows == [144, 144]
    status, _, stderr = run(capsys, "solve", "rmat:7", "--precond", "jacobi", *CPU)
    assert (status, "have no usable diagonal entry" in stderr) == (2, True)


def test_the_report_is_printed_if_a_file_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dasp.io.files.os.replace", refuse)
    for option, name in (("--out", "x.npy"), ("--plot", "x.png")):
        status, out, err = run(capsys, "solve", "poisson2d:9", *CPU, option, str(tmp_path / name))
        assert (status, "true residual" in out) == (2, True)
        assert f"{name} cannot be written: No space left on device; name a file" in err
    assert not list(tmp_path.iterdir())


def test_a_matrix_without_rows_cannot_be_solved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array((0, 0)))
    assert "0 x 0" in error(capsys, "solve", str(tmp_path / "a.npz"))
