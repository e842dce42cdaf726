"""The format of the DASP paper: long, medium (regular and irregular), short and empty rows."""

from __future__ import annotations

from typing import Any

from dasp.formats.dasp.check import check
from dasp.formats.dasp.options import Options
from dasp.formats.dasp.pack import pack
from dasp.formats.dasp.pattern import NAME, Pattern, Values
from dasp.formats.dasp.refill import mapped, values_from, values_into
from dasp.formats.dasp.unpack import slots, summary, unpack
from dasp.formats.format import Format
from dasp.runtime.dtypes import TABLE


def _cpu() -> type[Any]:
    from dasp.formats.dasp.cpu.product import Product

    return Product


def _cuda() -> type[Any]:
    from dasp.formats.dasp.cuda.product import Product

    return Product


DASP = Format(
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
    products={"cpu": _cpu, "cuda": _cuda},
    alike=lambda plan: {"mma": plan.pattern.mma},
)
