"""Stable sorts: of elements by their keys, six bits at a time, and of the columns of each row."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.csr.cuda.c_types import COUNT
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array, narrowest
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import DIGIT_BITS, RUN, SORT_THREADS, SORT_TILE
from dasp.formats.sell.cuda.pack.work import Work
from dasp.formats.sell.layout import Survey
from dasp.runtime.integers import ceil_div


def sort(
    on: Resources,
    work: Work,
    elements_of: tuple[int, np.dtype[Any]],
    width: int,
    bits: int,
    to: Any,
) -> None:
    """Sort so many elements of a type by their keys inside windows, stably; see kernels/pack/radix.cu."""
    scratch, (elements, kind) = on.device.scratch, elements_of
    passes = ceil_div(max(bits, 1), DIGIT_BITS)
    tiles = ceil_div(elements, width) * ceil_div(width, SORT_TILE)
    counts = scratch(((tiles << DIGIT_BITS) + 1, COUNT))[0] if tiles > 1 else None  # one tile needs none
    spare = scratch((elements, kind))[0] if passes > 1 else None
    source, come = None, work.take(passes)
    work.tell(elements=elements, width=width, counts=counts)
    for nth in range(passes):
        target = to if (passes - nth) % 2 else spare
        work.tell(shift=nth * DIGIT_BITS, last=int(nth == passes - 1), **{"from": source})
        if tiles > 1:
            work.launch(kernels.COUNT_DIGITS, tiles, SORT_THREADS, come=work.words(come + nth, 1))
        work.launch(kernels.MOVE_DIGITS, tiles, SORT_THREADS, to=target)
        source = target


def sort_columns(on: Resources, csr: Csr, survey: Survey) -> tuple[Csr, Array]:
    """See `Primitives`: rows of up to 1024 entries in one pass, and then runs of 1024 merge by two."""
    nnz, work = len(csr.indices), survey.detail
    kinds = {"to_columns": csr.indices.dtype, "to_order": narrowest(nnz)}
    to = {name: on.device.empty(nnz, kind) for name, kind in kinds.items()}
    blocks = ceil_div(nnz, RUN)
    work.launch(kernels.SORT_COLUMNS, blocks, **to)
    width = RUN
    while width < work.facts.longest:
        runs = {"columns": to["to_columns"], "order": to["to_order"], "width": width}
        to = {name: on.device.empty(nnz, kind) for name, kind in kinds.items()}
        work.launch(kernels.MERGE_COLUMNS, blocks, **runs, **to)
        width *= 2
    work.tell(indices=to["to_columns"])
    return csr._replace(indices=to["to_columns"]), to["to_order"]
