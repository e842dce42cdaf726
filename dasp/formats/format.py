"""The record of a format, and checks of the options that a user may choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import Csr, Operations
from dasp.formats.plan import Array, Part, Plan


class BasicPrimitives(Operations, Protocol):
    """Primitives for packing and refilling every format on one device; a format may add its own."""

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array of zeros."""

    def scatter(self, numbers: Array, slots: Array, stored: Array) -> None:
        """Write each number into its slot, bit for bit; no slot occurs twice."""

    def overwrite(self, array: Array, numbers: Array) -> None:
        """Overwrite the first elements of an array of a plan with numbers."""


@dataclass(frozen=True)
class Format:
    """How one format is chosen, packed, unpacked, checked and described.

    Attributes
    ----------
    name : str
        The name in policies, plans and files.
    options : type
        A frozen dataclass of the choices with which the format packs.
    pattern, values : type
        The dataclasses of a plan's two halves. Files keep them field by field.
    can_hold : callable
        Shape -> True if the format can hold a matrix of that shape.
    pack : callable
        (csr, options, model, primitives) -> Plan. The arrays of the plan lie where those of `csr` do.
        Deterministic: equal matrices, options and models give equal bits on every device.
    unpack : callable
        (plan, primitives) -> the matrix as CSR (indptr, indices, data), a row's entries in the order in which
        they were packed. The primitives are of the device that packs the format; the arrays lie there.
    find_slots : callable
        (plan, primitives) -> the slot of every entry, in the caller's order of the entries, or an object from
        which the primitives find the slots, with `nbytes`. `values_from` takes it.
    check : callable
        Check every invariant of a plan with NumPy arrays; ValueError names the first that is broken.
    values_from : callable
        (plan, data, slots, primitives) -> the values of a plan with the same pattern. `data` holds a number
        for each entry, and `slots` is the result of `find_slots`.
    values_into : callable
        With the same arguments, write the values into the arrays of the plan; ValueError, and no change, if
        these cannot hold the numbers.
    products : dict
        For "cpu" and "cuda" a function that imports and returns the class of the format's products there,
        derived from `product_cpu.CpuProduct` or `product_cuda.CudaProduct`. So a format can be named without
        Numba and CuPy. The function imports by `dasp.runtime.process.load`, so that a fork waits.
    packs_on_gpu : bool
        True if `pack`, `unpack` and `find_slots` run on a GPU, with its primitives. By default a matrix is
        packed on the CPU, and its plan copied.
    list_parts : callable
        Plan -> a `Part` for each of its parts; reads no array.
    list_choices : callable, optional
        Plan -> the choices of a policy that hold for a matrix like this one, such as its transpose. Choices
        that were fitted to the matrix's own rows are left open; by default all are.
    map_values : callable, optional
        (plan, function, primitives) -> the plan with the function applied to each value, or None, the
        default, if values must be unpacked and coded anew. The function takes arrays, NumPy's too, and may
        return another type.
    count_shares : callable, optional
        Plan -> its slots and its bytes, each divided among parts that the format names. May read arrays. By
        default the parts are those of `list_parts`.
    """

    name: str
    options: type
    pattern: type
    values: type
    can_hold: Callable[[tuple[int, int]], bool]
    pack: Callable[[Csr, Any, CostModel, Any], Plan]
    unpack: Callable[[Plan, Any], tuple[Array, Array, Array]]
    find_slots: Callable[[Plan, Any], Any]
    check: Callable[[Plan], None]
    values_from: Callable[[Plan, Array, Array, Any], Any]
    values_into: Callable[[Plan, Array, Array, Any], None]
    list_parts: Callable[[Plan], list[Part]]
    products: Mapping[str, Callable[[], type[Any]]]
    packs_on_gpu: bool = False
    list_choices: Callable[[Plan], dict[str, Any]] = lambda plan: {}
    map_values: Callable[[Plan, Callable[[Array], Array], Any], Plan | None] = lambda plan, function, on: None
    count_shares: Callable[[Plan], dict[str, dict[str, int]]] | None = None


def check_int(name: str, value: object, least: int, most: int) -> None:
    """Check that a choice is an int in a range.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if not least <= int(value) <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")


def check_switch(name: str, value: object) -> None:
    """Check that a choice is True or False.

    Raises
    ------
    TypeError
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}; it must be True or False")
