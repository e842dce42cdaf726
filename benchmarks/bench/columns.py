"""Products by several columns at once, `A @ X`: ours and those of others, C- and F-ordered, verified.

On a GPU cuSPARSE's SpMM is given its best: each of its algorithms for CSR, without and with
`cusparseSpMM_preprocess` (`_pre`), descriptors and workspace made once, into a given Y as ours is. On the
CPU SciPy's `A @ X` stands beside ours, both with a new result.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import byref
from typing import Any

import numpy as np

from benchmarks.bench.baselines_cuda import Descriptors, Device, product_candidate
from benchmarks.bench.cusparse import (
    NON_TRANSPOSE,
    SPMM_CSR_ALG1,
    SPMM_CSR_ALG2,
    SPMM_CSR_ALG3,
    CuSparse,
    load,
)
from benchmarks.bench.device import BenchDevice
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row, number, whole
from benchmarks.bench.sparse import load as load_case
from benchmarks.bench.sparse import short_name
from dasp.cli.bench import planner
from dasp.cli.devices import scipy_candidate
from dasp.cli.measure import as_float, check_rows, random_vector, reference_product
from dasp.cli.report import Table, geometric_mean, significant
from dasp.cli.timing import Candidate
from dasp.runtime.arrays import to_host
from dasp.runtime.dtypes import TABLE, named

SETTINGS = {
    "cusparse_spmm1": (SPMM_CSR_ALG1, False),
    "cusparse_spmm2": (SPMM_CSR_ALG2, False),
    "cusparse_spmm3": (SPMM_CSR_ALG3, False),
    "cusparse_spmm1_pre": (SPMM_CSR_ALG1, True),
    "cusparse_spmm2_pre": (SPMM_CSR_ALG2, True),
    "cusparse_spmm3_pre": (SPMM_CSR_ALG3, True),
}
"""Algorithm of cuSPARSE, and whether it prepares."""

COUNTS = (4, 8, 16, 32)
"""Columns that are measured, and that the summary shows."""


class Columns:
    """Products by several columns, a row for each type, order and number of them.

    `args` are the options of `python -m benchmarks.bench columns`.
    """

    def __init__(self, args: argparse.Namespace, device: BenchDevice) -> None:
        if unknown := [name for name in args.dtype if name not in TABLE]:
            raise ValueError(f"--dtype names {', '.join(unknown)}; some of {', '.join(TABLE)} are needed")
        self.device, self.cases, self._args = device, args.matrix, args
        self._plan = planner(device.kind, args.format)

    def _named(self, case: str, dtype: str, k: int, order: str) -> Row:
        named = {"matrix": short_name(case), "dtype": dtype, "device": self.device.kind}
        return named | {"kernel": f"{k} columns, {order}"}

    def wanted(self, case: str) -> list[Row]:
        """Return a row for each type, number of columns and order."""
        args = self._args
        return [self._named(case, *each) for each in itertools.product(args.dtype, args.columns, args.orders)]

    def measure(self, case: str) -> Iterator[Row]:
        """Plan the matrix in each type, then verify and time all products."""
        args = self._args
        for dtype in args.dtype:
            csr = as_float(load_case(case, args.seed), named(dtype), args.seed)
            products = Products(csr, self._plan(csr), self.device, max(args.columns))
            for k, order in itertools.product(args.columns, args.orders):
                yield self._named(case, dtype, k, order) | products.measure(k, order, args.repeat)

    def report(self, rows: Sequence[Row]) -> Report:
        """Return the means, the losses by name, and every product."""
        return report(rows)


class Products:
    """A matrix on a device, the X that it is multiplied by, and the right first and last column of A X.

    Parameters
    ----------
    csr : scipy.sparse CSR array, a type of `dasp.runtime.dtypes.TABLE`
    planned : SpMatrix
        The same matrix.
    device : BenchDevice
    most : int
        Columns of X, at most.
    """

    def __init__(self, csr: Any, planned: Any, device: BenchDevice, most: int) -> None:
        self.csr, self.planned, self._device = csr, planned, device
        outer = random_vector(2 * csr.shape[1], csr.dtype, seed=0).reshape(2, -1)
        self._known = [reference_product(csr.data, csr.indices, csr.indptr, x) for x in outer]
        self._library = np if device.kind == "cpu" else importlib.import_module("cupy")
        draw = self._library.random.default_rng(0).standard_normal
        shape = (csr.shape[1], max(most, 2))
        self._x = draw(shape, np.float32).astype(csr.dtype)
        if csr.dtype.kind == "c":
            self._x += 1j * draw(shape, np.float32)
        for column, x in zip((0, -1), outer, strict=True):
            self._x[:, column] = self._library.asarray(x)

    def operand(self, k: int, order: str) -> Any:
        """Return X with k columns, the last one always the same."""
        x = self._library.array(self._x[:, :k], order=order)
        x[:, -1] = self._x[:, -1]
        return x

    def worst(self, product: Any) -> float:
        """Return the largest error over its bound in the first and the last column of a product."""
        outer = (0, -1) if product.shape[1] > 1 else (-1,)
        return max(check_rows(to_host(product[:, column]), self._known[column]).worst for column in outer)

    def measure(self, k: int, order: str, samples: int | None = None) -> Row:
        """Return the figures of a product by k columns: microseconds, ours and theirs, each verified."""
        candidates = list(self._on_gpu(k, order) if self._device.kind == "cuda" else self._on_cpu(k, order))
        errors = {each.name: self.worst(each.product()) for each in candidates}
        right = [each for each in candidates if errors[each.name] <= 1]
        timings = self._device.time(right, samples)
        for each in candidates:
            if each.close is not None:
                each.close()
        times = {name: timing.median_us for name, timing in timings.items()}
        ours = times.pop("dasp", float("nan"))
        best = min(times, key=times.__getitem__, default="")
        row = {
            "rows": f"{self.csr.shape[0]}",
            "entries": f"{self.csr.nnz}",
            "k": f"{k}",
            "order": order,
            "time_us": f"{ours:.6g}",
            "worst_error": f"{errors['dasp']:.3g}",
            "verified": "yes" if errors["dasp"] <= 1 else "no",
            "best_baseline": best,
            "best_baseline_us": f"{times[best]:.6g}" if best else "",
            "speedup_best": f"{times[best] / ours:.6g}" if best else "",
        }
        return row | {f"{name}_us": f"{taken:.6g}" for name, taken in times.items()}

    def _on_cpu(self, k: int, order: str) -> Iterator[Candidate]:
        x = self.operand(k, order)
        yield Candidate("dasp", lambda: self.planned @ x)
        with suppress(RuntimeError):  # of halves, which SciPy does not have
            yield scipy_candidate(self.csr, x)

    def _on_gpu(self, k: int, order: str) -> Iterator[Candidate]:
        x = self.operand(k, order)
        y = self._library.empty((self.csr.shape[0], k), x.dtype, order=order)
        yield Candidate("dasp", lambda: self.planned.matvec(x, out=y), y)
        device = Device(self.csr, x[:, 0])
        for name in SETTINGS:
            with suppress(RuntimeError):
                yield spmm_candidate(name, load(), device, x, y)


def spmm_candidate(name: str, library: CuSparse, device: Device, x: Any, y: Any) -> Candidate:
    """Return a product by several columns through cusparseSpMM under one setting.

    Raises
    ------
    RuntimeError
        If cuSPARSE refuses it.
    """
    algorithm, prepare = SETTINGS[name]

    def describe(held: Descriptors) -> tuple[Any, ...]:
        matrix = device.matrix(library)
        return (
            library.handle,
            NON_TRANSPOSE,
            NON_TRANSPOSE,
            byref(device.one),
            held.keep("cusparseDestroySpMat", matrix),
            held.keep("cusparseDestroyDnMat", library.matrix_dense(x)),
            byref(device.zero),
            held.keep("cusparseDestroyDnMat", library.matrix_dense(y)),
            device.kind,
            algorithm,
        )

    return product_candidate(name, library, "cusparseSpMM", describe, prepare, y, (device, x))


# ---- what the rows say -----------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> Report:
    """Return the means by type, order and number of columns, the losses by name, and every product."""

    def mean(key: tuple[str, str], k: int) -> str:
        found = [row for row in rows if (row["dtype"], row["order"], row["k"]) == (*key, str(k))]
        return significant(geometric_mean(number(row, "speedup_best") for row in found))

    types = list(TABLE)
    keys = dict.fromkeys((row["dtype"], row["order"]) for row in rows)
    lines = [
        (*key, *(mean(key, k) for k in COUNTS))
        for key in sorted(keys, key=lambda key: (types.index(key[0]), key[1]))
    ]
    headings = ("dtype", "order of X", *(f"k = {k}" for k in COUNTS))
    lost: dict[str, list[float]] = {}
    for row in rows:
        if number(row, "speedup_best") < 1:
            lost.setdefault(row["matrix"], []).append(number(row, "speedup_best"))
    named = [f"{name} ({len(ratios)}, least {significant(min(ratios))})" for name, ratios in lost.items()]
    note = (
        "Geometric means. Slower than the fastest other, with the number of such products and the least "
        f"ratio: {', '.join(named) or 'none'}."
    )
    columns = [
        ("matrix", lambda row: row["matrix"]),
        ("dtype", lambda row: row["dtype"]),
        ("entries", lambda row: whole(number(row, "entries"))),
        ("columns", lambda row: row["kernel"].replace(" columns", "")),
        ("us", lambda row: significant(number(row, "time_us")) if row["verified"] == "yes" else "WRONG"),
        ("best baseline", lambda row: row["best_baseline"] or "-"),
        ("its us", lambda row: significant(number(row, "best_baseline_us"))),
        ("x best", lambda row: significant(number(row, "speedup_best"))),
    ]
    details = Table.of("products by several columns", columns, rows, words=["dtype", "best baseline"])
    return Report([Table("", headings, lines, frozenset({"order of X"}))], [note], [details])
