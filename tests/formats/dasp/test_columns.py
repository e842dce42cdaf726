"""The format of the paper by several columns: one product for each."""

from __future__ import annotations

import numpy as np
import pytest

from dasp import SpMatrix
from tests.formats.sell.test_columns import (
    assert_columns_close,
    columns,
    hold_to_bits_of_vectors,
    hold_to_views,
    multiply,
)
from tests.support.gallery import GALLERY, from_lengths
from tests.support.planned import Tuned

SPLIT = Tuned("dasp", segment=64)
"""Gives long rows to several warps."""

MIXED = from_lengths(
    [700, 3, 129] + [1] * 40 + [3] * 20 + [2] * 19 + [4] * 9 + [0, 0] + [5, 9, 31] * 12 + [40] * 9, 300
)
"""Rows of every kind."""

every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


@every_device
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", GALLERY)
def test_gallery(device, name, order):
    matrix = GALLERY[name]
    x = columns(matrix.shape[1], 3, order=order)
    assert_columns_close(multiply(device, matrix, x, SPLIT), matrix, x)


@every_device
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize(("alpha", "beta"), [(-0.3, 0.0), (0.0, 0.7), (1.0, -1.0)])
def test_alpha_beta_and_out(device, orders, alpha, beta):
    x, y = columns(300, 5, order=orders[0]), columns(MIXED.shape[0], 5, 2, order=orders[1])
    got = multiply(device, MIXED, x, SPLIT, y.copy("K"), alpha, beta)
    assert_columns_close(got, MIXED, x, alpha, beta, y)


@every_device
@pytest.mark.parametrize("order", "CF")
def test_a_nan_or_inf_in_x_reaches_only_its_column_and_rows_that_use_it(device, order):
    x = columns(300, 4, order=order)
    x[7, 1], x[200, 3] = np.nan, np.inf
    got = multiply(device, MIXED, x, SPLIT)
    uses = MIXED.copy()
    uses.data[:] = 1
    np.testing.assert_array_equal(~np.isfinite(got), uses @ (~np.isfinite(x)).astype(float) > 0)
    assert_columns_close(got, MIXED, x)


@every_device
def test_a_column_has_the_bits_that_the_product_by_it_has(device):
    hold_to_bits_of_vectors(device, MIXED, SPLIT, ((8, "C"), (5, "F"), (1, "C"), (0, "C")))


@every_device
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("cut", [np.s_[:300, 3:11], np.s_[299::-1, 16:8:-1]])
def test_views_of_larger_arrays(device, order, cut):
    planned = SpMatrix.from_scipy(MIXED, policy=SPLIT, device=device)
    hold_to_views(device, planned, MIXED, columns(600, 40), cut, order)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_out_may_hold_nan_if_it_is_not_read(beta):
    planned = SpMatrix.from_scipy(MIXED, policy=SPLIT, device="cpu")
    x, out = columns(300, 3), np.full((MIXED.shape[0], 3), np.nan)
    assert np.isnan(planned.matvec(x, out=out, alpha=2.0, beta=beta)).all() == (beta != 0)
