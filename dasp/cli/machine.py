"""`dasp config` and `dasp warmup`: list the devices and libraries of this machine, and compile for it."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from dasp._version import __version__
from dasp.cli.options import Subparsers, add_device_option, add_json_option, add_parser
from dasp.formats import backends, cost
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cuda import gpus
from dasp.runtime.cuda import source as _source

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# ---- config ----------------------------------------------------------------------------------------------


def add_config(subparsers: Subparsers) -> None:
    """Add `dasp config` to the command line."""
    parser = add_parser(subparsers, "config")
    add_json_option(parser)
    parser.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(describe(), indent=1))
    else:
        show_config()
    return 0


def show_config() -> None:
    """Print versions, the devices that work, and why the others do not."""
    print("\n".join(f"{name:<13} {value}" for name, value in describe().items()))


def describe() -> dict[str, str]:
    """Return the values that `show_config` prints, by name."""
    works, reason = gpus.try_gpu()
    device = "cuda:0" if works else "cpu"
    libraries = "numpy", "scipy", "numba", "pyamg", "mpi4py", "matplotlib", "threadpoolctl"
    return {
        "dasp": __version__,
        "python": platform.python_version(),
        **{name: _find_version(name) for name in libraries},
        "kernels": f"{_source.find()} ({_source.digest(_source.find())})",
        "cpu": f"works: {_threads.get_num_threads()} threads, {platform.machine()}",
        "cuda": f"{'works' if works else 'does not work'}: {reason}",
        "auto": f"takes {'cuda' if works else 'cpu'}",
        "cost model": f"{_name_model(device)}; own numbers: {_name_file()}",
    }


def _name_model(device: str) -> str:
    """Return the name of the cost model of a device, or the reason why it cannot be used."""
    try:
        return str(backends.find(device).cost_model.name)
    except ValueError as error:
        return str(error)


def _name_file() -> str:
    """Return the path of the user's own cost models, or the reason why there is none."""
    try:
        return str(cost.find_file())
    except RuntimeError as error:
        return str(error)


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


# ---- warmup ----------------------------------------------------------------------------------------------

DTYPES = "float64", "float32"

MODELS = "poisson2d:200", "powerlaw:20000"
"""A matrix with few different values and even rows, and one with any values and short and long rows."""

MOST_ITERATIONS = 30


def add_warmup(subparsers: Subparsers) -> None:
    """Add `dasp warmup` to the command line."""
    more = "; it plans, multiplies, transposes and solves small systems once"
    parser = add_parser(subparsers, "warmup", more)
    add_device_option(parser)
    parser.add_argument(
        "--dtype",
        action="append",
        choices=("float64", "float32", "complex128", "complex64"),
        help=f"of the values; may be given several times (default: {' and '.join(DTYPES)})",
    )
    parser.set_defaults(run=_warm_up)


def _warm_up(arguments: argparse.Namespace) -> int:
    from dasp.matrix.planning import find_device
    from dasp.models import generate

    device = find_device(arguments.device)
    print(f"compiling for {device}, what is not on disk yet")
    for dtype in arguments.dtype or DTYPES:
        for model in MODELS:
            csr = generate(model).astype(dtype)
            with _timed(f"products of {dtype} with {model}"):
                _multiply(csr, device)
        with _timed(f"solves of {dtype}"):
            _solve(generate(MODELS[0]).astype(dtype), device)
    return 0


@contextmanager
def _timed(name: str) -> Iterator[None]:
    """Print the seconds that the block took."""
    start = time.perf_counter()
    yield
    print(f"{name:<40} {time.perf_counter() - start:6.2f} s", flush=True)


def _multiply(csr: csr_array, device: str) -> None:
    """Plan a matrix, and multiply by it as users do."""
    import numpy as np

    import dasp

    A, n = dasp.SpMatrix(csr, device=device), csr.shape[1]
    put = backends.find(device).asarray
    x, X, data = (put(array, csr.dtype) for array in (np.ones(n), np.ones((n, 8)), csr.data))
    for B in (A, A.T, A.with_values(data)):
        B @ x
        B @ X


def _solve(csr: csr_array, device: str) -> None:
    """Solve a positive definite system by each method, and by cg with preconditioners."""
    import numpy as np

    import dasp
    from dasp import preconditioners, solvers

    A = dasp.SpMatrix(csr, device=device)
    b = backends.find(device).asarray(np.ones(csr.shape[0], csr.dtype))
    for method in (solvers.cg, solvers.minres, solvers.bicgstab, solvers.gmres):
        method(A, b, maxiter=MOST_ITERATIONS)
    for make in (preconditioners.jacobi, preconditioners.chebyshev, preconditioners.ic0):
        solvers.cg(A, b, M=make(A), maxiter=MOST_ITERATIONS)
