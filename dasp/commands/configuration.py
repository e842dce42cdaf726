"""What this installation of dasp found, and why."""

from __future__ import annotations

import importlib
import platform

import numba
import numpy
import scipy

import dasp
from dasp import _source, _threads


def show_config() -> None:
    """Print versions, the devices that work, and why the others do not."""
    print("\n".join(f"{name:<10} {value}" for name, value in describe()))


def describe() -> list[tuple[str, str]]:
    """Return the lines of `show_config` as (name, value)."""
    cuda = importlib.import_module("dasp.backends.cuda.product")
    works, reason = cuda.available()
    return [
        ("dasp", dasp.__version__),
        ("python", platform.python_version()),
        ("numpy", numpy.__version__),
        ("scipy", scipy.__version__),
        ("numba", numba.__version__),
        ("kernels", f"{_source.find()} ({_source.digest()})"),
        ("cpu", f"works: {_threads.get_num_threads()} threads, {platform.machine()}"),
        ("cuda", f"{'works' if works else 'does not work'}: {reason}"),
        ("auto", f"takes {'cuda' if works else 'cpu'}"),
    ]
