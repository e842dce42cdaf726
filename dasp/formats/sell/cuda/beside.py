"""What a plan of slices on a GPU has beside it for products by several columns: octets."""

from __future__ import annotations

import threading

from dasp.formats.plan import Plan
from dasp.formats.sell.cuda import octets
from dasp.formats.sell.cuda.column_blocks import BLOCKS, Layout
from dasp.formats.sell.cuda.columns import Kernels
from dasp.formats.sell.cuda.octets import Octets
from dasp.formats.sell.cuda.primitives import primitives
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.dtypes import Arithmetic

NEVER = 2**63
"""Quads that no product is faster with."""


class Beside:
    """Octets of a plan of slices, made once a product wants them.

    Parameters
    ----------
    plan : Plan
        With CuPy's arrays on the current device.
    """

    def __init__(self, plan: Plan) -> None:
        import cupy

        self._cupy, self._plan = cupy, plan
        self._lock = threading.Lock()
        self._found: Octets | None = None
        self._quads: int | None = None

    def kernels(self, kinds: Arithmetic, k: int, x: Layout) -> Kernels | None:
        """Return how a product by k columns of X is made in octets; None where slices are faster.

        Octets are made when they are first wanted, if memory is not short of them.
        """
        most = octets.most(BLOCKS, self._plan, kinds, k)
        if most < 1 or not octets.serve(self._plan, kinds, x):
            return None
        with self._lock:
            if self._quads is None or (self._found is None and self._quads <= most):
                current = self._cupy.cuda.get_current_stream()
                captured = self._cupy.cuda.runtime.streamIsCapturing(current.ptr)
                # On the caller's: it may write new values, and memory taken on it goes to no other stream.
                chosen = self._cupy.cuda.Stream(non_blocking=True) if captured else current
                with on_stream(chosen) as stream:
                    self._quads, self._found = self._build(most)
                    stream.synchronize()
            quads, found = self._quads, self._found
        return None if found is None or quads > most else found.kernels()

    def _build(self, most: float) -> tuple[int, Octets | None]:
        """Return how many quads there are, too many where memory is short of them, and the octets."""
        try:
            return octets.build(primitives(self._cupy.cuda.Device().id), self._plan, most)
        except MemoryError:
            return NEVER, None

    @property
    def nbytes(self) -> int:
        """Bytes of the octets."""
        return 0 if self._found is None else self._found.nbytes

    def follow(self, captured: bool) -> None:
        """Take over values that were written into the plan, on the current stream, which may be captured."""
        if self._found is not None:
            made_of = primitives(self._cupy.cuda.Device().id)
            octets.fill(made_of.device, self._plan, made_of.unpack_codes(self._plan), self._found)
        elif captured:
            self._quads = NEVER  # the graph would leave what is made later behind
