"""The ranks that a launcher started this process as: mpirun (and srun with MPI), or torchrun."""

from __future__ import annotations

from typing import Any

from dasp.distributed.communicators import engine_of
from dasp.distributed.engine import Engine
from dasp.runtime.launcher import started


def world(timeout: float | None = None) -> tuple[Any, Engine] | None:
    """Return the communicator of all ranks and its engine, or None for a process that was started alone.

    Raises
    ------
    RuntimeError
        If the library that the launcher needs is not installed.
    """
    kind = started()
    if not kind:
        return None
    try:
        if kind == "mpi":
            from mpi4py import MPI

            return MPI.COMM_WORLD, engine_of(MPI.COMM_WORLD, timeout=timeout)
        import torch.distributed as dist
    except ImportError as error:
        library = "mpi4py" if kind == "mpi" else "torch"
        raise RuntimeError(
            f"this is one of several ranks and {library} is not installed; pip install {library}"
        ) from error
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.group.WORLD, engine_of(dist.group.WORLD, timeout=timeout)


def leave() -> None:
    """Take leave of torch.distributed, which complains of those who do not."""
    if started() == "torch":
        import torch.distributed as dist

        from dasp.distributed.process_group import forget_engines

        if dist.is_initialized():
            dist.barrier()  # so that nobody's connections break before all are done
            forget_engines()
            dist.destroy_process_group()


def first_ranks(comm: Any, size: int) -> Any:
    """Return a communicator of the first ranks; all ranks call this, and those left out must not use it."""
    if hasattr(comm, "Split"):
        rank = comm.Get_rank()
        return comm.Split(int(rank >= size), rank)
    import torch.distributed as dist

    return dist.new_group(list(range(size)))
