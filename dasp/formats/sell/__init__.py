"""Slices: rows of similar length, 32 lanes to a slice, columns and values in as few bits as hold them."""

from __future__ import annotations

from dasp.formats.format import Format
from dasp.formats.sell.check import check
from dasp.formats.sell.pack import map_values, pack, values_from, values_into
from dasp.formats.sell.pattern import MOST_COLUMNS, NAME, Options, Pattern, Values, count_shares, list_parts
from dasp.runtime.process import load

SELL = Format(
    name=NAME,
    options=Options,
    pattern=Pattern,
    values=Values,
    can_hold=lambda shape: max(shape) <= MOST_COLUMNS,
    pack=pack,
    unpack=lambda plan, on: on.unpack(plan),
    find_slots=lambda plan, on: on.find_slots(plan),
    check=check,
    values_from=values_from,
    values_into=values_into,
    map_values=map_values,
    list_parts=list_parts,
    products={
        "cpu": lambda: load("dasp.formats.sell.cpu.product").SellCpuProduct,
        "cuda": lambda: load("dasp.formats.sell.cuda.product").SellCudaProduct,
    },
    packs_on_gpu=True,
    list_choices=lambda plan: {"narrow": plan.pattern.choice.narrow, "mma": plan.pattern.choice.mma},
    count_shares=count_shares,
)
