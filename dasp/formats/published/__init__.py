"""The published DASP format: long, medium (regular and irregular), short and empty rows."""

from __future__ import annotations

from dasp._dtypes import TABLE
from dasp.formats.format import Format
from dasp.formats.published.check import check
from dasp.formats.published.options import Options
from dasp.formats.published.pack import pack
from dasp.formats.published.pattern import NAME, Pattern, Values
from dasp.formats.published.refill import mapped, values_from, values_into
from dasp.formats.published.unpack import slots, summary, unpack

PUBLISHED = Format(
    name=NAME,
    options=Options,
    pattern=Pattern,
    values=Values,
    dtypes=tuple(TABLE),
    takes=lambda shape: True,
    pack=pack,
    unpack=unpack,
    slots=slots,
    check=check,
    values_from=values_from,
    values_into=values_into,
    mapped=mapped,
    summary=summary,
    alike=lambda plan: {"mma": plan.pattern.mma},
)
