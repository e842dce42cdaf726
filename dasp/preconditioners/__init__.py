"""Preconditioners that stay where the matrix is, and serve as M in our solvers, SciPy's and CuPy's."""

from dasp.multigrid.cycle import multigrid
from dasp.preconditioners.base import Preconditioner
from dasp.preconditioners.block_jacobi import block_jacobi
from dasp.preconditioners.chebyshev import chebyshev
from dasp.preconditioners.incomplete import ic0, ilu0
from dasp.preconditioners.jacobi import jacobi

__all__ = ["Preconditioner", "block_jacobi", "chebyshev", "ic0", "ilu0", "jacobi", "multigrid"]
