"""`dasp warmup`: usual calls are made once on small matrices, so that what they compile is kept on disk."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dasp.cli.options import Subparsers, add_device_option, add_parser

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DTYPES = "float64", "float32"

MODELS = "poisson2d:200", "powerlaw:20000"
"""A matrix of few values and even rows, and one of any values with short and long rows."""

MOST_ITERATIONS = 30


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp warmup` to the command line."""
    parser = add_parser(
        subparsers, "warmup", "; it plans, multiplies, transposes and solves small systems once."
    )
    add_device_option(parser)
    parser.add_argument(
        "--dtype",
        action="append",
        choices=("float64", "float32", "complex128", "complex64"),
        help=f"of the values; may be given several times (default: {' and '.join(DTYPES)})",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dasp.matrix.planning import find_device
    from dasp.models import generate

    device = find_device(arguments.device)
    print(f"compiling for {device}, what is not on disk yet")
    for dtype in arguments.dtype or DTYPES:
        for model in MODELS:
            csr = generate(model).astype(dtype)
            with _timed(f"products of {dtype} with {model}"):
                multiply(csr, device)
        with _timed(f"solves of {dtype}"):
            solve(generate(MODELS[0]).astype(dtype), device)
    return 0


@contextmanager
def _timed(name: str) -> Iterator[None]:
    """Print how long something took."""
    start = time.perf_counter()
    yield
    print(f"{name:<40} {time.perf_counter() - start:6.2f} s", flush=True)


def multiply(csr: csr_array, device: str) -> None:
    """Plan a matrix, and multiply by it as users do."""
    import numpy as np

    import dasp
    from dasp.formats import devices

    A, n = dasp.SpMatrix(csr, device=device), csr.shape[1]
    put = devices.find(device).asarray
    x, X, data = (put(array, device, csr.dtype) for array in (np.ones(n), np.ones((n, 8)), csr.data))
    for B in (A, A.T, A.with_values(data)):
        B @ x
        B @ X


def solve(csr: csr_array, device: str) -> None:
    """Solve a system that is positive definite by each method, and by cg with preconditioners."""
    import numpy as np

    import dasp
    from dasp import preconditioners, solvers
    from dasp.formats import devices

    A = dasp.SpMatrix(csr, device=device)
    b = devices.find(device).asarray(np.ones(csr.shape[0], csr.dtype), device, csr.dtype)
    for method in (solvers.cg, solvers.minres, solvers.bicgstab, solvers.gmres):
        method(A, b, maxiter=MOST_ITERATIONS)
    for make in (preconditioners.jacobi, preconditioners.chebyshev, preconditioners.ic0):
        solvers.cg(A, b, M=make(A), maxiter=MOST_ITERATIONS)
