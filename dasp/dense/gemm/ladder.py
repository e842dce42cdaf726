"""The rungs of a GEMM ladder, the facts about one product, and the interface of a device to `gemm`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dasp.runtime.dtypes import TABLE
from dasp.runtime.types import Array

HALF = ("float16", "bfloat16")
REAL = ("float32", "float64")


class DenseProduct(NamedTuple):
    """One checked product C = alpha A B + beta C, with the transpositions already folded into the views.

    Attributes
    ----------
    a, b : arrays of shape (m, k) and (k, n), any strides, all of one dtype, on one device
    c : array of shape (m, n) or None; None exactly if beta == 0
    out : array of shape (m, n), any strides, sharing no memory with a or b
    alpha, beta : float
    """

    a: Array
    b: Array
    c: Array | None
    out: Array
    alpha: float
    beta: float

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(m, n, k)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    @property
    def T(self) -> DenseProduct:
        """The same product as C^T = alpha B^T A^T + beta C^T."""
        c = None if self.c is None else self.c.T
        out = c if c is not None and self.c is self.out else self.out.T
        return DenseProduct(self.b.T, self.a.T, c, out, self.alpha, self.beta)


@dataclass(frozen=True)
class GemmKernel:
    """One rung of a ladder: a way to compute a product.

    Attributes
    ----------
    name : the word that ``gemm(..., kernel=name)`` takes
    summary : what this rung changes, in one sentence
    dtypes : names of the dtypes that it multiplies
    run : computes a checked product
    capability : least compute capability of the GPU, or None on the CPU
    """

    name: str
    summary: str
    dtypes: tuple[str, ...]
    run: Callable[[DenseProduct], None] = field(repr=False, compare=False)
    capability: tuple[int, int] | None = None

    @property
    def needs(self) -> str:
        """The dtypes and the machine that this rung needs, in words."""
        words = " or ".join(self.dtypes)
        if self.capability is None:
            return f"{words}; any CPU"
        return f"{words}; compute capability {self.capability[0]}.{self.capability[1]}"


class Backend(Protocol):
    """The interface of the modules `dasp.dense.gemm.cpu` and `dasp.dense.gemm.cuda`."""

    LADDER: tuple[GemmKernel, ...]
    VENDOR: GemmKernel
    DTYPES: tuple[str, ...]
    PLACE: str

    def using(self, *arrays: Array | None) -> AbstractContextManager[int]:
        """Return a context where the device of all the arrays (or None) is current; it gives the number."""

    def same_view(self, x: Array, y: Array) -> bool:
        """Return True if two arrays are the same elements in the same memory."""

    def choose(self, dtype: str, m: int, n: int, k: int) -> tuple[str, str]:
        """Return the kernel for C (m, n) with dot products of length k, and why, in words."""


def error_factor(dtype: str, k: int) -> float:
    """Return gamma(k + 3): |error| <= gamma |alpha| |A| |B| for a product in a dtype, as every rung promises.

    Half precisions are summed in float32; the rounding of the result is not included. gamma(n) is
    n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1).
    """
    terms = (k + 3) * TABLE["float32" if dtype in HALF else dtype].unit_roundoff
    return terms / (1 - terms)


def error_bound(dtype: str, k: int, want: Array, scale: Array) -> Array:
    """Return a bound for the distance of each element from the float64 product `want`.

    `scale` is |alpha| |A| |B| + |beta| |C|. The bound includes the error of the float64 product itself.
    """
    bound = (error_factor(dtype, k) + error_factor("float64", k)) * scale
    return bound + TABLE[dtype].unit_roundoff * (abs(want) + bound) if dtype in HALF else bound
