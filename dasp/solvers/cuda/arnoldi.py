"""Arnoldi's method on a GPU, with the least-squares problem of GMRES; the host asks how far it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dasp.runtime.cuda.device import in_turn
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.sizes import ceil_div
from dasp.solvers.cuda.passes import PACK_BYTES, scalar_defines
from dasp.solvers.cuda.vectors import CudaVectors

THREADS = 512
"""Threads of a block, of which each multiprocessor has one."""

MOST_BYTES = 12_000
"""Bytes of numbers at most, one for each vector of a basis: some for each lie in the shared memory of a
block."""

RESIDUAL, BROKEN, ROWS = 0, 1, 10
"""The rows of the kernels' small numbers that the host reads, and all but the triangles: solve/basis.cu."""


def _basis(entry: str, text: str) -> Signature:
    return Signature("solve/basis.cu", f"dasp_basis_{entry}", text)


VECTORS = """
    const Scalar*  basis
    long long      stride
    long long      n
"""

SIGNATURES = {
    "dots": _basis(
        "dots", VECTORS + "int k\n int closing\n Number* parts\n unsigned* arrived [1]\n Number* small"
    ),
    "leave": _basis("leave", VECTORS + "int k\n int closing\n Number* parts"),
    "take": _basis("take", "const Number* parts\n int blocks\n int k\n int closing\n Number* small"),
    "subtract": _basis("subtract", VECTORS.replace("const ", "") + "int k\n Number* small"),
    "solve": _basis("solve", "Number* small\n long long count"),
    "add": _basis("add", VECTORS + "const Number* small\n Scalar* out\n long long count"),
}
"""The kernels of kernels/solve/basis.cu, and what they take."""


class CudaArnoldi:
    """A Krylov basis on a GPU; see `dasp.solvers.space.Arnoldi`.

    Parameters
    ----------
    space : dasp.solvers.cuda.space.CudaSpace
    vectors : dasp.solvers.cuda.vectors.CudaVectors
        Which has the basis in rows that follow each other.
    names : list of str

    Raises
    ------
    ValueError
        If there are more vectors than a block has room for.
    """

    ahead = 10
    on_several_gpus: ClassVar[bool] = False
    """Whether a step's dot products are summed between two halves of its kernel."""

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
        self._dots: Callable[..., None] | None = None
        self._parts = space.on.zeros(2 * most * self._blocks, self._number)
        self._arrived = space.on.zeros(1, np.uint32)
        self._closings = [self._prepare_dots(space, basis, k, 1) for k in range(most)]
        subtract = self._prepare_steps("subtract", basis, ("n", "k"), self._blocks + 1)
        self._extends = [
            (self._prepare_dots(space, basis, k, 0), partial(subtract, self._n, k)) for k in range(most - 1)
        ]
        self._solve = self._prepare("solve", {"small": self._small}, varying=("count",), blocks=1)

        def first() -> None:
            vectors.fuse(f"{names[0]} = r")()

        self._begin = space.program(first)
        self._add = {
            target: self._prepare(
                "add", {**basis, "small": self._small, "out": vectors[target]}, varying=("count",)
            )
            for target in ("x", "q")
        }

    def _count_blocks(self, space: Any, n: int) -> int:
        """Return the blocks of a launch over n elements."""
        pieces = ceil_div(n * space.dtype.itemsize, PACK_BYTES * THREADS)
        return int(max(1, min(pieces, space.on.processors)))

    def _prepare_dots(self, space: Any, basis: dict[str, Any], k: int, closing: int) -> Callable[[], None]:
        """Return the launch of step k's dot products and of the small numbers that follow from them."""
        if self._dots is None:
            given = {**basis, "parts": self._parts, "arrived": self._arrived}
            self._dots = self._prepare_steps("dots", given, ("n", "k", "closing"))
        return partial(self._dots, self._n, k, closing)

    def _prepare_steps(
        self, entry: str, arguments: dict[str, Any], varying: tuple[str, ...], blocks: int = 0
    ) -> Callable[..., None]:
        """Return a launch for any step: to make one for each takes longer than the steps themselves."""
        fixed = {name: value for name, value in arguments.items() if name not in varying}
        return self._prepare(entry, {**fixed, "small": self._small}, varying, blocks)

    def _prepare(
        self, entry: str, arguments: dict[str, Any], varying: tuple[str, ...] = (), blocks: int = 0
    ) -> Callable[..., None]:
        defines = {
            **scalar_defines(self._dtype, THREADS),
            "DASP_MOST": str(self._most),
            "DASP_RANKS": str(int(self.on_several_gpus)),
        }
        types, blocks = {"Scalar": self._dtype, "Number": self._number}, blocks or self._blocks
        launch: Callable[..., None] = self._on.launch(
            SIGNATURES[entry], defines, arguments, blocks, THREADS, types, varying
        )
        return launch

    def begin(self, norm: float) -> None:
        """Do nothing: the first step takes r, and finds its norm."""

    def extend(self, k: int) -> None:
        """Make vector k + 1, which holds the product with vector k, orthogonal to those before it."""
        for launch in self._extends[k]:
            launch()

    def prepare(self, steps: list[Callable[[], None]], captured: bool) -> Callable[..., None]:
        """Return a function that makes steps `first` to `last`, and corrects a vector if one is named."""
        if captured:
            for step in steps[:1]:
                step()  # so that what a product does once is done before it is captured
        graphs: dict[tuple[int, int, str | None], Callable[[], None]] = {}

        def run(first: int, last: int, corrected: str | None = None) -> None:
            key = first, last, corrected
            if key not in graphs:
                begin = [self._begin] if first == 0 else []
                end = [] if corrected is None else [partial(self.correct, last, corrected)]
                some = in_turn([*begin, *steps[first:last], self._closings[last], *end])
                graphs[key] = self._on.record(some) if captured else some
            graphs[key]()

        return run

    def residuals(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return the norm of the residual after each of these steps, and whether it left nothing."""
        report = self._on.download(self._report).real.reshape(2, -1)
        norms, broken = abs(report[RESIDUAL, first + 1 : last + 1]), report[BROKEN, first:last]
        return [(float(norm), bool(ends)) for norm, ends in zip(norms, broken, strict=True)]

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to another vector, x or q."""
        self._solve(count)
        self._add[target](count)
