"""Preconditioners that live on the matrix's device and serve as M in dasp's, SciPy's and CuPy's solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dasp.preconditioners.base import Preconditioner
from dasp.preconditioners.block_jacobi import block_jacobi
from dasp.preconditioners.chebyshev import chebyshev
from dasp.preconditioners.incomplete import ic0, ilu0
from dasp.preconditioners.jacobi import jacobi
from dasp.runtime.process import load as _load

if TYPE_CHECKING:
    from dasp.multigrid.cycle import multigrid

__all__ = ["Preconditioner", "block_jacobi", "chebyshev", "ic0", "ilu0", "jacobi", "multigrid"]


def __getattr__(name: str) -> Any:
    if name == "multigrid":  # loaded late, because it stands on these preconditioners
        return _load("dasp.multigrid.cycle").multigrid
    raise AttributeError(f"module 'dasp.preconditioners' has no attribute {name!r}")
