"""Iterations on a GPU: traced, compiled, captured, and repeated until there is a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np

from dasp.runtime.cuda.device import CudaDevice, in_turn
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.types import Array
from dasp.solvers.cuda.passes import (
    UNGUARDED,
    UNLESS_LIMIT,
    WHILE_RUNNING,
    PassSpace,
    PassText,
    begin_compiling,
    prepare_pass,
)
from dasp.solvers.cuda.trace import CARRIED, COUNT, SLOTS, Multiplication, Slots, Trace, TracedPass
from dasp.solvers.cuda.vectors import CudaVectors
from dasp.solvers.scalars import LIMIT, RUNNING, Scalar, first_verdict, join, split, verdict, where
from dasp.solvers.space import Iterate, Report, Start, State

HISTORY = 2046
"""The most residuals between two readings by the host, which reads scalars and residuals at once; an even
number, since the iteration after an odd number of them is a program of its own."""

GIVEN = "rtol", "atol", "margin"
"""The scalars that a start takes."""

GIVEN_SCALARS = 2
"""The number of the array of scalars from which a start reads them."""

Outcome = tuple[State, tuple[Scalar, Scalar] | None, Scalar | None]
"""The scalars at the end; an iteration's number and square for the history; the condition on which the first
pass ends early."""

Traceable = Callable[[Trace], Outcome]

ALLOW = Signature(
    "solve/allow.cu",
    "dasp_allow",
    """
    double*    scalars
    double*    other
    int        slots
    double     limit
    double     most
    """,
)


class CudaLoop:
    """An iteration on a GPU; see `dasp.solvers.space.Loop`."""

    def __init__(
        self,
        space: PassSpace,
        starts: Mapping[str, Start],
        iterate: Iterate,
        finish: Callable[[], State],
        period: int,
        leaving: tuple[str, ...],
    ) -> None:
        self._leaving, self._lag = leaving, 0
        self._space, self._on, self._slots = space, space.on, Slots()
        # The host reads one array: the scalars, and after them the history.
        self._shared = self._take(SLOTS + HISTORY + 1)
        self._scalars = self._shared[:SLOTS], self._take(SLOTS), self._take(SLOTS)
        self._history = self._shared[SLOTS:]
        self._given: dict[str, float] = {}
        self._starts = starts
        usual = next(iter(starts))
        begun = self._trace_start(usual)
        traces = [self._trace_iteration(iterate, k) for k in range(period)]
        phases = [traces[k % period] for k in range(2)]
        # The sums that an iteration leaves to the next are of vectors of one length.
        most = len(leaving) * space.blocks(phases[0].passes[-1].vectors.n)
        self._left = [self._take(max(1, most)) for _ in range(2)]
        self._totals = [space.totals(left) for left in self._left]
        self._captured = space.captures
        made = [[one for one in trace.entries if isinstance(one, Multiplication)] for trace in phases]
        costly = any(one.costly for each in made for one in each)
        self._length = space.turn(max(map(len, made)), costly=costly)
        if self._captured:
            self._run_once(traces)
        texts = [*(self._write(trace, WHILE_RUNNING) for trace in phases), self._write(begun, UNGUARDED)]
        begin_compiling(self._on, chain.from_iterable(texts))
        self._phases = [
            self._program(trace, texts[k], k, 1 - k, left=1 - k) for k, trace in enumerate(phases)
        ]
        self._allow = self._prepare_allow()
        self._swaps, self._odd = period == 2 or bool(leaving), False
        # Programs that not every solve needs are prepared when a solve first needs them.
        self._repeats: dict[int, Callable[[], None]] = {}
        self._begins = {usual: self._prepare_start(begun, texts[-1])}
        self._end, self._ends = finish, dict[int, Callable[[], None]]()
        self._second: Callable[[], None] | None = None

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew with the start of this name, which takes the scalars in `given`."""
        if given != self._given:
            values = np.zeros(SLOTS)
            for key, value in given.items():
                values[self._slots[key]] = value
            self._on.upload(self._scalars[GIVEN_SCALARS], values)
            self._given = dict(given)
        self._odd = False
        if name not in self._begins:
            trace = self._trace_start(name)
            self._begins[name] = self._prepare_start(trace, self._write(trace, UNGUARDED))
        self._begins[name]()

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most."""
        residuals: list[float] = []
        while len(residuals) < most:
            allowed = min(most - len(residuals), HISTORY)
            self._allow(float(allowed))
            late = int(self._odd)
            if self._odd:  # turns begin with the first phase
                self._second = self._second or self._record(self._phases[1])
                self._second()
            if allowed > late:
                self._repeat(allowed - late)()
            # A finish overwrites A p, which later iterations may need: it is made early only if none follow.
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

    def _take(self, count: int) -> Array:
        scalars: Array = self._on.zeros(count, np.float64)
        return scalars

    def _run_once(self, traces: list[Trace]) -> None:
        """Make the products of some traces once: work that a product does only once is not to be captured."""
        for trace in traces:
            for entry in trace.entries:
                if not isinstance(entry, TracedPass):
                    entry()

    def _record(self, program: Callable[[], None]) -> Callable[[], None]:
        """Return the program; its second call captures it, if that is possible."""
        return _Recorded(self._on, program) if self._space.captures else program

    def _prepare_start(self, trace: Trace, texts: Sequence[PassText]) -> Callable[[], None]:
        return self._record(self._program(trace, texts, GIVEN_SCALARS, 0, left=0))

    def _finish(self, guard: int) -> None:
        """Compute the scalars of the end."""
        if guard not in self._ends:
            ended = self._trace(lambda trace: (self._end(), None, None))
            self._ends[guard] = self._record(self._program(ended, self._write(ended, guard), 0, 0))
        self._ends[guard]()

    def _repeat(self, most: int) -> Callable[[], None]:
        """Return a function that iterates, in turns no longer than `most` rounded up to an even number."""
        length = min(self._length, most + most % 2)
        if length not in self._repeats:
            turn = in_turn(self._phases, length)
            self._repeats[length] = self._on.repeat(turn, self._scalars[0], captured=self._captured)
        return self._repeats[length]

    def _prepare_allow(self) -> Callable[..., None]:
        arguments = {"scalars": self._scalars[0], "other": self._scalars[1], "slots": len(self._slots)}
        return self._on.prepare_launch(
            ALLOW, {}, {**arguments, "limit": float(LIMIT)}, 1, CARRIED, varying=("most",)
        )

    def _read(self, residuals: list[float] | None) -> dict[str, float]:
        """Wait for the GPU; append the residuals of the iterations since the last reading, and return the
        scalars."""
        values = self._on.download(self._shared)
        if residuals is not None:
            count, lag = int(values[COUNT]), self._lag
            self._odd ^= self._swaps and count % 2 == 1
            residuals.extend(values[SLOTS + lag : SLOTS + count + lag].tolist())
        names = self._slots.names
        return dict(zip(names, values[: len(names)].tolist(), strict=True))

    def _trace(self, function: Traceable, entering: tuple[str, ...] = ()) -> Trace:
        trace = self._space.trace = Trace(self._slots, entering)
        state, history, leave_if = function(trace)
        kept = {name: value for name, value in state.items() if name not in self._leaving}
        trace.finish(kept, history, CudaVectors(self._space, 0, ()), leave_if)
        self._space.trace = Trace(Slots())  # else the space would keep the trace and its vectors
        return trace

    def _trace_start(self, name: str) -> Trace:
        start = self._starts[name]

        def function(trace: Trace) -> Outcome:
            state = {"code": float(RUNNING), **split(start({name: trace.carried(name) for name in GIVEN}))}
            self._carried = list(state)
            if not self._leaving:
                state["code"] = first_verdict(state["rr"], state["goal"], state["code"])
            return {**state, "count": 0.0}, None, None

        return self._trace(function)

    def _trace_iteration(self, iterate: Iterate, phase: int) -> Trace:
        """Trace an iteration and the verdict on it; if it returns `judge`, the verdict on the one before."""

        def function(trace: Trace) -> Outcome:
            state = {name: trace.carried(name) for name in self._carried}
            count, most = trace.carried("count"), trace.carried("most")
            given = join({**state, "code": float(RUNNING)})
            new = {"code": float(RUNNING), **split(iterate(phase, given))}
            own = trace.scalar(new["code"])
            self._lag = int("judge" in new)
            if not self._lag:
                code, after = verdict(new["rr"], state["goal"], count, most, own)
                return {**new, "code": code, "count": after}, (count, new["rr"]), None
            square = new.pop("judge")
            code, _ = verdict(square, state["goal"], count - 1.0, most, own)
            stays = code > float(RUNNING)  # keep the scalars then: the iteration may go on from here later
            kept = {
                name: value if name in self._leaving else where(stays, state[name], value)
                for name, value in new.items()
            }
            after = where(stays, count, count + 1.0)
            return {**kept, "code": code, "count": after}, (count, square), code

        return self._trace(function, self._leaving)

    def _write(self, trace: Trace, guard: int) -> list[PassText]:
        """Return the text of each pass of a trace."""
        texts = []
        for k, entry in enumerate(trace.passes):
            carried = len(self._slots) if k == 0 and guard == WHILE_RUNNING else 0
            texts.append(PassText(entry, self._space.dtype, guard=guard, carried=carried))
        return texts

    def _program(
        self, trace: Trace, texts: Sequence[PassText], source: int, target: int, left: int | None = None
    ) -> Callable[[], None]:
        """Return the launches of a trace's passes and products, from one array of scalars to another.

        `left` is the number of the buffer for the sums that the last pass leaves to the next iteration; None
        if no iteration follows.
        """
        steps: list[Callable[[], None]] = []
        written = iter(texts)
        combine, sums, blocks, first = self._space.combine, self._totals[source % 2], 0, True
        for entry in trace.entries:
            if not isinstance(entry, TracedPass):
                steps.append(entry)
                if isinstance(entry, Multiplication) and entry.sums is not None:
                    steps += combine(entry.sums, entry.sums)
                continue
            mine = self._space.blocks(entry.vectors.n)
            lasting = self._leaving and left is not None and entry is trace.passes[-1]
            out = self._left[left or 0] if lasting else self._take(max(1, len(entry.dots) * mine))
            blocks = mine if first else blocks
            scalars = self._scalars[source], self._scalars[target]
            sizes = sums, blocks, out
            steps.append(prepare_pass(self._space, entry, next(written), scalars, sizes, self._history))
            blocks = mine
            sums = self._totals[left or 0] if lasting else out
            if entry.dots:
                steps += combine(out, sums, beside=bool(lasting))
            first = False
        return in_turn(steps)


class _Recorded:
    """A program that is launched step by step the first time, and as a graph from then on.

    To capture and instantiate a graph takes longer than the launches of a few kernels.
    """

    def __init__(self, on: CudaDevice, program: Callable[[], None]) -> None:
        self._on, self._run, self._calls = on, program, 0

    def __call__(self) -> None:
        """Run the program."""
        if self._calls == 1:
            self._run = self._on.record(self._run)
        self._calls += 1
        self._run()
