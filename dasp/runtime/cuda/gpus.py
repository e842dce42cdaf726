"""The GPUs of this machine, by their names: `cuda:0` and so on. CuPy is imported when a GPU is asked for."""

from __future__ import annotations

from functools import cache

from dasp.runtime.log import logger


@cache
def try_gpu() -> tuple[bool, str]:
    """Use a GPU for a moment; return whether one works, and in words which one, or why none does."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            return False, "CuPy is not installed; pip install 'cupy-cuda13x[ctk]' (or cupy-cuda12x)"
        return False, f"CuPy cannot be imported: {error}"
    except OSError as error:
        return False, f"CuPy cannot be imported: {error}; set CUPY_CACHE_DIR to a folder that can be written"
    except Exception as error:
        return False, f"CuPy cannot be imported: {type(error).__name__}: {error}"
    version = getattr(cupy, "__version__", "of no version")
    try:
        gpus = cupy.cuda.runtime.getDeviceCount()
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        cupy.zeros(1).get()
    except Exception as error:  # whatever the driver says, the CPU still works
        return False, f"CuPy {version} finds no working GPU: {error}"
    return True, f"CuPy {version}, {gpus} x {name}"


def count() -> int:
    """Return how many GPUs this machine has; call it only where one works."""
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def use(device: str) -> None:
    """Make a GPU CuPy's current one, for a process that works on no other."""
    import cupy

    cupy.cuda.Device(find_number(device)).use()


def resolve(device: str) -> str:
    """Return `auto`, `cuda` or `cuda:N` as `cuda:N`; `cpu` if `auto` finds no GPU.

    Raises
    ------
    RuntimeError
        If a GPU was asked for by name and none works.
    ValueError
        If there is no GPU of that number.
    """
    works, reason = try_gpu()
    if not works:
        if device == "auto":
            logger.info("the CPU is used: %s", reason)
            return "cpu"
        raise RuntimeError(f"device is {device!r}; a working GPU is needed; {reason}")
    import cupy

    if ":" not in device:
        return f"cuda:{cupy.cuda.Device().id}"
    if find_number(device) >= count():
        raise ValueError(f"device is {device!r}; this machine has {count()} GPUs, numbered from 0")
    return f"cuda:{find_number(device)}"


@cache
def find_number(device: str) -> int:
    """Return the number N of a GPU `cuda:N`."""
    return int(device.partition(":")[2])
