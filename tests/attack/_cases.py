"""The parts that attacks share: the device, cases drawn by number from a seed, and the command line."""

from __future__ import annotations

import argparse
import collections
import importlib
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dasp import SpMatrix
from dasp.runtime.cuda import gpus
from tests.support import sanitizer

GPU = gpus.try_gpu()[0]
DEVICE = "cuda" if GPU else "cpu"
xp: Any = importlib.import_module("cupy") if GPU else np

Counts = collections.Counter[str]
Subject = TypeVar("Subject")


class Draws(random.Random):
    """The random numbers of a case.

    Attributes
    ----------
    run, number : int
        The seed of the run and the number of the case, which determine all numbers.
    """

    def __init__(self, run: int, number: int) -> None:
        super().__init__(f"{run}-{number}")
        self.run, self.number = run, number


Case = Callable[[Draws, Counts], None]
Attack = Callable[[int, float, int | None], tuple[Mapping[str, int], list[str]]]


def on_host(array: Any) -> Any:
    """Return a CuPy array as a NumPy array, and anything else as it is."""
    return array.get() if hasattr(array, "get") and hasattr(array, "dtype") else array


def written_in_graphs(A: SpMatrix) -> bool:
    """Return True if a capture may write new values: A and its derived matrices store values uncompressed."""
    made = [A, *(kept() for kept in A._derived.values())]
    plans = [each.plan for each in made if each is not None]
    return all(plan.format != "sell" or plan.values.coding.name == "PLAIN" for plan in plans)


def do_all(
    steps: Sequence[Callable[[Subject], None]], subject: Subject, done: list[str], counts: Counts
) -> None:
    """Do the steps in order; the message of a failing one lists the steps before it."""
    for step in steps:
        done.append(step.__name__)
        counts[step.__name__.replace("_", " ")] += 1
        try:
            step(subject)
        except Exception as error:
            raise AssertionError(f"{'; '.join(done)}: {type(error).__name__}: {error}") from error


def attack_with(cases: Sequence[tuple[Case, float]]) -> Attack:
    """Return an attack that draws cases with the given weights; an exception is a failure."""
    choices, weights = zip(*cases, strict=True)

    def attack(seed: int, seconds: float, only: int | None = None) -> tuple[Counts, list[str]]:
        counts: Counts = collections.Counter()
        failures: list[str] = []
        end = time.monotonic() + seconds
        number = only or 0
        while time.monotonic() < end or only is not None:
            rng = Draws(seed, number)
            (case,) = rng.choices(choices, weights)
            try:
                case(rng, counts)
            except Exception as error:
                traceback.print_exc()
                words = " ".join(str(error).split())[:2000]
                failures.append(
                    f"seed {seed}, case {number} ({case.__name__}): {type(error).__name__}: {words}"
                )
            counts["cases"] += 1
            number += 1
            if only is not None:
                break
        return counts, failures

    return attack


def attack_by_command(name: str, described: str | None, attack: Attack) -> int:
    """Attack with the time and the seed from the command line. Return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(
        description=described, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300, help="how long (300)")
    parser.add_argument("--seed", type=int, default=None, help="drawn, and printed, if absent")
    parser.add_argument("--case", type=int, default=None, help="only this case of the seed")
    parser.add_argument(sanitizer.FLAG, action="store_true", dest="for_sanitizer", help=sanitizer.HELP)
    args = parser.parse_args()
    if args.for_sanitizer:
        sanitizer.prepare()
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    print(f"{name}: seed {seed}, {args.seconds:.0f} s", flush=True)
    counts, failures = attack(seed, args.seconds, args.case)
    for what, count in sorted(counts.items()):
        print(f"{name}: {count:8,} {what}")
    for failure in failures:
        print(f"{name}: FAILED {failure}")
    print(f"{name}: {len(failures)} of {counts['cases']:,} cases failed")
    return 1 if failures else 0
