"""The primitives of packing into slices on the CPU: compiled loops over NumPy arrays, a module a step.

`dasp.formats.sell.primitives.Primitives` says what each function returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.csr.cpu import scan as scan
from dasp.formats.csr.cpu import sort_columns as sort_columns
from dasp.formats.csr.cpu import transpose as transpose
from dasp.formats.sell.cpu.layout import lay_out as lay_out
from dasp.formats.sell.cpu.store import code_values as code_values
from dasp.formats.sell.cpu.store import overwrite as overwrite
from dasp.formats.sell.cpu.store import recode_values as recode_values
from dasp.formats.sell.cpu.store import scatter as scatter
from dasp.formats.sell.cpu.store import store as store
from dasp.formats.sell.cpu.survey import survey as survey
from dasp.formats.sell.cpu.unpack import clear_pads as clear_pads
from dasp.formats.sell.cpu.unpack import find_slots as find_slots
from dasp.formats.sell.cpu.unpack import unpack as unpack
from dasp.formats.sell.cpu.values import choose_coding as choose_coding
from dasp.formats.sell.cpu.windows import slice_statistics as slice_statistics
from dasp.formats.sell.cpu.windows import try_windows as try_windows
from dasp.runtime.types import Vector


def zeros(count: int, dtype: np.dtype[Any]) -> Vector:
    """See `Primitives`."""
    return np.zeros(count, dtype)
