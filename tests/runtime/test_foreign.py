"""Arrays of PyTorch, JAX and others as x and out: nothing is copied; results are of the caller's kind."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import SpMatrix
from dasp.runtime import foreign as _foreign
from tests.support.reference import assert_close

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(scope="module")
def matrix():
    return sp.random_array((60, 40), density=0.2, random_state=np.random.default_rng(2), format="csr")


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal(40)


class Spoken:
    """An array that speaks DLPack and nothing else, and counts how often it is asked."""

    def __init__(self, array):
        self.array, self.asked = array, 0
        self.shape = array.shape

    def __dlpack__(self, **options):
        self.asked += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array__(self, *_, **__):
        raise AssertionError("a copy was made")


def torch_tensor(array, device):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array.copy()).to("cuda" if device == "cuda" else "cpu")


def test_whatever_speaks_dlpack(matrix, x):
    A, given, y = SpMatrix.from_scipy(matrix, device="cpu"), Spoken(x), np.full(60, np.nan)
    out = Spoken(y)
    if not np.from_dlpack(Spoken(y)).flags.writeable:  # to older versions of NumPy nothing of others is
        with pytest.raises(ValueError, match="out is read-only"):
            A.matvec(given, out=out)
        return
    assert A.matvec(given, out=out) is out
    assert_close(y, matrix, x)
    assert (given.asked, out.asked) == (1, 1)
    assert_close(A @ given, matrix, x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_torch_tensors(device, dtype, matrix, x):
    A, x = SpMatrix.from_scipy(matrix.astype(dtype), device=device), x.astype(dtype)
    given = torch_tensor(x, device)
    import torch

    y = A @ given
    assert isinstance(y, torch.Tensor)
    assert (y.dtype, y.device) == (given.dtype, given.device)
    assert_close(y.cpu().numpy(), matrix.astype(dtype), x)
    out = torch.full((60,), float("nan"), dtype=given.dtype, device=given.device)
    place = out.data_ptr()
    assert A.matvec(given, out=out) is out
    assert out.data_ptr() == place
    assert torch.equal(out, y)
    assert torch.equal(torch.stack([given, 2 * given], 1).T.contiguous() @ A.T, torch.stack([y, 2 * y]))
    many = A @ torch.stack([given, 2 * given], 1)
    assert torch.equal(many[:, 1], 2 * many[:, 0])
    z = torch_tensor(np.ones(60, dtype), device)
    assert torch.equal(z @ A, A.rmatvec(z))
    before = given.clone()
    A.matvec(given, out=out, alpha=2.0, beta=-1.0)
    assert torch.equal(given, before)
    assert_close(out.cpu().numpy(), matrix.astype(dtype), x, 2.0, -1.0, y.cpu().numpy())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "complex64", "complex128"])
def test_tensors_of_every_type(name, device, matrix):
    torch = pytest.importorskip("torch")
    kind, rng = getattr(torch, name), np.random.default_rng(0)
    whole = matrix.copy()
    whole.data = rng.integers(-3, 4, matrix.nnz).astype(float)  # sums are exact in every type
    A = SpMatrix.from_scipy(whole, device=device).astype(name)
    given = torch.from_numpy(rng.integers(-3, 4, 40)).to(device, kind)
    want = torch.from_numpy(whole @ given.cpu().to(torch.complex128).numpy())
    y = A @ given
    assert (y.dtype, y.device) == (kind, given.device)
    assert torch.equal(y.cpu().to(torch.complex128), want)
    out = torch.full((60,), float("nan"), dtype=kind, device=device)
    assert torch.equal(A.matvec(given, out=out), y)
    z = torch.ones(60, dtype=kind, device=device)
    assert torch.equal((z @ A).cpu().to(torch.complex128), torch.from_numpy(whole.sum(0) + 0j))
    if kind.is_complex:
        turned = torch.conj(1j * given)
        assert turned.is_conj()
        assert torch.equal(A @ turned, A @ turned.resolve_conj())


def test_tensors_with_gradients_times_a_shifted_matrix(matrix):
    torch = pytest.importorskip("torch")
    square = (matrix.T @ matrix).tocsr()
    S = SpMatrix.from_scipy(square, device="cpu").shifted(2.0)
    dense = torch.from_numpy(square.toarray() + 2.0 * np.eye(40))
    x = torch.ones(40, dtype=torch.float64, requires_grad=True)
    for product, want in ((S @ x, dense @ x), (x @ S, x @ dense)):
        torch.testing.assert_close(product, want)
        got = torch.autograd.grad(product.square().sum(), x)[0]
        torch.testing.assert_close(got, torch.autograd.grad(want.square().sum(), x)[0])


def test_a_tensor_without_dimensions_is_a_number(matrix, x):
    torch = pytest.importorskip("torch")
    A, two = SpMatrix.from_scipy(matrix, device="cpu"), torch.tensor(2.0)
    for got in ((A * two) @ x, (two * A) @ x, A.matvec(x, alpha=two), A.matvec(x, alpha=torch.tensor(2))):
        np.testing.assert_array_equal(got, 2 * (A @ x))


def test_memory_is_shared(x):
    given = torch_tensor(x, "cpu")
    taken = _foreign.take("x", given, "cpu")
    assert taken.ctypes.data == given.data_ptr()
    back = _foreign.give_back(taken, given)
    assert back.data_ptr() == given.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
def test_jax_arrays(device, matrix, x):
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    A = SpMatrix.from_scipy(matrix, device=device)
    kind, _, number = A.device.replace("cuda", "gpu").partition(":")
    place = jax.devices(kind)[int(number or 0)]
    given = jax.device_put(x, place)
    for product, want in ((A @ given, matrix), (A.matvec(given), matrix)):
        assert isinstance(product, jax.Array)
        assert product.devices() == {place}
        assert_close(np.asarray(product), want, x)
    with pytest.raises(TypeError, match=r"out is a jaxlib?.* which cannot be written to; leave it out"):
        A.matvec(given, out=given)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_matrices_of_torch(device, matrix):
    dense = torch_tensor(matrix.toarray(), device)
    for given in (dense, dense.to_sparse_csr(), dense.to_sparse_coo(), dense.to_sparse_csc()):
        A = SpMatrix(given, "cpu" if device == "cpu" else "auto")
        assert A.device.startswith(device)
        np.testing.assert_array_equal(A.to_scipy().toarray(), matrix.toarray())


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_what_cannot_be_taken_is_refused_in_words(matrix, x):
    torch = pytest.importorskip("torch")
    for wrong in (torch.ones(4, 4).to_sparse_bsr((2, 2)), torch.ones(2, 2, 2).to_sparse()):
        with pytest.raises(TypeError, match=r"of which PyTorch makes no CSR matrix; a dense one, or COO"):
            SpMatrix(wrong, "cpu")
    A, given = SpMatrix.from_scipy(matrix, device="cpu"), torch_tensor(x, "cpu")
    for wrong, error, words in (
        (given.to_sparse(), TypeError, "x is a sparse torch.Tensor; a dense one is needed"),
        (given.to("meta"), TypeError, "x is a torch.Tensor on meta and A is on cpu"),
        (given[:7], ValueError, r"x has shape \(7,\)"),
    ):
        with pytest.raises(error, match=words):
            A @ wrong
    with pytest.raises(TypeError, match="out has dtype float32"):
        A.matvec(given, out=torch.zeros(60))
    with pytest.raises(ValueError, match="out overlaps x"):
        SpMatrix.from_scipy(sp.eye_array(40), device="cpu").matvec(given, out=given)


@pytest.mark.cuda
def test_work_is_on_the_stream_of_torch(matrix, x):
    torch = pytest.importorskip("torch")
    A, given = SpMatrix.from_scipy(matrix, device="cuda"), torch_tensor(x, "cuda")
    out = torch.empty(60, dtype=torch.float64, device="cuda")
    want = A @ given
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for cycles in 1, 500_000_000:  # first kernels are loaded; then a host has a quarter of a second
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            A.matvec(given * 4.0, out=out)
            waits = not side.query()
            quarter = out / 4.0  # exact, as the product by 4 x is
        side.synchronize()
    assert waits, "the product should still wait in the stream"
    assert torch.equal(quarter, want)
    with torch.cuda.stream(side):
        A.matvec(given, out=out)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        A.matvec(given, out=out)
    given.copy_(2 * given)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, A @ given)


@pytest.mark.filterwarnings("error")
def test_a_stream_of_torch_is_current_on_its_gpu(monkeypatch):
    """PyTorch and the GPU are stood in for; the stream that CuPy makes is CuPy's own."""
    cupy = pytest.importorskip("cupy")

    class Side:
        cuda_stream = 0x1230

    steps, current = [], cupy.cuda.Stream.null
    side = Side()

    @contextlib.contextmanager
    def on_stream(stream):
        steps.append(stream.ptr)
        yield stream

    @contextlib.contextmanager
    def on_device(number):
        steps.append(f"cuda:{number}")
        yield
        steps.append("left")

    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda gpu: side))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(_foreign, "on_stream", on_stream)
    monkeypatch.setattr(cupy.cuda, "Device", on_device)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda gpu: current)
    tensor = type("Tensor", (), {"__module__": "torch"})()
    with _foreign.stream_of(tensor, "cuda:1"):
        pass
    assert steps == ["cuda:1", 0x1230, "left"]
    current = side = types.SimpleNamespace(cuda_stream=0x1230, ptr=0x1230)
    with _foreign.stream_of(tensor, "cuda:1"), _foreign.stream_of(tensor, "cpu"):
        pass
    assert len(steps) == 3, "it was the current one"


@pytest.mark.cuda
def test_torch_streams_cause_no_warning(matrix, x):
    torch = pytest.importorskip("torch")
    A, given = SpMatrix.from_scipy(matrix, device="cuda"), torch_tensor(x, "cuda")
    with warnings.catch_warnings(), torch.cuda.stream(torch.cuda.Stream()):
        warnings.simplefilter("error", DeprecationWarning)
        y = A @ given
    torch.cuda.synchronize()
    assert_close(y.cpu().numpy(), matrix, x)


@pytest.mark.cuda
def test_a_host_tensor_is_no_vector_of_a_gpu(matrix, x):
    A = SpMatrix.from_scipy(matrix, device="cuda")
    with pytest.raises(TypeError, match=r"x is a torch.Tensor on cpu and A is on cuda:0"):
        A @ torch_tensor(x, "cpu")
    B = SpMatrix.from_scipy(matrix, device="cpu")
    with pytest.raises(TypeError, match=r"x is a torch.Tensor on cuda:0 and A is on cpu"):
        B @ torch_tensor(x, "cuda")


@pytest.mark.cuda
def test_whatever_lies_on_the_gpu(matrix, x):
    import cupy

    class Pointed:
        def __init__(self, array):
            self.array, self.shape = array, array.shape
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    A, y = SpMatrix.from_scipy(matrix, device="cuda"), cupy.full(60, cupy.nan)
    for kind in (Pointed, Spoken):
        y.fill(cupy.nan)
        A.matvec(kind(cupy.asarray(x)), out=kind(y))
        assert_close(y.get(), matrix, x)
