"""Slices: rows of similar length, 32 lanes to a slice, columns and values in as few bits as hold them."""

from __future__ import annotations

from dasp._dtypes import TABLE
from dasp.formats.format import Format
from dasp.formats.sliced.check import check
from dasp.formats.sliced.mapping import mapped
from dasp.formats.sliced.options import Options
from dasp.formats.sliced.pack import pack
from dasp.formats.sliced.pattern import MOST_COLUMNS, NAME, Pattern, Values
from dasp.formats.sliced.refill import values_from, values_into
from dasp.formats.sliced.shares import shares
from dasp.formats.sliced.unpack import slots, summary, unpack

SLICED = Format(
    name=NAME,
    options=Options,
    pattern=Pattern,
    values=Values,
    dtypes=tuple(TABLE),
    takes=lambda shape: max(shape) <= MOST_COLUMNS,
    pack=pack,
    unpack=unpack,
    slots=slots,
    check=check,
    values_from=values_from,
    values_into=values_into,
    mapped=mapped,
    summary=summary,
    alike=lambda plan: {"narrow": plan.pattern.choice.narrow, "mma": plan.pattern.choice.mma},
    scaled=lambda plan, slots, left, right, on: on.scale_entries(plan, slots, left, right),
    shares=shares,
)
