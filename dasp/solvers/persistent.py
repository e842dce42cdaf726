"""Conjugate gradients on a GPU from b to x in one launch, for systems that fit on the chip.

kernels/solve/persistent.cu makes the iteration of `dasp.solvers.cg.PipelinedConjugateGradients`: blocks keep
their part of the matrix and their rows of the vectors in shared memory, nothing is captured, and an iteration
takes one sum over the grid. `find_recipe` returns a recipe for a matrix whose SELL slices fit on the chip.
`PersistentLoop` then iterates in place of the loop of a space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dasp.formats.kernel_cuda import find_types
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda import vector
from dasp.formats.sell.cuda.product import SellCudaProduct
from dasp.formats.sell.pattern import Coding
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES, find_arithmetic_into
from dasp.runtime.sizes import ceil_div
from dasp.solvers.cuda.loop import HISTORY
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.cuda.vectors import CudaVectors
from dasp.solvers.operator import Matrix, device_of, product_of
from dasp.solvers.scalars import LIMIT
from dasp.solvers.space import Report
from dasp.solvers.system import System

FROM_ZERO, FROM_X, AGAIN = range(3)
"""The modes of a launch: start from x = 0, start from x, or continue the last launch; as in the kernel."""

NEVER, ALWAYS, UNLESS_LIMIT = range(3)
"""The cases in which a launch computes the true residual at its end."""

SLOTS = {"code": 0, "count": 1, "bb": 2, "rr": 3, "start": 4, "wanted": 5, "goal": 6, "true": 7, "xx": 8}
"""The places of a report's scalars in the record; the kernel keeps numbers of its own after them."""

RECORD = 16
"""Numbers in the record."""

MAILBOX = RECORD + HISTORY + 1
"""Numbers that the host sees when a launch is done: the record, and the residuals with the first one."""

SIGNATURE = Signature(
    "solve/persistent.cu",
    "dasp_persistent",
    f"""{vector.ARRAYS.rstrip()}
    long long             count
    long long             positions
    int                   identity
    const X*              diagonal
    X*                    shown            [2 * stride]
    X*                    kept             [4 * stride]
    long long             stride
    int                   nbytes
    double*               record           [{RECORD}]
    double*               history
    double*               mailbox          [{MAILBOX}]
    unsigned long long*   messages
    const X*              b
    X*                    x
    double                most
    double                rtol
    double                atol
    double                margin
    int                   mode
    int                   finish
    """,
)

VARYING = "most", "rtol", "atol", "margin", "mode", "finish"
"""The arguments that differ from launch to launch."""

PLAN_ARGUMENTS = "headers", "bases", "deltas", "values", "table", "rows", "count", "positions", "identity"
"""The arguments of `vector.list_plan_arguments` that the kernel takes: it takes none of segments."""

THREADS = 512
"""Threads of a block; a multiprocessor runs one block."""

NUMBERS, NUMBERS_WITH_DIAGONAL = 6, 7
"""The numbers that a block keeps for a row: of x and five vectors, and of a diagonal preconditioner."""

STATIC_BYTES = 2048
"""The most static shared memory that the kernel takes besides its dynamic share."""

HEADER_BYTES, MOST_DELTA_BYTES = 16, 4
"""Bytes of a slice's header, and of the widest delta."""

PADDING = 64
"""The bytes of padding between arrays in shared memory, in all."""

PROCESSORS, COOPERATES, SHARED_BYTES = 16, 95, 97
"""cudaDevAttrMultiProcessorCount, cudaDevAttrCooperativeLaunch, cudaDevAttrMaxSharedMemoryPerBlockOptin."""

_RECIPES: WeakKeyDictionary[SellCudaProduct, dict[bool, Recipe | None]] = WeakKeyDictionary()
"""The recipes of products, without and with a diagonal preconditioner."""


def find_recipe(A: Matrix, M: Matrix | None, dtype: np.dtype[Any]) -> Recipe | None:
    """Return the recipe of a matrix on a GPU, or None.

    Only float64 has one: in float32 the recurrences drift away so soon that they cost iterations.
    """
    product = product_of(A)
    diagonal = M is not None
    if diagonal and getattr(M, "diagonal_of_inverse", None) is None:
        return None
    if dtype != np.float64 or not isinstance(product, SellCudaProduct):
        return None
    recipes = _RECIPES.setdefault(product, {})
    if diagonal not in recipes:
        number = int(str(device_of(A)).partition(":")[2] or 0)
        recipes[diagonal] = make_recipe(product.plan, find_chip(number), diagonal=diagonal)
    return recipes[diagonal]


def make_recipe(plan: Plan, on: Chip, *, diagonal: bool) -> Recipe | None:
    """Return the recipe of a plan; None if the plan is empty, has segments or does not fit on the chip.

    `diagonal` says whether there is a preconditioner.
    """
    arithmetic = find_arithmetic_into(plan.dtype, np.dtype(np.float64), np.dtype(np.float64))
    pattern, every = plan.pattern, vector.list_plan_arguments(plan)
    slices, steps = len(pattern.headers), len(pattern.bases)
    if pattern.segments or not slices or not on.processors:
        return None
    blocks = min(on.processors, slices)
    code_bytes = 0 if plan.values.coding == Coding.EQUAL else plan.values.codes.dtype.itemsize
    index_bytes = pattern.index_dtype.itemsize
    row_bytes = (NUMBERS_WITH_DIAGONAL if diagonal else NUMBERS) * arithmetic.x.itemsize
    row_bytes += 0 if every["identity"] else index_bytes
    step_bytes = WARP * code_bytes + index_bytes
    total = HEADER_BYTES * slices + step_bytes * steps + pattern.deltas.nbytes + row_bytes * pattern.positions
    # The shares of blocks differ by at most one slice.
    longest = pattern.choice.steps * (step_bytes + WARP * MOST_DELTA_BYTES) + WARP * row_bytes
    shared_bytes = ceil_div(total, blocks) + longest + PADDING
    if shared_bytes > on.shared_bytes - STATIC_BYTES:
        return None
    constants = {
        **arithmetic.defines,
        "DASP_INDEX": C_NAMES[pattern.index_dtype],
        "DASP_OFFSET": "int",
        "DASP_CODING": str(int(plan.values.coding)),
        "DASP_THREADS": str(THREADS),
        "DASP_MAILBOX": str(MAILBOX),
        "DASP_JACOBI": str(int(diagonal)),
    }
    arguments = {name: every[name] for name in PLAN_ARGUMENTS} | {"nbytes": shared_bytes}
    return Recipe(constants, arguments, find_types(vector, plan, arithmetic), blocks, shared_bytes)


@dataclass(frozen=True)
class Recipe:
    """The constants and arguments of the kernel for one matrix; a launch adds vectors.

    Attributes
    ----------
    defines : mapping of str to str
    arguments : mapping
    types : mapping of str to dtype
    blocks : int
        Blocks of the grid.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    defines: Mapping[str, str]
    arguments: Mapping[str, Any]
    types: Mapping[str, np.dtype[Any]]
    blocks: int
    shared_bytes: int

    def make_loop(self, system: System) -> PersistentLoop:
        """Return the loop of a system by this recipe."""
        return PersistentLoop(system, self)

    def prepare_launch(self, on: CudaDevice, arguments: Mapping[str, object]) -> Callable[..., None]:
        """Return the launch with these arguments added; it takes the values of the `VARYING` ones."""
        launch: Callable[..., None] = on.prepare_launch(
            SIGNATURE,
            self.defines,
            {**self.arguments, **arguments},
            self.blocks,
            THREADS,
            self.types,
            VARYING,
            shared_bytes=self.shared_bytes,
            together=True,
        )
        return launch


@dataclass(frozen=True)
class Chip:
    """The resources of a GPU for blocks that run at the same time.

    Attributes
    ----------
    processors : int
        Multiprocessors, each of which runs at least one block; 0 if the GPU has no cooperative launches.
    shared_bytes : int
        The most shared memory of a block.
    """

    processors: int
    shared_bytes: int


@cache
def find_chip(device: int) -> Chip:
    """Return the resources of a GPU."""
    import cupy

    processors, cooperates, shared_bytes = (
        int(cupy.cuda.runtime.deviceGetAttribute(attribute, device))
        for attribute in (PROCESSORS, COOPERATES, SHARED_BYTES)
    )
    return Chip(processors if cooperates else 0, shared_bytes)


class PersistentLoop:
    """The loop of a system with pipelined conjugate gradients in one launch; see `dasp.solvers.space.Loop`.

    The launch reports in the host's memory, so that the host need not copy its record.
    """

    def __init__(self, system: System, recipe: Recipe) -> None:
        space, vectors = system.space, system.vectors
        assert isinstance(space, CudaSpace)
        assert isinstance(vectors, CudaVectors)
        self._on, jacobi = space.on, "d" in vectors.names
        messages = 2 * (4 if jacobi else 2) * recipe.blocks**2  # kernels/solve/grid.cuh
        room = space.on.zeros(messages + RECORD + HISTORY + 1, np.float64)
        mailbox, self._mailbox = space.on.shared_with_host(MAILBOX)
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
        self._launch = recipe.prepare_launch(space.on, arguments)
        self._given, self._mode = (0.0, 0.0, 0.0), FROM_ZERO

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Let the next launch begin anew, from zero or from x."""
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
        """Wait for the GPU; append the residuals that the launch left, and return the record."""
        self._on.wait()
        mailbox, count = self._mailbox, int(self._mailbox[SLOTS["count"]])
        residuals.extend(np.sqrt(mailbox[RECORD + 1 : RECORD + 1 + count]).tolist())
        return {name: float(mailbox[slot]) for name, slot in SLOTS.items()}
