"""The benchmark over ranks and the model made of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasp.bench import scaling, scaling_model
from dasp.bench.scaling_model import Line, Model, Network, fit, halo_of, make_model
from dasp.cli import main as cli
from dasp.models import generate
from tests import reference
from tests.ranks import run_ranks

PASSES = {"cg": Line(2.0, 3e-4), "cg pipelined": Line(1.0, 5e-4)}
MODEL = Model(Line(5.0, 1e-4), PASSES, Line(20.0, 1e-5), 4.0, Line(3.0, 8.0), Network())


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_each_rank_makes_its_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "CHUNK", 7)
    whole = generate(f"poisson3d:{n}")
    for first, end in ((0, n**3), (n**3 // 3, n**3 // 2), (4 % n**3, 4 % n**3)):
        reference.assert_same_entries(scaling.local_rows(n, first, end, "cpu"), whole[first:end])


def test_a_wrong_row_is_found() -> None:
    n = 6
    x = scaling.wave(np.arange(n**3), np)
    y = generate("poisson3d:6") @ x
    assert scaling.wrong_rows(y, n, 0, np) == 0
    assert scaling.wrong_rows(y[50:90], n, 50, np) == 0
    y[17] *= 1 + 1e-13
    y[60] = np.nan
    assert scaling.wrong_rows(y, n, 0, np) == 2


def test_rows_of_all_kinds_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaling, "REPEATS", 1)
    monkeypatch.setattr(scaling, "TIMES", 1)

    def work(engine: Any) -> list[Any]:
        bench = scaling.Scaling(engine, engine, "cpu", tmp_path / "rows.csv")
        bench.measure_links((8, 64))
        assert bench.measure(scaling.case(6, "weak"))
        return bench.rows

    rows, others = run_ranks(2, work)
    assert not others
    assert [row["kernel"] for row in rows] == [
        "sum",
        "sum",
        "message",
        "message",
        "product",
        "cg",
    ]
    assert {row["ranks"] for row in rows} == {"2"}
    product = rows[4]
    assert (product["verified"], product["halo"], product["rows"]) == ("yes", "36", "216")
    assert all(float(row["us"]) > 0 for row in rows[:5])
    assert "over ranks" in scaling.report(rows).text()
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 7


def test_a_line_is_found() -> None:
    line = fit([(x, 3.0 + 0.5 * x) for x in (1.0, 10.0, 1e4)])
    assert line.start == pytest.approx(3.0)
    assert line.slope == pytest.approx(0.5)
    assert fit([(4.0, 8.0)]) == Line(0.0, 2.0)
    assert fit([(1.0, 1.0), (2.0, 3.0)]).start == 0.0
    assert fit([(1.0, 3.0), (2.0, 1.0)]).slope == 0.0
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([])


def rows_of(model: Model, ranks: tuple[int, ...] = (1, 2, 4)) -> list[dict[str, str]]:
    """What the benchmark would write if a model were right."""
    found = []
    for count in ranks:
        found.append(
            {"matrix": "sum of 1", "kernel": "sum", "ranks": str(count), "us": repr(model.sum_us(count))}
        )
        for n in (100, 200, 300):
            rows, halo = n**3 / count, halo_of(n, count)
            shared = {"matrix": f"poisson3d:{n}", "study": "strong", "n": str(n), "ranks": str(count)}
            shared |= {"rows": str(n**3), "halo": str(halo), "verified": "yes"}
            parts = {"interior_us": repr(model.interior(rows)), "halo_us": repr(model.halo(8 * halo))}
            found.append(
                shared | parts | {"kernel": "product", "us": repr(model.product_us(rows, halo, count))}
            )
            for kernel in MODEL.forms:
                us = repr(model.iteration_us(n, count, kernel))
                found.append(shared | {"kernel": kernel, "us": us})
    return found


def test_a_model_is_found_again_from_two_ranks_and_right_on_four() -> None:
    rows = rows_of(MODEL)
    found = make_model(rows, Network())
    for n in (50, 100, 400):
        for ranks in (1, 2, 4, 64, 4096):
            assert found.iteration_us(n, ranks) == pytest.approx(MODEL.iteration_us(n, ranks), rel=1e-6)
    text = scaling_model.simulate(rows, Network(), 4096).text()
    assert text.count("+0%") + text.count("-0%") == 18
    assert "4096" in text
    assert "below 50% from" in text


def test_within_a_node_sums_take_the_same_and_beyond_it_they_are_nccls() -> None:
    near = Model(**(vars(MODEL) | {"near": 2.5, "far": Line(30.0, 2e-5)}))
    rows = rows_of(near)
    for row in rows:
        if row["kernel"] == "sum":
            row["links"] = "peers" if row["ranks"] != "1" else "nccl"
    for ranks in (2, 4):
        rows.append(
            {"matrix": "sum of 1", "kernel": "sum", "links": "nccl", "ranks": str(ranks)}
            | {"us": repr(MODEL.sum_us(ranks))}
        )
    for size in (8, 10**6):
        shared = {"matrix": f"ring of {size}", "kernel": "message", "ranks": "2", "bytes": str(size)}
        rows.append(shared | {"links": "nccl", "us": repr(Line(30.0, 2e-5)(size))})
        rows.append(shared | {"links": "peers", "us": "1.0"})
    found = make_model(rows, Network())
    for ranks in (1, 2, 4, 8, 16, 4096):
        assert found.iteration_us(100, ranks) == pytest.approx(near.iteration_us(100, ranks), rel=1e-6)
    assert near.sum_us(8) == near.sum_us(2) < MODEL.sum_us(2) < near.sum_us(16) == MODEL.sum_us(16)


def test_a_sum_that_is_hidden_costs_nothing_until_it_is_the_longer_one() -> None:
    product = MODEL.product_us(50**3 / 2, halo_of(50, 2), 2)
    assert MODEL.iteration_us(50, 2, "cg pipelined") == product + MODEL.vectors["cg pipelined"](50**3 / 2)
    late = Model(**(vars(MODEL) | {"sums": Line(1e4, 0.0)}))
    assert late.iteration_us(50, 2, "cg pipelined") == 1e4 + MODEL.vectors["cg pipelined"](50**3 / 2)


def test_what_a_model_lacks_is_told() -> None:
    with pytest.raises(ValueError, match="no product on 2 ranks"):
        make_model(rows_of(MODEL, (1,)), Network())


def test_a_network_between_nodes_makes_sums_dearer() -> None:
    assert MODEL.sum_us(8) == MODEL.sums(math.log2(8))
    assert MODEL.sum_us(16) == MODEL.sum_us(8) + 2 * 5.0
    slow = Model(**(vars(MODEL) | {"network": Network(latency=50.0)}))
    assert slow.iteration_us(64, 1024) > MODEL.iteration_us(64, 1024) + 2 * 7 * 40


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["bench", "scaling", "--simulate"]) == 2
    assert "--simulate was given without --csv" in capsys.readouterr().err
    assert cli.main(["bench", "scaling"]) == 2
    assert "was started alone; ranks are needed" in capsys.readouterr().err
    assert cli.main(["partition", "poisson2d:6", "--ranks", "2", "--out", str(tmp_path / "parts")]) == 0
    assert "columns of others" in capsys.readouterr().out
    assert cli.main(["partition", "poisson2d:6", "--ranks", "2", "--out", str(tmp_path / "parts")]) == 2
