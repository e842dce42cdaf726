"""What a release promises: one version everywhere, and workflows that may do little and end in time."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import dasp

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_one_version_everywhere() -> None:
    assert loaded("CITATION.cff")["version"] == dasp.__version__
    assert loaded("packaging/conda/recipe.yaml")["context"]["version"] == dasp.__version__


def test_the_recipe_needs_what_the_package_needs() -> None:
    def parts(requirement: str) -> tuple[str, str]:
        name, least = re.fullmatch(r"([\w-]+) ?>=([\d.]+)", requirement).groups()  # type: ignore[union-attr]
        return name, least

    recipe = loaded("packaging/conda/recipe.yaml")["requirements"]["run"]
    wanted = {("python", PROJECT["requires-python"].removeprefix(">=")), *map(parts, PROJECT["dependencies"])}
    assert {parts(line) for line in recipe} == wanted


def test_the_extra_for_all_has_every_other() -> None:
    extras = set(PROJECT["optional-dependencies"])
    assert {"cuda12", "cuda13", "amg", "bench", "test", "all"} <= extras
    (everything,) = PROJECT["optional-dependencies"]["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named == extras - {"all", "cuda12"}  # one CUDA at a time


def test_a_gpu_needs_no_library_that_is_never_loaded() -> None:
    extras = PROJECT["optional-dependencies"]
    for extra, suffix in (("cuda12", "-cu12"), ("cuda13", "")):
        cupy, *others = (re.split(r"[>=\[]", requirement)[0] for requirement in extras[extra])
        assert cupy == f"cupy-{extra}x"
        assert others == [f"nvidia-{part}{suffix}" for part in ("cuda-nvrtc", "cuda-runtime", "cublas")]


LOADED = """
import dasp, cupy, cupyx.scipy.sparse
print({line.split("/")[-1].split(".")[0].strip() for line in open("/proc/self/maps") if "/lib" in line})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_cupy_loads_no_library_that_the_extras_leave_out() -> None:
    pytest.importorskip("cupy")
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "libc" in done.stdout
    assert not re.search("libcu(sparse|solver|fft|rand)", done.stdout)


WITHOUT_TORCH = """
import runpy, sys, matplotlib

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Absent())
matplotlib.use("agg")
runpy.run_path("examples/plot_graph_network.py")
"""


@pytest.mark.slow
def test_the_graph_network_is_trained_without_pytorch_too() -> None:
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "gradients by hand" in done.stdout


def jobs() -> list[tuple[str, dict[str, Any]]]:
    """Every job of every workflow."""
    found = [loaded(str(path.relative_to(ROOT)))["jobs"].items() for path in WORKFLOWS]
    return [pair for each in found for pair in each]


def test_every_python_and_every_platform_is_tested() -> None:
    matrices = [job.get("strategy", {}).get("matrix", {}) for _, job in jobs()]
    pythons = {version for matrix in matrices for version in matrix.get("python", [])}
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert pythons == named == {"3.11", "3.12", "3.13", "3.14"}
    systems = {re.sub(r"-[\d.]+", "", system) for matrix in matrices for system in matrix.get("os", [])}
    assert systems == {"ubuntu", "ubuntu-arm", "macos", "windows"}
    names = {name for name, _ in jobs()}
    assert names == {
        *("test", "cpu", "lowest", "numba-prerelease", "attack", "package", "site", "build", "publish")
    }


def test_what_is_published_was_tested_and_says_where_it_is_from() -> None:
    release = dict(jobs())
    assert release["publish"]["needs"] == "build"
    assert release["publish"]["permissions"] == {
        "contents": "read",
        "id-token": "write",
        "attestations": "write",
    }
    assert release["publish"]["environment"] == "release"
    used = [str(step.get("uses", "")).partition("@")[0] for step in release["publish"]["steps"]]
    assert used[-2:] == ["actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]
    ran = [step.get("run") for step in release["build"]["steps"]]
    assert ran.index(".ci/run") < ran.index("make dist")
    assert all("permissions" not in job for name, job in jobs() if name != "publish")


@pytest.mark.parametrize(("name", "job"), jobs(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_job_has_a_system_of_a_version_keeps_what_it_fetches_and_runs_what_there_is(
    name: str, job: dict[str, Any]
) -> None:
    systems = job.get("strategy", {}).get("matrix", {}).get("os") or [job["runs-on"]]
    assert all(re.search(r"\d", system) and "latest" not in system for system in systems)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for step in job["steps"]:
        if str(step.get("uses", "")).startswith("actions/setup-python"):
            assert step["with"]["cache"] == "pip"
        said = str(step.get("run", ""))
        assert set(re.findall(r"\bmake ([\w-]+)", said)) <= targets
        assert all((ROOT / path).exists() for path in re.findall(r"\btests/\S+\.py|\.ci/\w+", said))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_do_little_and_end_in_time(path: Path) -> None:
    workflow = loaded(str(path.relative_to(ROOT)))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
        assert set(job.get("permissions", {})) <= {"id-token", "attestations", "contents"}, name
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False, name
