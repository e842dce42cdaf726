"""The primitives of packing into slices on a GPU: a module for each step, and one that unpacks.

========= ====================================== ==================================================
module    kernels of kernels/pack/               the host reads
========= ====================================== ==================================================
`survey`  survey.cu, values.cu                   facts of the integers and of the values
`windows` windows.cu, cut.cu, sectors.cu         slices, steps and sectors of each window
`layout`  segments.cu, cut.cu                    slices and steps, if no window was tried
`store`   store.cu; refill.cu, values.cu         blocks of deltas; whether a coding holds new values
`unpack`  unpack.cu                              nothing
========= ====================================== ==================================================

`dasp.formats.sell.pack` calls the first four in this order, and `dasp.formats.sell.primitives` says
what each function returns. Nothing here names an array library: arrays and launches are the device's, which
is a GPU with CuPy or, in the tests, the emulator with NumPy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.formats.csr.cuda import CudaOperations
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda import layout as _layout
from dasp.formats.sell.cuda import store as _store
from dasp.formats.sell.cuda import survey as _survey
from dasp.formats.sell.cuda import unpack as _unpack
from dasp.formats.sell.cuda import windows as _windows
from dasp.formats.sell.cuda.kinds import find_matrix_kinds, find_value_kinds
from dasp.formats.sell.pattern import Coding
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.cuda.device import CudaDevice, device_of_number
from dasp.runtime.cuda.launch import Kinds


class CudaPrimitives(CudaOperations):
    """The primitives of packing on one device; most are functions of other modules.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self._ready: set[Kinds] = set()

    def begin_loading(self, csr: Csr, coding: Coding = Coding.PLAIN) -> None:
        """Begin to compile, in the background, the kernels that most matrices of these types need.

        They are compiled in the order of their use. The coding is known after the survey.
        """
        stored = find_matrix_kinds(csr, coding)
        if stored in self._ready:
            return
        self._ready.add(stored)
        integers = find_matrix_kinds(csr)
        usual = {
            _survey.SURVEY: integers,
            _survey.COUNT_VALUES: find_value_kinds(csr.data.dtype, len(csr.data)),
            _windows.SORT_WINDOWS: integers,
            _windows.CUT_TILES: integers,
            _windows.COUNT_SECTORS: integers,
            _store.STORE_SLICES: stored,
        }
        self.device.begin_loading([(signature.source, of.constants) for signature, of in usual.items()])

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """See `Primitives`; also begin to compile the kernels for the coding of the values."""
        found = _survey.survey(self, csr, cut, narrow)
        if found.coding != Coding.PLAIN:
            self.begin_loading(csr, found.coding)
        return found

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """See `Primitives`."""
        numbers: Array = self.device.zeros(count, dtype)
        return numbers

    try_windows = _windows.try_windows
    slice_statistics = _windows.slice_statistics
    lay_out = _layout.lay_out
    store = _store.store

    find_slots = _store.find_places
    choose_coding = _survey.choose_coding
    code_values = _store.code_values
    recode_values = _store.recode_values
    scatter = _store.scatter
    overwrite = _store.overwrite

    unpack = _unpack.unpack
    unpack_codes = _unpack.unpack_codes
    clear_pads = _unpack.clear_pads


@cache
def find_primitives(number: int) -> CudaPrimitives:
    """Return the primitives of a GPU, which must be CuPy's current one when they are used."""
    return CudaPrimitives(device_of_number(number))
