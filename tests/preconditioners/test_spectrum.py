"""The largest eigenvalue of D^-1 A: from below for Hermitian matrices, from above for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dasp.preconditioners.spectrum import NAMES, STEPS, UPPER, spectral_radius
from dasp.solvers.arguments import make_space
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.operator import as_operator
from tests.support.simt_device import EmulatedDevice
from tests.support.systems import poisson


def estimate(A: Any, inverse: np.ndarray | None = None) -> float:
    inverse = 1 / A.diagonal() if inverse is None else inverse
    space = make_space("cpu", A.dtype)
    return spectral_radius(A, as_operator(A, "cpu"), inverse, space, space.vectors(A.shape[0], *NAMES))


def largest(A: sp.csr_array) -> float:
    return float(abs(np.linalg.eigvals(A.toarray() / A.diagonal()[:, None])).max())


SCALE = sp.diags_array(np.logspace(0, 2, 400))
PHASE = sp.diags_array(np.exp(1j * np.arange(400)))
HERMITIAN = {
    "poisson": poisson(20),
    "uneven": SCALE @ poisson(20) @ SCALE,
    "complex": PHASE @ poisson(20) @ PHASE.conj(),
    "negative": -poisson(20),
    "tiny numbers": 1e-150 * poisson(20),
    "one entry": sp.csr_array([[3.0]]),
    "two rows": sp.csr_array([[2.0, 1.0], [1.0, 2.0]]),
    "diagonal": sp.diags_array(np.linspace(1.0, 9.0, 50)),
}


@pytest.mark.parametrize("name", HERMITIAN)
def test_hermitian_matrices_are_estimated_from_below(name):
    A = sp.csr_array(HERMITIAN[name])
    want = largest(A)
    assert 0.9 * want <= estimate(A) <= want * (1 + 1e-12)
    assert estimate(A) == estimate(A)
    if A.shape[0] <= STEPS:
        np.testing.assert_allclose(estimate(A), want, rtol=1e-12)


@pytest.mark.parametrize(
    "A",
    [
        SCALE @ poisson(20),
        poisson(20) + sp.diags_array(np.full(399, -2.0), offsets=-1),
        poisson(20) - (0.3 - 0.15j) * sp.eye_array(400),
        1j * poisson(20),
        sp.csr_array([[1.0, 2.0], [2.0, -1.0]]),
    ],
)
def test_others_are_bounded_by_sums_of_rows(A):
    """Lanczos' method would take a matrix of rows that are scaled for one of twelve times the radius."""
    A = sp.csr_array(A)
    bound = (abs(A).sum(axis=1) / abs(A.diagonal())).max()
    np.testing.assert_allclose(UPPER * estimate(A), bound, rtol=1e-14)
    assert largest(A) <= UPPER * estimate(A) * (1 + 1e-12)


def test_rows_of_zeros_do_not_count():
    A = sp.csr_array(sp.block_diag([poisson(6), sp.csr_array((3, 3))]))
    inverse = np.append(1 / poisson(6).diagonal(), np.zeros(3))
    assert 1.7 < estimate(A, inverse) < 2
    assert estimate(sp.csr_array((4, 4)), np.zeros(4)) == 0
    assert estimate(sp.csr_array((0, 0)), np.zeros(0)) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_products_that_are_not_finite_are_told(bad):
    A = poisson(6)
    A.data[7] = bad
    with pytest.raises(ValueError, match="A holds NaN or infinity, or its products overflow"):
        estimate(A, np.full(36, 1e20))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_a_gpu_makes_the_same_estimate(dtype):
    A = sp.csr_array(HERMITIAN["uneven"]).astype(dtype)
    device = EmulatedDevice()
    space = CudaSpace("cpu", np.dtype(dtype), device)
    got = spectral_radius(
        A, as_operator(A, "cpu"), 1 / A.diagonal(), space, space.vectors(A.shape[0], *NAMES)
    )
    np.testing.assert_allclose(got, estimate(A), rtol=1e-5 if dtype == np.float32 else 1e-12)
    assert device.launches == ["dasp_fused"] * (2 * STEPS + 1)
