"""Conjugate gradients on a GPU from b to x in one launch, for systems that fit on the chip.

The iteration of `dasp.solvers.pipelined`, in kernels/solve/persistent.cu: blocks keep their part of the
matrix and their rows of the vectors in shared memory, nothing is captured, and one sum over the grid
stands between two iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dasp.solvers.cuda.loop import HISTORY
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.cuda.vectors import CudaVectors
from dasp.solvers.scalars import LIMIT
from dasp.solvers.space import Report
from dasp.solvers.system import System

if TYPE_CHECKING:
    from dasp.solvers.persistent.kernel import Recipe

FROM_ZERO, FROM_X, AGAIN = range(3)
"""The modes of a launch: from x = 0, from x, or on from the last one. Numbers as in the kernel."""

NEVER, ALWAYS, UNLESS_LIMIT = range(3)
"""The cases in which a launch computes the true residual at its end."""

SLOTS = {"code": 0, "count": 1, "bb": 2, "rr": 3, "start": 4, "wanted": 5, "goal": 6, "true": 7, "xx": 8}
"""The places of a report's scalars in the record; the kernel keeps numbers of its own behind them."""

RECORD = 16
"""Numbers of the record."""


class PersistentLoop:
    """The loop of a system with pipelined conjugate gradients in one launch; see `dasp.solvers.space.Loop`.

    The launch reports in the host's memory, so that the host need not copy its record.
    """

    def __init__(self, system: System, recipe: Recipe) -> None:
        space, vectors = system.space, system.vectors
        assert isinstance(space, CudaSpace)
        assert isinstance(vectors, CudaVectors)
        self._on, jacobi = space.on, "d" in vectors.names
        messages = 2 * (4 if jacobi else 2) * recipe.blocks**2  # kernels/grid.cuh
        room = space.on.zeros(messages + RECORD + HISTORY + 1, np.float64)
        mailbox, self._mailbox = space.on.shared_with_host(recipe.mailbox)
        arguments = {
            "diagonal": vectors["d"] if jacobi else None,
            "shown": vectors.rows_from("r")[: 2 * vectors.stride],
            "kept": vectors.rows_from("w")[: 4 * vectors.stride],
            "stride": vectors.stride,
            "record": room[messages : messages + RECORD],
            "history": room[messages + RECORD :],
            "mailbox": mailbox,
            "b": vectors["b"],
            "x": vectors["x"],
            "messages": room[:messages].view(np.uint64),  # aligned as the allocation is
        }
        self._launch = recipe.launch(space.on, arguments)
        self._given, self._mode = (0.0, 0.0, 0.0), FROM_ZERO

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew from zero or from x, with the launch that comes next."""
        self._given = given["rtol"], given["atol"], given["margin"]
        self._mode = FROM_ZERO if name == "zero" else FROM_X

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most."""
        residuals: list[float] = []
        while True:
            allowed = min(most - len(residuals), HISTORY)
            last = allowed == most - len(residuals)
            at_end = NEVER if not finish else ALWAYS if last else UNLESS_LIMIT
            self._launch(float(allowed), *self._given, self._mode, at_end)
            self._mode = AGAIN
            state = self._read(residuals)
            if last or state["code"] != LIMIT:
                return Report(state, residuals)

    def _read(self, residuals: list[float]) -> dict[str, float]:
        """Wait for the GPU; return the record, and add the residuals that the launch left."""
        self._on.wait()
        mailbox, count = self._mailbox, int(self._mailbox[SLOTS["count"]])
        residuals.extend(np.sqrt(mailbox[RECORD + 1 : RECORD + 1 + count]).tolist())
        return {name: float(mailbox[slot]) for name, slot in SLOTS.items()}
