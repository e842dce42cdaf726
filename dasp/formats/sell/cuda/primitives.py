"""The primitives of packing into slices on a GPU: `dasp.formats.sell.cuda.pack` has a module a step.

`dasp.formats.sell.protocols.Primitives` says what each function returns. Nothing here names an array library:
arrays and launches are the device's, which is a GPU with CuPy or, in the tests, the emulator with NumPy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.csr.protocols import Operations
from dasp.formats.plan import Array, Plan
from dasp.formats.sell.choose import SliceStatistics, ValueStatistics
from dasp.formats.sell.cuda.pack import layout, refill, slice_statistics, store, survey, unpack, values
from dasp.formats.sell.cuda.pack.launcher import Launcher
from dasp.formats.sell.layout import Cut, Layout, Survey, Tried
from dasp.formats.sell.pattern import Coding, Pattern, Values
from dasp.runtime.cuda.device import CudaDevice, device_of_number


class CudaPrimitives:
    """The primitives of packing on one device.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: CudaDevice) -> None:
        self._on = Launcher(device)

    @property
    def operations(self) -> Operations:
        """See `Primitives`."""
        return self._on.csr

    @property
    def device(self) -> CudaDevice:
        """The device on which arrays lie."""
        return self._on.device

    # ---- statistics ----------------------------------------------------------------------------------

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """See `Primitives`; also holds that the arrays are a matrix, as `runtime.check.compressed` does."""
        return survey.survey(self._on, csr, cut, narrow)

    def try_windows(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        windows: tuple[int, ...],
        sector_columns: int,
        blocks: tuple[int, int, int],
        tiles: int,
    ) -> Tried:
        """See `Primitives`."""
        on = self._on
        return slice_statistics.try_windows(on, csr, survey, cut, windows, sector_columns, blocks, tiles)

    def slice_statistics(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        layout: Layout,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> SliceStatistics:
        """See `Primitives`."""
        return slice_statistics.of_layout(self._on, csr, survey, cut, layout, sector_columns, blocks)

    # ---- layout and fill -----------------------------------------------------------------------------

    def lay_out(self, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
        """See `Primitives`."""
        return layout.lay_out(self._on, csr, survey, cut, window, tried)

    def store(
        self, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
    ) -> tuple[Values, tuple[Array, Array, Array, Array]]:
        """See `Primitives`."""
        return store.store(self._on, csr, survey, order, layout, coding)

    # ---- other values --------------------------------------------------------------------------------

    def slots(self, plan: Plan) -> refill.Places:
        """See `Primitives`."""
        return refill.find_places(self._on, plan)

    def count_values(self, data: Array) -> tuple[ValueStatistics, values.Distinct]:
        """See `Primitives`."""
        return values.count_values(self._on, data)

    def code_values(
        self,
        data: Array,
        slots: refill.Places,
        total: int,
        coding: Coding,
        counted: tuple[ValueStatistics, values.Distinct] | None,
    ) -> Values:
        """See `Primitives`."""
        return refill.code_values(self._on, data, slots, total, coding, counted)

    def recode_values(self, data: Array, slots: refill.Places, values: Values) -> bool:
        """See `Primitives`."""
        return refill.recode_values(self._on, data, slots, values)

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """See `Primitives`."""
        return self._on.device.zeros(count, dtype)

    def scatter(self, numbers: Array, slots: Array | None, stored: Array) -> None:
        """See `Primitives`."""
        refill.scatter(self._on, numbers, slots, stored)

    def overwrite(self, array: Array, numbers: Array) -> None:
        """See `Primitives`."""
        refill.scatter(self._on, numbers, None, array)

    # ---- the way back --------------------------------------------------------------------------------

    def unpack(self, plan: Plan) -> tuple[Array, Array, Array]:
        """See `Primitives`."""
        return unpack.unpack(self._on, plan)

    def unpack_codes(self, plan: Plan) -> tuple[Array, Array, Array | None]:
        """Return the result of `unpack`, but values as they are stored, None if they are not."""
        return unpack.unpack_codes(self._on, plan)

    def decode(self, values: Values, codes: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
        """See `Primitives`."""
        return unpack.decode(self._on, values, codes, count, dtype)

    def clear_pads(self, pattern: Pattern, codes: Array) -> None:
        """See `Primitives`."""
        unpack.clear_pads(self._on, pattern, codes)


@cache
def primitives(number: int) -> CudaPrimitives:
    """Return the primitives of a GPU, which must be CuPy's current one when they are used."""
    return CudaPrimitives(device_of_number(number))
