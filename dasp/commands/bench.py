"""The command `dasp bench`: plan, verify and time matrices, and say how they compare.

`dasp bench gemm`, `gf256` and `peak` are commands of their own, each in the module of that name.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

DEFAULT_MATRICES = (
    "fem3:20",
    "stencil27:40",
    "poisson2d:600",
    "triangles:60000",
    "rmat:14",
    "circuit:50000",
    "kkt:50000",
)
"""What is measured when no matrix is named: a minute on two cores."""

OTHERS = {
    "gemm": "verify and time every kernel of dense products against cuBLAS or OpenBLAS",
    "gf256": "verify and time every kernel over GF(2^8) against ISA-L and the copy bandwidth",
    "peak": "measure this machine's arithmetic and copy bandwidth",
}
"""Benchmarks of something other than a sparse matrix: the module in `dasp.bench`, and what it does."""


def add_command(subparsers: Any) -> None:
    """Add `bench`, `bench gemm`, `bench gf256` and `bench peak` to the sub-commands of `dasp`."""
    parser = subparsers.add_parser(
        "bench",
        help="plan, verify and time matrices against other libraries",
        description="Plan each matrix, check every row of its product against a long-double reference, then "
        "time it against SciPy, numba and MKL on the CPU, or every cuSPARSE setting and CuPy on the GPU. "
        "Exit status 1 if a product is wrong. For dense products see dasp bench "
        f"{', '.join(OTHERS)}, each with its own --help.",
    )
    parser.add_argument(
        "matrix",
        nargs="*",
        metavar="MATRIX",
        help="a .mtx, .mtx.gz or .npz file, a name found under DASP_MATRICES, or a model such as "
        f"poisson3d:100 (default: {' '.join(DEFAULT_MATRICES)})",
    )
    add_arguments(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    parser.add_argument(
        "--resume", action="store_true", help="skip what --csv has for this commit and machine"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows into this picture")
    parser.set_defaults(run=run)
    for name, summary in OTHERS.items():
        module = importlib.import_module(f"dasp.bench.{name}")
        other = subparsers.add_parser(
            f"bench {name}", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        module.add_arguments(other)
        other.set_defaults(run=module.run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to measure; `benchmarks/suitesparse.py` has the same ones."""
    from dasp.bench.session import POLICIES

    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run")
    parser.add_argument(
        "--dtype", choices=("float64", "float32"), default="float64", help="type of the values"
    )
    parser.add_argument(
        "--policy",
        "--layout",
        choices=POLICIES,
        default="auto",
        help="how matrices are packed (auto: slices on a GPU, the published format on the CPU)",
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: every core)")
    parser.add_argument("--repeat", type=positive, metavar="N", help="timed samples of each product")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.6,
        metavar="S",
        help="CPU time for the samples of each product (0.6)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of models and of x (0)")
    parser.add_argument(
        "--baselines",
        metavar="NAMES",
        help="comma-separated: scipy, numba_csr, mkl; cupy, cusparse_alg1, ...",
    )


def positive(text: str) -> int:
    """A whole number from 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} was given; a whole number from 1 is needed")
    return value


def chosen_baselines(text: str | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
    """The baselines of `--baselines`; None for all.

    Raises
    ------
    ValueError
        If a name is unknown on this device.
    """
    if text is None:
        return None
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--baselines names {', '.join(unknown)}; some of {', '.join(known)} are needed")
    return names


def settings_of(args: argparse.Namespace) -> tuple[Any, Any]:
    """The device and the session's settings of parsed options."""
    from dasp.bench.device import open_device
    from dasp.bench.session import Settings

    device = open_device(args.device, threads=args.threads, seconds=args.seconds)
    settings = Settings(
        policy=args.policy,
        dtype=args.dtype,
        seed=args.seed,
        samples=args.repeat,
        baselines=chosen_baselines(args.baselines, device.baseline_names),
        csv=args.csv,
    )
    return device, settings


def header(device: Any, settings: Any) -> str:
    """One line that says where and how."""
    from dasp.bench import machine

    columns = device.columns()
    said = ", ".join(f"{name} {columns[name]}" for name in machine.PROVENANCE if columns.get(name))
    return f"{said}; copy {device.bandwidth / 1e9:.0f} GB/s, {settings.dtype}, {device.statistic} of samples"


def run(args: argparse.Namespace) -> int:
    """Run `dasp bench`; 0 when every product is right, 1 when one is wrong."""
    from dasp.bench import session, table

    misplaced = [word for word in args.matrix if word in OTHERS]
    if misplaced:
        raise ValueError(
            f"{misplaced[0]} stands among the matrices of dasp bench; it must be the first word after bench, "
            f"as in dasp bench {misplaced[0]} --help; a file of that name is ./{misplaced[0]}"
        )
    device, settings = settings_of(args)
    print(header(device, settings), file=sys.stderr)
    rows = session.run(args.matrix or DEFAULT_MATRICES, device, settings, resume=args.resume)
    print(table.report(rows))
    if args.plot and table.timed(rows):
        from dasp.bench.figures import draw

        draw(rows, args.plot)
        print(f"figure: {args.plot}", file=sys.stderr)
    return 0 if session.verified(rows) else 1
