"""What the ranks know that a launcher started, from their environment: mpirun, srun with MPI, torchrun."""

from __future__ import annotations

import os

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PALS_NRANKS")
"""Environment variables in which launchers of MPI tell a process how many there are."""

MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID")
"""Those in which they tell which of them it is."""

TORCH_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Those that torchrun sets; set by hand they do too."""

EVERYWHERE = "All ranks raise this."
"""The note of an error that is the same on all ranks."""


def started() -> str:
    """Return what started this process as one of several ranks, `mpi` or `torch`; else nothing."""
    if any(os.environ.get(name, "1") != "1" for name in MPI_SIZES):
        return "mpi"
    if all(name in os.environ for name in TORCH_NAMES) and os.environ["WORLD_SIZE"] != "1":
        return "torch"
    return ""


def speaks() -> bool:
    """Whether this process is the one of its ranks that says what all of them would: rank 0, or one alone."""
    names = {"mpi": MPI_RANKS, "torch": ("RANK",), "": ()}[started()]
    return all(os.environ.get(name, "0") == "0" for name in names)


def told_everywhere(error: BaseException) -> bool:
    """Whether all ranks raise an error, so that one of them is enough to tell it."""
    return EVERYWHERE in getattr(error, "__notes__", ())
