"""Products in PyTorch: gradients against finite differences, and the operators inside torch.compile."""

from __future__ import annotations

import doctest
import gc

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import Policy, SpMatrix
from dasp.runtime import foreign as _foreign

torch = pytest.importorskip("torch")
ours = pytest.importorskip("dasp.interop.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def tensor(array, device="cpu", **options):
    return torch.tensor(array, device=device, **options)


def unsorted():
    """Coordinates in any order, with duplicates: the values' gradients must follow the caller's order."""
    rng = np.random.default_rng(1)
    coords = rng.integers(0, 9, 40), rng.integers(0, 7, 40)
    return rng.standard_normal(40), coords, (9, 7)


def planned(device="cpu", format="sell"):
    data, coords, shape = unsorted()
    return SpMatrix.from_coo(data, coords, shape, policy=Policy(format=format), device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_gradients_and_theirs(columns, device):
    A, rng = planned(device), np.random.default_rng(0)
    x = tensor(rng.standard_normal((7, *columns)), device, requires_grad=True)
    values = tensor(rng.standard_normal(40), device, requires_grad=True)
    check = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    for holds in check:
        assert holds(lambda x: ours.matmul(A, x), (x,))
        assert holds(lambda x, values: ours.matmul(A, x, values), (x, values))


def test_gradients_of_complex_products_are_pytorchs():
    data, coords, shape = unsorted()
    rng = np.random.default_rng(0)
    A = SpMatrix.from_coo(data + 1j * data[::-1], coords, shape, device="cpu")
    x = tensor(rng.standard_normal((7, 2)) + 1j * rng.standard_normal((7, 2)), requires_grad=True)
    values = tensor(rng.standard_normal(40) + 1j * rng.standard_normal(40), requires_grad=True)
    real = tensor(rng.standard_normal(7), requires_grad=True)
    for holds in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert holds(lambda x, values: ours.matmul(A, x, values), (x, values))
        assert holds(lambda x: ours.matmul(A, x), (x,))
        assert holds(lambda x, values: ours.matmul(A, x, values), (real, values))


@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_against_a_dense_matrix(layout):
    data, (rows, columns), shape = unsorted()
    A, rng = planned(format=layout), np.random.default_rng(0)
    x, g = tensor(rng.standard_normal((7, 2))), tensor(rng.standard_normal((9, 2)))
    leaves = [(x.clone().requires_grad_(), tensor(data).requires_grad_()) for _ in range(2)]
    ours.matmul(A, *leaves[0]).backward(g)
    dense = torch.zeros(shape, dtype=torch.float64).index_put(
        (tensor(rows), tensor(columns)), leaves[1][1], accumulate=True
    )
    (dense @ leaves[1][0]).backward(g)
    for mine, theirs in zip(*leaves, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-13, atol=1e-13)
    got = A.coordinates()
    np.testing.assert_array_equal(got[0], rows)
    np.testing.assert_array_equal(got[1], columns)


def test_the_product_itself_has_gradients():
    A = planned()
    x = torch.ones(7, dtype=torch.float64, requires_grad=True)
    (A @ x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), A.sum(0), rtol=1e-13)
    x.grad = None
    z = torch.ones(9, dtype=torch.float64, requires_grad=True)
    (z @ A).sum().backward()
    np.testing.assert_allclose(z.grad.numpy(), A.sum(1), rtol=1e-13)
    with torch.no_grad():
        assert not (A @ x).requires_grad
    with pytest.raises(TypeError, match=r"x requires gradients and out, alpha or beta is given; A @ x alone"):
        A.matvec(x, alpha=2.0)


def test_gradients_have_the_types_of_what_they_are_of():
    A = planned()
    single = torch.ones(7, dtype=torch.float32, requires_grad=True)
    y = ours.matmul(A, single)
    assert y.dtype == torch.float64
    y.sum().backward()
    assert single.grad.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_operators_are_registered_as_pytorch_wants(device):
    A = planned(device)
    key = ours._key(A)
    x = torch.ones(7, 2, dtype=torch.float64, device=device, requires_grad=True)
    values = torch.ones(40, dtype=torch.float64, device=device, requires_grad=True)
    g = torch.ones(9, 2, dtype=torch.float64, device=device, requires_grad=True)
    torch.library.opcheck(torch.ops.dasp.matmul.default, (x, values, key, False))
    torch.library.opcheck(torch.ops.dasp.matmul.default, (x.detach(), None, key, False))
    torch.library.opcheck(torch.ops.dasp.sampled.default, (g, x, key, False))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_as_one_graph(device):
    A, B = planned(device), planned(device)

    def loss(x, values):
        return (ours.matmul(A, torch.relu(x)) ** 2).sum() + ours.matmul(B, x, values).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    rng = np.random.default_rng(0)
    leaves = [tensor(rng.standard_normal(size), device, requires_grad=True) for size in (7, 40)]
    grads = []
    for function in (loss, compiled):
        value = function(*leaves)
        grads.append([value, *torch.autograd.grad(value, leaves)])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_matrices_are_not_kept_alive():
    A = planned()
    x = torch.ones(7, dtype=torch.float64, requires_grad=True)
    y = ours.matmul(A, x)
    key = ours._key(A)
    assert key in _foreign.matrices
    del A
    gc.collect()
    assert key not in _foreign.matrices
    with pytest.raises(RuntimeError, match="the matrix of this product is gone"):
        y.sum().backward()


def test_what_is_no_matrix_is_refused():
    with pytest.raises(TypeError, match=r"A is a csr_array; a dasp\.SpMatrix is needed"):
        ours.matmul(sp.csr_array(np.eye(2)), torch.ones(2))
    with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
        ours.matmul(planned(), torch.ones(3))


def test_tangents_in_forward_mode():
    A, rng = planned(), np.random.default_rng(0)
    x, values = (tensor(rng.standard_normal(size), requires_grad=True) for size in (7, 40))
    kinds = {"check_forward_ad": True, "check_batched_grad": False}
    assert torch.autograd.gradcheck(lambda x: A @ x, (x,), **kinds)
    assert torch.autograd.gradcheck(lambda y: y @ A, (tensor(np.ones(9), requires_grad=True),), **kinds)
    assert torch.autograd.gradcheck(lambda *both: ours.matmul(A, *both), (x, values), **kinds)
    assert torch.autograd.gradgradcheck(
        lambda *both: ours.matmul(A, *both), (x, values), check_fwd_over_rev=True
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transformations_of_functions():
    A, rng = planned(), np.random.default_rng(0)
    dense, X = tensor(A.toarray()), tensor(rng.standard_normal((5, 7)))
    for product in (lambda x: A @ x, lambda x: ours.matmul(A, x)):
        torch.testing.assert_close(torch.func.vmap(product)(X), X @ dense.T)
        for jacobian in (torch.func.jacrev, torch.func.jacfwd):
            torch.testing.assert_close(jacobian(product)(X[0]), dense)
        torch.testing.assert_close(torch.func.jvp(product, (X[0],), (X[1],))[1], dense @ X[1])
        wanted = torch.func.hessian(lambda x: (dense @ x).pow(3).sum())(X[0])
        hessian = torch.func.hessian(lambda x, product=product: product(x).pow(3).sum())
        torch.testing.assert_close(hessian(X[0]), wanted)
    values = tensor(rng.standard_normal(40))
    by_values = torch.func.jacrev(lambda values: ours.matmul(A, X[0], values))(values)
    torch.testing.assert_close(by_values @ values, tensor(A.with_values(values.numpy()) @ X[0].numpy()))


def test_products_are_operators_where_they_are_traced():
    A, x = planned(), tensor(np.ones(7))
    compiled = torch.compile(
        lambda x, out: (A @ x, A.matvec(x, out=out, alpha=2.0, beta=1.0)), backend="eager"
    )
    y, out = compiled(x, torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(y, A @ x)
    torch.testing.assert_close(out, 2 * y + 1)
    with pytest.raises(Exception, match="out has shape"):
        compiled(x, torch.ones(3, 9, dtype=torch.float64))
    square = SpMatrix.from_dense(np.diag(np.arange(1.0, 8.0), 0) + np.eye(7, k=2), device="cpu").shifted(0.5)
    shifted = torch.compile(lambda x, out: square.matvec(x, out=out, alpha=2.0, beta=1.0), backend="eager")
    out = torch.ones(7, dtype=torch.float64)
    assert shifted(x, out) is out
    torch.testing.assert_close(out, 2 * (square @ x) + 1)


def test_gradients_of_values_that_are_gone_are_refused():
    A, x = planned(), tensor(np.ones(7), requires_grad=True)
    y = A @ x
    A.with_values(2 * A._values(), out=A)
    with pytest.raises(RuntimeError, match=r"values of A were overwritten in place after the product"):
        y.sum().backward()
    (A @ x).sum().backward()
    torch.testing.assert_close(x.grad, tensor(A.T @ np.ones(9)))


def test_autograd_knows_what_was_written_to_and_who_may_be():
    A, x = planned(), tensor(np.ones(7))
    kept, out = tensor(np.ones(9), requires_grad=True), torch.ones(9, dtype=torch.float64)
    product = kept * out
    A.matvec(x, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with pytest.raises(TypeError, match=r"out requires gradients, .*; pass out.detach\(\)"):
        A.matvec(x, out=kept)
    with torch.no_grad():
        A.matvec(x, out=kept)
    torch.testing.assert_close(kept.detach(), A @ x)
    for lazy in (
        torch.zeros(9, dtype=torch.complex128).conj(),
        torch.zeros(9, dtype=torch.complex128).conj().imag,
    ):
        with pytest.raises(
            TypeError, match=r"out is a conjugated or negated view; .* numbers of its own is needed"
        ):
            A.matvec(x, out=lazy)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_types_that_no_product_has_are_named():
    A = planned()
    for kind in ("float8_e4m3fn", "complex32"):
        with pytest.raises(
            TypeError, match=rf"a tensor has dtype torch.{kind}; integers, bool or one of float64"
        ):
            A @ torch.zeros(7, dtype=getattr(torch, kind))
    with pytest.raises(TypeError, match=r"x is a nested torch.Tensor; a dense one is needed"):
        A @ torch.nested.nested_tensor([torch.zeros(3)])


def test_the_example_prints_what_it_says() -> None:
    failed, tried = doctest.testmod(ours)
    assert tried
    assert not failed
