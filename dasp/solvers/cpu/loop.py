"""Iterations on the CPU, made until there is a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from dasp.solvers.scalars import LIMIT, RUNNING, first_verdict, verdict
from dasp.solvers.space import Iterate, Report, Start, State


class CpuLoop:
    """An iteration on the CPU; see `dasp.solvers.space.Loop`."""

    def __init__(
        self, starts: Mapping[str, Start], iterate: Iterate, finish: Callable[[], State], period: int
    ) -> None:
        self._starts, self._iterate, self._finish, self._period = starts, iterate, finish, period
        self._state: State = {}
        self._phase = 0

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew, as one of the starts does."""
        self._phase = 0
        with np.errstate(all="ignore"):
            state = self._starts[name]({key: np.float64(value) for key, value in given.items()})
            state["code"] = first_verdict(state["rr"], state["goal"], state.get("code", float(RUNNING)))
        self._state = state

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most."""
        state, residuals, count = self._state, [], 0.0
        if state["code"] == LIMIT:
            state["code"] = float(RUNNING)
        with np.errstate(all="ignore"):
            while state["code"] == RUNNING and count < most:
                state |= {"code": float(RUNNING), **self._iterate(self._phase, state)}
                self._phase = (self._phase + 1) % self._period
                squared = float(state["rr"])
                code = float(state["code"])
                state["code"], count = verdict(squared, float(state["goal"]), count, float(most), code)
                residuals.append(math.sqrt(abs(squared)))
            last = self._finish() if finish else {}
        return Report({key: float(value.real) for key, value in (state | last).items()}, residuals)
