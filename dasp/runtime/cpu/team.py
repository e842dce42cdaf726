"""Threads that share the work of one compiled function, without the interpreter.

A product of a matrix that fits the cache takes 10 to 100 microseconds: less than Python needs to hand work to
another thread. So the workers of the team wait in compiled code, without the GIL, for the next epoch of a
state that all threads share, which says what the call is: the address of a `Job`, and its operands. A worker
that finds no work for a while goes to sleep; a later call wakes it.

A job is cut into chunks, the same number for each part, and each part is some worker's own, so that it
finds its data in its own cache. Who has done its own part takes chunks of the others': a worker that sleeps,
or that the system has put aside, holds nobody up. Chunks are claimed by an atomic subtraction that also says
whether there was one: whoever gets a positive number may read what else the state says, because its caller
waits until that chunk is done.

A call, from taking the team to the end of the last chunk, is one compiled function. No signal's handler runs
inside it, so none leaves workers behind that write into an array whose owner has gone on. A call that finds
the team taken, by another thread or by the very one that a handler or a finalizer interrupts, does its job
alone.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.np.numpy_support import as_dtype

from dasp.runtime.arrays import address
from dasp.runtime.cpu import threadpools as _threadpools
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.compile import c_function, jit

intrinsic: Any = _intrinsic
Vector = np.ndarray[Any, Any]

CHUNKS = 4
"""Chunks of a part: few, because each has a start that no prefetcher saw coming."""

TURNS = 8_000
"""Turns for which a worker waits for the next call of a stream before it sleeps: 0.1 to 0.4 milliseconds."""

FEW_TURNS = 500
"""The same where calls are far apart: 10 to 30 microseconds."""

IMPATIENT = 2_000
"""Turns after which a caller that waits for the last chunk lends its processor to others."""

WAKING = 20e-6
"""What it costs a caller to wake a worker, in seconds."""

STREAM = 10 * WAKING
"""Calls less than this many seconds apart are a stream."""

AGAIN = STREAM
"""Seconds that workers get to come once they are woken: on a busy machine each try costs 2 microseconds."""

LOOKING = 0.01
"""Seconds after which a stream looks again whether it still has the processors that it runs on."""

CROWDED = 1200
"""Times a second that a caller is put aside for others, from which on its workers hold it up more than they
help: one that is put aside in the middle of a chunk has everybody wait."""

ALONE = 0.2
"""Seconds for which calls are then made alone, before the team is tried again."""

FIXED = 8
"""Arguments of a shared function that belong to the job."""

OPERANDS = ("partials", "x", "y")
"""Vectors that belong to a call; behind them comes the address of (alpha, beta)."""

WORD, LINE = 8, 128
"""Bytes of a word; bytes that keep apart what different threads write (two cache lines)."""

JOB = np.dtype(
    [
        ("function", np.int64),  # its address
        ("end", np.int64),  # of its range, which begins at 0
        ("cuts", np.int64),  # address of the rising cuts of the range: CHUNKS for each part, and one more
        ("total", np.int64),  # NumPy's number of the type of partials and y
        ("x", np.int64),  # and of that of x
        ("sizes", np.int64, len(OPERANDS)),  # elements of the operands
        ("fixed", np.int64, FIXED),  # the arguments that belong to the job: addresses and integers
    ]
)
"""A job as it lies in memory: written by `Job`, read by the compiled functions."""

STATE = np.dtype(
    {
        "names": ("epoch", "patience", "finished", "taken", "awake", "parts", "job", "operands"),
        "formats": [np.int64] * 7 + [(np.int64, len(OPERANDS) + 1)],
        "offsets": [0, WORD, LINE, 2 * LINE, 3 * LINE, *(4 * LINE + WORD * word for word in range(3))],
        "itemsize": 5 * LINE,
    }
)
"""What the threads share: the number of the last call; the turns for which workers wait for another; its
chunks that are done; whether a caller has the team; how many workers wait; parts, job and operands."""

PART = np.dtype(
    {"names": ("left", "awake"), "formats": [np.int64] * 2, "offsets": [0, WORD], "itemsize": LINE}
)
"""What follows the state for each part: its chunks that nobody has claimed, and whether its worker waits."""


def _offsets(layout: np.dtype[Any]) -> Any:
    """Return where each field lies, in bytes, as constants for compiled code."""
    fields: Any = layout.fields
    names = list(fields)
    return namedtuple("Offsets", names)(*(fields[name][1] for name in names))


_JOB, _STATE, _PART = _offsets(JOB), _offsets(STATE), _offsets(PART)
_PARTS = STATE.itemsize
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def _load(typing_context, address):
    """Read a word, and after it whatever was written before it."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", WORD)

    return types.int64(types.int64), generate


@intrinsic
def _store(typing_context, address, word):
    """Write a word, after whatever was written before it."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _changed(operation: str) -> Any:
    """Return an intrinsic that changes a word in one step with all threads, and returns what it was."""

    @intrinsic
    def change(typing_context, address, term):
        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
            return builder.atomic_rmw(operation, pointer, arguments[1], "seq_cst")

        return types.int64(types.int64, types.int64), generate

    return change


_add, _exchange = _changed("add"), _changed("xchg")


@intrinsic
def _pause(typing_context):
    """Leave the core's resources to its other thread for a moment."""
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


_give_way: Any = types.ExternalFunction("sched_yield", types.int32()) if os.name == "posix" else _pause


@intrinsic
def _on_stack(typing_context, numbers):
    """Return the address of some numbers of one type, which lasts as long as the caller."""

    def generate(context, builder, signature, arguments):
        values = cgutils.unpack_tuple(builder, arguments[0], numbers.count)
        place = cgutils.alloca_once(builder, values[0].type, size=numbers.count)
        for k, value in enumerate(values):
            builder.store(value, builder.gep(place, [ir.Constant(_I64, k)]))
        return builder.ptrtoint(place, _I64)

    return types.int64(numbers), generate


@intrinsic
def _number_of(typing_context, array):
    """Return NumPy's number of a vector's type; -1 if it is not contiguous."""
    plain = array.ndim == 1 and array.layout == "C" and array.aligned
    number = as_dtype(array.dtype).num if plain else -1

    def generate(context, builder, signature, arguments):
        return ir.Constant(_I64, number)

    return types.int64(array), generate


@intrinsic
def _is_writable(typing_context, array):
    def generate(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(1), int(array.mutable))

    return types.boolean(array), generate


@intrinsic
def _call(typing_context, job, operands, first, last):
    """Call the job's function for `first` to `last`, with what is fixed and the operands at an address."""

    def generate(context, builder, signature, arguments):
        job, operands, first, last = arguments

        def words(address: Any, offset: int, count: int) -> list[Any]:
            start = builder.add(address, ir.Constant(_I64, offset))
            place = builder.inttoptr(start, _I64.as_pointer())
            return [builder.load(builder.gep(place, [ir.Constant(_I64, k)])) for k in range(count)]

        (function,) = words(job, _JOB.function, 1)
        others = words(job, _JOB.fixed, FIXED) + words(operands, 0, len(OPERANDS) + 1)
        kind = ir.FunctionType(ir.VoidType(), [_I64] * (2 + len(others)))
        builder.call(builder.inttoptr(function, kind.as_pointer()), [first, last, *others])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


_compile = jit(nogil=True, error_model="numpy")


@_compile
def _take_part(state, me):
    """Do chunks until none is left, those of part `me` first."""
    parts = _load(state + _STATE.parts)
    for turn in range(parts):
        part = (me + turn) % parts
        left = state + _PARTS + LINE * part + _PART.left
        while _load(left) > 0:
            mine = _add(left, -1)
            if mine <= 0:
                break
            job = _load(state + _STATE.job)
            cut = _load(job + _JOB.cuts) + WORD * (CHUNKS * (part + 1) - mine)
            first, last = _load(cut), _load(cut + WORD)
            if first < last:
                _call(job, state + _STATE.operands, first, last)
            _add(state + _STATE.finished, 1)


@_compile
def _serve(state, me):
    """Take part in the call that there is, and in all that come before the worker's patience ends."""
    awake = state + _PARTS + LINE * me + _PART.awake
    _store(awake, 1)
    _add(state + _STATE.awake, 1)
    seen, turns = -1, 0
    while True:
        epoch = _load(state + _STATE.epoch)
        if epoch != seen:
            seen, turns = epoch, 0
            if me < _load(state + _STATE.parts):
                _take_part(state, me)
        elif turns < _load(state + _STATE.patience):
            turns += 1
            _pause()
        else:
            break
    _add(state + _STATE.awake, -1)
    _store(awake, 0)


@_compile
def _take(state):
    """Take the team; False if somebody has it."""
    return _exchange(state + _STATE.taken, 1) == 0


@_compile
def _execute(state, parts, job, partials, x, y, alpha, beta):
    """Do a job, alone if it has one part or the team is taken; if operands do not fit, do nothing: False."""
    total = _load(job + _JOB.total)
    if (
        _number_of(partials) != total
        or _number_of(x) != _load(job + _JOB.x)
        or _number_of(y) != total
        or not _is_writable(partials)
        or not _is_writable(y)
        or partials.size != _load(job + _JOB.sizes)
        or x.size != _load(job + _JOB.sizes + WORD)
        or y.size != _load(job + _JOB.sizes + 2 * WORD)
    ):
        return False
    scale = _on_stack((y.dtype.type(alpha), y.dtype.type(beta)))
    if parts == 1 or not _take(state):
        operands = _on_stack((partials.ctypes.data, x.ctypes.data, y.ctypes.data, scale))
        _call(job, operands, 0, _load(job + _JOB.end))
        return True
    _store(state + _STATE.operands, partials.ctypes.data)
    _store(state + _STATE.operands + WORD, x.ctypes.data)
    _store(state + _STATE.operands + 2 * WORD, y.ctypes.data)
    _store(state + _STATE.operands + 3 * WORD, scale)
    _store(state + _STATE.job, job)
    _store(state + _STATE.parts, parts)
    _store(state + _STATE.finished, 0)
    for part in range(parts):
        _store(state + _PARTS + LINE * part + _PART.left, CHUNKS)
    _add(state + _STATE.epoch, 1)
    _take_part(state, 0)
    turns = 0
    while _load(state + _STATE.finished) < CHUNKS * parts:
        turns += 1
        if turns < IMPATIENT:
            _pause()
        else:
            _give_way()
    _store(state + _STATE.taken, 0)
    return True


class SharedFunction:
    """A C function that does a range of items, and so may be shared by threads.

    Parameters
    ----------
    function : callable
        To be compiled. Takes `first` and `last`, of the range; then `arguments`, by these names; then
        pointers to three vectors that each call brings, and one to its (alpha, beta).
    arguments : mapping of str to dtype, int or None
        `FIXED` of them. A pointer to numbers of this type, an int64, or a pointer that is null.
    total : dtype
        Of what each call brings: of partials, y, alpha and beta.
    x : dtype, optional
        Of x, where it is another one.
    **options
        Numba's.

    Raises
    ------
    TypeError
        If the function takes other arguments, or as many in another order.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        total: Any,
        x: Any = None,
        **options: Any,
    ) -> None:
        self.name, self.arguments = function.__name__, dict(arguments)
        self.total, self.x = np.dtype(total), np.dtype(x or total)
        *names, _, _, _, _ = inspect.signature(function).parameters
        if names != ["first", "last", *arguments] or len(arguments) != FIXED:
            raise TypeError(
                f"{self.name} takes {', '.join(names)} before its operands; "
                f"first, last, {', '.join(arguments)} are needed, {FIXED} behind the range"
            )
        operands = [types.CPointer(from_dtype(kind)) for kind in (self.total, self.x, self.total, self.total)]
        kinds = [_numba_type(kind) for kind in arguments.values()]
        signature = types.void(types.int64, types.int64, *kinds, *operands)
        self._compiled = c_function(signature, function, **options)
        self.address = int(self._compiled.address)


def _numba_type(kind: Any) -> Any:
    if kind is int:
        return types.int64
    return types.voidptr if kind is None else types.CPointer(from_dtype(np.dtype(kind)))


class Job:
    """A shared function with the arguments and the range that it has in every call.

    Parameters
    ----------
    function : SharedFunction
    cuts : int64, shape (CHUNKS * parts + 1,)
        Where chunks begin and end: rising from 0 to the end of the range.
    sizes : tuple of int
        Elements of partials, x and y.
    **arguments
        The function's, by name: arrays, which are kept alive, or ints.

    Raises
    ------
    TypeError
        If an argument is missing, unknown, of another type or not contiguous.
    ValueError
        If the cuts do not rise from 0.
    """

    def __init__(
        self, function: SharedFunction, cuts: Vector, sizes: tuple[int, ...], **arguments: Any
    ) -> None:
        if set(arguments) != set(function.arguments):
            wrong = ", ".join(sorted(set(arguments) ^ set(function.arguments)))
            raise TypeError(f"{wrong} given or not; {function.name} takes {', '.join(function.arguments)}")
        if cuts[0] != 0 or np.any(cuts[1:] < cuts[:-1]) or len(cuts) % CHUNKS != 1:
            raise ValueError(f"cuts are {cuts}; they must rise from 0, {CHUNKS} for each part and one more")
        self.parts = len(cuts) // CHUNKS
        memory = np.zeros(1, JOB)
        record = memory[0]
        record["function"], record["end"] = function.address, cuts[-1]
        record["cuts"] = _word("cuts", np.int64, cuts)
        record["total"], record["x"], record["sizes"] = function.total.num, function.x.num, sizes
        record["fixed"] = [_word(name, kind, arguments[name]) for name, kind in function.arguments.items()]
        self.address = address(memory.view(np.uint8))
        self._record, self._kept = memory, (function, cuts, arguments)

    def refuse(self, *operands: Any) -> NoReturn:
        """Say which operand of a call does not fit."""
        function, _, _ = self._kept
        for name, size, array in zip(OPERANDS, self._record["sizes"][0], operands, strict=False):
            given = f"{name} is {array.dtype} of shape {array.shape}"
            kind = function.x if name == "x" else function.total
            if array.dtype != kind or array.shape != (size,) or not array.flags.c_contiguous:
                raise ValueError(f"{given}; {function.name} needs {kind} of shape ({size},), contiguous")
        raise ValueError(f"partials or y is read-only; {function.name} writes them")


def _word(name: str, kind: Any, value: Any) -> int:
    """Return what stands for an argument: an int, or the address of an array, which must be as declared."""
    if kind is int:
        return int(value)
    if kind is None or (type(value) is np.ndarray and value.size == 0):
        return 0
    if (
        type(value) is not np.ndarray
        or value.dtype != kind
        or not (value.flags.c_contiguous and value.flags.aligned)
    ):
        given = f"{value.dtype}, strides {value.strides}" if isinstance(value, np.ndarray) else type(value)
        raise TypeError(f"{name} is {given}; a contiguous array of {np.dtype(kind)} is needed")
    return address(value)


def multiply_alone(job: Job, *operands: Any) -> None:
    """Do a job in the calling thread; see `Team.multiply`."""
    if not _execute(0, 1, job.address, *operands):
        job.refuse(*operands)


class Team:
    """Threads for products; the calling thread is worker 0."""

    def __init__(self) -> None:
        self.most = os.cpu_count() or 1
        self._memory = np.zeros(_PARTS + LINE * (self.most + 2), np.uint8)
        start = -address(self._memory) % LINE
        self._state = address(self._memory) + start
        words = memoryview(self._memory[start : start + _PARTS + LINE * self.most]).cast("q")  # type: ignore[arg-type]
        self._awake = words[_STATE.awake // WORD :]
        self._patience = words[_STATE.patience // WORD :]
        self._taken = words[_STATE.taken // WORD :]
        self._awake_of = words[(_PARTS + _PART.awake) // WORD :: LINE // WORD]
        self._workers = [
            _threads.Worker(f"dasp-{me}", functools.partial(_serve, self._state, me))
            for me in range(1, self.most)
        ]
        self._last = self._woken = self._look_at = self._alone_until = 0.0
        self._seen = (0, 0.0, 0)  # the thread that looked last, when, and how often it had been put aside
        # Compiled here, not in a worker that the end of the process would meet in the compiler.
        _serve(self._state, 0)
        _take(self._state)
        self._taken[0] = 0

    def multiply(self, parts: int, job: Job, seconds: float, *operands: Any) -> None:
        """Do a job in its parts, or alone if the team is taken or cannot help.

        Parameters
        ----------
        parts : int
            The job's, or 1 to do it alone.
        job : Job
        seconds : float
            About how long one thread needs.
        *operands : partials, x, y, alpha, beta
            Vectors of the job's types and sizes, and two numbers.

        Raises
        ------
        ValueError
            If an operand has another type or size.
        """
        if parts > 1 and self._awake[0] < parts - 1:
            parts = self._wake(parts, seconds)
        if not _execute(self._state, parts, job.address, *operands):
            job.refuse(*operands)
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
        workers = _threads.running(parts)
        if workers == 1:
            return 1
        fit = _threads.processors() >= parts
        self._patience[0] = 0 if not fit else TURNS if gap < STREAM else FEW_TURNS
        for me in range(1, workers):
            if not self._awake_of[me] and not self._workers[me - 1].wake():
                break
        return parts

    def _look(self, now: float) -> None:
        """Send the workers to sleep if they have no processors of their own any more, or must share them."""
        self._look_at = now + LOOKING
        who, since, before = self._seen
        self._seen = me, _, times = threading.get_ident(), now, _threads.times_put_aside()
        crowded = who == me and times - before > CROWDED * (now - since)
        if crowded:
            self._alone_until = now + ALONE
        if crowded or self._awake[0] >= _threads.processors():
            self._patience[0] = 0

    def close(self) -> None:
        """Take the team for good, so that its workers sleep and all jobs are done alone."""
        self._patience[0] = 0
        until = time.monotonic() + _threads.JOIN_SECONDS
        while not _take(self._state) and time.monotonic() < until:
            time.sleep(1e-4)


_made: dict[str, Team] = {}


def team() -> Team:
    """Return the process's team; it has no threads before its first long product."""
    if not _made:
        # No lock, which a signal's handler that multiplies would find taken by the code that it interrupts.
        made = Team()
        if _made.setdefault("team", made) is made:
            _threads.at_end.append(made.close)
    return _made["team"]


if hasattr(os, "register_at_fork"):
    # In a forked child the workers do not exist.
    os.register_at_fork(after_in_child=_made.clear)


_threadpools.register()
