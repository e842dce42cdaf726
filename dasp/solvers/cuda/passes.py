"""The text of a pass as constants of kernels/solve/fused.cu, and the launch of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import TABLE
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Array
from dasp.solvers.cuda.trace import Slots, Trace, TracedPass
from dasp.solvers.space import Update

SOURCE = "solve/fused.cu"

THREADS = 256
"""Threads of a block of a pass."""

PACK_BYTES = 16
"""Bytes that a thread loads at once."""

C_TYPES = {name: TABLE[name].c for name in ("float32", "float64", "complex64", "complex128")}

BLOCKS_PER_PROCESSOR = 4
"""The most blocks of a pass for each multiprocessor: every block of the next pass reads the sums of all."""

TURN, COSTLY_TURN = 8, 2
"""Iterations of a turn, and of one with a preconditioner that takes as long as several products. A turn costs
a launch, some 2 us on an H200; a needless iteration costs a product, and 140 us with multigrid."""

UNGUARDED, WHILE_RUNNING, UNLESS_LIMIT = range(3)
"""When a pass runs: always; while the iteration goes on; unless it stopped at the limit and may go on."""

PASS = """
    long long      n
    const double*  in
    double*        out
    const double*  sums_in
    int            blocks_in
    const double*  sums_more
    int            blocks_more
    double*        sums_out
    double*        history
"""
"""The parameters of a pass besides its vectors."""


class PassSpace:
    """The type and the GPU of some vectors, and the rules by which passes over them are launched and summed.

    Attributes
    ----------
    device : str
    dtype : numpy.dtype
    on : CudaDevice
    trace : Trace
        The record to which passes and products are added.
    captures : bool
        True if all products recorded so far can be captured in a graph.
    """

    def __init__(self, device: str, dtype: np.dtype[Any], on: CudaDevice) -> None:
        self.device, self.dtype, self.on = device, dtype, on
        self.trace = Trace(Slots())
        self.captures = True

    def blocks(self, n: int) -> int:
        """Return the number of blocks of a pass over vectors of n numbers."""
        width = THREADS * PACK_BYTES // self.dtype.itemsize
        return max(1, min(ceil_div(n, width), BLOCKS_PER_PROCESSOR * self.on.processors))

    def turn(self, products: int, *, costly: bool) -> int:
        """Return the number of iterations, even, after which the loop checks the verdict.

        `products` counts the products of an iteration with matrices and preconditioners; `costly` is True if
        one of them takes as long as several products.
        """
        return COSTLY_TURN if costly else TURN

    def totals(self, sums: Array) -> Array:
        """Return the array for the totals over ranks that `combine` computes: on one GPU `sums` itself."""
        return sums

    def combine(self, sums: Array, totals: Array, *, beside: bool = False) -> list[Callable[[], None]]:
        """Return the launches that add up the blocks' sums over ranks; the next pass adds up the blocks.

        On one GPU there are none. `beside` is True if only the next iteration needs the totals, after a
        product.
        """
        return []


class PassText:
    """A pass as constants of kernels/solve/fused.cu.

    Parameters
    ----------
    given : TracedPass
    dtype : numpy.dtype
    guard, carried : int
        The constants `DASP_GUARD` and `DASP_CARRIED` of the kernel.

    Attributes
    ----------
    names : list of str
        The vectors, in the order of the kernel's parameters.
    defines : dict
    """

    def __init__(self, given: TracedPass, dtype: np.dtype[Any], *, guard: int, carried: int) -> None:
        read, written = _accesses(given)
        self.names = list(dict.fromkeys([*read, *written]))
        self._place = {name: k for k, name in enumerate(self.names)}
        kinds = ["Scalar*" if name in written else "const Scalar*" for name in self.names]
        self.parameters = [f"{kind} v{k}" for k, kind in enumerate(kinds)]
        self._complex = dtype.kind == "c"
        places, out = range(len(self.names)), [self._place[name] for name in written]
        loaded = [self._place[name] for name in read]
        self.defines = {
            **scalar_defines(dtype, THREADS),
            "DASP_GUARD": str(guard),
            "DASP_CARRIED": str(carried),
            "DASP_SUMS_IN": str(given.sums),
            "DASP_SUMS_MORE": str(given.more[0]),
            "DASP_DOTS": str(len(given.dots)),
            "DASP_VECTORS": "".join(f"{text}, " for text in self.parameters),
            "DASP_INPUTS": " ".join(given.inputs),
            "DASP_SCALARS": " ".join(given.scalars),
            "DASP_STORES": " ".join(given.stores),
            "DASP_LEAVE": given.leave,
            "DASP_PIECES": " ".join(f"Piece p{k};" for k in places),
            "DASP_LOAD": " ".join(f"p{k} = read_piece{self._once(k)}(v{k} + at);" for k in loaded),
            "DASP_WRITE": " ".join(f"write_piece{self._once(k)}(v{k} + at, p{k});" for k in out),
            "DASP_BIND": " ".join(f"Scalar& x{k} = p{k}.element[i];" for k in places),
            "DASP_BIND_LAST": " ".join(
                f"Scalar x{k} = v{k}[at];" if k in loaded else f"Scalar x{k};" for k in places
            ),
            "DASP_WRITE_LAST": " ".join(f"v{k}[at] = x{k};" for k in out),
            "DASP_ELEMENT": " ".join([*map(self._update, given.updates), *self._sums(given)]),
        }

    def signature(self) -> Signature:
        """Return the kernel's signature."""
        return _signature("\n".join(self.parameters))

    def _once(self, place: int) -> str:
        return "_once" if self.names[place] == "x" else ""

    def _update(self, update: Update) -> str:
        text = ""
        for term in update.terms:
            factors = [f"c_{term.coefficient}"] if term.coefficient else []
            factors += [f"x{self._place[name]}" for name in (term.vector, term.times) if name]
            text += (" - " if term.sign < 0 else " + " if text else "") + " * ".join(factors)
        return f"x{self._place[update.out]} = {text or 'Scalar(0)'};"

    def _sums(self, given: TracedPass) -> list[str]:
        texts = []
        for k, dot in enumerate(given.dots):
            x, y = f"x{self._place[dot.first]}", f"x{self._place[dot.second]}"
            if self._complex:
                texts.append(f"dot[{k}] += {'imaginary' if dot.imaginary else 'real'}_part({x}, {y});")
            else:
                texts.append(f"dot[{k}] += double({x}) * double({y});")
        return texts


def _accesses(given: TracedPass) -> tuple[list[str], list[str]]:
    """Return the vectors whose old elements a pass reads, and those that it writes."""
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for update in given.updates:
        for term in update.terms:
            for name in (term.vector, term.times):
                if name and name not in written:
                    read[name] = None
        written[update.out] = None
    for name in (name for dot in given.dots for name in (dot.first, dot.second)):
        if name not in written:
            read[name] = None
    return list(read), list(written)


@cache
def _signature(vectors: str) -> Signature:
    """Return the signature of a pass; `vectors` declares its vectors."""
    return Signature(SOURCE, "dasp_fused", vectors + PASS)


def begin_compiling(on: CudaDevice, texts: Iterable[PassText]) -> None:
    """Begin to compile passes in parallel: a pass that is not cached takes a tenth of a second."""
    on.begin_loading([(SOURCE, text.defines) for text in texts])


def scalar_defines(dtype: np.dtype[Any], threads: int) -> dict[str, str]:
    """Return the constants of kernels/solve/ that say the type of vectors and the threads of a block."""
    return {
        "DASP_SCALAR": C_TYPES[dtype.name],
        "DASP_COMPLEX": str(int(dtype.kind == "c")),
        "DASP_THREADS": str(threads),
    }


def prepare_pass(
    space: PassSpace,
    given: TracedPass,
    text: PassText,
    scalars: tuple[Array, Array],
    sums: tuple[Array, int, Array],
    history: Array,
) -> Callable[[], None]:
    """Return the launch of a pass; `sums` are the sums it reads, their blocks, and the sums it leaves."""
    arguments: dict[str, object] = {f"v{k}": given.vectors[name] for k, name in enumerate(text.names)}
    arguments |= {"n": given.vectors.n, "in": scalars[0], "out": scalars[1], "history": history}
    arguments |= dict(zip(("sums_in", "blocks_in", "sums_out"), sums, strict=True))
    arguments |= {"sums_more": given.more[1], "blocks_more": given.more[2]}
    types = {"Scalar": space.dtype}
    blocks = space.blocks(given.vectors.n)
    return space.on.prepare_launch(text.signature(), text.defines, arguments, blocks, THREADS, types)
