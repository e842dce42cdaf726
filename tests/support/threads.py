"""Multiply one matrix in several threads at once, for tests and attacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dasp import SpMatrix

Vector = np.ndarray[Any, Any]


def products_in_threads(
    A: SpMatrix,
    vectors: Sequence[Vector],
    rounds: int,
    stream: Callable[[], Any] = contextlib.nullcontext,
) -> list[tuple[Vector, Vector]]:
    """Multiply a matrix by each vector in a thread of its own, again and again.

    Parameters
    ----------
    A : SpMatrix
    vectors : sequence of numpy.ndarray, shape (n,)
    rounds : int
    stream : callable
        Makes the stream on which a thread works.

    Returns
    -------
    list of two numpy.ndarray, shape (m,)
        For each vector, the last product into `out` and the last new one, which have equal bits on the CPU.
        An error of a thread is raised here.
    """

    def work(x: Vector) -> tuple[Vector, Vector]:
        with stream():
            there = A.asarray(x)
            y = A @ there
            for _ in range(rounds):
                A.matvec(there, out=y)
                z = A @ there
                if isinstance(z, np.ndarray):  # a GPU's arrays are compared at the end: that waits
                    assert z.tobytes() == y.tobytes(), "two products have other bits"
            return tuple(each.get() if hasattr(each, "get") else each for each in (y, z))

    with ThreadPoolExecutor(len(vectors)) as pool:
        return list(pool.map(work, vectors))
