"""`dasp bench`: plan matrices, verify every row of their products, and time them beside other libraries."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dasp.cli.options import (
    Subparsers,
    add_device_option,
    add_format_option,
    add_json_option,
    add_parser,
    add_seed_option,
    duration,
    positive,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.cli.devices import TimedDevice
    from dasp.matrix.matrix import SpMatrix

DEFAULT_MATRICES = (
    "fem3:20",
    "stencil27:40",
    "poisson2d:600",
    "triangles:60000",
    "rmat:14",
    "circuit:50000",
    "kkt:50000",
)
"""The matrices that are measured when none is named: a minute on two cores."""

DTYPES = "float64", "float32", "float16", "bfloat16", "complex64", "complex128"
"""Types of sparse matrices: the names in `dasp.runtime.dtypes.TABLE`, which is not loaded for `--help`."""

Row = dict[str, Any]
"""The results for a matrix: texts and numbers, NaN for an unknown number."""


def add_bench(subparsers: Subparsers) -> None:
    """Add `dasp bench` to the command line."""
    more = (
        ": check every row of its product against a long-double reference, then time it against SciPy and a "
        "loop of Numba on the CPU, or CuPy on the GPU, and say after how many products the plan has paid. "
        "Exit status 1 if a product is wrong"
    )
    parser = add_parser(subparsers, "bench", more)
    parser.add_argument(
        "matrix",
        nargs="*",
        metavar="MATRIX",
        help="a .mtx, .mtx.gz or .npz file, a name found under DASP_MATRICES, or a model such as "
        f"poisson3d:100 (default: {' '.join(DEFAULT_MATRICES)})",
    )
    add_measuring_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=_run)


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and how matrices are measured."""
    add_device_option(parser)
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads of every library (every core)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float64", help="type of the values")
    add_format_option(parser)
    parser.add_argument(
        "--seconds",
        type=duration,
        default=0.6,
        metavar="S",
        help="CPU time for the samples of each product (0.6)",
    )
    add_seed_option(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Run `dasp bench`; return 0 if every product is right, else 1."""
    from dasp.cli.devices import TimedHost, open_device
    from dasp.cli.measure import as_float
    from dasp.io.matrices import load_matrix

    device = open_device(arguments.device, threads=arguments.threads, seconds=arguments.seconds)
    plan = planner(device.kind, arguments.format)
    threads = f", {device.threads} threads" if isinstance(device, TimedHost) else ""
    print(f"on {device.kind}{threads}; copy {device.bandwidth / 1e9:.0f} GB/s", file=sys.stderr)
    rows: list[Row] = []
    try:
        for spec in arguments.matrix or DEFAULT_MATRICES:
            csr = as_float(load_matrix(spec, seed=arguments.seed), arguments.dtype, arguments.seed)
            rows.append(measure_matrix(spec, csr, plan, device, seed=arguments.seed))
    finally:  # where a matrix fails, the results of those before it are printed too
        if rows:
            print(_as_json(rows) if arguments.json else report(rows))
    return int(not all(row["verified"] for row in rows))


def _as_json(rows: list[Row]) -> str:
    """Return rows as JSON, which has no NaN and no infinity: null and "never" in their place."""

    def show(value: object) -> object:
        if not isinstance(value, float) or math.isfinite(value):
            return value
        return None if math.isnan(value) else "never"

    found = [{name: show(value) for name, value in row.items()} for row in rows]
    return json.dumps({"rows": found}, indent=1, allow_nan=False)


def planner(device: str, format: str = "auto") -> Callable[[Any], SpMatrix]:
    """Return the function that plans a matrix of SciPy or CuPy for a device, in a format.

    Raises
    ------
    ValueError
        If there is no format of that name.
    """
    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy

    return partial(SpMatrix, device=device, policy=Policy(format=format))


def measure_matrix(
    name: str,
    csr: csr_array,
    plan: Callable[[Any], SpMatrix],
    device: TimedDevice,
    *,
    seed: int = 0,
) -> Row:
    """Plan, verify and time one matrix of SciPy; return the results.

    Raises
    ------
    ValueError
        If the matrix holds NaN or infinity: the rows of its product have no error bound.
    """
    import numpy as np

    from dasp.cli.measure import best_ms, compare
    from dasp.cli.timing import csr_bytes, product_bytes, roofline_us

    if not np.isfinite(csr.data).all():
        raise ValueError(f"{name} holds NaN or infinity; finite numbers are needed to check its products")
    operator, plan_ms = best_ms(lambda: plan(csr), device)
    baselines = partial(device.baselines, csr)
    found = compare(operator, csr, device, baselines, seed=seed)
    rows, columns = csr.shape
    moved, best, us = product_bytes(rows, columns, csr.nnz, csr.dtype.itemsize), found.best_baseline, found.us
    return {
        "matrix": name,
        "dtype": csr.dtype.name,
        "device": device.kind,
        "rows": rows,
        "columns": columns,
        "entries": int(csr.nnz),
        "verified": found.verified.passed,
        "rows_failed": found.verified.rows_failed,
        "plan_ms": plan_ms,
        "bytes_ratio": operator.nbytes / csr_bytes(rows, csr.nnz, csr.dtype.itemsize),
        "time_us": us("dasp"),
        "new_us": us("dasp_new"),
        "gbytes_per_s": 1e-3 * moved / us("dasp"),
        "time_over_roofline": us("dasp") / roofline_us(moved, device.bandwidth),
        "best_baseline": best or None,
        "best_baseline_us": us(best),
        "pays_after": max((found.pays_after(plan_ms, name) for name in found.baselines), default=math.nan),
        **{f"{name}_us": us(name) for name in found.baselines},
        "missing": found.missing,
    }


def report(rows: list[Row]) -> str:
    """Return the table of some rows, their mean speed-up, and the baselines that did not run."""
    from dasp.cli.report import Table, geometric_mean, products, significant

    def figure(name: str) -> Callable[[Row], str]:
        return lambda row: significant(row[name])

    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("matrix", lambda row: row["matrix"]),
        ("entries", lambda row: f"{row['entries']:,}"),
        ("us", lambda row: figure("time_us")(row) if row["verified"] else "WRONG"),
        ("GB/s", figure("gbytes_per_s")),
        ("/roofline", figure("time_over_roofline")),
        ("best baseline", lambda row: row["best_baseline"] or "-"),
        ("its us", figure("best_baseline_us")),
        ("plan ms", figure("plan_ms")),
        ("bytes/CSR", figure("bytes_ratio")),
        ("pays after", lambda row: products(row["pays_after"])),
    ]
    parts = [Table.of("", columns, rows, words=["best baseline"]).text()]
    ratios = [row["best_baseline_us"] / row["time_us"] for row in rows if row["best_baseline"]]
    if ratios:
        parts.append(f"Times as fast as the best baseline, geometric mean: {geometric_mean(ratios):.3g}.")
    parts += [f"WRONG in {row['rows_failed']:,} rows: {row['matrix']}" for row in rows if not row["verified"]]
    reasons = {f"not run: {name}: {reason}" for row in rows for name, reason in row["missing"].items()}
    return "\n".join([*parts, *sorted(reasons)])
