"""Iterative solvers: x from A x = b, where only products with A are made.

docs/solvers.md says which method to choose. To read the code, begin with `cg`: a method is a class of some
passes over vectors (`space` says what a pass is) and some scalars (`scalars`). `system` gives it vectors and
operators, `driver` runs it until the true residual is small, and `cpu` and `cuda` have the loops in which it
iterates.
"""

from dasp.solvers.bicgstab import bicgstab
from dasp.solvers.block_cg import block_cg
from dasp.solvers.cg import cg
from dasp.solvers.chebyshev import chebyshev
from dasp.solvers.gmres import gmres
from dasp.solvers.lobpcg import lobpcg
from dasp.solvers.lsmr import lsmr
from dasp.solvers.lsqr import lsqr
from dasp.solvers.minres import minres
from dasp.solvers.stats import Stats
from dasp.solvers.workspace import Workspace

__all__ = [
    "Stats",
    "Workspace",
    "bicgstab",
    "block_cg",
    "cg",
    "chebyshev",
    "gmres",
    "lobpcg",
    "lsmr",
    "lsqr",
    "minres",
]
