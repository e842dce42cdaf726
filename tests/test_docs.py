"""What the documents say is so: code runs, commands and paths exist, versions agree."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dasp
from dasp.commands.bench import OTHERS
from dasp.models import is_model

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
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
PRINTS = (("rows", "entries"), ("goto: ", "dot - ", "goto - "), ("True",))
"""Words that each block of the README prints: a plan's table, a ladder, that shards fit together."""


@pytest.mark.parametrize(
    ("source", "words"), list(zip(CODE, PRINTS, strict=True)), ids=["path", "gemm", "gf256"]
)
def test_the_code_in_the_readme_runs(source: str, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words)


def test_the_readme_shows_the_ten_line_path() -> None:
    assert len(CODE[0].splitlines()) <= 12


def test_the_readme_names_what_a_file_defines() -> None:
    named = re.findall(r"`(dasp/[\w/]+\.py)` \(`(\w+)`\)", README)
    assert len(named) >= 3
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", text, flags=re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_a_make_target_exists(words: list[str]) -> None:
    # -n prints what would be done, and fails on a target that does not exist.
    done = subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_both_commands_are_named() -> None:
    assert {"make demo", "make test"} <= {" ".join(words) for words in commands("make")}


@pytest.mark.parametrize("words", commands("dasp"), ids=" ".join)
def test_a_dasp_command_exists(words: list[str]) -> None:
    name = words[1:3] if words[1] == "rs" or set(words[2:3]) & OTHERS.keys() else words[1:2]
    command = [sys.executable, "-m", "dasp", *name, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"dasp {' '.join(name)} " in done.stdout
    arguments = words[1 + len(name) :]
    assert all(word == "FILE" or is_model(word) for word in arguments)
    assert ("MATRIX" in done.stdout) == any(map(is_model, arguments))


def test_the_extras_exist() -> None:
    named = {extra for words in commands("pip") for extra in re.findall(r"\[(\w+)\]", " ".join(words))}
    assert "cuda13" in named
    assert named <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_path_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"`((?:dasp|kernels|tests|benchmarks|matrices)/[\w/.]*|[A-Z]+\.(?:md|cff))`", text)
    assert named
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("name", re.findall(r"<!-- results:(\w+) begin -->", README))
def test_a_table_says_what_its_csv_says(name: str, tmp_path: Path) -> None:
    # Where there is no CSV there is no table; where there is one, drawing the table again changes nothing.
    # Times that stand in for those of a missing library come from a CSV beside it.
    results = ROOT / "benchmarks" / "results"
    shown = README.partition(f"<!-- results:{name} begin -->")[2].partition(f"<!-- results:{name} end -->")[0]
    if not (results / f"{name}.csv").exists():
        assert shown.strip() == ""
        return
    readme = tmp_path / "README.md"
    readme.write_text(README, encoding="utf-8")
    anchors = results.parent / f"anchors_{name}.csv"
    options = ["--name", name, "--figure", tmp_path / "figure.png"]
    options += ["--anchors", anchors] if anchors.exists() else []
    program = "suitesparse"
    if name.removesuffix("_cpu") in OTHERS:
        program, options = name.removesuffix("_cpu"), ["--csv", results / f"{name}.csv"]
    done = subprocess.run(
        [sys.executable, f"benchmarks/{program}.py", "--report-only", "--readme", readme, *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert readme.read_text(encoding="utf-8") == README


def test_the_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", citation, flags=re.MULTILINE)[1] == dasp.__version__
    assert "10.1145/3581784.3607051" in citation
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changes, flags=re.MULTILINE)
    assert headings[0] in {"Unreleased", dasp.__version__}
