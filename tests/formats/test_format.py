"""A third format, rows stored densely, is one record and a product for each device; nothing else knows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasp
from dasp import formats
from dasp.formats import product_cpu, product_cuda
from dasp.formats.csr.matrix import Csr
from dasp.formats.kernel_cuda import ABSENT, Scratch, new_scratch
from dasp.formats.plan import (
    PAD,
    WARP,
    Part,
    Plan,
    csr_of_slots,
    nbytes,
    require,
    slots_of_entries,
)
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import TABLE, Arithmetic, real_type
from tests.support.gallery import GALLERY
from tests.support.reference import assert_close, assert_same_entries, entries_of

SHAPES = "lengths around every threshold", "all rows empty", "duplicates"


@dataclass(frozen=True, kw_only=True)
class Options:
    pass


@dataclass(frozen=True, eq=False)
class Pattern:
    entries: int
    index_dtype: np.dtype[Any]
    columns: Any  # shape (m, longest row), `PAD` where a row has ended


@dataclass(frozen=True, eq=False)
class Values:
    numbers: Any


def pack(csr: Csr, options: Options, machine: Any, on: Any) -> Plan:
    lengths = np.diff(csr.indptr)
    columns = np.full((csr.shape[0], int(lengths.max(initial=0))), PAD, np.int64)
    numbers = np.zeros(columns.shape, csr.data.dtype)
    inside = np.arange(columns.shape[1]) < lengths[:, None]
    columns[inside], numbers[inside] = csr.indices, csr.data
    pattern = Pattern(len(csr.data), np.dtype(np.int64), columns)
    return Plan("dense rows", csr.shape, csr.data.dtype, pattern, Values(numbers))


def unpack(plan: Plan, on: Any) -> tuple[Any, Any, Any]:
    columns = plan.pattern.columns
    rows = np.repeat(np.arange(plan.shape[0]), columns.shape[1])
    return csr_of_slots(plan, rows, columns.ravel(), plan.values.numbers.ravel())


def slots(plan: Plan, on: Any) -> Any:
    rows = np.repeat(np.arange(plan.shape[0]), plan.pattern.columns.shape[1])
    return slots_of_entries(plan, rows, plan.pattern.columns.ravel())


def check(plan: Plan) -> None:
    columns = plan.pattern.columns
    require(columns.shape == plan.values.numbers.shape, "columns and numbers differ in shape")
    require(not columns.size or columns.max() < plan.shape[1], "a column is out of range")


def summary(plan: Plan) -> list[Part]:
    slots = plan.pattern.columns.size
    return [Part("rows", plan.shape[0], plan.pattern.entries, slots, nbytes(plan))]


def values_from(plan: Plan, data: Any, slots: Any, on: Any) -> Values:
    numbers = on.zeros(plan.values.numbers.size, data.dtype)
    on.scatter(data, slots, numbers)
    return Values(numbers.reshape(plan.values.numbers.shape))


def values_into(plan: Plan, data: Any, slots: Any, on: Any) -> None:
    on.overwrite(plan.values.numbers, values_from(plan, data, slots, on).numbers)


class ToyCpuProduct(product_cpu.CpuProduct):
    def multiply_vector(self, x: Any, y: Any, alpha: Any, beta: Any) -> None:
        columns = self.plan.pattern.columns
        terms = np.where(columns == PAD, 0, self.plan.values.numbers * x[columns])
        y[:] = alpha * terms.sum(axis=1) + (beta * y if beta else 0)


class Kernel:
    """How dense_rows.cu is compiled and launched."""

    SIGNATURE = Signature(
        str(Path(__file__).with_name("dense_rows.cu")),
        "dasp_dense_rows",
        """
        const long long*  columns
        const Value*      numbers
        long long         rows
        long long         width
        const X*          x
        Y*                y
        Sum               alpha
        Sum               beta
        """,
    )

    def define_constants(self, plan: Plan, kinds: Arithmetic) -> dict[str, str]:
        return {}

    def find_types(self, plan: Plan) -> dict[str, np.dtype[Any]]:
        return {}

    def count_warps(self, plan: Plan) -> int:
        return -(-plan.shape[0] // WARP) if plan.pattern.columns.size else 1

    def count_threads(self, plan: Plan) -> int:
        return 64

    def count_partials(self, plan: Plan) -> int:
        return 0

    def list_arguments(self, plan: Plan, scratch: Scratch) -> dict[str, Any]:
        columns = plan.pattern.columns
        arrays = {"columns": columns, "numbers": plan.values.numbers}
        return arrays | {"rows": columns.shape[0], "width": columns.shape[1]}


class ToyCudaProduct(product_cuda.CudaProduct):
    kernel = Kernel()


@pytest.fixture
def dense_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    record = formats.Format(
        name="dense rows",
        options=Options,
        pattern=Pattern,
        values=Values,
        can_hold=lambda shape: True,
        pack=pack,
        unpack=unpack,
        find_slots=slots,
        check=check,
        values_from=values_from,
        values_into=values_into,
        list_parts=summary,
        products={"cpu": lambda: ToyCpuProduct, "cuda": lambda: ToyCudaProduct},
    )
    monkeypatch.setattr(formats, "_formats", dict(formats._formats))
    formats.register(record)


@pytest.mark.parametrize("name", SHAPES)
def test_a_third_format_needs_no_other_change(name: str, dense_rows: None, tmp_path: Any) -> None:
    matrix = entries_of(GALLERY[name])
    A = dasp.SpMatrix.from_scipy(matrix, policy=dasp.Policy(format="dense rows"), device="cpu")
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    assert_close(A @ x, matrix, x)
    X = np.stack([x, -x], axis=1)
    assert_close((A @ X)[:, 1], matrix, -x)
    assert_same_entries(A.to_scipy(), matrix)
    assert repr(A).splitlines()[2].split()[0] == "rows"
    assert A.nbytes == A.plan.pattern.columns.nbytes + A.plan.values.numbers.nbytes
    dasp.save_plan(tmp_path / "plan", A.plan)
    again = dasp.SpMatrix(dasp.load_plan(tmp_path / "plan"), "cpu")
    np.testing.assert_array_equal(again @ x, A @ x)
    assert_same_entries(A.with_values(2 * matrix.data).to_scipy(), matrix * 2)
    A.with_values(matrix.data, out=A)
    np.testing.assert_array_equal(again @ x, A @ x)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    cupy = pytest.importorskip("cupy")
    from tests.simt.gpu import Gpu

    stand_in = Gpu()
    with cupy.cuda.using_allocator(stand_in.allocate):
        stand_in.attach(monkeypatch)
        yield stand_in


@pytest.mark.simt
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_gpu_too(name: str, dense_rows: None, gpu: Any, tmp_path: Any) -> None:
    """Its kernel runs in the emulator; the plan is packed on the CPU, and comes by a file."""
    matrix = entries_of(GALLERY[name])
    packed = dasp.SpMatrix.from_scipy(matrix, policy=dasp.Policy(format="dense rows"), device="cpu")
    packed.save(tmp_path / "plan")
    A = dasp.SpMatrix.load(tmp_path / "plan", "cuda:0")
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    out = gpu.put(np.full(matrix.shape[0], np.nan))
    assert_close(gpu.get(A @ gpu.put(x)), matrix, x)
    assert_close(gpu.get(A.matvec(gpu.put(x), out=out)), matrix, x)
    X = gpu.put(np.stack([x, -x], axis=1))
    assert_close(gpu.get(A @ X)[:, 1], matrix, -x)
    assert repr(A).splitlines()[2].split()[0] == "rows"
    assert A.nbytes == packed.nbytes


@pytest.mark.cuda
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_real_gpu(name: str, dense_rows: None) -> None:
    import cupy

    matrix = entries_of(GALLERY[name])
    A = dasp.SpMatrix.from_scipy(matrix, policy=dasp.Policy(format="dense rows"), device="cuda")
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    assert_close((A @ cupy.asarray(x)).get(), matrix, x)
    assert_same_entries(A.to_scipy(), matrix)
    assert_same_entries(A.with_values(cupy.asarray(2 * matrix.data)).to_scipy(), matrix * 2)
    np.testing.assert_array_equal(A.diagonal().get(), matrix.diagonal())


@pytest.mark.parametrize("total", [row.dtype for row in TABLE.values() if row.sum == row.dtype.name])
@pytest.mark.parametrize("segments", [0, 1, 5])
def test_new_scratch_holds_no_sum_and_no_ticket(total, segments):
    partials, tickets = new_scratch(segments, total)
    part = real_type(total)
    assert partials.nbytes == segments * total.itemsize
    assert partials.dtype.itemsize == part.itemsize
    assert (partials == ABSENT[part.itemsize]).all()
    assert np.isnan(partials.view(part)).all()
    assert tickets.tolist() == [0]
    assert tickets.dtype == np.uint32
