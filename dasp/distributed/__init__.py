"""Matrices whose rows lie on several ranks, on MPI (mpi4py) or torch.distributed; docs/distributed.md.

On each of the ranks of `mpirun -n 4 python program.py`:

    D = dasp.distributed.SpMatrix.from_files("folder", MPI.COMM_WORLD)   # made by `dasp partition`
    x, stats = dasp.solvers.cg(D, numpy.ones(D.local_shape[0]))          # this rank's parts of b and x
"""

from dasp.distributed import preconditioners
from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.launch import find_communicator
from dasp.distributed.matrix import SpMatrix
from dasp.distributed.partition import Parts, write_parts
from dasp.distributed.transport import RankError

__all__ = [
    "Communicator",
    "Parts",
    "RankError",
    "SpMatrix",
    "agree",
    "find_communicator",
    "preconditioners",
    "write_parts",
]
