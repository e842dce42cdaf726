"""Plans made by the CUDA kernels in the emulator, bit for bit those of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp._machines import MACHINES
from dasp.backends.cpu import primitives as cpu
from dasp.backends.cuda.primitives import Primitives
from dasp.formats.array import Csr, arrays_of
from dasp.formats.sliced import SLICED
from tests.emulated import EmulatedDevice
from tests.gallery import GALLERY, from_lengths, matrices
from tests.reference import entries_of


def csr_of(matrix):
    csr = entries_of(matrix)
    return Csr(csr.shape, csr.indptr, csr.indices, csr.data)


def assert_same_plan(got, want):
    assert got.pattern.choice == want.pattern.choice
    assert got.values.coding == want.values.coding
    assert (got.shape, got.dtype, got.nnz) == (want.shape, want.dtype, want.nnz)
    names = [
        name
        for part in (want.pattern, want.values)
        for name in vars(part)
        if hasattr(vars(part)[name], "nbytes")
    ]
    for name, mine, other in zip(names, arrays_of(got), arrays_of(want), strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
        np.testing.assert_array_equal(mine.view(np.uint8), other.view(np.uint8), err_msg=name)
    for number in ("entries", "segments", "positions", "index_dtype"):
        assert getattr(got.pattern, number) == getattr(want.pattern, number)


def compare(csr, seed=None, machine="gpu", **choices):
    options, device = SLICED.options(**choices), EmulatedDevice(seed)
    want = SLICED.pack(csr, options, MACHINES[machine], cpu)
    got = SLICED.pack(csr, options, MACHINES[machine], Primitives(device))
    assert_same_plan(got, want)
    return device


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name):
    compare(csr_of(GALLERY[name]))
