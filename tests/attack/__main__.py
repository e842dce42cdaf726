"""Run every attack in turn: `make attack`, or `python -m tests.attack --seconds 3600 --seed 1`.

An attack is a program beside this one, `python -m tests.attack.NAME --seconds N --seed S`, which ends with
status 0 only if nothing was wrong. All attacks get the same time; the seed is printed, so that a failure can
be reproduced.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
GRACE_SECONDS = 600
"""An attack that runs this much longer than its time hangs, which is a failure."""


def attacks(folder: Path = HERE) -> list[str]:
    """Return the names of the attacks in a folder."""
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def run(name: str, seconds: float, seed: int) -> bool:
    """Run one attack. Return True if it found nothing wrong."""
    command = [
        sys.executable,
        "-m",
        f"tests.attack.{name}",
        "--seconds",
        f"{seconds:.0f}",
        "--seed",
        str(seed),
    ]
    print(f"== {' '.join(command[1:])}", flush=True)
    started = time.monotonic()
    try:
        status = subprocess.run(command, cwd=HERE.parents[1], timeout=seconds + GRACE_SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f"{name}: did not end")
        return False
    print(f"== {name}: status {status} after {time.monotonic() - started:.0f} s", flush=True)
    return status == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=f"these alone, of {', '.join(attacks())}")
    parser.add_argument("--seconds", type=float, default=3600, help="for all of them together (3600)")
    parser.add_argument("--seed", type=int, help="drawn, and printed, if absent")
    args = parser.parse_args(arguments)
    names = args.name or attacks()
    if unknown := set(names) - set(attacks()):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; choose of {', '.join(attacks())}")
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    failed = [name for name in names if not run(name, args.seconds / len(names), seed)]
    verdict = f"FAILED: {', '.join(failed)}" if failed else "nothing found"
    print(f"{len(names)} attacks with seed {seed}: {verdict}")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
