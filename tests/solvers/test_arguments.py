"""Arguments of solvers: their kinds, what is wrong with them in words; and the report beside x."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import dasp
from dasp.solvers import bicgstab, block_cg, cg, gmres, lsqr, minres
from tests.support.systems import (
    SQUARE,
    poisson,
)


@pytest.mark.parametrize("method", SQUARE)
def test_kinds_of_arguments(method):
    A, b = poisson(5), np.ones(25)
    want = method(A, b)[0]
    for other in (
        A.tocsc(),
        A.todense(),
        sla.aslinearoperator(A),
        sp.csr_matrix(A),
        A.astype(int),
        A.tocoo(),
        np.asmatrix(A.toarray()),
    ):
        np.testing.assert_allclose(method(other, b)[0], want, rtol=1e-3)
    assert method(A, b.astype(int))[0].dtype == np.float64
    assert method(A, list(b))[0].shape == (25,)
    assert method(A, b[:, None])[0].shape == (25, 1)
    x, stats = method(np.zeros((0, 0)), np.zeros(0))
    assert (x.shape, stats.converged) == ((0,), True)


@pytest.mark.parametrize("method", SQUARE)
def test_wrong_arguments_are_told(method):
    A, b = np.eye(3), np.ones(3)
    with pytest.raises(ValueError, match=r"b has shape \(2,\); A has 3 rows"):
        method(A, np.ones(2))
    with pytest.raises(ValueError, match=r"b has shape \(3, 2\); .*; pass one column at a time"):
        method(A, np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"A has shape \(2, 3\); a square matrix"):
        method(np.ones((2, 3)), b)
    with pytest.raises(ValueError, match=r"M has shape \(2, 2\)"):
        method(A, b, M=np.eye(2))
    with pytest.raises(ValueError, match=r"x0 has shape"):
        method(A, b, np.ones((3, 3)))
    with pytest.raises(TypeError, match="x0 has dtype complex128; A, b and M are real"):
        method(A, b, b * 1j)
    with pytest.raises(TypeError, match="a real or complex dtype"):
        method(A, b.astype(object))
    with pytest.raises(TypeError, match="A is a list"):
        method([[1]], [1])
    with pytest.raises(ValueError, match="rtol is -1"):
        method(A, b, rtol=-1)
    with pytest.raises(ValueError, match="maxiter is 0"):
        method(A, b, maxiter=0)
    with pytest.raises(TypeError, match=r"M is a function; .*LinearOperator"):
        method(A, b, M=lambda r: r)
    with pytest.raises(TypeError, match=r"rtol is .*a real number is needed"):
        method(A, b, rtol=np.complex64(1))
    with pytest.raises(TypeError, match="b is a masked array"):
        method(A, np.ma.masked_array(b, [True, False, False]))
    with pytest.raises(TypeError, match="workspace is a dict"):
        method(A, b, workspace={})
    with pytest.raises(TypeError, match="callback"):
        method(A, b, callback=3)


def test_a_method_that_diverges_until_numbers_overflow_says_so():
    rng = np.random.default_rng(3)
    Q, spectrum = np.linalg.qr(rng.standard_normal((30, 30)))[0], np.geomspace(1e-6, 1.0, 30)
    spectrum[0] = 0.0
    A = (Q * spectrum @ Q.T).astype(np.float32)
    stats = bicgstab(A, rng.standard_normal(30).astype(np.float32), rtol=1e-6, maxiter=20_000)[1]
    assert not stats.converged
    assert re.search(r"the residual had grown from .* to .*e\+.*, so the method diverges", stats.reason)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(("scale", "b"), [(1e-270, 1e241), (1e-160, 1e200), (1e-30, 1e300)])
@pytest.mark.parametrize("name", ["cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr"])
def test_an_x_that_its_type_does_not_hold_is_told_in_the_reason_alone(name, scale, b, dtype):
    A = (scale * np.diag(np.arange(1.0, 6.0))).astype(dtype)
    seen: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stats = getattr(dasp.solvers, name)(A, np.full(5, b, dtype), maxiter=50, callback=seen.append)[1]
    assert not stats.converged
    assert stats.reason
    assert not stats.relative <= 1e-5, stats.relative  # it is that of the x that is returned


@pytest.mark.parametrize("product", [None, 3.0, [1.0, 2.0, 3.0]])
def test_a_product_that_is_no_array_is_told(product):
    class Operator:
        shape, dtype = (3, 3), np.dtype(float)

        def __matmul__(self, x: Any) -> Any:
            return product

    for name in ("cg", "gmres", "block_cg"):
        b = np.ones((3, 1) if name == "block_cg" else 3)
        with pytest.raises(TypeError, match=r"A @ x is .*; an array is needed"):
            getattr(dasp.solvers, name)(Operator(), b)


def test_a_bar_is_closed_where_a_callback_raises(monkeypatch):
    closed: list[bool] = []
    bar = SimpleNamespace(
        close=lambda: closed.append(True), set_postfix_str=lambda text, refresh: None, update=lambda n: None
    )
    monkeypatch.setattr(dasp.solvers.arguments, "_make_bar", lambda: bar)
    with pytest.raises(ZeroDivisionError):
        cg(poisson(3), np.ones(9), progress=True, callback=lambda x: 1 / 0)
    assert closed == [True]


@pytest.mark.parametrize(("name", "argument", "message"), [
    ("cg", "tol", "cg has no argument tol; rtol is meant"),
    ("lobpcg", "tol", "lobpcg has no argument tol; rtol is meant"),
    ("lsqr", "btol", "lsqr has no argument btol; rtol is meant"),
    ("gmres", "restrt", "gmres has no argument restrt; restart is meant"),
    ("block_cg", "colour", r"block_cg\(\) got an unexpected keyword argument 'colour'"),
])  # fmt: skip
def test_an_argument_that_a_method_has_not_is_told(name, argument, message):
    with pytest.raises(TypeError, match=message):
        getattr(dasp.solvers, name)(poisson(3), np.ones(9), **{argument: 1})


def test_methods_and_preconditioners_are_told_where_they_are():
    assert {"Stats", "Workspace"} == set(dasp.solvers.__all__) - dasp._ROOMS["solvers"]
    both = {"Preconditioner", "chebyshev"}
    assert both == set(dasp.preconditioners.__all__) - dasp._ROOMS["preconditioners"]
    with pytest.raises(AttributeError, match=r"dasp\.solvers\.cg is meant"):
        dasp.cg  # noqa: B018
    with pytest.raises(AttributeError, match=r"dasp\.preconditioners\.jacobi is meant"):
        dasp.jacobi  # noqa: B018
    assert not hasattr(dasp, "solver")


def test_stats_have_the_relative_residual_a_table_and_a_plot():
    A, b = poisson(8), np.arange(64.0)
    for method in (cg, minres, bicgstab, gmres, lsqr):
        x, stats = method(A, b, rtol=1e-6)
        assert stats.relative == pytest.approx(np.linalg.norm(b - A @ x) / np.linalg.norm(b), rel=1e-3)
    assert cg(A, 0 * b)[1].relative == 0
    B = np.stack([b, 1e-3 * b[::-1], 0 * b], axis=1)
    X, stats = block_cg(A, B, rtol=1e-6)
    shares = np.linalg.norm(B - A @ X, axis=0)[:2] / np.linalg.norm(B, axis=0)[:2]
    assert stats.relative == pytest.approx(shares.max(), rel=1e-3)
    html = replace(stats, reason="a < b")._repr_html_()
    assert "<th>relative residual</th>" in html
    assert "a &lt; b" in html
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    axes = stats.plot()
    assert stats.plot(axes) is axes
    assert axes.get_yscale() == "log"
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), stats.residuals)


def test_stats_are_one_line_with_the_relative_residual():
    b = 1e6 * np.random.default_rng(0).standard_normal(81)
    _, stats = cg(poisson(9), b)
    share = f"{stats.residual / np.linalg.norm(b):.2g} of norm(b)"
    assert share in stats.reason
    assert repr(stats).startswith("<converged in ")
    assert share in repr(stats)
    _, stats = cg(poisson(9), b, maxiter=2)
    assert repr(stats).startswith("<not converged in ")
    assert "\n" not in repr(stats)
