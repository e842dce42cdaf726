"""Threads that share the work of one compiled function, without the interpreter.

A product of a matrix that fits the cache takes 10 to 100 microseconds: less than Python needs to hand work to
another thread. So the threads of the team wait in compiled code, without the GIL, for the next work, and the
work is a C function whose address and arguments are written on a board. A member that finds none for some
`SPINS` goes back to its pool and sleeps; the next call wakes it.

The work is cut into chunks, the same number for each part, and each part is some member's own, so that it
finds its data in its own cache. Who has done its own part takes chunks of the others': a member that sleeps,
or that the system has put aside, holds nobody up. Chunks are claimed by an atomic subtraction that also says
whether there was one: whoever gets a positive number may read what else the board says, because its caller
waits until that chunk is done.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

from dasp._compile import jit

intrinsic: Any = _intrinsic
Vector = np.ndarray[Any, Any]

CHUNKS = 4
"""Chunks of a part: few, because each has a start that no prefetcher saw coming."""

SPINS = 8_000
"""Turns for which a member waits for the next work before it sleeps: 0.1 to 0.4 milliseconds."""

WAKING = 20e-6
"""What it costs a caller to wake a member, in seconds."""

ARGUMENTS = 12
"""Words that a shared function gets besides its range."""

WORD, LINE = 8, 16
"""Bytes of a word of the board; words between two that different threads write (two cache lines)."""

TICKET, FINISHED, FUNCTION, CUTS, PARTS, FIRST_WORD = (
    0,
    LINE,
    2 * LINE,
    2 * LINE + 1,
    2 * LINE + 2,
    2 * LINE + 3,
)
LEFT = 3 * LINE
"""Places on the board: the number of the last work; chunks done; the function's address; that of the
chunks' cuts; the number of parts; the arguments; and, `LINE` words apart, the chunks left in each part."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def _load(typing_context, address):  # type: ignore[no-untyped-def]
    """Read a word, and after it whatever was written before it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", WORD)

    return types.int64(types.int64), generate


@intrinsic
def _store(typing_context, address, word):  # type: ignore[no-untyped-def]
    """Write a word, after whatever was written before it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _add(typing_context, address, term):  # type: ignore[no-untyped-def]
    """Add to a word and return what it was."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _pause(typing_context):  # type: ignore[no-untyped-def]
    """Leave the core's resources to its other thread for a moment."""
    machine = llvmlite.binding.get_process_triple().split("-")[0]

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        hint = [ir.Constant(_I32, 1)]
        name, given = {"x86_64": ("x86.sse2.pause", []), "aarch64": ("aarch64.hint", hint)}.get(
            machine, ("", [])
        )
        if name:
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(builder.module.declare_intrinsic(f"llvm.{name}", (), kind), given)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _call(typing_context, function, first, last, words):  # type: ignore[no-untyped-def]
    """Call function(first, last, ...) with the `ARGUMENTS` words at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function, first, last, words = arguments
        place = builder.inttoptr(words, _I64.as_pointer())
        others = [builder.load(builder.gep(place, [ir.Constant(_I64, k)])) for k in range(ARGUMENTS)]
        kind = ir.FunctionType(ir.VoidType(), [_I64] * (2 + ARGUMENTS))
        builder.call(builder.inttoptr(function, kind.as_pointer()), [first, last, *others])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


_compile = jit(nogil=True, error_model="numpy")


@_compile
def _take_part(board, me):  # type: ignore[no-untyped-def]
    """Do chunks until none is left, those of part `me` first."""
    parts = _load(board + WORD * PARTS)
    for turn in range(parts):
        part = (me + turn) % parts
        left = board + WORD * (LEFT + LINE * part)
        while _load(left) > 0:
            mine = _add(left, -1)
            if mine <= 0:
                break
            cut = _load(board + WORD * CUTS) + WORD * (CHUNKS * (part + 1) - mine)
            first, last = _load(cut), _load(cut + WORD)
            if first < last:
                _call(_load(board + WORD * FUNCTION), first, last, board + WORD * FIRST_WORD)
            _add(board + WORD * FINISHED, 1)


@_compile
def _serve(board, me, seen):  # type: ignore[no-untyped-def]
    """Take part in all work that comes after ticket `seen`, until none has come for a while."""
    spins = 0
    while spins < SPINS:
        ticket = _load(board + WORD * TICKET)
        if ticket == seen:
            _pause()
            spins += 1
        else:
            seen, spins = ticket, 0
            _take_part(board, me)
    return seen


@_compile
def _run(board, parts, job, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    """Multiply alone if there is one part, else put the work on the board, take part, and see it done."""
    function, last, cuts = job[0], job[1], job[2]
    scale = np.array([alpha, beta])
    words = np.empty(ARGUMENTS, np.int64)
    words[: ARGUMENTS - 4] = job[3:]
    words[ARGUMENTS - 4] = partials.ctypes.data
    words[ARGUMENTS - 3] = x.ctypes.data
    words[ARGUMENTS - 2] = y.ctypes.data
    words[ARGUMENTS - 1] = scale.ctypes.data
    if parts == 1:
        _call(function, 0, last, words.ctypes.data)
    else:
        for k in range(ARGUMENTS):
            _store(board + WORD * (FIRST_WORD + k), words[k])
        _store(board + WORD * FUNCTION, function)
        _store(board + WORD * CUTS, cuts)
        _store(board + WORD * PARTS, parts)
        _store(board + WORD * FINISHED, 0)
        for part in range(parts):
            _store(board + WORD * (LEFT + LINE * part), CHUNKS)
        _add(board + WORD * TICKET, 1)
        _take_part(board, 0)
        while _load(board + WORD * FINISHED) < CHUNKS * parts:
            _pause()
    return words[0] + np.int64(scale[0] == scale[0])  # so that both arrays outlive the calls


def multiply_alone(job: Vector, *operands: Any) -> None:
    """Do a job of one part in the calling thread; see `Team.multiply`."""
    _run(0, 1, job, *operands)


class Team:
    """Threads for products; the calling thread is its first member."""

    def __init__(self) -> None:
        self.most = os.cpu_count() or 1
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._serving = [False] * self.most
        self._memory = np.zeros(LEFT + LINE * (self.most + 1), np.int64)
        address = self._memory.ctypes.data
        self._board = address + -address % (WORD * LINE)
        self._ticket = self._memory[(self._board - address) // WORD + TICKET :]
        self._last = 0.0

    def multiply(self, parts: int, job: Vector, seconds: float, *operands: Any) -> None:
        """Do a job in so many parts, or alone if another thread has the team.

        Parameters
        ----------
        parts : int
            1 to `most`.
        job : numpy.ndarray, shape (ARGUMENTS - 1,), int64
            Address of a C function of `2 + ARGUMENTS` words; the end of its range; the address of the
            `CHUNKS * parts + 1` rising cuts of the range; all words but the last four.
        seconds : float
            About how long one thread needs.
        *operands : partials, x, y, alpha, beta
            The last four words are the addresses of the three vectors and of (alpha, beta).
        """
        if parts == 1 or not self._lock.acquire(blocking=False):
            multiply_alone(job, *operands)
            return
        try:
            self._wake(parts, seconds)
            _run(self._board, parts, job, *operands)
            self._last = time.perf_counter()
        finally:
            self._lock.release()

    def _wake(self, parts: int, seconds: float) -> None:
        """Wake the members that sleep, if the work is long or comes soon after the last."""
        if all(self._serving[1:parts]):
            return
        if seconds < 4 * WAKING and time.perf_counter() - self._last > 10 * WAKING:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=self.most, thread_name_prefix="dasp-team")
        for member in range(1, parts):
            if not self._serving[member]:
                self._serving[member] = True
                self._pool.submit(self._serve, member, int(self._ticket[0]))

    def _serve(self, member: int, seen: int) -> None:
        try:
            _serve(self._board, member, seen)
        finally:
            self._serving[member] = False


_team: Team | None = None
_making = Lock()


def team() -> Team:
    """Return the process's team; it has no threads before its first long product."""
    global _team
    if _team is None:
        with _making:
            _team = _team or Team()
    return _team


def _forget() -> None:
    """Drop the team in a forked child, where its threads do not exist."""
    global _team, _making
    _team, _making = None, Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
