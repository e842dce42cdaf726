"""Ranks on GPUs: their kernels in the emulator, driven by the code that drives a GPU."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from dasp.distributed import SpMatrix
from dasp.distributed.cuda import ADD, PACK, SUMS, RanksCudaSpace, defines, grid, steps
from dasp.models import generate
from dasp.solvers.cuda import THREADS
from dasp.solvers.pipelined import PipelinedConjugateGradients
from dasp.solvers.reduced import ReducedConjugateGradients
from dasp.solvers.system import System, drive, load, make_limits
from dasp.solvers.three_pass import ConjugateGradients
from tests.ranks import run_ranks
from tests.simt_device import EmulatedDevice


class SharedDevice(EmulatedDevice):
    """One emulator for ranks that are threads: one launch at a time."""

    lock = threading.Lock()

    def launch(self, *given: Any, **more: Any) -> Any:
        with self.lock:
            ready = super().launch(*given, **more)

        def launch(*values: Any) -> None:
            with self.lock:
                ready(*values)

        return launch


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "bfloat16", "c8", "c16"])
@pytest.mark.parametrize("shape", [(500,), (500, 3)])
def test_halo_values_are_packed_and_products_added(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = (
        rng.standard_normal((500, 6)).astype(dtype)[:, :: 6 // shape[1]][:, : shape[1]]
        if len(shape) == 2
        else (rng.standard_normal(1000).astype(dtype)[::2])
    )
    places = rng.integers(0, 500, 700)
    columns = shape[1] if len(shape) == 2 else 1
    packed = np.full((700, *shape[1:]), np.nan, dtype)
    on, types = EmulatedDevice(), {"Scalar": np.dtype(dtype)}
    fixed = {"places": places, "count": 700, "columns": columns, "packed": packed}
    row, column = steps(x)
    base = np.lib.stride_tricks.as_strided(x, (1 + 499 * row + (columns - 1) * column,), (x.itemsize,))
    arguments = fixed | {"x": base, "row": row, "column": column}
    on.launch(PACK, defines(np.dtype(dtype)), arguments, 3, THREADS, types)()
    np.testing.assert_array_equal(packed, x[places])

    rows = rng.permutation(500)[:200]
    product = np.asfortranarray(rng.standard_normal((200, *shape[1:])).astype(dtype))
    y = rng.standard_normal(shape).astype(dtype)
    want = y.copy()
    want[rows] += product
    over, beside = steps(product)
    fixed = {"rows": rows, "count": 200, "columns": columns, "from_row": over, "from_column": beside}
    flat = product.reshape(-1, order="A")
    arguments = fixed | {"product": flat, "y": y, "row": steps(y)[0], "column": steps(y)[1]}
    on.launch(ADD, defines(np.dtype(dtype)), arguments, grid(200 * columns), THREADS, types)()
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("blocks", [1, 7, 256, 1000])
def test_sums_of_blocks_are_added(count: int, blocks: int) -> None:
    sums = np.random.default_rng(1).integers(-99, 99, (count, blocks)).astype(float)
    want = sums.sum(axis=1)
    flat = sums.reshape(-1)
    arguments = {"sums": flat, "count": count, "blocks": blocks}
    EmulatedDevice().launch(SUMS, {"DASP_THREADS": str(THREADS)}, arguments, 1, THREADS)()
    np.testing.assert_array_equal(flat[:count], want)


FORMS = {
    "plain": (ConjugateGradients, ("p",)),
    "reduced": (ReducedConjugateGradients, ("p", "s")),
    "pipelined": (PipelinedConjugateGradients, PipelinedConjugateGradients.names),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_traced_iteration_sums_over_ranks(name: str) -> None:
    A, (method, names) = generate("poisson2d:14"), FORMS[name]
    b = np.random.default_rng(2).standard_normal(196)

    def run(engine: Any) -> Any:
        D = SpMatrix.from_scipy(A if engine.rank == 0 else None, engine, device="cpu")
        on = SharedDevice()
        space = RanksCudaSpace(engine, "cpu", np.dtype(float), on, engine)
        system = System(D, None, np.dtype(float), "cpu", method, names, space)
        load(system.vectors["b"], b[D.rows.first : D.rows.first + D.rows.count], space)
        answer = drive(system, make_limits(196, 1e-9, 0.0, None, None, None, False), from_zero=True)
        assert on.launches.count("dasp_sums") > answer.iterations
        return system.vectors["x"].copy(), answer

    found = run_ranks(2, run)
    assert all(answer.info == 0 for _, answer in found)
    assert found[0][1].residuals == found[1][1].residuals
    x = np.concatenate([x for x, _ in found])
    assert np.linalg.norm(b - A @ x) <= 1.0001e-9 * np.linalg.norm(b)
