"""An attack starts, finds nothing in a second, and is told from one that finds something."""

from __future__ import annotations

import importlib

import pytest

from tests.attack import __main__ as program

pytestmark = pytest.mark.slow


def test_there_are_attacks() -> None:
    assert program.attacks()


@pytest.mark.parametrize("name", program.attacks())
def test_every_attack_can_be_imported(name: str) -> None:
    importlib.import_module(f"tests.attack.{name}")


def test_an_attack_of_a_second_finds_nothing() -> None:
    """One of them; the build server runs all for longer: .ci/run."""
    assert program.run("blocks", 1, seed=1)


def test_what_an_attack_finds_is_told(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    names = program.attacks()
    shares = []

    def run(name: str, seconds: float, seed: int) -> bool:
        shares.append((name, seconds, seed))
        return name != names[-1]

    monkeypatch.setattr(program, "run", run)
    assert program.main(["--seconds", "60", "--seed", "7"]) == 1
    assert shares == [(name, 60 / len(names), 7) for name in names]
    assert f"FAILED: {names[-1]}" in capsys.readouterr().out
