"""Verify and time every kernel over GF(2^8) against ISA-L and the copy bandwidth.

python benchmarks/gf256.py --device cuda --csv benchmarks/results/gf256.csv --plot gf256.png
python benchmarks/gf256.py --device cpu --threads 2 --data 20 --parity 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dasp.bench import gf256


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the options and run; the exit status is 1 if a product was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gf256.add_arguments(parser)
    return gf256.run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
