"""Products with a planned matrix in PyTorch, with gradients for the vectors and for the values of the matrix.

The products are custom operators (`torch.ops.dasp`), so that `torch.compile` keeps them in its graphs. This
module imports PyTorch, so the rest of dasp imports it only on first use.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign

_kept: weakref.WeakKeyDictionary[Any, tuple[Tensor, Tensor]] = weakref.WeakKeyDictionary()
"""The rows and the columns of the entries, for each matrix whose values had a gradient."""


def matmul(A: object, x: Tensor, values: Tensor | None = None) -> Tensor:
    """Return A @ x, with gradients for x and for the values.

    Parameters
    ----------
    A : dasp.SpMatrix
        Shape (m, n). The caller keeps it alive until all gradients are computed.
    x : torch.Tensor, shape (n,) or (n, k)
        On the device of A, with any strides.
    values : torch.Tensor, shape (nnz,), optional
        Values for the entries of A in place of its own, on the device of A, in the order that
        `SpMatrix.with_values` takes.

    Returns
    -------
    torch.Tensor, shape (m,) or (m, k)
        Contiguous, of the common type of x and of the values.

    Raises
    ------
    TypeError, ValueError
        As `SpMatrix.matvec` and `SpMatrix.with_values` do.

    Notes
    -----
    The gradient for x is A^H g. It needs the plan of the transpose, which is made on first use and kept. The
    gradient for the values is g x^H, sampled at the entries: one pass over them, with temporary memory for
    each entry and column of x. The row and the column of each entry are kept, in 8 or 16 bytes. Gradients
    have gradients.

    Examples
    --------
    >>> import dasp, torch
    >>> from dasp.interop.torch import matmul
    >>> A = dasp.SpMatrix([[0.0, 2.0], [3.0, 0.0]], device="cpu")
    >>> x = torch.tensor([1.0, 10.0], dtype=torch.float64, requires_grad=True)
    >>> matmul(A, x).sum().backward()
    >>> x.grad
    tensor([3., 2.], dtype=torch.float64)
    """
    return _product(x, values, _key(A), False)


def _key(A: object) -> str:
    """Return the key by which operators find a matrix; a compiled graph holds the key as a constant."""
    key: str | None = getattr(A, "_key", None)
    if key is None:
        raise TypeError(f"A is {_check.kind_of(A)}; a dasp.SpMatrix is needed")
    return key


def _find_matrix(key: str) -> Any:
    A = _foreign.matrices.get(key)
    if A is None:
        raise RuntimeError("the matrix of this product is gone; keep A as long as gradients are computed")
    return A


def _find_coordinates(A: Any) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each entry as tensors; keep them as long as the matrix."""
    if A not in _kept:
        rows, columns = A.coordinates()
        _kept[A] = torch.from_dlpack(rows), torch.from_dlpack(columns)
    return _kept[A]


def _find_dtype(A: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, A.dtype.name)
    return found


@torch.library.custom_op("dasp::matmul", mutates_args=())
def _matmul(x: Tensor, values: Tensor | None, key: str, transposed: bool) -> Tensor:
    """Return A x, or A^T x, with the given values or else A's own."""
    A = _find_matrix(key)
    if values is not None:
        with _foreign.stream_of(values, A.device):
            A = A.with_values(_foreign.take("values", values, A.device))
    y: Tensor = (A.T if transposed else A).matvec(x.detach())
    return y.contiguous()


@_matmul.register_fake
def _(x: Tensor, values: Tensor | None, key: str, transposed: bool) -> Tensor:
    A = _find_matrix(key)
    kind = torch.promote_types(x.dtype, _find_dtype(A) if values is None else values.dtype)
    return x.new_empty((A.shape[1 if transposed else 0], *x.shape[1:]), dtype=kind)


@torch.library.custom_op("dasp::sampled", mutates_args=())
def _sampled(g: Tensor, x: Tensor, key: str, transposed: bool) -> Tensor:
    """Return g_i x_j at each entry (i, j) of A, or of A^T, summed over the columns of g and x."""
    rows, columns = _find_coordinates(_find_matrix(key))
    if transposed:
        rows, columns = columns, rows
    product = g[rows] * x[columns]
    return product if product.ndim == 1 else product.sum(1)


@_sampled.register_fake
def _(g: Tensor, x: Tensor, key: str, transposed: bool) -> Tensor:
    return g.new_empty((_find_matrix(key).nnz,), dtype=torch.promote_types(g.dtype, x.dtype))


def _cast_like(gradient: Tensor, given: Tensor) -> Tensor:
    """Return a gradient in the type of its tensor; its real part if the tensor is real."""
    if gradient.is_complex() and not given.is_complex():
        gradient = gradient.real
    return gradient.to(given.dtype)


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    one, other, ctx.key, ctx.transposed = inputs
    ctx.writes = _find_matrix(ctx.key).writes if other is None else None
    ctx.save_for_backward(one, other)


def _differentiate_matmul(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, values = ctx.saved_tensors
    if values is None and ctx.writes != _find_matrix(ctx.key).writes:
        raise RuntimeError(
            "values of A were overwritten in place after the product whose gradients are wanted; write them "
            "after backward(), or pass them to dasp.interop.torch.matmul"
        )
    for_x = for_values = None
    if ctx.needs_input_grad[0]:
        for_x = _cast_like(_product(g.conj(), values, ctx.key, not ctx.transposed).conj(), x)
    if values is not None and ctx.needs_input_grad[1]:
        for_values = _cast_like(_sample(g, x.conj(), ctx.key, ctx.transposed), values)
    return for_x, for_values, None, None


def _differentiate_sampled(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
    g, x = ctx.saved_tensors
    for_g = for_x = None
    if ctx.needs_input_grad[0]:
        for_g = _cast_like(_product(x.conj(), h, ctx.key, ctx.transposed), g)
    if ctx.needs_input_grad[1]:
        for_x = _cast_like(_product(g.conj(), h, ctx.key, not ctx.transposed), x)
    return for_g, for_x, None, None


_matmul.register_autograd(_differentiate_matmul, setup_context=_keep_operands)
_sampled.register_autograd(_differentiate_sampled, setup_context=_keep_operands)


class _Transformed(torch.autograd.Function):  # type: ignore[misc]  # a class of Any without PyTorch
    """An operator, linear in each of two operands, for forward mode and `torch.func`.

    A custom operator silently drops tangents, and refuses most transformations of `torch.func`.
    """

    generate_vmap_rule = True
    operator: Callable[..., Tensor]
    product: Callable[..., Tensor]
    gradients: Callable[..., tuple[Tensor | None, ...]]

    @classmethod
    def forward(cls, *inputs: Tensor | str | bool | None) -> Tensor:
        return cls.operator(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _keep_operands(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return cls.gradients(ctx, gradient)

    @classmethod
    def jvp(cls, ctx: Any, turn: Tensor | None, change: Tensor | None, *_: object) -> Tensor:
        one, other = ctx.saved_tensors
        parts = [] if turn is None else [cls.product(turn, other, ctx.key, ctx.transposed)]
        if change is not None:
            parts.append(cls.product(one, change, ctx.key, ctx.transposed))
        return sum(parts[1:], parts[0])


def _are_plain(*tensors: Tensor | None) -> bool:
    """Return True if the operators may take these tensors as they are."""
    return _foreign.is_traced() or not any(
        each is not None and _foreign.is_transformed(each) for each in tensors
    )


def _product(x: Tensor, values: Tensor | None, key: str, transposed: bool) -> Tensor:
    made: Tensor = (_matmul if _are_plain(x, values) else _Matmul.apply)(x, values, key, transposed)
    return made


def _sample(g: Tensor, x: Tensor, key: str, transposed: bool) -> Tensor:
    made: Tensor = (_sampled if _are_plain(g, x) else _Sampled.apply)(g, x, key, transposed)
    return made


class _Matmul(_Transformed):
    operator, gradients, product = _matmul, staticmethod(_differentiate_matmul), staticmethod(_product)


class _Sampled(_Transformed):
    operator, gradients, product = _sampled, staticmethod(_differentiate_sampled), staticmethod(_sample)
