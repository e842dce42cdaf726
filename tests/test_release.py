"""What a release promises: one version everywhere, and workflows that may do little and end in time."""

from __future__ import annotations

import re
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
