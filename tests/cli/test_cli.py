"""The command line: what it prints, its exit status, and one line on stderr for every mistake."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import dasp
from dasp import formats
from dasp.cli import figures, info, options, other_solvers, solve, systems
from dasp.cli import main as cli
from dasp.cli.options import COMMANDS
from dasp.cli.other_solvers import SHARED
from dasp.models import families, generate
from dasp.solvers.choose import METHODS

CPU = ["--device", "cpu"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    output = capsys.readouterr()
    return status, output.out, output.err


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a mistake prints on stderr; it must be one, with exit status 2."""
    status, _, stderr = run(capsys, *words)
    assert status == 2
    assert stderr.startswith("dasp: error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    assert "Traceback" not in stderr
    return stderr


# info


def test_info_shows_the_matrix_and_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "info", "poisson2d:30", *CPU)
    assert (status, err) == (0, "")
    matrix = generate("poisson2d:30")
    assert f"900 x 900, {matrix.nnz:,} entries" in out
    assert repr(dasp.SpMatrix.from_scipy(matrix, device="cpu")) in out
    assert "planned in" in out
    assert "0 empty rows" in out


def test_info_plans_in_the_format_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {
        name: run(capsys, "info", "rmat:8", *CPU, "--format", name)[1] for name in ("auto", "sell", "dasp")
    }
    for name, out in shown.items():
        planned = dasp.SpMatrix(generate("rmat:8"), "cpu", policy=dasp.Policy(format=name))
        assert repr(planned) in out
    assert shown["auto"].partition("planned in")[0] == shown["sell"].partition("planned in")[0]
    assert shown["auto"].partition("planned in")[0] != shown["dasp"].partition("planned in")[0]


def test_info_takes_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "info", "rmat:8", *CPU, "--seed", "5")
    assert f"{generate('rmat:8', seed=5).nnz:,} entries" in out


class Page(HTMLParser):
    """What a page opens and closes, what it loads, and its text."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for key, value in attributes if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_info_writes_a_page_that_needs_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    matrix = dasp.models.generate("rmat:9")
    name = str(tmp_path / "a<b&c.npz")
    scipy.sparse.save_npz(name, matrix)
    target = tmp_path / "page.html"
    status, out, err = run(capsys, "info", name, *CPU, "--html", str(target))
    assert (status, err) == (0, "")
    assert f"wrote {target}" in out
    text = target.read_text(encoding="utf-8")
    found = Page(text)
    assert found.open == []
    assert found.loads == ["data:,"]
    assert "script" not in found.tags
    assert text.count("url(") == text.count("url(#")
    assert name in found.text  # escaped in the source, whole in the text
    assert found.tags.count("svg") == 1
    for word in ("slices", "values", "/roofline", "best baseline", "pays after", f"{matrix.nnz:,} entries"):
        assert word in found.text


def test_a_notebook_shows_the_parts() -> None:
    A = dasp.SpMatrix.from_scipy(dasp.models.generate("rmat:8"), device="cpu", policy=dasp.Policy.dasp())
    found = Page(A._repr_html_())
    assert found.open == []
    assert found.loads == []
    for part in ("long", "regular", "irregular", "short", f"{A.nnz} entries"):
        assert part in found.text


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (1, 900)])
def test_info_of_a_matrix_with_nothing_in_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shape: tuple[int, int]
) -> None:
    scipy.sparse.save_npz(tmp_path / "empty.npz", csr_array(shape))
    page = tmp_path / "page.html"
    status, out, err = run(capsys, "info", str(tmp_path / "empty.npz"), *CPU, "--html", str(page))
    assert (status, err) == (0, "")
    assert f"{shape[0]} x {shape[1]}, 0 entries" in out
    assert "there are no entries" in page.read_text(encoding="utf-8")


@given(st.lists(st.integers(0, 5000), max_size=60))
def test_length_classes_count_every_row_and_entry(lengths: list[int]) -> None:
    classes = info.length_classes(np.array(lengths, dtype=np.int64))
    assert sum(rows for _, _, rows, _ in classes) == len(lengths)
    assert sum(entries for *_, entries in classes) == sum(lengths)
    assert [first for first, *_ in classes[1:]] == [last + 1 for _, last, *_ in classes[:-1]]
    for first, last, rows, _ in classes:
        assert rows == sum(first <= length <= last for length in lengths)
    assert str(len(lengths)) in info.histogram(np.full(len(lengths), 3)) or not lengths


@given(m=st.integers(1, 70), n=st.integers(1, 70), pixels=st.integers(1, 80), seed=st.integers(0, 9))
def test_the_density_image_counts_every_entry(m: int, n: int, pixels: int, seed: int) -> None:
    matrix = generate(f"random:{m}:{n}:0.2", seed)
    image = figures.density_image(matrix, pixels)
    down, across = image.shape
    assert down <= min(m, pixels)
    assert across <= min(n, pixels)
    row, column = np.arange(m) * down // m, np.arange(n) * across // n
    want = np.zeros(image.shape)
    np.add.at(want, (row[:, None], column[None, :]), matrix.toarray() != 0)
    want /= np.outer(np.bincount(row, minlength=down), np.bincount(column, minlength=across))
    np.testing.assert_array_equal(image, want)


# solve


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
    limit, said = other_solvers.one_blas_thread()
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
            ["--method", "minres", "--precond", "block-jacobi", "--block", "3"],
        ),
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
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    matrix, other = tmp_path / "a.mtx", tmp_path / "b.mtx"
    text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 2\n"
    matrix.write_text(text)
    words = ["solve", str(matrix), *CPU]
    other.write_text("%%MatrixMarket matrix array real general\n2 1\n1d1\n4\n")  # as Fortran writes 10
    assert run(capsys, *words, "--rhs", str(other), "--out", str(tmp_path / "x.npy"))[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), [10.0, 2.0], rtol=1e-7)
    assert "the file of the matrix" in error(capsys, *words, "--out", str(matrix))
    assert matrix.read_text() == text
    assert "is 2 x 2; a vector is needed" in error(capsys, *words, "--rhs", str(matrix))
    assert "must exist" in error(capsys, *words, "--out", str(tmp_path / "no" / "x.npy"))
    (tmp_path / "folder.mtx").mkdir()
    assert "is a folder" in error(capsys, *words, "--out", str(tmp_path / "folder.mtx"))
    np.save(tmp_path / "o.npy", np.array([1, None]), allow_pickle=True)
    assert "o.npy is damaged" in error(capsys, *words, "--rhs", str(tmp_path / "o.npy"))


@pytest.mark.parametrize("method", METHODS)
def test_solve_knows_every_method(capsys: pytest.CaptureFixture[str], method: str) -> None:
    status, out, err = run(
        capsys, "solve", "poisson2d:9", *CPU, "--method", method, "--compare", "--rtol", "1e-6"
    )
    assert (status, err) == (0, "")
    assert f"dasp {method}" in out
    assert (f"SciPy {method}" in out) == (method in SHARED)


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
    rows = {line[:28].strip(): line[28:].split() for line in out.splitlines()[4:] if line.strip()}
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


def test_not_converging_is_exit_status_1_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "solve", "poisson3d:10", *CPU, "--maxiter", "3")
    assert (status, err) == (1, "")
    lines = [line for line in out.splitlines() if line.startswith("not converged:")]
    assert len(lines) == 1
    assert "3 iterations were made" in lines[0]


def test_a_solution_is_judged_by_its_true_residual() -> None:
    matrix, b = generate("poisson2d:5"), np.ones(25)
    x = scipy.sparse.linalg.spsolve(matrix.tocsc(), b)
    for wrong in (np.full(25, np.nan), 0 * x, x + 1e-6, np.full(25, np.inf)):
        assert systems.judge("dasp cg", matrix, wrong, b, 1e-8, 1, 0.0, 0.1, "why").problem == "why"
    assert systems.judge("dasp cg", matrix, x, b, 1e-8, 1, 0.0, 0.1, "why").problem == ""


def test_single_precision_gets_a_tolerance_it_can_reach(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", generate("poisson3d:8").astype(np.float32))
    status, out, _ = run(capsys, "solve", str(tmp_path / "a.npz"), *CPU)
    assert status == 0
    assert "1.0e-04" in out


# config, help, version


def test_config_and_help_print(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "config")
    assert (status, err) == (0, "")
    assert dasp.__version__ in out
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "")
    for usage, summary in families().items():
        assert usage in out
        assert summary in out
    assert str(dasp.__doc__).splitlines()[0] in out
    assert "matrix.py asks" not in out  # the package's docstring goes on; its help does not
    for command in (
        "info",
        "solve",
        "config",
        "bench",
        "partition",
        "tune",
    ):
        assert re.search(f"^    {command}( |$)", out, flags=re.MULTILINE)
        status, shown, _ = run(capsys, *command.split(), "--help")
        assert status == 0
        assert shown.startswith(f"usage: dasp {command} ")
    assert run(capsys, "--version")[:2] == (0, f"dasp {dasp.__version__}\n")


def test_json_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "info", "poisson2d:9", *CPU, "--json")
    found = json.loads(out)
    assert (status, found["matrix"], found["shape"], found["device"]) == (0, "poisson2d:9", [81, 81], "cpu")
    assert sum(part["rows"] for part in found["row_lengths"]) == 81
    assert found["plan"]["format"] == "sell"
    status, out, _ = run(capsys, "info", "rmat:8", *CPU, "--format", "dasp", "--json")
    assert json.loads(out)["plan"]["format"] == "dasp"
    status, out, _ = run(capsys, "config", "--json")
    assert (status, json.loads(out)["dasp"]) == (0, dasp.__version__)


@pytest.mark.parametrize("spec", ["circuit:2000", "poisson3d:8", "spikes:900:2:600", "short:700"])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_the_shares_of_a_plan_add_up(spec: str, layout: str) -> None:
    policy = dasp.Policy(format=layout)
    planned = dasp.SpMatrix.from_scipy(generate(spec), policy=policy, device="cpu")
    parts = formats.find(layout).summary(planned.plan)
    for what, shares in formats.shares(planned.plan).items():
        whole = planned.plan.nbytes if what == "bytes" else sum(part.slots for part in parts)
        assert sum(shares.values()) == whole
        assert min(shares.values()) > 0


QUICK = ["bench", *CPU, "--threads", "1", "--seconds", "0.001"]


def test_bench_compares_a_plan_with_what_a_user_would_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasp.cli.devices.TimedHost.bandwidth", 1e10)
    status, out, _ = run(capsys, *QUICK, "poisson2d:9", "--json")
    (row,) = json.loads(out)["rows"]
    assert (status, row["matrix"], row["verified"], row["rows"]) == (0, "poisson2d:9", True, 81)
    assert row["best_baseline"] in ("scipy", "numba_csr")
    assert row["best_baseline_us"] == min(row["scipy_us"], row["numba_csr_us"])
    assert row["plan_ms"] > 0
    status, out, _ = run(capsys, *QUICK, "poisson2d:9")
    assert status == 0
    assert {"matrix", "poisson2d:9"} <= {line.partition(" ")[0] for line in out.splitlines()}
    status, out, _ = run(capsys, *QUICK, "poisson2d:9", "--dtype", "float16")
    assert (status, "SciPy has no products of float16" in out) == (0, True)


def test_bench_answers_with_its_status_where_a_product_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasp.cli.devices.TimedHost.bandwidth", 1e10)
    real = dasp.SpMatrix.matvec

    def spoil(A: Any, x: Any, *, out: Any) -> Any:
        real(A, x, out=out)
        out[3] = np.nan
        return out

    monkeypatch.setattr(dasp.SpMatrix, "matvec", spoil)
    status, out, _ = run(capsys, *QUICK, "poisson2d:9")
    assert status == 1
    assert "WRONG in 1 rows: poisson2d:9" in out


def test_products_that_have_no_bound_are_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dasp.cli.devices.TimedHost.bandwidth", 1e10)
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array(np.array([[np.nan, 1.0]])))
    status, out, err = run(capsys, *QUICK, str(tmp_path / "a.npz"))
    assert (status, out) == (2, "")
    assert "a.npz holds NaN or infinity" in err


def test_a_missing_command_module_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "nosuch", options.Command("nosuch", "does nothing"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["nosuch"])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_commands_says_what_their_modules_say(command: str) -> None:
    parser = cli.build_parser(command)
    (commands,) = (action for action in parser._actions if action.choices)
    assert list(commands.choices) == list(COMMANDS)
    said = {action.dest: action.help for action in commands._choices_actions}
    assert said == {name: command.summary for name, command in COMMANDS.items()}
    assert commands.choices[command].get_default("run") is not None or command == "tune"


def test_a_plan_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["plan", "poisson2d:12", str(tmp_path / "a.plan"), "--device", "cpu"]) == 0
    assert "144 x 144" in capsys.readouterr().out
    planned = dasp.SpMatrix(dasp.load_plan(tmp_path / "a.plan"), "cpu")
    x = np.arange(144.0)
    np.testing.assert_array_equal(planned @ x, dasp.SpMatrix.from_scipy(planned.to_scipy(), device="cpu") @ x)


def test_usual_calls_are_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasp.cli.machine.MODELS", ("poisson2d:12", "powerlaw:300"))
    status, out, _ = run(capsys, "warmup", "--device", "cpu", "--dtype", "float64")
    assert status == 0
    assert [line.rsplit(maxsplit=2)[0] for line in out.splitlines()[1:]] == [
        "products of float64 with poisson2d:12",
        "products of float64 with powerlaw:300",
        "solves of float64",
    ]


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


def test_on_a_terminal_without_tqdm_no_bar_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(options, "_on_terminal", lambda: True)
    assert options.shows_progress()
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert not options.shows_progress()
    for words in (["solve", "poisson2d:12"], ["plan", "poisson2d:12", str(tmp_path / "a.plan")]):
        status, _, stderr = run(capsys, *words, *CPU)
        assert (status, stderr) == (0, "")


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(_: object) -> int:
        warnings.warn("take care", stacklevel=1)
        return 0

    monkeypatch.setattr("dasp.cli.machine._config", warn)
    assert run(capsys, "config") == (0, "", "dasp: warning: take care\n")


# Mistakes


LAUNCHERS = {
    "mpirun": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "{}"},
    "srun": {"PMI_SIZE": "2", "PMI_RANK": "{}"},
    "torchrun": {"WORLD_SIZE": "2", "RANK": "{}", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("words", [["solve", "--nosuch"], ["bogus"], ["solve", "--help"]])
def test_what_all_ranks_would_say_the_first_one_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, launcher: str, words: list[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", slept.append)
    said = {}
    for rank in (0, 1):
        for name, value in LAUNCHERS[launcher].items():
            monkeypatch.setenv(name, value.format(rank))
        assert cli.main(words) == (0 if "--help" in words else cli.EXIT_USER_ERROR)
        said[rank] = "".join(capsys.readouterr())
    assert said[0]
    assert said[1] == ""
    assert len(slept) == ("--help" not in words)  # so that rank 0 has spoken before a launcher ends it


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["COMMAND", "dasp --help"]),
        (["bogus"], ["'bogus'", "info"]),
        (["info"], ["MATRIX", "dasp info --help"]),
        (["info", "a", "b"], ["unrecognized arguments: b"]),
        (["info", "poisson3d:5", "--bogus"], ["--bogus"]),
        (["info", "nosuchfile.mtx"], ["nosuchfile.mtx", "not found"]),
        (["info", "nosuch:5"], ["known model"]),
        (["info", "poisson3d:x"], ["'x'", "whole number"]),
        (["info", "poisson3d:-5"], ["at least 1"]),
        (["info", "dense:10000000"], ["half of this machine's memory"]),
        (["info", "poisson3d:5", "--seed", "-1"], ["--seed", "-1 was given"]),
        (["info", "poisson3d:5", "--seed", "one"], ["--seed", "one was given"]),
        (["info", "poisson3d:5", "--device", "tpu"], ["tpu"]),
        (["info", "poisson3d:5", "--html", "a.txt"], ["'a.txt'", "must end in .html"]),
        (["info", "poisson3d:5", "--html", "/nosuch/folder/a.html"], ["/nosuch/folder must exist"]),
        (["solve", "lp:5:9"], ["5 x 9", "square"]),
        (["solve", "poisson3d:5", "--method", "magic"], ["magic", "cg"]),
        (["solve", "poisson3d:5", "--method", "lsqr", "--precond", "ic0"], ["--precond is ic0", "lsqr"]),
        (["solve", "poisson3d:5", "--rtol", "0"], ["--rtol", "0 was given"]),
        (["solve", "poisson3d:5", "--rtol", "nan"], ["--rtol", "nan was given"]),
        (["solve", "poisson3d:5", "--maxiter", "0"], ["--maxiter", "0 was given"]),
        (["solve", "kkt:20", "--precond", "jacobi"], ["10 rows", "row 20", "diagonal"]),
        (["solve", "poisson3d:5", "--precond", "magic"], ["magic", "multigrid"]),
        (["solve", "poisson3d:5", "--out", "x.txt"], ["x.txt", ".npy or .mtx"]),
        (["solve", "poisson3d:5", "--rhs", "two"], ["--rhs is two", "random"]),
        (["solve", "poisson3d:5", "--rhs", "nosuch.npy"], ["nosuch.npy"]),
        (["solve", "poisson3d:5", "--plot", "a.xyz"], [".png, .pdf or .svg"]),
        (["solve"], ["MATRIX"]),
        (["info", "poisson3d:5", "--format", "rows"], ["--format", "'rows'", "'sell'"]),
        (["bench", *CPU, "poisson3d:5", "--seconds", "nan"], ["--seconds", "nan was given", "above 0"]),
        (["bench", *CPU, "poisson3d:5", "--seconds", "-1"], ["--seconds", "-1 was given"]),
        (["tune", "mend"], ["'mend'", "gemm"]),
        (["tune", "gemm", "--bogus"], ["--bogus"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], parts: list[str]
) -> None:
    line = error(capsys, *words)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("command", ["info", "solve"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.mtx", b""),
        ("page.mtx", b"<!DOCTYPE html><html></html>"),
        ("cut.mtx", b"%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1\n"),
        ("nan.mtx", b"%%MatrixMarket matrix coordinate real general\nnan 3 3\n1 1 1\n"),
        ("header.mtx", b"%%MatrixMarkt matrix\n"),
        ("zeros.mtx", b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1\0\n"),
        ("a.mtx.gz", b"not gzip"),
        ("a.npz", b"PK not zip"),
    ],
)
def test_a_bad_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in error(capsys, command, str(tmp_path / name))
    assert str(tmp_path) in error(capsys, command, str(tmp_path))


def test_a_matrix_without_rows_cannot_be_solved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array((0, 0)))
    assert "0 x 0" in error(capsys, "solve", str(tmp_path / "a.npz"))


def test_missing_matplotlib_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for words in (["info", "--html", "a.html"], ["solve", "--plot", "a.png"]):
        command, option, name = words
        assert "pip install matplotlib" in error(capsys, command, "poisson2d:3", option, str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_debug_shows_where_an_error_came_from() -> None:
    with pytest.raises(ValueError, match="whole number"):
        cli.main(["info", "poisson3d:x", "--debug"])
    with pytest.raises(ValueError, match="not found"):
        cli.main(["--debug", "info", "nosuchfile"])


def test_a_defect_of_ours_is_not_taken_for_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> int:
        raise ModuleNotFoundError("No module named 'dasp.nosuch'", name="dasp.nosuch")

    monkeypatch.setattr("dasp.cli.machine._config", missing)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["config"])


def test_ctrl_c_is_exit_status_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dasp.cli.machine.show_config", interrupted)
    status, _, err = run(capsys, "config")
    assert status == 130
    assert err.count("\n") == 1


def test_an_interrupt_that_a_library_makes_another_error_of_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(_: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            raise ImportError("PyCapsule_Import could not import module") from interrupt
        return 0

    usual = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("dasp.cli.machine._config", torn)
    assert run(capsys, "config") == (130, "", "dasp: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is usual


# As a process


def process(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


def test_it_runs_as_a_process(tmp_path: Path) -> None:
    # From another folder, so that the installed package or the path finds it, not the folder we are in.
    environment = {**os.environ, "PYTHONPATH": str(Path(dasp.__file__).parents[1])}
    done = process("dasp", "info", "poisson3d:6", *CPU, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "216 x 216" in done.stdout
    wrong = process("dasp.cli.main", "info", "nosuchfile", cwd=tmp_path, env=environment)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("dasp: error: nosuchfile was not found")
    assert wrong.stderr.count("\n") == 1


def test_without_an_output_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as of `dasp ... >&-`
    assert cli.main(["info", "poisson2d:3", *CPU]) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["tune", "--help"], ["config"]], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error(words: list[str], unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "dasp", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (2, "dasp: error: No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "dasp", "config"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_second_of_two_plans_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    real = dasp.SpMatrix.__init__

    def count(A: dasp.SpMatrix, matrix: csr_array, *given: Any, **options: Any) -> None:
        made.append(matrix.shape)
        real(A, matrix, *given, **options)

    monkeypatch.setattr(dasp.SpMatrix, "__init__", count)
    planned, seconds = options.plan_timed(generate("poisson2d:9"), "auto", "cpu")
    assert (made, planned.shape, seconds > 0) == ([(81, 81)] * 2, (81, 81), True)
