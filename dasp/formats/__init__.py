"""The formats that a matrix can be packed in: one record each, found by its name.

A format is a folder. It defines the format's pattern and values and its choices, packs, unpacks and checks
plans, and multiplies by them on each kind of device. A line at the end of this file registers the format.

`format` defines the record of a format, `plan` the plan that it makes, and `cost` the numbers by which it
chooses. `product` defines the interface of a product; `product_cpu` and `product_cuda` hold the code that all
formats share, and `kernel_cuda` describes and compiles their kernels. `backend` defines what else depends on
the kind of device, `backend_cpu` and `backend_cuda` do it, and `backends` finds the backend of a device.
"""

from __future__ import annotations

from dasp.formats.dasp import DASP
from dasp.formats.format import Format
from dasp.formats.plan import Plan
from dasp.formats.sell import SELL

__all__ = ["Format", "find", "find_first", "list_names", "register"]

_formats: dict[str, Format] = {}


def register(new: Format) -> None:
    """Add the format `new` under its name; `auto` is the first registered format that can hold the matrix."""
    _formats[new.name] = new


def find(name: str) -> Format:
    """Return the format with a name.

    Raises
    ------
    ValueError
        If there is no such format.
    """
    if name not in _formats:
        raise ValueError(f"the format is {name!r}; {' or '.join(map(repr, _formats))} is needed")
    return _formats[name]


def list_names() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_formats)


def find_first(shape: tuple[int, int]) -> Format:
    """Return the first format that can hold a matrix of a shape."""
    for each in _formats.values():
        if each.can_hold(shape):
            return each
    raise ValueError(f"A has shape {shape}; no format can hold it")


def count_shares(plan: Plan) -> dict[str, dict[str, int]]:
    """Return the "slots" and the "bytes" of a plan, each as a dictionary from a part's name to its share."""
    packed = find(plan.format)
    if packed.count_shares is not None:
        return packed.count_shares(plan)
    parts = packed.list_parts(plan)
    return {
        "slots": {part.name: part.slots for part in parts if part.slots},
        "bytes": {part.name: part.bytes for part in parts if part.bytes},
    }


register(SELL)
register(DASP)
