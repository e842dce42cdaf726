"""Verify and time every dense kernel against cuBLAS or OpenBLAS; the short table comes last.

python benchmarks/gemm.py --device cuda --csv benchmarks/results/gemm.csv --limit 300 --plot gemm.png
OPENBLAS_NUM_THREADS=1 python benchmarks/gemm.py --device cpu --sizes 128,256,512,1024,2048
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dasp.bench import gemm


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the options and run; the exit status is 1 if a product was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gemm.add_arguments(parser)
    return gemm.run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
