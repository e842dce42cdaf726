"""The ranks that a launcher started: mpirun, srun with MPI, torchrun."""

from __future__ import annotations

import os

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PALS_NRANKS")
"""Environment variables in which launchers of MPI give the number of ranks."""

MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID")
"""Environment variables in which launchers of MPI give a process its rank."""

TORCH_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets; a user may set them by hand too."""

EVERYWHERE = "All ranks raise this."
"""The note of an error that is the same on all ranks."""


def find_launcher() -> str:
    """Return `mpi` or `torch` if such a launcher started this process as one of several ranks, else ""."""
    if any(os.environ.get(name, "1") != "1" for name in MPI_SIZES):
        return "mpi"
    if all(name in os.environ for name in TORCH_NAMES) and os.environ["WORLD_SIZE"] != "1":
        return "torch"
    return ""


def speaks() -> bool:
    """Return True if this process speaks for all of its ranks: it is rank 0, or alone."""
    names = {"mpi": MPI_RANKS, "torch": ("RANK",), "": ()}[find_launcher()]
    return all(os.environ.get(name, "0") == "0" for name in names)


def is_raised_everywhere(error: BaseException) -> bool:
    """Return True if all ranks raise an error, so that one of them is enough to report it."""
    return EVERYWHERE in getattr(error, "__notes__", ())
