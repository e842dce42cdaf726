"""Cases drawn by number from a seed, for attacks whose cases need nothing but random numbers."""

from __future__ import annotations

import collections
import random
import time
import traceback
from collections.abc import Callable, Sequence

from dasp import SpMatrix

Counts = collections.Counter[str]


class Draws(random.Random):
    """The random numbers of a case.

    Attributes
    ----------
    run, number : int
        The seed of the run and the number of the case, which say all of them.
    """

    def __init__(self, run: int, number: int) -> None:
        super().__init__(f"{run}-{number}")
        self.run, self.number = run, number


Case = Callable[[Draws, Counts], None]


def written_in_graphs(A: SpMatrix) -> bool:
    """Whether a capture may write new values: those of A, and of what was made of it, have no coding."""
    made = [A, *(kept() for kept in A._derived.values())]
    plans = [each.plan for each in made if each is not None]
    return all(plan.format != "sell" or plan.values.coding.name == "PLAIN" for plan in plans)


def attack_with(
    cases: Sequence[tuple[Case, float]],
) -> Callable[[int, float, int | None], tuple[Counts, list[str]]]:
    """Return what tries such cases, each drawn as often as its weight says; an assertion is a failure."""
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
                words = " ".join(str(error).split())[:300]
                failures.append(
                    f"seed {seed}, case {number} ({case.__name__}): {type(error).__name__}: {words}"
                )
            counts["cases"] += 1
            number += 1
            if only is not None:
                break
        return counts, failures

    return attack
