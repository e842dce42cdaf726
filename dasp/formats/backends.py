"""The backend of each device, loaded when it is first used: one needs Numba, the other CuPy."""

from __future__ import annotations

from functools import cache

from dasp.formats.backend import Backend
from dasp.runtime.process import load


@cache
def find(device: str) -> Backend:
    """Return the backend of a device, `cpu` or `cuda:N`."""
    backend: Backend = (
        load("dasp.formats.backend_cpu").CpuBackend()
        if device == "cpu"
        else load("dasp.formats.backend_cuda").CudaBackend(device)
    )
    return backend
