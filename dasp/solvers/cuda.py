"""Vectors on a GPU: passes put together as kernels, and whole iterations captured in a graph.

An iteration runs once in Python, with traced scalars, and what it asks for is written on a tape. Each pass of
the tape becomes one kernel (kernels/solve/fused.cu with the pass as its constants) that also computes the
scalars before it; so a dot product, the coefficient made of it and the update that uses it cost two launches
and no reading by the host. Scalars lie in two banks that iterations read and write by turns.

What runs the kernels is a device: CuPy's, or in tests an emulated one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from dasp import _source
from dasp._integers import ceil_div, round_up
from dasp._launch import Launch, Signature, allow_shared, driver
from dasp.solvers.arnoldi import C_TYPES, PACK_BYTES, CudaArnoldi, in_turn
from dasp.solvers.graph import WHILE_NODES, LoopGraph
from dasp.solvers.operator import Operator
from dasp.solvers.scalars import (
    LIMIT,
    RUNNING,
    Scalar,
    TracedComplex,
    first_verdict,
    joined,
    split,
    verdict,
    where,
)
from dasp.solvers.space import (
    Dot,
    Iterate,
    Parts,
    Report,
    Start,
    State,
    Triangle,
    Update,
    parse_dot,
    parse_update,
)
from dasp.solvers.tape import (
    CARRIED,
    CODE,
    COUNT,
    SLOTS,
    KnownTape,
    Multiplication,
    PartOfDot,
    Pass,
    Slots,
    Tape,
)

Array = Any

THREADS, BLOCKS_PER_PROCESSOR = 256, 4
"""Threads of a block of a pass, and blocks for each multiprocessor at most: each later block reads the sums
of all."""

LARGE_ROWS, LARGE_THREADS, LARGE_BLOCKS_PER_PROCESSOR = 300_000, 512, 2
"""The same from so many rows on: all multiprocessors have enough of them, and there are half as many sums to
be read. Measured on an H200."""

ROW_BYTES = 256
"""Bytes to which rows are rounded up."""

TURN, LONG_TURN, LONG_TURN_ROWS = 8, 16, 100_000
"""Iterations between two questions whether to go on, and those of systems of up to so many rows: a turn costs
a launch, an iteration too much a product. Measured on an H200: poisson2d:100 takes 4.5, 4.0, 3.7, 3.5 us an
iteration with turns of 4, 8, 16 and 32."""

EARLY_TURNS, EARLY_ROWS = 2, 40_000
"""Turns that are launched step by step before one is captured, so that the GPU works meanwhile, and the rows
from which on a GPU takes longer for them than the host does."""

HISTORY = 8192
"""Residuals that fit on the GPU between two readings by the host."""

ROOM = 2 * HISTORY
"""Numbers in an allocation for what is no vector."""

GLANCE = 2048
"""Of them, how many are read along with the scalars."""


class Device(Protocol):
    """What runs kernels and holds arrays."""

    processors: int

    def zeros(self, count: int, dtype: Any) -> Array:
        """Return a new array of zeros."""

    def empty(self, count: int, dtype: Any) -> Array:
        """Return a new array that holds anything."""

    def shared_with_host(self, count: int) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return float64 numbers in the host's memory, as kernels write them and as the host reads them."""

    def wait(self) -> None:
        """Wait for all that was launched before."""

    def mark(self) -> Callable[[], None]:
        """Return what has the current stream wait for all that was launched before on what is current now."""

    def upload(self, target: Array, source: np.ndarray[Any, Any]) -> None:
        """Copy from the host."""

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host, when all that was launched before is done."""

    def asarray(self, array: Any, dtype: np.dtype[Any]) -> Array:
        """Return an array of this type on the device."""

    def address(self, array: Array) -> int:
        """Return where an array begins."""

    def launch(
        self,
        signature: Signature,
        defines: Mapping[str, str],
        arguments: Mapping[str, Any],
        blocks: int,
        threads: int,
        types: Mapping[str, np.dtype[Any]] | None = None,
        varying: Sequence[str] = (),
        *,
        shared_bytes: int = 0,
        together: bool = False,
    ) -> Callable[..., None]:
        """Return a launch of a kernel, ready to be made again and again; `together` if it is cooperative.

        It takes arrays and numbers, those of `varying`.
        """

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what does again what a function launches, and keeps all that it launches with."""

    def repeat(self, function: Callable[[], None], bank: Array, *, captured: bool) -> Callable[[], None]:
        """Return what does so until the first number of a bank is not 0; `captured` if that is possible."""


class CudaFused:
    """A pass over vectors on a GPU; see `dasp.solvers.space.Fused`."""

    def __init__(self, vectors: CudaVectors, updates: tuple[Update, ...], dots: tuple[Dot, ...]) -> None:
        self._vectors, self._updates, self._dots = vectors, updates, dots
        complex = vectors.space.dtype.kind == "c"
        self._whole = [complex and dot.whole for dot in dots]
        # The imaginary part of a whole one is a sum of its own.
        parts = [(False, True) if whole else (False,) for whole in self._whole]
        self._sums = tuple(
            PartOfDot(dot.first, dot.second, imaginary)
            for dot, each in zip(dots, parts, strict=True)
            for imaginary in each
        )

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Write the pass down and return its dot products, traced."""
        one = Pass(self._vectors, self._updates, self._sums, coefficients)
        sums = iter(self._vectors.space.tape.add_pass(one))
        return tuple(TracedComplex(next(sums), next(sums)) if whole else next(sums) for whole in self._whole)


class CudaVectors:
    """Vectors on a GPU, the rows of one block; see `dasp.solvers.space.Vectors`."""

    def __init__(self, space: CudaSpace, n: int, names: tuple[str, ...]) -> None:
        pack = ROW_BYTES // space.dtype.itemsize
        self.stride = stride = round_up(max(1, n), pack)
        self.block = space.on.zeros(max(1, len(names)) * stride, space.dtype)
        self.space, self.n, self.nbytes = space, n, int(self.block.nbytes)
        self.names = names
        self._own = {name: self.block[k * stride : k * stride + n] for k, name in enumerate(names)}
        self._views = dict(self._own)

    def rows_from(self, name: str) -> Array:
        """Return a vector and all behind it, with what lies between them."""
        return self.block[self.names.index(name) * self.stride :]

    def __getitem__(self, name: str) -> Array:
        """Return a vector; what is written to it is seen."""
        return self._views[name]

    def bind(self, name: str, array: Array) -> bool:
        """Let another array be a vector in all programs prepared from now on, if 16 bytes at a time can be
        read."""
        fits = array.dtype == self.space.dtype and array.shape == (self.n,) and array.flags.c_contiguous
        if not fits or self.space.on.address(array) % PACK_BYTES:
            return False
        self._views[name] = array
        return True

    def release(self, *names: str) -> None:
        """Let vectors be rows of the block again."""
        for name in names:
            self._views[name] = self._own[name]

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> CudaFused:
        """Prepare a pass."""
        return CudaFused(self, tuple(map(parse_update, updates)), tuple(map(parse_dot, dots)))


class PassText:
    """A pass as constants of kernels/solve/fused.cu.

    Parameters
    ----------
    given : Pass
    dtype : numpy.dtype
    guard, carried, threads : int
        As the source says.

    Attributes
    ----------
    names : list of str
        The vectors, in the order of the kernel's parameters.
    defines : dict
    """

    def __init__(
        self,
        given: Pass,
        dtype: np.dtype[Any],
        *,
        guard: int,
        carried: int,
        threads: int = THREADS,
    ) -> None:
        read, written = _accesses(given)
        self.names = list(dict.fromkeys([*read, *written]))
        self._place = {name: k for k, name in enumerate(self.names)}
        kinds = ["Scalar*" if name in written else "const Scalar*" for name in self.names]
        self.parameters = [f"{kind} v{k}" for k, kind in enumerate(kinds)]
        self._complex = dtype.kind == "c"
        places, out = range(len(self.names)), [self._place[name] for name in written]
        loaded = [self._place[name] for name in read]
        self.defines = {
            "DASP_SCALAR": C_TYPES[dtype.name],
            "DASP_COMPLEX": str(int(self._complex)),
            "DASP_THREADS": str(threads),
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
        """Return what the kernel takes."""
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

    def _sums(self, given: Pass) -> list[str]:
        texts = []
        for k, dot in enumerate(given.dots):
            x, y = f"x{self._place[dot.first]}", f"x{self._place[dot.second]}"
            if self._complex:
                texts.append(f"dot[{k}] += {'imaginary' if dot.imaginary else 'real'}_part({x}, {y});")
            else:
                texts.append(f"dot[{k}] += double({x}) * double({y});")
        return texts


def _accesses(given: Pass) -> tuple[list[str], list[str]]:
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


ALLOW = Signature(
    "solve/bank.cu",
    "dasp_allow",
    """
    double*    bank
    double*    other
    int        slots
    double     limit
    double     most
    """,
)

TURN_END = Signature(
    "solve/turn.cu",
    "dasp_turn",
    """
    unsigned long long    loop
    const double*         bank
    """,
)

TRIANGULAR = Signature(
    "solve/triangular.cu",
    "dasp_triangular",
    """
    const int*     rows
    int            count
    const int*     indptr
    const int*     indices
    const Scalar*  data
    const Scalar*  inverse
    const Scalar*  b
    Scalar*        x
    """,
)

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
"""What a pass takes besides its vectors."""


@cache
def _signature(vectors: str) -> Signature:
    """Return what a pass takes whose vectors are declared so."""
    return Signature("solve/fused.cu", "dasp_fused", vectors + PASS)


UNGUARDED, WHILE_RUNNING, UNLESS_LIMIT = range(3)
"""When a pass does something: always; while the iteration goes on; unless it may go on later."""


class CudaSpace:
    """Vectors on a GPU; see `dasp.solvers.space.Space`."""

    traced = True
    puts_off = True
    """Whether an iteration is put together while a GPU already works."""

    def __init__(self, device: str, dtype: np.dtype[Any], on: Device) -> None:
        self.device, self.dtype, self.on = device, dtype, on
        self.tape = Tape(Slots())
        self.captures = True

    def mark(self) -> Callable[[], None]:
        """Return what has later work wait for all that was launched before."""
        return self.on.mark()

    def vectors(self, n: int, *names: str) -> CudaVectors:
        """Return vectors of n zeros."""
        return CudaVectors(self, n, names)

    def apply(self, operator: Operator, x: Array, y: Array) -> None:
        """Write down that y is set to the product of an operator and x."""
        self.captures = self.captures and operator.captures
        self.tape.call(Multiplication(operator, x, y))

    def loop(
        self,
        starts: Mapping[str, Start],
        iterate: Iterate,
        finish: Callable[[], State],
        period: int,
        leaving: tuple[str, ...] = (),
        parts: Parts | None = None,
    ) -> CudaLoop:
        """Prepare a loop: trace it, compile its kernels, capture it."""
        return CudaLoop(self, starts, iterate, finish, period, leaving, parts)

    def program(self, function: Callable[[], None]) -> Callable[[], None]:
        """Trace a function; return what launches its passes and makes its products."""
        tape = self.tape = Tape(Slots())
        function()
        none = self.on.zeros(1, np.float64)
        steps = [
            self._constant_pass(entry, none) if isinstance(entry, Pass) else entry for entry in tape.entries
        ]
        self.tape = Tape(Slots())  # the space would keep what the tape has, until the collector comes
        return in_turn(steps)

    def _constant_pass(self, given: Pass, none: Array) -> Callable[[], None]:
        """Return the launch of a pass without dot products, whose coefficients lie in a bank of its own.

        So passes that differ in nothing else are one kernel.
        """
        values = np.array([0.0, *map(float, given.coefficients.values())])
        bank = self.on.zeros(len(values), np.float64)
        self.on.upload(bank, values)
        for slot, name in enumerate(given.coefficients, 1):
            given.inputs.append(f"const double t{slot} = in[{slot}];")
            given.scalars.append(f"const Real c_{name} = Real(t{slot});")
        threads = self.threads(given.vectors.n)
        text = PassText(given, self.dtype, guard=UNGUARDED, carried=0, threads=threads)
        return launch_pass(self, given, text, (bank, none), (none, 0, none), none)

    def threads(self, n: int) -> int:
        """Return the threads of a block of a pass over vectors of n numbers."""
        return LARGE_THREADS if n >= LARGE_ROWS else THREADS

    def blocks(self, n: int) -> int:
        """Return the blocks of a pass over vectors of n numbers."""
        width = self.threads(n) * PACK_BYTES // self.dtype.itemsize
        most = LARGE_BLOCKS_PER_PROCESSOR if n >= LARGE_ROWS else BLOCKS_PER_PROCESSOR
        return max(1, min(ceil_div(n, width), most * self.on.processors))

    def turn(self, rows: int, products: int) -> tuple[int, int]:
        """Return the iterations, an even number, between two questions whether to go on, and early turns.

        `rows` are those of its longest vectors; `products` those of matrices, and of preconditioners, in one
        iteration.
        """
        length = LONG_TURN if rows <= LONG_TURN_ROWS else TURN
        return length, EARLY_TURNS if rows > EARLY_ROWS else 0

    def totals(self, sums: Array) -> Array:
        """Return where `combine` shall leave the totals of sums over ranks: where they are, on one GPU."""
        return sums

    def combine(self, *sums: tuple[Array, Array], beside: bool = False) -> list[Callable[[], None]]:
        """Return what makes totals of the sums that blocks left; the next pass adds up the blocks.

        Given are pairs of sums and totals. On one GPU there is nothing to do. `beside` says that the next
        iteration needs them, behind a product.
        """
        return []

    def triangular(self, triangle: Triangle) -> Callable[[Array, Array], None]:
        """Return what writes a solve with a triangle down: a launch for each level."""
        t, dtype = triangle, self.dtype
        on_device = {
            "indptr": self._uploaded(t.indptr),
            "indices": self._uploaded(t.indices if len(t.indices) else np.zeros(1, np.int32)),
            "data": self._uploaded((t.data if len(t.data) else np.zeros(1)).astype(dtype)),
            "inverse": self._uploaded(t.inverse.astype(dtype)),
        }
        rows = self._uploaded(t.rows)
        defines = {
            "DASP_SCALAR": C_TYPES[dtype.name],
            "DASP_COMPLEX": str(int(dtype.kind == "c")),
            "DASP_THREADS": str(THREADS),
        }

        def solve(b: Array, x: Array) -> None:
            for first, last in zip(t.cuts[:-1].tolist(), t.cuts[1:].tolist(), strict=True):
                arguments = {**on_device, "rows": rows[first:last], "count": last - first, "b": b, "x": x}
                blocks = ceil_div(last - first, THREADS)
                self.tape.call(
                    self.on.launch(TRIANGULAR, defines, arguments, blocks, THREADS, {"Scalar": dtype})
                )

        return solve

    def _uploaded(self, array: np.ndarray[Any, Any]) -> Array:
        made = self.on.zeros(len(array), array.dtype)
        self.on.upload(made, array)
        return made

    def arnoldi(self, vectors: CudaVectors, names: list[str]) -> CudaArnoldi:
        """Return a Krylov basis that lies in consecutive vectors."""
        return CudaArnoldi(self, vectors, names)

    def asarray(self, array: Any) -> Array:
        """Return an array of the space's type on the GPU, itself if it is one."""
        return self.on.asarray(array, self.dtype)

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host."""
        return self.on.download(array)

    def largest(self, array: Array) -> float:
        """Return the largest absolute value."""
        return float(abs(array).max()) if len(array) else 0.0


_KNOWN: dict[tuple[Any, ...], list[tuple[KnownTape, tuple[str, ...], int]]] = {}
"""What was traced, by the kind of system and what it is for: variants for operators that leave other dot
products. With each the scalars that are carried, and how many iterations a judgement is late."""


class CudaLoop:
    """An iteration on a GPU; see `dasp.solvers.space.Loop`."""

    def __init__(
        self,
        space: CudaSpace,
        starts: Mapping[str, Start],
        iterate: Iterate,
        finish: Callable[[], State],
        period: int,
        leaving: tuple[str, ...],
        parts: Parts | None = None,
    ) -> None:
        self._leaving, self._parts, self._lag = leaving, parts, 0
        self._space, self._on, self._slots = space, space.on, Slots()
        self._room = _Room(self._on)
        # What the host reads: the scalars, and behind them the history.
        self._shared = self._room.take(SLOTS + HISTORY + 1)
        self._banks = self._shared[:SLOTS], self._room.take(SLOTS), self._room.take(SLOTS)
        self._history = self._shared[SLOTS:]
        self._given: dict[str, float] = {}
        self._starts = starts
        begun = {name: self._trace_start(name) for name in list(starts)[:1]}
        traced = [
            self._known(("iterate", k), partial(self._trace_iteration, iterate, k)) for k in range(period)
        ]
        phases = [traced[k % period] for k in range(2)]
        # Sums left by an iteration are those of vectors of one length.
        most = len(leaving) * space.blocks(phases[0].passes[-1].vectors.n)
        self._left = [self._room.take(max(1, most)) for _ in range(2)]
        self._totals = [space.totals(left) for left in self._left]
        # What an iteration leaves is summed over ranks along with what the next one's product does.
        self._joins = bool(leaving) and all(tape.passes[0].more[0] for tape in phases)
        self._captured = space.captures
        rows = max(one.vectors.n for tape in phases for one in tape.passes)
        products = max(len(tape.entries) - len(tape.passes) for tape in phases)
        self._length, self._early = space.turn(rows, products)
        if self._captured and not self._early:
            self._run_once(traced)
        self._tapes, self._phases = phases, dict[int, Callable[[], None]]()
        if not space.puts_off:
            for k in range(2):
                self._phase(k)
        self._allow = self._prepare_allow()
        self._swaps, self._odd = period == 2 or bool(leaving), False
        # What not every solve needs is prepared when the first one does.
        self._repeats: dict[int, Callable[[], None]] = {}
        self._begins = {name: self._prepare_start(tape) for name, tape in begun.items()}
        self._end, self._ends = finish, dict[int, Callable[[], None]]()
        self._second: Callable[[], None] | None = None

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew, as one of the starts does."""
        if given != self._given:
            values = np.zeros(SLOTS)
            for key, value in given.items():
                values[self._slots[key]] = value
            self._on.upload(self._banks[GIVEN_BANK], values)
            self._given = dict(given)
        self._odd = False
        if name not in self._begins:
            self._begins[name] = self._prepare_start(self._trace_start(name))
        self._begins[name]()

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most."""
        residuals: list[float] = []
        while len(residuals) < most:
            allowed = min(most - len(residuals), HISTORY)
            self._allow(float(allowed))
            late = int(self._odd)
            if self._odd:  # turns begin with the first phase
                self._second = self._second or self._record(self._phase(1))
                self._second()
            if allowed > late:
                self._repeat(allowed - late)()
            # Its product would take A p from an iteration that goes on and has it from the last one.
            early = finish and allowed == most - len(residuals)
            if early:
                self._finish(UNLESS_LIMIT)
            state = self._read(residuals)
            if state["code"] != LIMIT:
                if early or not finish:
                    return Report(state, residuals)
                break
        if finish:
            self._finish(UNGUARDED)
        return Report(self._read(None), residuals)

    def _run_once(self, tapes: list[Tape]) -> None:
        """Make the products of some tapes, so that what they do once is done before they are captured."""
        for tape in tapes:
            for entry in tape.entries:
                if not isinstance(entry, Pass):
                    entry()

    def _record(self, program: Callable[[], None]) -> Callable[[], None]:
        """Return the program, captured if that is possible when it is called a second time."""
        return _Recorded(self._on, program) if self._space.captures else program

    def _prepare_start(self, tape: Tape) -> Callable[[], None]:
        return self._record(self._program(tape, GIVEN_BANK, 0, UNGUARDED, left=0))

    def _finish(self, guard: int) -> None:
        """Compute the scalars of the end."""
        if guard not in self._ends:
            ended = self._known(("end",), lambda: self._trace(lambda tape: (self._end(), None, None)))
            self._ends[guard] = self._record(self._program(ended, 0, 0, guard))
        self._ends[guard]()

    def _repeat(self, most: int) -> Callable[[], None]:
        """Return what iterates, in turns that are no longer than is allowed, but for a last odd iteration."""
        length = min(self._length, most + most % 2)
        if length not in self._repeats:
            for k in range(self._early * self._captured * length):
                self._phase(k % 2)()
            turn = in_turn([self._phase(0), self._phase(1)], length)
            self._repeats[length] = self._on.repeat(turn, self._banks[0], captured=self._captured)
        return self._repeats[length]

    def _phase(self, k: int) -> Callable[[], None]:
        """Return an iteration from bank k to the other, put together when it is first asked for.

        So a GPU starts, and makes the first iteration, while the next is put together.
        """
        if k not in self._phases:
            self._phases[k] = self._program(self._tapes[k], k, 1 - k, WHILE_RUNNING, left=1 - k)
        return self._phases[k]

    def _prepare_allow(self) -> Callable[..., None]:
        arguments = {"bank": self._banks[0], "other": self._banks[1], "slots": len(self._slots)}
        return self._on.launch(ALLOW, {}, {**arguments, "limit": float(LIMIT)}, 1, CARRIED, varying=("most",))

    def _read(self, residuals: list[float] | None) -> dict[str, float]:
        """Wait for the GPU; return the scalars, and add the residuals of the iterations since the last
        time."""
        values = self._on.download(self._shared[: SLOTS + GLANCE])
        if residuals is not None:
            count, lag = int(values[COUNT]), self._lag
            self._odd ^= self._swaps and count % 2 == 1
            if count + lag > GLANCE:
                values = self._on.download(self._shared[: SLOTS + count + lag])
            residuals.extend(values[SLOTS + lag : SLOTS + count + lag].tolist())
        names = self._slots.names
        return dict(zip(names, values[: len(names)].tolist(), strict=True))

    def _trace(self, function: Traceable, entering: tuple[str, ...] = ()) -> Tape:
        tape = self._space.tape = Tape(self._slots, entering)
        state, history, leave_if = function(tape)
        kept = {name: value for name, value in state.items() if name not in self._leaving}
        tape.finish(kept, history, CudaVectors(self._space, 0, ()), leave_if)
        self._space.tape = Tape(Slots())  # the space would keep what the tape has
        return tape

    def _known(self, what: tuple[Any, ...], trace: Callable[[], Tape]) -> Tape:
        """Return what was traced in another system of this kind, for this one; else trace it.

        Python takes longer for a trace than a GPU for ten iterations of a small system.
        """
        if self._parts is None:
            return trace()
        kind = type(self._space), self._space.dtype, self._leaving, *self._parts.kind, *what
        variants = _KNOWN.setdefault(kind, [])
        nothing = CudaVectors(self._space, 0, ())
        for known, carried, lag in variants:
            tape = known.repeat(self._parts, self._slots, nothing)
            if tape is not None:
                operators = (one for one in self._parts.operators if one is not None)
                self._space.captures = self._space.captures and all(one.captures for one in operators)
                self._carried, self._lag = list(carried), lag
                return tape
        tape = trace()
        known_now = tape.known(self._parts)
        if known_now is not None:
            variants.append((known_now, tuple(self._carried), self._lag))
        return tape

    def _trace_start(self, name: str) -> Tape:
        return self._known(("start", name), partial(self._trace_new_start, self._starts[name]))

    def _trace_new_start(self, start: Start) -> Tape:
        def function(tape: Tape) -> Trace:
            state = {"code": float(RUNNING), **split(start({name: tape.carried(name) for name in GIVEN}))}
            self._carried = list(state)
            if not self._leaving:
                state["code"] = first_verdict(state["rr"], state["goal"], state["code"])
            return {**state, "count": 0.0}, None, None

        return self._trace(function)

    def _trace_iteration(self, iterate: Iterate, phase: int) -> Tape:
        """Trace an iteration, and the verdict behind it, or before it where the iteration gives `judge`."""

        def function(tape: Tape) -> Trace:
            state = {name: tape.carried(name) for name in self._carried}
            count, most = tape.carried("count"), tape.carried("most")
            given = joined({**state, "code": float(RUNNING)})
            new = {"code": float(RUNNING), **split(iterate(phase, given))}
            own = tape.scalar(new["code"])
            self._lag = int("judge" in new)
            if not self._lag:
                code, after = verdict(new["rr"], state["goal"], count, most, own)
                return {**new, "code": code, "count": after}, (count, new["rr"]), None
            square = new.pop("judge")
            code, _ = verdict(square, state["goal"], count - 1.0, most, own)
            stays = code > float(RUNNING)  # it may go on from here later
            kept = {
                name: value if name in self._leaving else where(stays, state[name], value)
                for name, value in new.items()
            }
            after = where(stays, count, count + 1.0)
            return {**kept, "code": code, "count": after}, (count, square), code

        return self._trace(function, self._leaving)

    def _program(
        self, tape: Tape, source: int, target: int, guard: int, left: int | None = None
    ) -> Callable[[], None]:
        """Return what launches a tape's passes and products, from one bank to another.

        `left` is the buffer of the sums that the last pass leaves to the next iteration, if it does.
        """
        steps: list[Callable[[], None]] = []
        combine, sums, blocks, first = self._space.combine, self._totals[source % 2], 0, True
        for entry in tape.entries:
            if not isinstance(entry, Pass):
                steps.append(entry)
                if isinstance(entry, Multiplication) and entry.sums is not None:
                    along = [(self._left[source], sums)] if self._joins and guard == WHILE_RUNNING else []
                    steps += combine((entry.sums, entry.sums), *(along if first else []))
                continue
            carried = len(self._slots) if first and guard == WHILE_RUNNING else 0
            mine = self._space.blocks(entry.vectors.n)
            lasting = self._leaving and left is not None and entry is tape.passes[-1]
            out = self._left[left or 0] if lasting else self._room.take(max(1, len(entry.dots) * mine))
            how = {"guard": guard, "carried": carried, "threads": self._space.threads(entry.vectors.n)}
            key = tuple(how.values())
            text = entry.texts.get(key)
            if text is None:
                text = PassText(entry, self._space.dtype, **how)
                entry.texts[key] = text
            blocks = mine if first else blocks
            banks = self._banks[source], self._banks[target]
            step = launch_pass(self._space, entry, text, banks, (sums, blocks, out), self._history)
            steps.append(step)
            blocks = mine
            sums = self._totals[left or 0] if lasting else out
            if entry.dots and not (lasting and self._joins):
                steps += combine((out, sums), beside=bool(lasting))
            first = False
        return in_turn(steps)


class _Room:
    """Numbers on a device, all 0 at first, from few allocations."""

    def __init__(self, on: Device) -> None:
        self._on, self._rest = on, on.zeros(ROOM, np.float64)

    def take(self, count: int) -> Array:
        """Return so many that nobody else has."""
        pack = ROW_BYTES // 8
        size = -(-count // pack) * pack
        if len(self._rest) < size:
            self._rest = self._on.zeros(max(size, ROOM), np.float64)
        taken, self._rest = self._rest[:count], self._rest[size:]
        return taken


class _Recorded:
    """A program that is launched step by step the first time, and as a graph from then on.

    To capture and instantiate a graph takes longer than the launches of a few kernels.
    """

    def __init__(self, on: Device, program: Callable[[], None]) -> None:
        self._on, self._run, self._calls = on, program, 0

    def __call__(self) -> None:
        """Run it."""
        if self._calls == 1:
            self._run = self._on.record(self._run)
        self._calls += 1
        self._run()


def launch_pass(
    space: CudaSpace,
    given: Pass,
    text: PassText,
    banks: tuple[Array, Array],
    sums: tuple[Array, int, Array],
    history: Array,
) -> Callable[[], None]:
    """Return the launch of a pass; `sums` are those it takes, of how many blocks, and those it leaves."""
    arguments = {f"v{k}": given.vectors[name] for k, name in enumerate(text.names)}
    arguments |= {"n": given.vectors.n, "in": banks[0], "out": banks[1], "history": history}
    arguments |= dict(zip(("sums_in", "blocks_in", "sums_out"), sums, strict=True))
    arguments |= {"sums_more": given.more[1], "blocks_more": given.more[2]}
    types = {"Scalar": space.dtype}
    blocks = space.blocks(given.vectors.n)
    threads = space.threads(given.vectors.n)
    return space.on.launch(text.signature(), text.defines, arguments, blocks, threads, types)


GIVEN = "rtol", "atol", "margin"
"""What a start is given."""

GIVEN_BANK = 2
"""The bank where a start finds it."""

Trace = tuple[State, tuple[Scalar, Scalar] | None, Scalar | None]
"""The scalars at the end, what goes into the history, and where the first pass ends early."""

Traceable = Callable[[Tape], Trace]


def shared_with_host(device: Any, count: int, dtype: Any) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return numbers in the host's memory, as kernels of a device of CuPy see them and as the host does."""
    import cupy

    cuda, nbytes = cupy.cuda, np.dtype(dtype).itemsize * count
    pinned = cuda.alloc_pinned_memory(nbytes)
    memory = cuda.UnownedMemory(pinned.ptr, nbytes, pinned, device.id)
    array = cupy.ndarray(count, dtype, cuda.MemoryPointer(memory, 0))
    return array, np.frombuffer(pinned, dtype, count)


class CupyDevice:
    """A GPU as CuPy offers it."""

    def __init__(self, number: int) -> None:
        import cupy

        self._cupy, self._device = cupy, cupy.cuda.Device(number)
        self.processors = int(self._device.attributes["MultiProcessorCount"])
        self._overlaps = int(self._device.compute_capability) >= OVERLAPPING
        self._lock = threading.Lock()
        self._kernels: dict[tuple[Any, ...], Any] = {}
        with self._device:
            self._staging = np.frombuffer(cupy.cuda.alloc_pinned_memory(STAGED), np.uint8, STAGED)
        self._loops = cupy.cuda.runtime.driverGetVersion() >= WHILE_NODES

    def zeros(self, count: int, dtype: Any) -> Array:
        """Return a new array of zeros."""
        with self._device:
            return self._cupy.zeros(count, dtype)

    def empty(self, count: int, dtype: Any) -> Array:
        """Return a new array that holds anything."""
        with self._device:
            return self._cupy.empty(count, dtype)

    def shared_with_host(self, count: int) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return float64 numbers in the host's memory, as kernels write them and as the host reads them."""
        return shared_with_host(self._device, count, np.float64)

    def wait(self) -> None:
        """Wait for all that was launched before."""
        self._cupy.cuda.get_current_stream().synchronize()

    def mark(self) -> Callable[[], None]:
        """Return what has the current stream wait for all that was launched before on what is current now."""
        current = self._cupy.cuda.get_current_stream
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(current())
        return lambda: current().wait_event(event)

    def upload(self, target: Array, source: np.ndarray[Any, Any]) -> None:
        """Copy from the host."""
        target.set(source)

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host, when all that was launched before is done."""
        size = array.nbytes
        if size > self._staging.nbytes or array.ndim != 1 or not array.flags.c_contiguous:
            return np.asarray(array.get())
        with self._lock:
            staged = self._staging[:size].view(array.dtype)
            array.get(out=staged)
            return np.array(staged)

    def asarray(self, array: Any, dtype: np.dtype[Any]) -> Array:
        """Return an array of this type on the device."""
        with self._device:
            return self._cupy.asarray(array, dtype)

    def address(self, array: Array) -> int:
        """Return where an array begins."""
        return int(array.data.ptr)

    def launch(
        self,
        signature: Signature,
        defines: Mapping[str, str],
        arguments: Mapping[str, Any],
        blocks: int,
        threads: int,
        types: Mapping[str, np.dtype[Any]] | None = None,
        varying: Sequence[str] = (),
        *,
        shared_bytes: int = 0,
        together: bool = False,
    ) -> Callable[..., None]:
        """Return a launch of a kernel, ready to be made again and again; `together` if it is cooperative."""
        key = signature.source, signature.entry, shared_bytes, *defines.items()
        kernel = self._kernels.get(key)
        if kernel is None:
            with self._device:
                kernel = _source.load(signature.source, defines).get_function(signature.entry)
                if shared_bytes:
                    allow_shared(kernel, shared_bytes)
            self._kernels[key] = kernel
        sizes = {"blocks": blocks, "threads": threads, "shared_bytes": shared_bytes}
        ready = Launch(
            kernel,
            signature,
            types or {},
            arguments,
            varying,
            **sizes,
            overlaps=self._overlaps and not together,
            cooperative=together,
        )
        current, array = self._cupy.cuda.get_current_stream, self._cupy.ndarray
        if not any(p.is_array for p in signature.parameters if p.name in varying):
            return lambda *values: ready(current().ptr, *values)
        return lambda *values: ready(
            current().ptr, *(value.data.ptr if isinstance(value, array) else value for value in values)
        )

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what does again what a function launches."""
        with self._device, self._cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            try:
                function()
            finally:
                graph = stream.end_capture()
        current = self._cupy.cuda.get_current_stream

        def launch(
            kept: Any = function,
        ) -> None:  # the graph reads and writes what the function launches with
            graph.launch(current())

        return launch

    def repeat(self, function: Callable[[], None], bank: Array, *, captured: bool) -> Callable[[], None]:
        """Return what does so until the first number of a bank is not 0."""
        if not (captured and self._loops):
            many = self.record(in_turn([function], TURNS_BLIND)) if captured else function
            return lambda: self._ask(many, bank)
        ends: list[Any] = []

        def body(handle: int) -> None:
            function()
            ends.append(self.launch(TURN_END, {}, {"loop": handle, "bank": bank}, 1, 1))
            ends[0]()

        _source.load(TURN_END.source, {})
        with self._device, self._cupy.cuda.Stream(non_blocking=True) as stream:
            graph = LoopGraph(driver(), stream.ptr, body)
        current = self._cupy.cuda.get_current_stream

        def launch(kept: Any = (function, ends)) -> None:
            graph.launch(current().ptr)

        return launch

    def _ask(self, function: Callable[[], None], bank: Array) -> None:
        going = True
        while going:
            function()
            going = float(bank[CODE].get()) == RUNNING


STAGED = 8 * (SLOTS + GLANCE)
"""Bytes of pinned memory through which scalars come to the host."""

OVERLAPPING = 90
"""Compute capability from which a kernel may start while the one before it ends."""

TURNS_BLIND = 4
"""Turns between two readings by the host where graphs have no loops."""


@cache
def _device(number: int) -> CupyDevice:
    return CupyDevice(number)


def make_space(device: str, dtype: np.dtype[Any]) -> CudaSpace:
    """Return the space of a GPU, `cuda:N`, for vectors of this type."""
    return CudaSpace(device, dtype, _device(int(device.partition(":")[2] or 0)))
