"""The cost model: where its numbers come from, the plans that carry it, and the user's own file."""

import dataclasses
import itertools
import json
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dasp import Policy, SpMatrix, load_plan, save_plan
from dasp.formats import backend_cpu, backend_cuda, cost
from dasp.formats.cost import H200, H200_GPU, ZEN4, CostModel, Gathers, Gpu
from dasp.formats.plan import arrays_of
from dasp.formats.sell import choose
from dasp.formats.sell.cuda import row_blocks, vector
from dasp.formats.sell.cuda.column_rules import (
    Gathering,
    Strides,
    choose_parts,
    describe,
    pays_to_transpose,
)
from dasp.io.plans import HEAD, pack_plan, unpack_plan
from dasp.models import generate
from dasp.runtime.cpu.compile import name_processor
from dasp.runtime.cuda.device import KernelLauncher
from dasp.runtime.dtypes import find_arithmetic, find_arithmetic_into
from dasp.solvers.cuda.space import CudaSpace
from tests.support.gallery import from_lengths
from tests.support.planned import Tuned, plan_of, with_model

A100 = Gpu("NVIDIA A100", 108, 64, 40 << 20, 1.41e9, 1.555e12)
SELL = Policy(format="sell")
NAMES = "name", "kind"
"""The fields that are no numbers."""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's own file, which is read anew by each plan."""
    monkeypatch.setenv("DASP_COST_MODEL", str(tmp_path / "own.json"))
    monkeypatch.setattr(backend_cpu, "_read_cost_model", backend_cpu._read_cost_model.__wrapped__)
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


def test_a_small_gpu_gets_smaller_numbers_and_fewer_blocks():
    """60 multiprocessors and a third of an H200's bandwidth: all else equal."""
    small = H200_GPU._replace(name="small", multiprocessors=60, bandwidth=H200_GPU.bandwidth / 3)
    model, busy, speed = CostModel.for_gpu(small), 60 / 132, 132 / 60 / 3
    assert dataclasses.asdict(model) == dataclasses.asdict(H200) | {
        "name": "small",
        "steps": ((round(busy * 1e6), 8), (round(busy * 4e6), 16)),
        "long_slices": ((16, 1, 545, 0.0), (48, 1, 1136, 0.0), (96, 1, 2727, 0.0), (48, 2, 1591, 0.75)),
        "near": pytest.approx(tuple(speed * cost for cost in H200.near)),
        "far": pytest.approx(tuple(speed * cost for cost in H200.far)),
        "slot_bytes": pytest.approx(speed * 7.0),
        "tiny_bytes": pytest.approx(speed * 1175.0),
        "wave_slices": round(busy * 8192),
        "multiprocessors": 60,
        "launch_bytes": pytest.approx(25e6 / 3),
    }
    launcher = KernelLauncher(SimpleNamespace(processors=60))
    assert [launcher.count_blocks(count, 256) for count in (1, 1000, 10**9)] == [1, 4, 240]
    space = CudaSpace("cuda:0", np.dtype(float), SimpleNamespace(processors=60))
    assert [space.blocks(n) for n in (1, 122_880, 10**9)] == [1, 240, 240]


@pytest.mark.parametrize("silent", [{"clock": 0.0}, {"bandwidth": 0.0}, {"l2_bytes": 0}])
def test_a_gpu_that_does_not_say_all_has_a_model(silent):
    model = CostModel.for_gpu(A100._replace(**silent))
    assert model.slot_bytes == H200.slot_bytes or "l2_bytes" in silent
    plan = with_model(plan_of(generate("poisson2d:30"), SELL), model)
    assert "DASP_IN_FLIGHT" in vector.define_constants(plan, find_arithmetic_into(*3 * [plan.dtype]))


def test_the_documentation_names_every_number():
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(CostModel)[2:]:
        assert f"`{field.name}`" in text, field.name


WHOLE = dataclasses.replace(
    H200,
    near_bytes=200_000,
    near=Gathers(1.0, 2.0, 10.0, 3.0),
    far=Gathers(1.0, 3.0, 19.2, 5.0),
)
"""A model all of whose numbers matter."""


def decisions(model):
    """Everything that is chosen by a model, for matrices of many shapes."""
    sizes, double = [round(10 ** (k / 8)) for k in range(24, 65)], np.dtype(float)
    yield from (choose.choose_steps(entries, model) for entries in sizes)
    for rows, length in itertools.product(sizes, (10, 30, 70, 90)):
        for mean in (1.0, 0.8, 0.5):
            entries = round(mean * length * rows)
            yield choose.choose_long_steps(8, rows, entries, length, double, model)
            saved = choose.bound_saving(rows, entries, length, 32, double, model)
            yield choose.list_windows(saved, rows, entries, double, model)
            yield choose.list_windows(0.03 * 9.5 * entries + 4 * rows, rows, entries, double, model)
        yield choose.count_tiles(choose.WINDOWS, rows, model)
        yield choose.choose_gathers(8 * rows, model)
    for rows, share, kind in itertools.product((10_000, 3_000_000), range(41), ("near", "far")):
        yield from (window(rows, share, change, kind, model) for change in range(6))
    for slices, steps, few in itertools.product((2000, 9000, 50_000), range(1, 20), range(0, 40, 3)):
        sampled = 1000 * steps
        found = choose.SliceStatistics(
            slices, slices * steps, 0, sampled, 0, sampled * few, sampled * few // 9
        )
        for kind, code in itertools.product(("near", "far"), (0, 8)):
            yield choose.choose_warps(found, True, double, code, getattr(model, kind), model)
    for slices, steps in itertools.product((100, 3000, 6000, 9000), (3, 7, 20, 40)):
        plan = with_model(shaped(slices, steps), model)
        yield (
            vector.choose_in_flight(plan),
            vector.choose_kept_share(plan),
            vector.pays_to_dot(plan, slices // 4),
        )
        yield choose_parts(model, slices, 8), vector.estimate_slices_at_once(plan, 8)
        yield describe(find_arithmetic(double, double), Strides(8, 1, 2), Gathering(slices=slices), model)
        for k in (4, 8, 16, 32):
            kinds = (find_arithmetic(np.dtype(name), np.dtype(name)) for name in ("float32", "float64"))
            yield [row_blocks.limit_tiles(plan, kind, k) for kind in kinds]
            yield pays_to_transpose(plan, 1.0, 8 * k)


def window(rows, share, change, kind, model):
    """The window chosen of three, of which the others have some slots, pads or sectors less by a share."""
    share, slices = share / 40, rows // 32
    steps = 10 * slices
    less = round(steps * (1 - share / 4))
    tried = {0: choose.SliceStatistics(slices, steps, steps, steps, steps, steps, steps)}
    fewer = (less, steps, steps, steps, steps, steps)
    for width in (128, rows):
        last = [fewer[(k - change) % 6] for k in range(6)] if width == 128 else [less] * 6
        tried[width] = choose.SliceStatistics(round(slices * (1 + 30 * share * (change == 0))), *last)
    return choose.choose_window(tried, rows, np.dtype(float), 8, getattr(model, kind), model)


@cache
def shaped(slices, steps):
    """A plan of so many slices of so many steps, one row a lane."""
    return plan_of(from_lengths(np.full(32 * slices, steps), 400), Tuned("sell", steps=steps, window=0))


def leaves(value, make=lambda other: other):
    """The values that differ from this one in one number, which is twice as large or half."""
    if isinstance(value, tuple):
        for k, part in enumerate(value):
            kind = type(value)

            def put(other, k=k, kind=kind):
                parts = (*value[:k], other, *value[k + 1 :])
                return make(parts if kind is tuple else kind(*parts))

            yield from leaves(part, put)
    elif value:
        yield [make(type(value)(factor * value)) for factor in (2, 0.5)]


NUMBERS = [
    pytest.param(field.name, others, id=f"{field.name}-{k}")
    for field in dataclasses.fields(CostModel)[2:]
    for k, others in enumerate(leaves(getattr(WHOLE, field.name)))
]


@pytest.fixture(scope="module")
def chosen():
    """What the whole model decides."""
    return list(decisions(WHOLE))


@pytest.mark.parametrize(("name", "others"), NUMBERS)
def test_every_number_decides_something(chosen, name, others):
    assert any(list(decisions(dataclasses.replace(WHOLE, **{name: other}))) != chosen for other in others)


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
        plan = with_model(plan, model)
        save_plan(tmp_path / "plan.npz", plan)
        again = load_plan(tmp_path / "plan.npz")
        assert again.pattern.choice == plan.pattern.choice
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


def test_a_whole_model_comes_back_from_a_file(own):
    model = dataclasses.asdict(CostModel.for_gpu(A100))
    numbers = {name: value for name, value in model.items() if name not in NAMES}
    cost.write_own_numbers(own, "another", numbers)
    again = dataclasses.asdict(cost.apply_own_numbers(H200, "another"))
    assert {name: value for name, value in again.items() if name not in NAMES} == numbers


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
    gpu = backend_cuda.describe_gpu("cuda:0")
    assert min(gpu[1:4]) > 0
    if gpu.name == H200_GPU.name:
        assert gpu[:4] == H200_GPU[:4]
        assert gpu.bandwidth == pytest.approx(H200_GPU.bandwidth, rel=0.05)
