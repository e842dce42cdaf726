"""The device that a caller means."""

from __future__ import annotations

from dasp.formats import devices
from dasp.runtime import check as _check


def find_device(device: object, A: object = None) -> str:
    """Return the device that is meant, `cpu` or `cuda:N`.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` is the GPU on which `A` lies, if it is CuPy's; else a GPU if one works, and else the CPU.
    A : object, optional

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If `device` is not a device, or does not work.
    """
    if device == "auto" and type(A).__module__.startswith("cupy"):
        number = getattr(getattr(getattr(A, "data", None), "device", None), "id", None)
        device = device if number is None else f"cuda:{number}"
    name = _check.device_name(device)
    if name == "cpu":
        return name
    resolved: str | None = devices.find("cuda").resolve(name)
    return "cpu" if resolved is None else resolved
