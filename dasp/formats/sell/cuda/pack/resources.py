"""What plans on one device share: its compiled kernels, and arrays that nobody writes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.csr.cuda.operations import Operations
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import COUNT, Types, type_defines, types_of_matrix, types_of_values
from dasp.formats.sell.cuda.pack.codes import code_bits, value_defines
from dasp.formats.sell.pattern import Coding
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.launch import Launches, Signature
from dasp.runtime.dtypes import bits_type

ALWAYS = kernels.SURVEY, kernels.SORT_WINDOWS, kernels.CUT_TILES, kernels.COUNT_SECTORS, kernels.FILL_DELTAS
"""A kernel of each source that most matrices need and that knows their integers alone."""


class Kernels(dict[Signature, Launches]):
    """Kernels by what they take, compiled at first use for what the names of types in their sources mean."""

    def __init__(
        self, device: CudaDevice, types: dict[str, np.dtype[Any]], constants: dict[str, str]
    ) -> None:
        super().__init__()
        self._on, self._types, self._constants = device, types | {"Count": COUNT}, constants

    def __missing__(self, signature: Signature) -> Launches:
        launch = self[signature] = self._on.kernel(signature, self._constants, self._types)
        return launch


class Resources:
    """What the primitives of a device share.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.csr = device, Operations(device)
        self._kernels: dict[Any, Kernels] = {}
        self._empty: dict[Any, Array] = {}
        self._readied: set[Any] = set()

    def compiled(
        self,
        types: dict[str, np.dtype[Any]],
        dtype: np.dtype[Any] | None = None,
        coding: Coding = Coding.PLAIN,
    ) -> Kernels:
        """Return kernels for integers of some types, and perhaps for values of one, in a coding."""
        named = types.key if isinstance(types, Types) else tuple(types.items())
        key = named, dtype and dtype.num, int(coding)
        found = self._kernels.get(key)
        if found is None:
            constants, types = type_defines(types), dict(types)
            if dtype is not None:
                constants |= value_defines(dtype, coding)
                types |= {"Bits": bits_type(dtype), "Code": code_bits(coding, dtype)}
            found = self._kernels[key] = Kernels(self.device, types, constants)
        return found

    def ready(self, csr: Csr) -> Types:
        """Return the types of a matrix's integers.

        The kernels that most matrices of these types need are compiled beside each other, not in turn.
        """
        integers = types_of_matrix(csr)
        key = integers.key, csr.data.dtype.num
        if key in self._readied:
            return integers
        self._readied.add(key)
        of_integers, plain = type_defines(integers), value_defines(csr.data.dtype, Coding.PLAIN)
        self.device.load_all(
            [
                *((signature.source, of_integers) for signature in ALWAYS),
                (kernels.VALUE_FACTS.source, type_defines(types_of_values(csr.data)) | plain),
                (kernels.STORE_SLICES.source, of_integers | plain),
            ]
        )
        return integers

    def nothing(self, dtype: Any) -> Array:
        """Return an array without numbers, which all plans share."""
        found = self._empty.get(dtype)
        if found is None:
            found = self._empty[dtype] = self.device.empty(0, dtype)
        return found

    def zero(self, dtype: np.dtype[Any]) -> Array:
        """Return an array of one 0, which all plans share."""
        key = dtype, 0
        if key not in self._empty:
            self._empty[key] = self.device.constant((0,)).view(dtype)[:1]
        return self._empty[key]
