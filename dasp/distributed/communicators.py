"""The engine of each kind of communicator that users have."""

from __future__ import annotations

from typing import Any

from dasp.distributed.engine import Engine, timeout_from
from dasp.runtime import check as _check


def engine_of(comm: Any, *, timeout: float | None = None) -> Engine:
    """Return the engine of a communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup, Engine
        A group of torch.distributed with gloo or NCCL; its default group is
        `torch.distributed.group.WORLD`. All ranks call this at the same time.
    timeout : float, optional
        Seconds that a rank waits for another: 600, or what the environment variable DASP_RANK_TIMEOUT says.
        A group of torch.distributed waits as long as it was made to.

    Returns
    -------
    Engine

    Raises
    ------
    TypeError
        If it is no communicator.
    ValueError
        If the timeout is not positive.
    """
    seconds = timeout_from(timeout)
    kinds = {one.__module__.partition(".")[0] for one in type(comm).__mro__}
    if "mpi4py" in kinds:
        from dasp.distributed.mpi import mpi_engine

        return mpi_engine(comm, seconds)
    if "torch" in kinds:
        from dasp.distributed.process_group import group_engine

        return group_engine(comm, seconds)
    if hasattr(comm, "gather") and hasattr(comm, "exchange") and hasattr(comm, "links"):
        engine: Engine = comm
        return engine
    raise TypeError(
        f"comm is {_check.kind_of(comm)}; a communicator of mpi4py or a process group of torch.distributed "
        "is needed, such as mpi4py.MPI.COMM_WORLD or torch.distributed.group.WORLD"
    )
