"""The interface of a product by a plan; `product_cpu` and `product_cuda` have the two kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dasp.formats.plan import Array, Plan


class Product(ABC):
    """A plan, ready to be multiplied on one device. Several threads may use one at once.

    Attributes
    ----------
    plan : Plan
        With arrays on the device.
    """

    plan: Plan

    @abstractmethod
    def multiply_if_plain(
        self, x: object, out: object = None, scale: tuple[float, float] | None = None
    ) -> Array | None:
        """Return A x if x, and `out` if it is given, are plain arrays that need no conversion, else None.

        With `scale` = (alpha, beta), return alpha A x + beta out; `out` is given if beta is not 0.
        """

    @abstractmethod
    def multiply(self, x: Array, y: Array, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0.

        Parameters
        ----------
        x : Array, shape (n,) or (n, k), of any type that y's type holds
        y : Array, shape (m,) or (m, k), not overlapping x
            Any strides. All rows are written, those without entries too.
        alpha, beta : float, or complex for a complex y
        """

    @abstractmethod
    def refresh(self) -> None:
        """Make later products use values that were written into the plan on a GPU's current stream."""

    def write_if_plain(self, data: object, slots: Any) -> bool:
        """Overwrite the plan's values if data is a plain array that the coding holds, else return False.

        Parameters
        ----------
        data : object
        slots : object or None
            The result of `Format.find_slots` for the pattern, if it was needed before.
        """
        return False

    def diagonal(self, k: int) -> Array | None:
        """Return the k-th diagonal in the type of sums; None if the matrix must be unpacked for it."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that products have made beside the plan."""
        return 0
