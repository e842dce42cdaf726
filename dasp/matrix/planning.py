"""From CSR to a plan: the request of a caller, and the format that packs the matrix."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dasp import formats
from dasp.formats import backends
from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import Csr
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan, arrays_of
from dasp.matrix.policy import Policy
from dasp.runtime import check as _check
from dasp.runtime.cuda import gpus
from dasp.runtime.log import logger


def find_device(device: object, A: object = None) -> str:
    """Return the device that a caller means, as `cpu` or `cuda:N`.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` is the GPU that holds `A`, if `A` is CuPy's; else a GPU, if one works; else the CPU.
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
    return gpus.resolve(name)


@dataclass(frozen=True)
class Request:
    """The device and the policy that a caller asks for.

    Attributes
    ----------
    device : str
        Where the matrix is multiplied, `cpu` or `cuda:N`.
    policy : Policy
        How its rows are packed.
    model : CostModel, optional
        The costs by which choices are made; those of the device by default.
    """

    device: str
    policy: Policy = field(default_factory=Policy)
    model: CostModel | None = None

    @classmethod
    def make(cls, device: str, policy: Policy | None, A: object = None) -> Self:
        """Check the caller's device and policy; `A` decides on `auto`, as in `find_device`.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            If `device` is not a device, or does not work; if `policy` is not a `Policy`.
        """
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(
                f"policy is {_check.kind_of(policy)}; a dasp.Policy is needed, such as Policy.dasp()"
            )
        return cls(find_device(device, A), policy or Policy())

    def packing_device(self, shape: tuple[int, int]) -> str:
        """Return the device that packs a matrix of a shape: the request's own, or the CPU."""
        return self.device if self.policy.format_for(shape).packs_on_gpu else "cpu"


def pack(csr: Csr, order: Array | None, request: Request) -> Plan:
    """Return the plan of a matrix, with arrays on the device that packs it.

    Parameters
    ----------
    csr : Csr
        With NumPy arrays, or with CuPy's on the request's device; checked if the CPU packs it.
    order : Array, shape (nnz,), or None
        As `make_plan` takes it, on the device of `csr` or on the host.
    request : Request
    """
    where = request.packing_device(csr.shape)
    model = request.model or backends.find(request.device).cost_model
    backend = backends.find(where)
    with backend.bring_to_device(csr) as (there, primitives):
        if order is not None:
            order = backend.asarray(order)
        return make_plan(there, request.policy, model, primitives, order)


def freeze(plan: Plan) -> None:
    """Make the NumPy arrays of a plan read-only, so that one compiled form serves every plan."""
    for array in arrays_of(plan):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


def make_plan(
    csr: Csr,
    policy: Policy,
    model: CostModel,
    primitives: BasicPrimitives,
    order: Array | None = None,
) -> Plan:
    """Pack a matrix into a plan.

    Parameters
    ----------
    csr : Csr
        Checked (`dasp.formats.csr.matrix`), on the device of the primitives; not modified.
    policy : Policy
    model : CostModel
        Its costs decide all that the policy leaves open.
    primitives : dasp.formats.format.BasicPrimitives
    order : Array, shape (nnz,), optional
        The position of each entry of the matrix among the caller's, if those came in another order.

    Returns
    -------
    Plan
        With arrays on that device; NumPy arrays are read-only. `unpack` returns the matrix.
    """
    chosen = policy.format_for(csr.shape)
    plan = chosen.pack(csr, policy.options(chosen), model, primitives)
    if order is not None:
        plan = dataclasses.replace(plan, order=order if plan.order is None else order[plan.order])
    freeze(plan)
    if logger.isEnabledFor(logging.INFO):
        parts = *csr.shape, plan.nnz, chosen.name, model.name, plan.nbytes
        logger.info("planned %s x %s with %s entries as %s for %s: %s bytes", *parts)
    return plan


@contextmanager
def read_where_packed(plan: Plan, device: str) -> Iterator[tuple[Plan, str, Any]]:
    """Yield a plan where its format is packed, that device, and its primitives; wait for their work."""
    where = device if formats.find(plan.format).packs_on_gpu else "cpu"
    there = plan if where == device else backends.find(device).to_host(plan)
    with backends.find(where).use_primitives(wait=True) as primitives:
        yield there, where, primitives


def unpack(plan: Plan, device: str) -> tuple[Array, Array, Array]:
    """Return the matrix of a plan as CSR, bit for bit except for the order inside a row.

    Parameters
    ----------
    plan : Plan
        On the device.
    device : str
        `cpu` or `cuda:N`.

    Returns
    -------
    indptr : Array, shape (m + 1,), int64
    indices : Array, shape (nnz,), the plan's index type
    data : Array, shape (nnz,), the plan's type
        On that device, complete on every stream. They include explicit zeros and duplicates, but no pads.
    """
    with read_where_packed(plan, device) as (there, where, primitives):
        indptr, indices, data = formats.find(plan.format).unpack(there, primitives)
    if where == device:
        return indptr, indices, data
    put = backends.find(device).asarray
    return put(indptr), put(indices), put(data)


def find_slots(plan: Plan, device: str) -> Any:
    """Return the slot of every entry, in the caller's order of the entries.

    Parameters
    ----------
    plan : Plan
        On the device.
    device : str
        `cpu` or `cuda:N`.

    Returns
    -------
    object
        On that device, with `nbytes`; the format's `values_from` and `values_into` take it.
    """
    with read_where_packed(plan, device) as (there, where, primitives):
        slots = formats.find(plan.format).find_slots(there, primitives)
    return slots if where == device else backends.find(device).asarray(slots)
