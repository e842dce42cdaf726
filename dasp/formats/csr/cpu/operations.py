"""The operations on matrices on the CPU; `dasp.formats.csr.protocols.Operations` says what each returns."""

from __future__ import annotations

import numpy as np

from dasp.formats.csr.cpu.sort import sort_columns as sort_columns
from dasp.formats.csr.cpu.transpose import transpose as transpose
from dasp.formats.csr.matrix import Array


def scan(numbers: Array) -> Array:
    """See `Operations`."""
    starts = np.zeros(len(numbers) + 1, numbers.dtype)
    np.cumsum(numbers, out=starts[1:])
    return starts
