"""The device of a rank: on a machine with several GPUs, its own."""

from __future__ import annotations

import os
from typing import Any

from dasp.distributed.engine import Engine
from dasp.formats import devices
from dasp.runtime import check as _check

LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
    "PALS_LOCAL_RANKID",
)
"""Environment variables in which launchers tell a process its number on its machine."""


def resolve(engine: Engine, device: str, local: Any = None) -> str:
    """Return the device that is meant, `cpu` or `cuda:N`.

    Parameters
    ----------
    engine : Engine
    device : str
        `auto` is the GPU that holds `local`, else that of this rank's number on its machine, else the CPU;
        `cuda` never the CPU.
    local : matrix, optional

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If it is no device, or does not work.
    """
    name = _check.device_name(device)
    if name == "cpu":
        return name
    held = getattr(getattr(getattr(local, "data", None), "device", None), "id", None)
    if held is not None:
        if name not in ("auto", "cuda", f"cuda:{held}"):
            raise ValueError(f"local lies on cuda:{held} and device is {name!r}; they must be the same GPU")
        return f"cuda:{held}"
    if ":" not in name and devices.find("cuda").available()[0]:
        count = devices.find("cuda").count()
        name = f"cuda:{local_rank(engine.rank) % count}"
    resolved: str | None = devices.find("cuda").resolve(name)
    return "cpu" if resolved is None else resolved


def local_rank(rank: int) -> int:
    """Return the number of this process on its machine, as a launcher told it; else the rank."""
    for name in LOCAL_RANKS:
        told = os.environ.get(name, "")
        if told.isdecimal():
            return int(told)
    return rank
