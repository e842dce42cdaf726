"""The command line that attacks share, and how they tell what they did."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping

from tests.support import sanitizer


def attack_by_command(
    name: str,
    described: str | None,
    attack: Callable[[int, float, int | None], tuple[Mapping[str, int], list[str]]],
) -> int:
    """Attack for as long, and with the seed, that the command line says; 0 if nothing was wrong."""
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
