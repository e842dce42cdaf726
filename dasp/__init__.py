"""Sparse matrix-vector products planned once and run many times, on NVIDIA GPUs and CPUs.

The way from a SciPy matrix to y, and the modules that do each step:

    A = dasp.SpMatrix.from_scipy(csr)     # matrix/convert.py takes the arrays in, then matrix/planning.py
                                          # asks the format of the policy (formats/) to pack them
    y = A @ x                             # formats/ multiplies on the device

Each name below is loaded on first use, so that `import dasp` is quick; so is `dasp.torch`, if PyTorch is
installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dasp._version import __version__ as __version__
from dasp.runtime.process import load as _load

if TYPE_CHECKING:
    from dasp import dense, distributed, io, models, preconditioners, solvers
    from dasp import interop as interop
    from dasp.cli.machine import show_config
    from dasp.formats.plan import Plan
    from dasp.interop import torch as torch
    from dasp.io import load_matrix, load_plan, save_plan
    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy
    from dasp.preconditioners.automatic import solve
    from dasp.runtime.cpu.threads import get_num_threads, set_num_threads


_HOMES = {
    "Plan": "dasp.formats.plan",
    "Policy": "dasp.matrix.policy",
    "SpMatrix": "dasp.matrix.matrix",
    "get_num_threads": "dasp.runtime.cpu.threads",
    "load_matrix": "dasp.io",
    "load_plan": "dasp.io",
    "save_plan": "dasp.io",
    "set_num_threads": "dasp.runtime.cpu.threads",
    "show_config": "dasp.cli.machine",
    "solve": "dasp.preconditioners.automatic",
}

_ROOMS = {
    "solvers": {"bicgstab", "block_cg", "cg", "chebyshev", "gmres", "lobpcg", "lsmr", "lsqr", "minres"},
    "preconditioners": {"block_jacobi", "ic0", "ilu0", "jacobi", "multigrid"},
}

__all__ = [
    "Plan",
    "Policy",
    "SpMatrix",
    "dense",
    "distributed",
    "get_num_threads",
    "io",
    "load_matrix",
    "load_plan",
    "models",
    "preconditioners",
    "save_plan",
    "set_num_threads",
    "show_config",
    "solve",
    "solvers",
]


def __getattr__(name: str) -> Any:
    if name in ("dense", "distributed", "interop", "io", "models", "preconditioners", "solvers"):
        return _load(f"dasp.{name}")
    if name == "torch":
        return _load("dasp.interop.torch")
    if name in _HOMES:
        value = getattr(_load(_HOMES[name]), name)
        globals()[name] = value
        return value
    meant = (f"; dasp.{room}.{name} is meant" for room, names in _ROOMS.items() if name in names)
    words = f"module 'dasp' has no attribute {name!r}{next(meant, '')}"
    raise AttributeError(words, name=name, obj=sys.modules[__name__])  # Python suggests a similar name


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
