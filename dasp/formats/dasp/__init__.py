"""The format of the DASP paper: long, medium (regular and irregular), short and empty rows.

`pattern` defines the stored arrays, `pack` packs and unpacks them, `check` checks them, and `cpu` and `cuda`
multiply.
"""

from __future__ import annotations

from dasp.formats.dasp.check import check
from dasp.formats.dasp.pack import find_slots, list_parts, pack, unpack, values_from, values_into
from dasp.formats.dasp.pattern import NAME, Options, Pattern, Values
from dasp.formats.format import Format
from dasp.runtime.process import load

DASP = Format(
    name=NAME,
    options=Options,
    pattern=Pattern,
    values=Values,
    can_hold=lambda shape: True,
    pack=pack,
    unpack=unpack,
    find_slots=find_slots,
    check=check,
    values_from=values_from,
    values_into=values_into,
    list_parts=list_parts,
    products={
        "cpu": lambda: load("dasp.formats.dasp.cpu").DaspCpuProduct,
        "cuda": lambda: load("dasp.formats.dasp.cuda").DaspCudaProduct,
    },
    list_choices=lambda plan: {"mma": plan.pattern.mma},
)
