"""Threads that share the work of one compiled function, without the interpreter.

A product of a matrix that fits the cache takes 10 to 100 microseconds: less than Python needs to hand work to
another thread. So the workers of the team wait in compiled code, without the GIL, for the next epoch of a
state that all threads share. The state names the call: the addresses of a `Job` and of the operands. A worker
that finds no work for a while goes to sleep; a later call wakes it.

A job is cut into chunks, the same number for each part. Each part belongs to one worker, which finds its data
in its own cache. A worker that has done its own part takes chunks of the others', so that one that sleeps, or
that the system has stopped, holds up no call. A worker claims a chunk by an atomic subtraction. If that
returns a positive number, there was a chunk, and the worker may read the rest of the state, because the
caller waits until that chunk is done.

A call, from taking the team to the end of the last chunk, is one compiled function. No handler of a signal
runs inside it, so none leaves workers that still write into an array whose owner has gone on. A call that
finds the team taken, by another thread or by a call that a handler or a finalizer interrupted, does its job
alone.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dasp.runtime.arrays import address
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import data_of
from dasp.runtime.cpu.job import CHUNKS, JOB_AT, Job, call, offsets_of
from dasp.runtime.types import Number, Vector

TURNS = 8_000
"""Turns for which a worker waits for the next call of a stream before it sleeps: 0.1 to 0.4 milliseconds."""

FEW_TURNS = 500
"""The same where calls are far apart: 10 to 30 microseconds."""

IMPATIENT = 2_000
"""Turns after which a caller that waits for the last chunk yields its processor to others."""

NUMBER_SECONDS = 2.5e-10
"""Seconds that a thread takes for a number in its cache, about: a slot of a product, an element of a pass."""

LEAST_SECONDS = 5e-6
"""Seconds of work up to which one thread does it alone: to share it takes about as long."""

WAKING = 20e-6
"""Seconds that it costs a caller to wake a worker."""

STREAM = 10 * WAKING
"""Calls less than this many seconds apart are a stream."""

AGAIN = STREAM
"""Seconds before sleeping workers are woken once more: on a busy machine each try costs 2 microseconds."""

LOOKING = 0.01
"""Seconds after which a stream of calls checks again whether it still has its processors."""

CROWDED = 1200
"""Preemptions of a caller per second, above which its workers hold it up more than they help: if one of them
is preempted in the middle of a chunk, all wait."""

ALONE = 0.2
"""Seconds for which calls are then made alone, before they try the team again."""

WORD = 8
"""Bytes of a word."""

LINE = 128
"""Bytes that keep apart what different threads write: two cache lines."""

STATE = np.dtype(
    {
        "names": ("epoch", "patience", "finished", "taken", "awake", "parts", "job", "operands"),
        "formats": [np.int64] * 8,
        "offsets": [0, WORD, LINE, 2 * LINE, 3 * LINE, *(4 * LINE + WORD * word for word in range(3))],
        "itemsize": 5 * LINE,
    }
)
"""The state that threads share: the number of the last call; the turns for which workers wait for another;
its finished chunks; 1 if a caller has the team; how many workers are awake; parts; the addresses of the job
and of the operands."""

PART = np.dtype(
    {"names": ("left", "awake"), "formats": [np.int64] * 2, "offsets": [0, WORD], "itemsize": LINE}
)
"""A part, after the state: the number of its unclaimed chunks, and 1 if its worker is awake."""

_STATE, _PART = offsets_of(STATE), offsets_of(PART)
_PARTS = STATE.itemsize
_I32, _I64 = ir.IntType(32), ir.IntType(64)

_compile = jit(nogil=True, error_model="numpy")
_inline = jit(nogil=True, error_model="numpy", forceinline=True)

_made: dict[str, Team] = {}


def team() -> Team:
    """Return the process's team; it has no threads before its first long product."""
    if not _made:
        # No lock: a signal's handler that multiplies would find it taken by the code that it interrupts.
        _made.setdefault("team", Team())
    return _made["team"]


@atexit.register  # runs before the exit function of the threads themselves
def _close() -> None:
    for made in _made.values():
        made.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_made.clear)  # the child does not have their workers

_threads.register_with_threadpoolctl()


class Team:
    """Threads for products; the calling thread is worker 0."""

    def __init__(self) -> None:
        self.most = os.cpu_count() or 1
        self._memory = np.zeros(_PARTS + LINE * (self.most + 2), np.uint8)
        start = -address(self._memory) % LINE
        self._state = address(self._memory) + start
        words = self._memory[start : start + _PARTS + LINE * self.most].data.cast("q")
        self._awake = words[_STATE.awake // WORD :]
        self._patience = words[_STATE.patience // WORD :]
        self._taken = words[_STATE.taken // WORD :]
        self._awake_of = words[(_PARTS + _PART.awake) // WORD :: LINE // WORD]
        self._workers = [
            _threads.Worker(f"dasp-{me}", functools.partial(_serve, self._state, me))
            for me in range(1, self.most)
        ]
        self._last = self._woken = self._look_at = self._alone_until = 0.0
        self._seen = (0, 0.0, 0)  # the thread that looked last, when, and its preemptions
        # Compiled here, so that the end of the process does not find a worker in the compiler.
        _serve(self._state, 0)
        _take(self._state)
        self._taken[0] = 0

    def parts(self, seconds: float) -> int:
        """Return into how many parts to cut work that takes one thread `seconds`."""
        return 1 if is_short(seconds) else min(_threads.get_num_threads(), self.most)

    def multiply(self, job: Job, *operands: Vector | Number) -> None:
        """Do a job with the team, or alone if it has one part or the team is taken or cannot help.

        Parameters
        ----------
        job : Job
        *operands : partials, x, y, alpha, beta
            Contiguous vectors of the job's types, as long as its function reads and writes, and two numbers.
            Nothing checks them.
        """
        parts = job.parts
        if parts == 1:
            multiply_alone(job, *operands)
            return
        if self._awake[0] < parts - 1:
            parts = self._wake(parts, job.seconds)
        _execute(self._state, parts, job.address, *operands)
        now = self._last = time.perf_counter()
        if now > self._look_at:
            self._look(now)

    def _wake(self, parts: int, seconds: float) -> int:
        """Wake the workers that sleep, if the work is long or comes soon after the last; return the parts."""
        now = time.perf_counter()
        if now < self._alone_until:
            return 1
        gap = now - self._last
        if (seconds < 4 * WAKING and gap > STREAM) or now - self._woken < AGAIN:
            return parts if self._awake[0] else 1
        self._woken = now
        workers = _threads.count_running(parts)
        if workers == 1:
            return 1
        fit = _threads.count_processors() >= parts
        self._patience[0] = 0 if not fit else TURNS if gap < STREAM else FEW_TURNS
        for me in range(1, workers):
            if not self._awake_of[me] and not self._workers[me - 1].wake():
                break
        return parts

    def _look(self, now: float) -> None:
        """Send the workers to sleep if processors have become too few, or others compete for them."""
        self._look_at = now + LOOKING
        who, since, before = self._seen
        self._seen = me, _, times = threading.get_ident(), now, _threads.count_preemptions()
        crowded = who == me and times - before > CROWDED * (now - since)
        if crowded:
            self._alone_until = now + ALONE
        if crowded or self._awake[0] >= _threads.count_processors():
            self._patience[0] = 0

    def close(self) -> None:
        """Take the team for good, so that its workers sleep and all jobs are done alone."""
        self._patience[0] = 0
        until = time.monotonic() + _threads.JOIN_SECONDS
        while not _take(self._state) and time.monotonic() < until:
            time.sleep(1e-4)


def is_short(seconds: float) -> bool:
    """Return True if work that takes one thread `seconds` is too short to share."""
    return seconds <= LEAST_SECONDS


def multiply_alone(job: Job, *operands: Vector | Number) -> None:
    """Do a job in the calling thread; see `Team.multiply`."""
    _execute(0, 1, job.address, *operands)


@_compile
def _execute(state, parts, job, partials, x, y, alpha, beta):
    """Do a job, alone if it has one part or the team is taken."""
    scale = on_stack((y.dtype.type(alpha), y.dtype.type(beta)))
    operands = on_stack((start_of(partials), start_of(x), start_of(y), scale))
    if parts == 1 or not _take(state):
        call(job, operands, 0, load(job + JOB_AT.end))
        return
    store(state + _STATE.job, job)
    store(state + _STATE.operands, operands)
    store(state + _STATE.parts, parts)
    store(state + _STATE.finished, 0)
    for part in range(parts):
        store(state + _PARTS + LINE * part + _PART.left, CHUNKS)
    add(state + _STATE.epoch, 1)
    _take_part(state, np.int64(0))  # not a literal, for which it would be compiled once more
    turns = 0
    while load(state + _STATE.finished) < CHUNKS * parts:
        turns += 1
        if turns < IMPATIENT:
            pause()
        else:
            give_way()
    store(state + _STATE.taken, 0)


@_compile
def _take(state):
    """Take the team; return False if another call has it."""
    return exchange(state + _STATE.taken, 1) == 0


@_compile
def _serve(state, me):
    """Take part in the current call, and in later calls until the worker's patience ends."""
    awake = state + _PARTS + LINE * me + _PART.awake
    store(awake, 1)
    add(state + _STATE.awake, 1)
    seen, turns = -1, 0
    while True:
        epoch = load(state + _STATE.epoch)
        if epoch != seen:
            seen, turns = epoch, 0
            if me < load(state + _STATE.parts):
                _take_part(state, me)
        elif turns < load(state + _STATE.patience):
            turns += 1
            pause()
        else:
            break
    add(state + _STATE.awake, -1)
    store(awake, 0)


@_inline
def _take_part(state, me):
    """Do chunks until none is left, those of part `me` first."""
    parts = load(state + _STATE.parts)
    for turn in range(parts):
        part = (me + turn) % parts
        left = state + _PARTS + LINE * part + _PART.left
        while load(left) > 0:
            mine = add(left, -1)
            if mine <= 0:
                break
            job = load(state + _STATE.job)
            cut = load(job + JOB_AT.cuts) + WORD * (CHUNKS * (part + 1) - mine)
            first, last = load(cut), load(cut + WORD)
            if first < last:
                call(job, load(state + _STATE.operands), first, last)
            add(state + _STATE.finished, 1)


# ---- words that threads share, by their addresses -----------------------------------------------------


@intrinsic
def load(typing_context, address):
    """Read a word; later reads see all that was written before the word (acquire)."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", WORD)

    return types.int64(types.int64), generate


@intrinsic
def store(typing_context, address, word):
    """Write a word after all earlier writes (release)."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _change(operation: str) -> Any:
    """Return an intrinsic that changes a word atomically, and returns its former value."""

    @intrinsic
    def change(typing_context, address, term):
        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
            return builder.atomic_rmw(operation, pointer, arguments[1], "seq_cst")

        return types.int64(types.int64, types.int64), generate

    return change


add, exchange = _change("add"), _change("xchg")


@intrinsic
def pause(typing_context):
    """Leave the core's resources to its other hardware thread for a moment."""
    machine = llvmlite.binding.get_process_triple().split("-")[0]

    def generate(context, builder, signature, arguments):
        hint = [ir.Constant(_I32, 1)]
        name, given = {"x86_64": ("x86.sse2.pause", []), "aarch64": ("aarch64.hint", hint)}.get(
            machine, ("", [])
        )
        if name:
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(builder.module.declare_intrinsic(f"llvm.{name}", (), kind), given)
        return context.get_dummy_value()

    return types.void(), generate


give_way = types.ExternalFunction("sched_yield", types.int32()) if os.name == "posix" else pause


@intrinsic
def start_of(typing_context, array):
    """Return the address of an array's first number, as `array.ctypes.data`, which compiles slowly."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(data_of(context, builder, signature.args[0], arguments[0]), _I64)

    return types.int64(array), generate


@intrinsic
def on_stack(typing_context, numbers):
    """Store numbers of one type on the caller's stack, and return their address."""

    def generate(context, builder, signature, arguments):
        values = cgutils.unpack_tuple(builder, arguments[0], numbers.count)
        place = cgutils.alloca_once(builder, values[0].type, size=numbers.count)
        for k, value in enumerate(values):
            builder.store(value, builder.gep(place, [ir.Constant(_I64, k)]))
        return builder.ptrtoint(place, _I64)

    return types.int64(numbers), generate
