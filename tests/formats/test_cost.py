"""The cost model: where its numbers come from, the plans that carry it, and the user's own file."""

import dataclasses
import json
import re

import numpy as np
import pytest

from dasp import Policy, SpMatrix, load_plan, save_plan
from dasp.formats import cost, device_cpu, device_cuda
from dasp.formats.cost import H200, H200_GPU, ZEN4, CostModel, Gpu
from dasp.formats.plan import arrays_of
from dasp.io.plans import HEAD, pack_plan, unpack_plan
from dasp.models import generate
from dasp.runtime.cpu.compile import name_processor
from tests.support.planned import plan_of

A100 = Gpu("NVIDIA A100", 108, 64, 40 << 20, 1.41e9, 1.555e12)
SELL = Policy(format="sell")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's own file, which is read anew by each plan."""
    monkeypatch.setenv("DASP_COST_MODEL", str(tmp_path / "own.json"))
    monkeypatch.setattr(device_cpu, "find_cost_model", device_cpu.find_cost_model.__wrapped__)
    return tmp_path / "own.json"


def head_of(arrays):
    """The JSON of a plan's file."""
    return json.loads(arrays[HEAD].tobytes())


def with_head(arrays, head):
    """The arrays of a plan's file with another head."""
    return arrays | {HEAD: np.frombuffer(json.dumps(head).encode(), np.uint8)}


# ---- where numbers come from ---------------------------------------------------------------------


def test_a_known_gpu_has_its_measured_numbers():
    assert CostModel.for_gpu(H200_GPU) is H200
    assert CostModel.for_cpu() is ZEN4


def test_a_gpu_that_says_the_same_of_itself_has_the_same_numbers():
    model = CostModel.for_gpu(H200_GPU._replace(name="NVIDIA H201"))
    assert model == dataclasses.replace(H200, name="NVIDIA H201")


def test_an_unknown_gpu_starts_from_what_it_says_of_itself():
    model = CostModel.for_gpu(A100)
    assert (model.name, model.kind, model.multiprocessors) == ("NVIDIA A100", "gpu", 108)
    assert model.wave_slices == round(8192 * 108 / 132)
    assert model.kept_bytes == pytest.approx(26_500_000 * (40 << 20) / 62_914_560, abs=1)
    assert model.kept_plans[0] < model.kept_bytes < model.kept_plans[1] < H200.kept_plans[1]
    assert model.scattered_bytes < H200.scattered_bytes
    assert model.steps == ((818_182, 8), (3_272_727, 16))
    assert [slices for _, _, slices, _ in model.long_slices] == [982, 2045, 4909, 2864]
    traffic = (1.555e12 / (108 * 1.41e9)) / (4.917e12 / (132 * 1.98e9))
    assert model.slot_bytes == pytest.approx(7.0 * traffic)
    assert model.tiny_bytes == pytest.approx(1175.0 * traffic)
    assert model.far.by_few == pytest.approx(19.2 * traffic)
    assert model.launch_bytes == pytest.approx(25e6 * 1.555e12 / 4.917e12)
    assert model.slot == H200.slot


@pytest.mark.parametrize("silent", [{"clock": 0.0}, {"bandwidth": 0.0}, {"l2_bytes": 0}])
def test_a_gpu_that_does_not_say_all_has_a_model(silent):
    model = CostModel.for_gpu(A100._replace(**silent))
    assert model.slot_bytes == H200.slot_bytes or "l2_bytes" in silent
    plan = plan_of(generate("poisson2d:30"), SELL)
    choice = dataclasses.replace(plan.pattern.choice, model=model)
    plan = dataclasses.replace(plan, pattern=dataclasses.replace(plan.pattern, choice=choice))
    from dasp.formats.sell.cuda import vector
    from dasp.runtime.dtypes import into

    assert "DASP_IN_FLIGHT" in vector.defines(plan, into(*3 * [plan.dtype]))


def test_every_number_says_its_unit_what_it_trades_and_how_it_is_measured():
    for field in dataclasses.fields(CostModel)[2:]:
        assert field.metadata["trades"], field.name
        assert field.metadata["again"], field.name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "tpu"}, "kind is 'tpu'; it must be cpu or gpu"),
        ({"slot": -1.0}, "slot has -1.0"),
        ({"slot": float("nan")}, "slot has nan"),
        ({"far": H200.far._replace(by_few=float("inf"))}, "far has inf"),
        ({"multiprocessors": 0}, "multiprocessors has 0"),
        ({"most_steps": 0}, "most steps of a slice are 0; they must be from 1 to 4095"),
        ({"steps": ((10, 5000),)}, "most steps of a slice are 5000"),
    ],
)
def test_a_number_outside_its_range_is_refused(changes, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        dataclasses.replace(H200, **changes)


# ---- plans carry it ------------------------------------------------------------------------------


def test_a_plan_carries_the_model_that_chose(tmp_path):
    own_model = dataclasses.replace(ZEN4, name="mine", most_steps=7)
    for model in (H200, ZEN4, own_model):
        plan = dataclasses.replace(plan_of(generate("rmat:6"), SELL))
        choice = dataclasses.replace(plan.pattern.choice, model=model)
        plan = dataclasses.replace(plan, pattern=dataclasses.replace(plan.pattern, choice=choice))
        save_plan(tmp_path / "plan.npz", plan)
        again = load_plan(tmp_path / "plan.npz")
        assert again.pattern.choice == choice
        for one, other in zip(arrays_of(plan), arrays_of(again), strict=True):
            np.testing.assert_array_equal(one, other)
    assert SpMatrix(generate("rmat:6"), "cpu", policy=SELL).plan.pattern.choice.model is ZEN4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: None, "its cost model is None"),
        (lambda model: model | {"colour": 3}, "unknown field 'colour'"),
        (lambda model: {k: v for k, v in model.items() if k != "slot"}, "lacks slot"),
        (lambda model: model | {"slot": "dear"}, "'dear' in slot"),
        (lambda model: model | {"slot": True}, "True in slot"),
        (lambda model: model | {"slot": 10**400}, "in slot"),
        (lambda model: model | {"wave_slices": 10**400}, "wave_slices has 1000"),
        (lambda model: model | {"wave_slices": 1.5}, "1.5 in wave_slices"),
        (lambda model: model | {"near": [1.0, 2.0]}, "in near"),
        (lambda model: model | {"kept_plans": [1, 2, 3]}, "in kept_plans"),
        (lambda model: model | {"steps": [[1]]}, "[1] in steps"),
        (lambda model: model | {"most_steps": 5000}, "most steps"),
    ],
)
def test_a_file_of_a_plan_with_a_bad_model_is_refused(change, said):
    arrays = pack_plan(plan_of(generate("rmat:6"), SELL))
    head = head_of(arrays)
    head["fields"]["pattern.choice.model"] = change(head["fields"]["pattern.choice.model"])
    with pytest.raises(ValueError, match=re.escape(said)):
        unpack_plan(with_head(arrays, head))


# ---- the user's own ------------------------------------------------------------------------------


def test_the_users_numbers_are_kept_and_choose(own):
    machine = name_processor()
    cost.write_own_numbers(own, machine, {"most_steps": 9, "near": [1.0, 2.0, 0.0, 0.0]})
    cost.write_own_numbers(own, "another", {"slot": 3.0})
    assert set(json.loads(own.read_text())) == {machine, "another"}
    A = SpMatrix(generate("rmat:6"), "cpu", policy=SELL)
    choice = A.plan.pattern.choice
    assert (choice.steps, choice.model.most_steps, tuple(choice.model.near)) == (9, 9, (1.0, 2.0, 0.0, 0.0))
    assert choice.model.slot == ZEN4.slot
    assert machine in choice.model.name
    assert cost.apply_own_numbers(H200, "another").slot == 3.0
    assert cost.apply_own_numbers(H200, "a third") is H200


def test_without_a_file_the_shipped_numbers_hold(own):
    assert SpMatrix(generate("rmat:6"), "cpu", policy=SELL).plan.pattern.choice.model is ZEN4


def test_the_file_is_in_the_cache_folder_if_none_is_named(own, monkeypatch, tmp_path):
    assert cost.find_file() == own
    monkeypatch.delenv("DASP_COST_MODEL")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cost.find_file() == tmp_path / "dasp" / "cost_models.json"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting property name"),
        ("[]", "it holds []"),
        ("[" * 100_000, "recursion"),
        ("{}}", "Extra data"),
        ("\udcff", "decode"),
        ('{"%s": 3}', "its cost model is 3"),
        ('{"%s": {"colour": 3}}', "unknown field 'colour'"),
        ('{"%s": {"slot": NaN}}', "slot"),
        ('{"%s": {"slot": -1}}', "slot has -1.0"),
        ('{"%s": {"kind": "gpu"}}', "numbers alone are needed"),
        ('{"another": {"most_steps": "many"}}', "'many' in most_steps"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(own, text, said):
    own.write_bytes(text.replace("%s", name_processor()).encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        SpMatrix(generate("rmat:6"), "cpu", policy=SELL)
    assert str(caught.value).startswith(f"{own} is no file of cost models: ")
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_file_of_cost_models(own):
    own.mkdir()
    with pytest.raises(ValueError, match="is no file of cost models"):
        cost.apply_own_numbers(H200, "another")


@pytest.mark.cuda
def test_a_gpu_says_what_it_is():
    gpu = device_cuda.describe_gpu("cuda:0")
    assert min(gpu[1:4]) > 0
    if gpu.name == H200_GPU.name:
        assert gpu[:4] == H200_GPU[:4]
        assert gpu.bandwidth == pytest.approx(H200_GPU.bandwidth, rel=0.05)
