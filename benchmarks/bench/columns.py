"""Products by several columns at once, `A @ X`: ours and those of others, C- and F-ordered, verified.

On a GPU cuSPARSE's SpMM is given its best: each of its algorithms for CSR, without and with
`cusparseSpMM_preprocess` (`_pre`), descriptors and workspace made once, captured in a graph as ours is. On
the CPU SciPy's `A @ X` stands beside ours, both with a new result.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref
from typing import Any

import numpy as np

from benchmarks.bench import machine
from benchmarks.bench.baselines_cuda import Descriptors, Device, poison, product_candidate, synchronize
from benchmarks.bench.cusparse import (
    NON_TRANSPOSE,
    SPMM_CSR_ALG1,
    SPMM_CSR_ALG2,
    SPMM_CSR_ALG3,
    CuSparse,
    load,
)
from benchmarks.bench.rows import Row, number
from dasp.cli import timing
from dasp.cli.measure import Reference, as_float, check_rows, random_vector, reference_product
from dasp.cli.report import Table, geometric_mean, significant
from dasp.cli.timing import Candidate, replays
from dasp.io import load_matrix
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.policy import Policy
from dasp.runtime.cpu.threads import get_num_threads
from dasp.runtime.cuda.stream import on_stream
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
"""Columns that are measured."""

SAMPLES_CPU = 9

Timed = tuple[float, list[np.ndarray[Any, Any]]]
"""Microseconds of a product, and its first and last column."""


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


def outer_columns(csr: Any) -> Any:
    """Return the first and the last column of every X, of shape (n, 2)."""
    return random_vector(2 * csr.shape[1], csr.dtype, seed=0).reshape(-1, 2)


def references(csr: Any) -> tuple[Reference, Reference]:
    """Return the right products by the first and by the last column."""
    first, last = np.ascontiguousarray(outer_columns(csr).T)
    return tuple(reference_product(csr.data, csr.indices, csr.indptr, x) for x in (first, last))  # type: ignore[return-value]


def prepare(name: str, dtypes: Sequence[str]) -> list[tuple[Any, tuple[Reference, Reference]]]:
    """Return a matrix in some types, each with its references; for processes that work ahead."""
    matrices = [as_float(load_matrix(name), named(dtype)) for dtype in dtypes]
    return [(csr, references(csr)) for csr in matrices]


class Subject:
    """One matrix on one device, the X that it is multiplied by, and what the products must be.

    Parameters
    ----------
    csr : scipy.sparse CSR array, a type of `dasp.runtime.dtypes.TABLE`
    device : {"cpu", "cuda"}
    known : tuple of Reference, optional
        `references(csr)`, if they are there.
    policy : Policy, optional
        With one, products by one column after another are timed on a GPU, too.
    most : int
        Columns of X, at most.
    """

    def __init__(
        self,
        csr: Any,
        device: str,
        known: tuple[Reference, Reference] | None = None,
        policy: Policy | None = None,
        most: int = max(COUNTS),
    ) -> None:
        self.csr, self.device, self._compares = csr, device, policy is not None
        self.planned = SpMatrix.from_scipy(csr, policy=policy, device=device)
        self._known = known or references(csr)
        self._module = np if device == "cpu" else importlib.import_module("cupy")
        shape, outer = (csr.shape[1], max(most, 2)), self._module.asarray(outer_columns(csr))
        draw = self._module.random.default_rng(0).standard_normal
        self._x = draw(shape, np.float32).astype(csr.dtype)
        if csr.dtype.kind == "c":
            self._x += 1j * draw(shape, np.float32)
        for column in (0, -1):
            self._x[:, column] = outer[:, column]

    def operand(self, k: int, order: str) -> Any:
        """Return X with k columns, the last one always the same."""
        x = self._module.array(self._x[:, :k], order=order)
        x[:, -1] = self._x[:, -1]
        return x

    def worst(self, product: Any) -> float:
        """Return the largest error over its bound in the first and the last column of a product."""
        return self._worst(self._outer(product))

    def _outer(self, product: Any) -> list[np.ndarray[Any, Any]]:
        """Return the first and the last column of a product, or its only one, on the host."""
        columns = (product[:, column] for column in ((0, -1) if product.shape[1] > 1 else (-1,)))
        return [np.ascontiguousarray(got if isinstance(got, np.ndarray) else got.get()) for got in columns]

    def _worst(self, outer: Sequence[np.ndarray[Any, Any]]) -> float:
        known = self._known[-len(outer) :]  # an only column is that which stands last in others
        return max(check_rows(got, bound).worst for got, bound in zip(outer, known, strict=True))

    def measure(self, k: int, order: str) -> dict[str, str]:
        """Return a row: microseconds of a product by k columns, ours and theirs, each verified."""
        with ThreadPoolExecutor() as pool:  # NumPy checks several products at once
            found = list(self._cuda(k, order) if self.device == "cuda" else self._cpu(k, order))
            checks = {name: pool.submit(self._worst, outer) for name, (_, outer) in found}
            times = {name: (taken, checks[name].result()) for name, (taken, _) in found}
        ours, errors = times.pop("dasp")
        vectors = times.pop("vectors", None)
        others = {name: taken for name, (taken, worst) in times.items() if worst <= 1}
        best = min(others, key=others.__getitem__, default="")
        row = {
            "dtype": self.csr.dtype.name,
            "device": self.device,
            "kernel": f"{k} columns, {order}",
            "rows": f"{self.csr.shape[0]}",
            "entries": f"{self.csr.nnz}",
            "k": f"{k}",
            "order": order,
            "time_us": f"{ours:.6g}",
            "worst_error": f"{errors:.3g}",
            "verified": "yes" if errors <= 1 else "no",
            "least_bytes": f"{self.planned.plan.nbytes + k * sum(self.csr.shape) * self.csr.dtype.itemsize}",
            "best_baseline": best,
            "best_baseline_us": f"{others[best]:.6g}" if best else "",
            "speedup_best": f"{others[best] / ours:.6g}" if best else "",
        }
        if vectors:
            row["vectors_us"] = f"{vectors[0]:.6g}"
        return row | {f"{name}_us": f"{taken:.6g}" for name, taken in others.items()}

    def _cuda(self, k: int, order: str) -> Iterator[tuple[str, Timed]]:
        import cupy

        x = self.operand(k, order)
        y = cupy.empty((self.csr.shape[0], k), x.dtype, order=order)
        device, stream = Device(self.csr, x[:, 0]), cupy.cuda.Stream(non_blocking=True)
        synchronize()
        with on_stream(stream):
            ours = Candidate("dasp", lambda: self.planned.matvec(x, out=y), lambda: y, lambda: poison(y))
            yield "dasp", self._timed(ours, stream)
            if self._compares:
                vectors = Candidate("vectors", lambda: self._by_vectors(x, y), lambda: y, lambda: poison(y))
                yield "vectors", self._timed(vectors, stream)
            for name in SETTINGS:
                try:
                    made = spmm_candidate(name, load(), device, x, y)
                except RuntimeError:
                    continue
                yield name, self._timed(made, stream)
                made.close()

    def _by_vectors(self, x: Any, y: Any) -> None:
        for j in range(x.shape[1]):
            self.planned.matvec(x[:, j], out=y[:, j])

    def _timed(self, candidate: Candidate, stream: Any) -> Timed:
        candidate.poison()
        candidate.run()
        outer = self._outer(candidate.result())
        return statistics.median(replays(candidate.run, stream, samples=5, products=4)[0]), outer

    def _cpu(self, k: int, order: str) -> Iterator[tuple[str, Timed]]:
        x = self.operand(k, order)
        known = {"dasp": self.planned} | ({"scipy": self.csr} if self.csr.dtype.itemsize > 2 else {})
        outer = {name: self._outer(matrix @ x) for name, matrix in known.items()}
        taken: dict[str, list[float]] = {name: [] for name in known}
        for _ in range(SAMPLES_CPU):
            for name, matrix in known.items():  # by turns, so that both meet what else the machine does
                matrix @ x
                start = time.perf_counter()
                matrix @ x
                taken[name].append(1e6 * (time.perf_counter() - start))
        for name, samples in taken.items():
            yield name, (statistics.median(samples), outer[name])


def known_columns(device: str, bandwidth: float | None = None) -> dict[str, str]:
    """Return the columns of the machine; the bandwidth of a copy is measured if not given."""
    known = (
        machine.cuda_columns(load().version_text)
        if device == "cuda"
        else machine.host_columns(get_num_threads())
    )
    if bandwidth is None:
        copy = timing.cuda_copy_bandwidth if device == "cuda" else timing.host_copy_bandwidth
        bandwidth = copy()
    return known | {"copy_bytes_per_second": f"{bandwidth:.6g}"}


def report(rows: Sequence[Row]) -> str:
    """Return the means of a result file by type, order and columns, and the losses by name, in Markdown."""
    keys = list(dict.fromkeys((row["dtype"], row["order"], row["k"]) for row in rows))
    lines = []
    types = list(TABLE)
    for dtype, order, k in sorted(keys, key=lambda key: (types.index(key[0]), key[1], int(key[2]))):
        ratios = [
            number(row, "speedup_best")
            for row in rows
            if (row["dtype"], row["order"], row["k"]) == (dtype, order, k)
        ]
        figures = (geometric_mean(ratios), min(ratios), max(ratios))
        lines.append((dtype, order, k, str(len(ratios)), *(significant(value) for value in figures)))
    means = Table("", ("dtype", "order of X", "k", "matrices", "mean", "least", "most"), lines)
    lost: dict[str, list[Row]] = {}
    for row in rows:
        if number(row, "speedup_best") < 1:
            lost.setdefault(row["matrix"], []).append(row)
    named = [
        f"{matrix} ({len(some)}, least {significant(min(number(row, 'speedup_best') for row in some))})"
        for matrix, some in lost.items()
    ]
    slower = (
        "Slower than the fastest other, with the number of such products and the least ratio: "
        f"{', '.join(named) or 'none'}."
    )
    return f"{means.markdown()}\n\n{slower}"
