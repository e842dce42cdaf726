"""`dasp tune machine`: a toy machine's best numbers are found, and this CPU's are printed and kept."""

import dataclasses
import json
import math
from itertools import count

import numpy as np
import pytest

from dasp.cli import tune as tuning
from dasp.cli.main import main
from dasp.formats.cost import H200, ZEN4, Gathers
from dasp.models import generate
from dasp.runtime.cpu.compile import name_processor


def test_the_fastest_numbers_of_a_toy_are_found():
    """Its products are fastest with half the shipped steps and twice the shipped cost of a sector."""

    def planner(matrix, model):
        steps, sectors = model.most_steps / 16, model.far.by_few / 38.4
        return (steps, sectors), lambda: matrix * (1 + abs(math.log2(steps)) + abs(math.log2(sectors)))

    wanted = {"most_steps": 16, "far": Gathers(0.0, 0.0, 38.4, 0.0)}
    assert tuning.measure(H200, [1.0, 10.0], planner) == wanted


@pytest.mark.parametrize(("loss", "taken"), [(1.02, True), (1.04, False)])
def test_no_product_may_become_much_slower(loss, taken):
    def planner(matrix, model):
        fast = model.slice == 32.0
        return fast, lambda: (0.5 if matrix else loss) if fast else 1.0

    assert tuning.measure(H200, [0, 1, 1], planner) == ({"slice": 32.0} if taken else {})


def test_a_gain_is_measured_twice():
    noise = count()

    def planner(matrix, model):
        return model.row, lambda: 1.0 if model == H200 or next(noise) else 0.5

    assert tuning.measure(H200, [0], planner) == {}


def test_a_small_gain_is_noise():
    assert tuning.measure(H200, [0], lambda _, model: (model, lambda: 1.0 if model == H200 else 0.995)) == {}


def test_plans_are_made_by_the_model_that_is_tried():
    matrix = generate("fem3:8").tocsr()
    few, many = (dataclasses.replace(ZEN4, most_steps=steps) for steps in (8, 64))
    (A, choice), (_, other) = tuning.plan(matrix, few, "cpu"), tuning.plan(matrix, many, "cpu")
    assert A.plan.pattern.choice.model == few
    assert choice[0] <= 8 < other[0]
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    assert A @ x == pytest.approx(matrix @ x)


def test_this_cpu_is_measured_printed_and_kept(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DASP_COST_MODEL", str(tmp_path / "own.json"))
    monkeypatch.setattr(tuning, "COLLECTION", {"cpu": ("poisson3d:5", "rmat:6")})
    measure = ["tune", "machine", "--device", "cpu", "--seconds", "0.0001"]
    assert main(measure) == 0
    assert capsys.readouterr().out.endswith(f"numbers of {name_processor()}: {tmp_path / 'own.json'}\n")
    kept = json.loads((tmp_path / "own.json").read_text())[name_processor()]
    assert kept.keys() <= set(tuning.SEARCHED)
    monkeypatch.setenv("DASP_COST_MODEL", str(tmp_path))
    monkeypatch.setattr(tuning, "measure", lambda *_: pytest.fail("measured"))
    assert main(measure) == 2
    assert "it must be a file" in capsys.readouterr().err


def test_what_changes_is_printed_beside_what_was():
    lines = tuning.table(H200, {"most_steps": 64, "far": Gathers(0.0, 0.0, 9.6, 0.0)}).splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [["most_steps", "32", "64"], ["far", "0", "0"]]
    assert "9.6" in lines[-1]
    assert tuning.table(H200, {}) == "No other numbers make products faster: those until now stay."
