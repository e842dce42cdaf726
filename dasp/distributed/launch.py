"""The ranks that a launcher started (mpirun, srun, torchrun): their communicator, devices and transport."""

from __future__ import annotations

import os

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.transport import RankError, Transport
from dasp.runtime import check as _check
from dasp.runtime.cuda import gpus
from dasp.runtime.ranks import find_launcher

LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
    "PALS_LOCAL_RANKID",
)
"""Environment variables in which launchers tell a process its number on its machine."""


TIMEOUT = 600.0
"""Seconds that a rank waits for another by default."""

TIMEOUT_VARIABLE = "DASP_RANK_TIMEOUT"
"""The environment variable that sets another default."""

TRANSPORT_VARIABLE = "DASP_RANK_TRANSPORT"
"""The environment variable that is `nccl` if GPUs must not write in each other's memory."""


def find_communicator(comm: object, *, timeout: float | None = None) -> Communicator:
    """Return our communicator for one of MPI or a process group of torch.distributed.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup, Communicator
        A process group has gloo or NCCL; the default one is `torch.distributed.group.WORLD`. All ranks call
        this at the same time.
    timeout : float, optional
        See `set_timeout`.

    Returns
    -------
    Communicator
        The same object for the same `comm`.

    Raises
    ------
    TypeError
        If `comm` is no communicator.
    ValueError
        If the timeout is not positive, or `comm` is a communicator that this process is not in.
    """
    kinds = {one.__module__.partition(".")[0] for one in type(comm).__mro__}
    if isinstance(comm, Communicator):
        own = comm
    elif "mpi4py" in kinds:
        from dasp.distributed.mpi import find_mpi_communicator

        own = find_mpi_communicator(comm, _read_default_timeout())
    elif "torch" in kinds:
        from dasp.distributed.torch import find_torch_communicator

        own = find_torch_communicator(comm, _read_default_timeout())
    else:
        raise TypeError(
            f"comm is {_check.kind_of(comm)}; a communicator of mpi4py or a process group of "
            "torch.distributed is needed, such as mpi4py.MPI.COMM_WORLD or torch.distributed.group.WORLD"
        )
    set_timeout(own, timeout)
    return own


def set_timeout(comm: Communicator, seconds: float | None) -> None:
    """Set how long a rank waits for another from now on.

    Parameters
    ----------
    comm : Communicator
    seconds : float or None
        None keeps the seconds that were set before: at first 600, or the value of the environment variable
        DASP_RANK_TIMEOUT. A group of torch.distributed has its own timeout.

    Raises
    ------
    ValueError
        If `seconds` is not positive.
    """
    if seconds is not None:
        comm.timeout = _read_seconds("timeout", seconds)


def _read_default_timeout() -> float:
    return _read_seconds(TIMEOUT_VARIABLE, os.environ.get(TIMEOUT_VARIABLE, TIMEOUT))


def _read_seconds(name: str, given: float | str) -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{name} is {given!r}; a positive number of seconds is needed")
    return seconds


def find_world() -> Communicator | None:
    """Return the communicator of all ranks, or None for a process that was started alone.

    Raises
    ------
    RuntimeError
        If the library that the launcher needs is not installed.
    """
    kind = find_launcher()
    if not kind:
        return None
    try:
        if kind == "mpi":
            from mpi4py import MPI

            return find_communicator(MPI.COMM_WORLD)
        import torch.distributed as dist
    except ImportError as error:
        library = "mpi4py" if kind == "mpi" else "torch"
        raise RuntimeError(
            f"this is one of several ranks and {library} is not installed; pip install {library}"
        ) from error
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return find_communicator(dist.group.WORLD)


def leave() -> None:
    """End the groups of torch.distributed, which warns at exit of groups that were not ended."""
    if find_launcher() == "torch":
        import torch.distributed as dist

        from dasp.distributed.torch import forget_groups

        if dist.is_initialized():
            dist.barrier()  # so that no connection breaks before all ranks are done
            forget_groups()
            dist.destroy_process_group()


def find_rank_device(comm: Communicator, device: str, local: object = None) -> str:
    """Return the device of a rank, `cpu` or `cuda:N`: on a machine with several GPUs, its own.

    Parameters
    ----------
    comm : Communicator
    device : str
        `auto` means the GPU that holds `local`, else the one with this rank's number on its machine, else the
        CPU. `cuda` means the same, but never the CPU.
    local : matrix, optional

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If `device` is none, is not the GPU that holds `local`, or does not work.
    """
    name = _check.device_name(device)
    if name == "cpu":
        return name
    number = getattr(getattr(getattr(local, "data", None), "device", None), "id", None)
    if number is not None:
        if name not in ("auto", "cuda", f"cuda:{number}"):
            raise ValueError(f"local lies on cuda:{number} and device is {name!r}; they must be the same GPU")
        return f"cuda:{number}"
    if ":" not in name and gpus.try_gpu()[0]:
        name = f"cuda:{find_local_rank(comm.rank) % gpus.count()}"
    return gpus.resolve(name)


def find_local_rank(rank: int) -> int:
    """Return the number of this process on its machine, as a launcher tells it; else the rank."""
    for name in LOCAL_RANKS:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return rank


def find_transport(comm: Communicator, device: str) -> Transport:
    """Return the transport between the GPUs of ranks, which the first call makes; all ranks call it.

    Raises
    ------
    ValueError
        On all ranks, if the environment variable DASP_RANK_TRANSPORT is neither `auto` nor `nccl`, or differs
        between ranks.
    RankError
        On all ranks, if NCCL is needed and one of them has none.
    """
    if device not in comm.transports:
        comm.transports[device] = _make_transport(comm, device)
    return comm.transports[device]


def _make_transport(comm: Communicator, device: str) -> Transport:
    """Return a transport of one kind on all ranks: peers if GPUs reach each other's memory, else NCCL."""
    from dasp.distributed.halo_cuda import find_cupy_device
    from dasp.distributed.nccl import NcclTransport
    from dasp.distributed.peers import PeerTransport, can_reach

    def read() -> str:
        kind = os.environ.get(TRANSPORT_VARIABLE, "auto")
        if kind not in ("auto", "nccl"):
            raise ValueError(f"{TRANSPORT_VARIABLE} is {kind!r}; auto or nccl is needed")
        return kind

    wanted = agree(comm, read, lambda kind: {TRANSPORT_VARIABLE: kind})
    own = find_cupy_device(device)
    if comm.size > 1 and wanted == "auto" and can_reach(comm, own):
        try:
            peers = PeerTransport(comm, own)
            if peers.works():
                return peers
        except RankError:  # on all ranks the same: memory that cannot be shared
            pass
    return NcclTransport(comm, device)
