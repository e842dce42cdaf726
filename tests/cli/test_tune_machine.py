"""`dasp tune machine`: a toy machine's numbers come back from its times, and this CPU's are printed."""

import dataclasses
import json

import numpy as np
import pytest

from dasp.cli import tune_machine as tuning
from dasp.cli.main import main
from dasp.formats.cost import FEW_WARPS, H200, MANY_WARPS, ZEN4, CostModel, Gathers
from dasp.formats.sell.pattern import shape_fields
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.policy import Policy
from dasp.models import generate
from dasp.runtime.cpu.host import name_processor

ENTRIES = 1 << 16
TOYS = {
    "cpu": dataclasses.replace(
        ZEN4,
        slot=0.6,
        value_byte=0.05,
        slice=41.0,
        row=0.75,
        near_bytes=1 << 19,
        near=Gathers(0.5, 0.3, 0.0, 0.0),
        far=Gathers(0.25, 0.7, 0.0, 1.5),
    ),
    "gpu": dataclasses.replace(
        H200,
        slot=2.5,
        slice=30.0,
        row=7.0,
        near=Gathers(1.0, 0.0, 15.0, 0.0),
        far=Gathers(2.0, 0.0, 25.0, 0.0),
    ),
}


def toy_clock(toy: CostModel):
    """What a product would take if the toy's costs were the truth: counted in the plan that is made."""

    def clock(matrix, *, steps, window=0, warps=4):
        policy = Policy(format="sell", steps=steps, window=window)
        plan = SpMatrix.from_scipy(matrix, policy=policy, device="cpu").plan
        pattern = plan.pattern
        each, full, shift, _ = shape_fields(pattern.headers[:, 3].astype(np.int64))
        rows = np.arange(matrix.shape[0]) if not len(pattern.rows) else pattern.rows
        ends = np.append(pattern.headers[:, 1].astype(np.int64), len(rows))
        read = [matrix[rows[ends[i] : ends[i + 1]]].indices // 4 for i in range(len(each))]
        assert (32 >> shift[:-1] == np.diff(ends)[:-1]).all()

        def sectors(block):
            groups = (np.concatenate(read[i : i + block]) for i in range(0, len(read), block))
            return sum(len(np.unique(group)) for group in groups)

        slots = 32 * each.sum()
        stored = plan.values.codes.nbytes + pattern.deltas.nbytes - slots
        near = 8 * matrix.shape[1] <= max(toy.near_bytes, 1 << 18)
        gathers = toy.near if near else toy.far
        cost = toy.slot * slots + toy.value_byte * stored + toy.slice * len(each)
        cost += gathers.pad * 32 * (each - full).sum() + (toy.row * len(rows) if window else 0)
        blocks = (1, FEW_WARPS, MANY_WARPS)
        cost += sum(w * sectors(b) for w, b in zip(gathers[1:], blocks, strict=True) if w)
        return 2.5 + 1e-3 * cost

    return clock


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_toys_costs_come_back(kind):
    toy = TOYS[kind]
    found = tuning.measure_costs(toy, toy_clock(toy), ENTRIES)
    unit = 1.0 if kind == "gpu" else toy.slot + 8 * toy.value_byte
    for name, value in found.items():
        wanted = np.atleast_1d(getattr(toy, name)) / unit
        assert np.atleast_1d(value) == pytest.approx(wanted, rel=5e-3), name


def test_counts_are_those_of_the_plan():
    """Each experiment pays what its plan shows: a machine on which one count alone costs anything says so."""
    nothing = dataclasses.replace(TOYS["cpu"], slot=0.0, value_byte=0.0, slice=0.0, row=0.0)
    free = dataclasses.replace(nothing, near=Gathers(0, 0, 0, 0), far=Gathers(0, 0, 0, 0))
    machines = {
        "slot": dataclasses.replace(free, slot=1.0),
        "byte": dataclasses.replace(free, value_byte=1.0),
        "slice": dataclasses.replace(free, slice=1.0),
        "row": dataclasses.replace(free, row=1.0),
    }
    for name, value in zip(tuning.COSTS[5:], np.eye(4), strict=True):
        machines[name] = dataclasses.replace(free, near=Gathers(*value), far=Gathers(*value))
    made = [*tuning.near_experiments(free, ENTRIES), *tuning.far_experiments(free, ENTRIES)]
    for name, toy in machines.items():
        clock = toy_clock(toy)
        for each in made:
            seen = (clock(each.matrix, **each.choices) - 2.5) * 1e3
            assert seen == pytest.approx(each.counts[tuning.COSTS.index(name)], rel=0.01, abs=40), name


def test_how_far_near_is():
    def clock(matrix, **_):
        return 5.0 if 8 * matrix.shape[1] <= 1 << 21 else 30.0

    assert tuning.measure_near_bytes(ZEN4, clock, ENTRIES) == 1 << 21


def test_searches_take_the_best_mean_and_the_ratios():
    def clock(matrix, *, steps=32, warps=4, window=0):
        slow = 1.25 if warps == 16 else 1.0
        return matrix * {16: 2.0, 32: 1.0, 64: 4.0}[steps] * slow if isinstance(matrix, float) else 8 * slow

    assert tuning.fastest(clock, [1.0, 100.0], "steps", (16, 32, 64)) == 32
    assert tuning.measure_large_block(H200, clock, ENTRIES) == 1.25
    times = iter([7.0, 9.5])
    costs = {"slot": 1.5, "value_byte": 1.0}
    found = tuning.measure_slot_bytes(H200, lambda *_, **__: next(times), ENTRIES, costs)
    assert found == 7.0


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_costs_that_no_time_shows_are_not_measured(kind, monkeypatch):
    monkeypatch.setattr(tuning, "MODELS", {kind: ("poisson3d:5",)})
    found = tuning.measure(TOYS[kind], lambda *_, **__: 3.0, entries=1 << 12)
    assert not found.keys() & {"slot", "value_byte", "slice", "row", "near", "far", "slot_bytes"}
    assert "near_bytes" in found
    assert "too noisy" in tuning.table(TOYS[kind], found)


def test_a_gpu_searches_matrices_of_the_size_that_is_meant():
    from_entries = max(entries for entries, _ in H200.steps)
    for name in set(tuning.MODELS["gpu"]) - {"triangles:700000"}:  # which takes long to make
        assert generate(name).nnz >= from_entries, name


def test_this_cpu_is_measured_printed_and_kept(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DASP_COST_MODEL", str(tmp_path / "own.json"))
    monkeypatch.setattr(tuning, "ENTRIES", {"cpu": 1 << 12, "gpu": 1 << 12})
    monkeypatch.setattr(tuning, "FAR_BYTES", 1 << 20)
    monkeypatch.setattr(tuning, "MODELS", {"cpu": ("poisson3d:5", "rmat:6")})
    measure = ["tune", "machine", "--device", "cpu", "--seconds", "0.0001"]
    assert main(measure) == 0
    printed = capsys.readouterr().out
    printed, _, path = printed.rpartition(f"numbers of {name_processor()}: ")
    assert path == f"{tmp_path / 'own.json'}\n"
    kept = json.loads((tmp_path / "own.json").read_text())[name_processor()]
    assert kept["most_steps"] in tuning.STEPS
    _, *lines = printed.partition("\nThe times were too noisy")[0].splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(kept)
    (steps,) = (line.split() for line in lines if line.startswith("most_steps"))
    assert steps[1] == "128"
    assert int(steps[2]) in tuning.STEPS
    assert main([*measure, "--json", "--out", str(tmp_path / "b")]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN is no JSON
    assert found["most_steps"] in tuning.STEPS
    assert json.loads((tmp_path / "b").read_text())[name_processor()] == found
