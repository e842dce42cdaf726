"""What is timed: one product y = A x by one library under one setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def nothing() -> None:
    """Do nothing; the default of a candidate that holds nothing to release."""


@dataclass
class Candidate:
    """One product on fixed vectors, ready to run.

    Attributes
    ----------
    name : str
        The setting, as it stands in column names: `scipy`, `mkl`, `cusparse_alg2_pre`.
    run : callable
        Computes the product once. On a GPU it enqueues the product on the current stream and returns.
    result : callable
        Returns the vector that the last run wrote, an array of shape (m,) on the candidate's device.
    poison : callable
        Spoils that vector, so that a row that a run leaves unwritten is seen.
    setup_ms : float
        Milliseconds spent once per matrix: conversion, analysis, workspace.
    cooldown_seconds : float
        How long the threads of this library may go on spinning after a run; the timer waits that long
        before it times somebody else.
    capturable : bool
        Whether a run may be captured in a CUDA graph.
    close : callable
        Releases descriptors and handles.
    owned : object
        Whatever has to stay alive as long as `run` is used.
    """

    name: str
    run: Callable[[], Any]
    result: Callable[[], Any]
    poison: Callable[[], Any] = nothing
    setup_ms: float = 0.0
    cooldown_seconds: float = 0.0
    capturable: bool = True
    close: Callable[[], Any] = nothing
    owned: object = None


@dataclass(frozen=True)
class Missing:
    """A baseline that cannot be run here, and why."""

    name: str
    reason: str


@dataclass
class Baselines:
    """The baselines of one matrix: those that run, and those that do not."""

    candidates: list[Candidate] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
