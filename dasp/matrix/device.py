"""Which device is meant, and a matrix packed there for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dasp.formats import devices
from dasp.formats.plan import Csr, Plan
from dasp.matrix import planning
from dasp.matrix.policy import Policy
from dasp.runtime import check as _check

_AUTO = Policy()


def resolve(device: Any) -> str:
    """Return the device that is meant, `cpu` or `cuda:N`.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If `device` is not a device, or does not work.
    """
    name = _check.device_name(device)
    if name == "cpu":
        return name
    resolved: str | None = devices.find("cuda").resolve(name)
    return "cpu" if resolved is None else resolved


def packer(shape: tuple[int, int], policy: Policy | None, device: str) -> str:
    """Return where a matrix for a device is packed: there, or on the CPU.

    Raises
    ------
    TypeError
        If `policy` is no policy.
    """
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(
            f"policy is {_check.kind_of(policy)}; a dasp.Policy is needed, such as Policy.published()"
        )
    layout = (policy or _AUTO).format_for(shape).name
    return device if devices.find(device).packs(layout) else "cpu"


def packed(
    csr: Csr,
    order: Any,
    policy: Policy | None,
    device: str,
    *,
    where: str | None = None,
    progress: bool = False,
) -> Plan:
    """Return the plan of a matrix for a device, made where that is packed.

    Parameters
    ----------
    csr : Csr
        With NumPy arrays, or with CuPy's on the device; checked if the CPU packs it.
    order : Array or None
        As `planning.make_plan` takes it, beside `csr` or on the host.
    policy : Policy or None
    device : str
        As `resolve` returns it.
    where : str, optional
        As `packer` returns it.
    progress : bool
    """
    where = where or packer(csr.shape, policy, device)
    machine, backend = devices.find(device).machine(device), devices.find(where)
    with backend.packing(csr, where) as (there, primitives):
        if order is not None:
            order = backend.to_device(order, where)
        return planning.make_plan(there, policy or _AUTO, machine, primitives, order, progress=bool(progress))


def found(find: Callable[[Plan, Any], Any], plan: Plan, device: str) -> Any:
    """Return what `planning.unpack` or `planning.slots_of` finds in a plan, on its device.

    Parameters
    ----------
    find : callable
    plan : Plan
        On the device.
    device : str
        As `resolve` returns it.

    Returns
    -------
    Array or tuple of Array
        Done, whatever stream comes next.
    """
    backend = devices.find(device)
    if backend.packs(plan.format):
        with backend.filling(device, ends=True) as primitives:
            return find(plan, primitives)
    on_host = find(backend.to_host(plan), devices.find("cpu").primitives)
    if isinstance(on_host, tuple):
        return tuple(backend.to_device(array, device) for array in on_host)
    return backend.to_device(on_host, device)
