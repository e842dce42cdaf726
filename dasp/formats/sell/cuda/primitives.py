"""The primitives of packing into slices on a GPU: `dasp.formats.sell.cuda.pack` has a module a step.

`dasp.formats.sell.primitives` says what each function returns. Nothing here names an array library: arrays
and launches are the device's, which is a GPU with CuPy or, in the tests, the emulator with NumPy.
"""

from __future__ import annotations

from functools import cache

from dasp.formats.sell.cuda.pack import layout as _layout
from dasp.formats.sell.cuda.pack import refill as _refill
from dasp.formats.sell.cuda.pack import slice_statistics as _slices
from dasp.formats.sell.cuda.pack import store as _store
from dasp.formats.sell.cuda.pack import survey as _survey
from dasp.formats.sell.cuda.pack import unpack as _unpack
from dasp.formats.sell.cuda.pack import values as _values
from dasp.formats.sell.cuda.pack.launcher import Launcher
from dasp.runtime.cuda.device import device_of_number


class CudaPrimitives(Launcher):
    """The primitives of packing on one device, each a function of the launcher."""

    survey = _survey.survey
    try_windows = _slices.try_windows
    slice_statistics = _slices.slice_statistics
    lay_out = _layout.lay_out
    store = _store.store

    slots = _refill.find_places
    count_values = _values.count_values
    code_values = _refill.code_values
    recode_values = _refill.recode_values
    zeros = _refill.zeros
    scatter = _refill.scatter
    overwrite = _refill.overwrite

    unpack = _unpack.unpack
    unpack_codes = _unpack.unpack_codes
    clear_pads = _unpack.clear_pads


@cache
def primitives(number: int) -> CudaPrimitives:
    """Return the primitives of a GPU, which must be CuPy's current one when they are used."""
    return CudaPrimitives(device_of_number(number))
