"""What a plan of slices on a GPU has beside it for products by several columns: octets and bundles."""

from __future__ import annotations

import threading
from typing import Any

from dasp.backends.cuda import bundles
from dasp.formats.cost import H200
from dasp.formats.plan import Plan
from dasp.formats.sell.cuda import octets
from dasp.formats.sell.cuda.columns import Kernels, Layout
from dasp.runtime.cuda.device import primitives
from dasp.runtime.dtypes import Arithmetic

NEVER = 2**63
"""A size that no product is faster with."""


class Beside:
    """Octets and bundles of a plan of slices, each made once a product wants it.

    Parameters
    ----------
    plan : Plan
        With CuPy's arrays on the current device.
    """

    def __init__(self, plan: Plan) -> None:
        self._octets, self._bundles = self._kept = Kept(plan, octets), Kept(plan, bundles)

    def kernels(self, kinds: Arithmetic, k: int, x: Layout) -> Kernels | None:
        """Return how a product by k columns of X is made with one of them; None where slices are faster."""
        first = bundles.come_first(H200, kinds, k)
        kept = (self._bundles, self._octets) if first else (self._octets, self._bundles)
        return next(filter(None, (one.kernels(kinds, k, x) for one in kept)), None)

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return sum(kept.nbytes for kept in self._kept)

    def follow(self, captured: bool) -> None:
        """Take over values that were written into the plan, on the current stream, which may be captured."""
        for kept in self._kept:
            kept.follow(captured)


class Kept:
    """One of them, if products have wanted it.

    Parameters
    ----------
    plan : Plan
        With CuPy's arrays on the current device.
    kind : module
        `octets` or `bundles`.
    """

    def __init__(self, plan: Plan, kind: Any) -> None:
        import cupy

        self._cupy, self._plan, self._kind = cupy, plan, kind
        self._lock = threading.Lock()
        self._found: Any = None
        self._size: float | None = None

    def kernels(self, kinds: Arithmetic, k: int, x: Layout) -> Kernels | None:
        """Return how a product by k columns of X is made; None where others are faster.

        What is multiplied is made when it is first wanted, if memory is not short of it.
        """
        most = self._kind.most(H200, self._plan, kinds, k)
        if most < 1 or not self._kind.serve(self._plan, kinds, x):
            return None
        with self._lock:
            if self._size is None or (self._found is None and self._size <= most):
                current = self._cupy.cuda.get_current_stream()
                captured = self._cupy.cuda.runtime.streamIsCapturing(current.ptr)
                # On the caller's: it may write new values, and memory taken on it goes to no other stream.
                with self._cupy.cuda.Stream(non_blocking=True) if captured else current as stream:
                    self._size, self._found = self._build(most)
                    stream.synchronize()
            size, found = self._size, self._found
        return None if found is None or size > most else found.kernels()

    def _build(self, most: float) -> tuple[float, Any]:
        """Return the size, too large where memory is short of it, and what is of that size."""
        try:
            return self._kind.build(primitives(self._cupy.cuda.Device().id), self._plan, most)  # type: ignore[no-any-return]
        except MemoryError:
            return NEVER, None

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return 0 if self._found is None else self._found.nbytes

    def follow(self, captured: bool) -> None:
        """Take over values that were written into the plan, on the current stream, which may be captured."""
        if self._found is not None:
            made_of = primitives(self._cupy.cuda.Device().id)
            self._kind.fill(made_of.device, self._plan, made_of.unpack_codes(self._plan), self._found)
        elif captured:
            self._size = NEVER  # the graph would leave what is made later behind
