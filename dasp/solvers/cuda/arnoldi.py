"""Arnoldi's method on a GPU, with the least-squares problem of GMRES; the host reads the residuals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dasp.runtime.cuda.device import in_turn
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.sizes import ceil_div
from dasp.solvers.cuda.passes import PACK_BYTES, scalar_defines
from dasp.solvers.cuda.vectors import CudaVectors

THREADS = 512
"""Threads of a block; each multiprocessor runs one block."""

MOST_BYTES = 12_000
"""The most bytes of an array with a number for each vector of a basis: a block keeps several such arrays in
shared memory."""

RESIDUAL, BROKEN, ROWS = 0, 1, 10
"""Two rows of the kernels' small numbers, which the host reads; and the rows besides the triangles, as in
solve/basis.cu."""


def _basis(entry: str, text: str) -> Signature:
    return Signature("solve/basis.cu", f"dasp_basis_{entry}", text)


VECTORS = """
    const Scalar*  basis
    long long      stride
    long long      n
"""

SIGNATURES = {
    "leave": _basis("leave", VECTORS + "int k\n int closing\n Number* parts"),
    "take": _basis("take", "const Number* parts\n int blocks\n int k\n int closing\n Number* small"),
    "subtract": _basis("subtract", VECTORS.replace("const ", "") + "int k\n Number* small"),
    "solve": _basis("solve", "Number* small\n long long count"),
    "add": _basis("add", VECTORS + "const Number* small\n Scalar* out\n long long count"),
}
"""The kernels of kernels/solve/basis.cu and their parameters."""


class CudaArnoldi:
    """A Krylov basis on a GPU; see `dasp.solvers.space.Arnoldi`.

    Parameters
    ----------
    space : dasp.solvers.cuda.space.CudaSpace
    vectors : dasp.solvers.cuda.vectors.CudaVectors
        Vectors that hold the basis in consecutive rows.
    names : list of str
        The names of the basis vectors.

    Raises
    ------
    ValueError
        If there are more vectors than a block has room for.
    """

    ahead = 10

    def __init__(self, space: Any, vectors: CudaVectors, names: list[str]) -> None:
        self._most = most = len(names)
        self._number = np.dtype(np.complex128 if space.dtype.kind == "c" else np.float64)
        limit = MOST_BYTES // self._number.itemsize
        if most > limit:
            raise ValueError(f"restart is {most - 1}; on a GPU at most {limit - 1} are possible")
        self._on, self._dtype, self._vectors, self._n = space.on, space.dtype, vectors, vectors.n
        self._blocks = self._count_blocks(space, vectors.n)
        self._small = space.on.zeros(ROWS * most + 2 * most * most, self._number)
        self._report = self._small[: 2 * most]
        basis = {"basis": vectors.rows_from(names[0]), "stride": vectors.stride, "n": vectors.n}
        self._parts = space.on.zeros(2 * most * self._blocks, self._number)
        small, parts = {"small": self._small}, {"parts": self._parts}
        # One launch serves all steps: to prepare one for each takes longer than the steps themselves.
        self._leave = self._prepare("leave", {**basis, **parts}, ("n", "k", "closing"))
        self._take = self._prepare("take", {**parts, **small}, ("blocks", "k", "closing"), blocks=1)
        subtract = self._prepare("subtract", {**basis, **small}, ("n", "k"), self._blocks + 1)
        self._closings = [in_turn(self._find_dots(space, k, closing=True)) for k in range(most)]
        self._extends = [
            in_turn([*self._find_dots(space, k, closing=False), partial(subtract, self._n, k)])
            for k in range(most - 1)
        ]
        self._solve = self._prepare("solve", small, ("count",), blocks=1)

        def first() -> None:
            vectors.fuse(f"{names[0]} = r")()

        self._begin = space.program(first)
        self._add = {
            target: self._prepare("add", {**basis, **small, "out": vectors[target]}, ("count",))
            for target in ("x", "q")
        }

    def _count_blocks(self, space: Any, n: int) -> int:
        """Return the number of blocks of a launch over n elements."""
        pieces = ceil_div(n * space.dtype.itemsize, PACK_BYTES * THREADS)
        return int(max(1, min(pieces, space.on.processors)))

    def _find_dots(self, space: Any, k: int, *, closing: bool) -> list[Callable[[], None]]:
        """Return the launches of step k's dot products and of the small numbers that follow from them."""
        leave = partial(self._leave, self._n, k, int(closing))
        take = partial(self._take, self._blocks, k, int(closing))
        return [leave, *self._add_over_ranks(space, k, closing=closing), take]

    def _add_over_ranks(self, space: Any, k: int, *, closing: bool) -> list[Callable[[], None]]:
        """Return the launches that add up over ranks the parts of dot products: none on one GPU."""
        return []

    def _prepare(
        self, entry: str, arguments: dict[str, Any], varying: tuple[str, ...], blocks: int = 0
    ) -> Callable[..., None]:
        """Return a launch that takes the values of the varying arguments."""
        defines = {**scalar_defines(self._dtype, THREADS), "DASP_MOST": str(self._most)}
        types, blocks = {"Scalar": self._dtype, "Number": self._number}, blocks or self._blocks
        fixed = {name: value for name, value in arguments.items() if name not in varying}
        launch: Callable[..., None] = self._on.prepare_launch(
            SIGNATURES[entry], defines, fixed, blocks, THREADS, types, varying
        )
        return launch

    def begin(self, norm: float) -> None:
        """Do nothing: the first step takes r and computes its norm."""

    def extend(self, k: int) -> None:
        """Make vector k + 1, which holds the product with vector k, orthogonal to those before it."""
        self._extends[k]()

    def prepare(self, steps: list[Callable[[], None]], captured: bool) -> Callable[[int, int], None]:
        """Return a function that makes steps `first` to `last` - 1."""
        if captured:
            for step in steps[:1]:
                step()  # a product may do work at its first call, which must not be captured
        graphs: dict[tuple[int, int], Callable[[], None]] = {}

        def run(first: int, last: int) -> None:
            key = first, last
            if key not in graphs:
                begin = [self._begin] if first == 0 else []
                some = in_turn([*begin, *steps[first:last], self._closings[last]])
                graphs[key] = self._on.record(some) if captured else some
            graphs[key]()

        return run

    def residuals(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return for each of these steps the residual's norm, and whether no new direction was left."""
        report = self._on.download(self._report).real.reshape(2, -1)
        norms, broken = abs(report[RESIDUAL, first + 1 : last + 1]), report[BROKEN, first:last]
        return [(float(norm), bool(ends)) for norm, ends in zip(norms, broken, strict=True)]

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to vector `target`, x or q."""
        self._solve(count)
        self._add[target](count)
