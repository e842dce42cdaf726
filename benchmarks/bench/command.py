"""Verify and time sparse matrices, several columns, dense products, codes, solvers, or ranks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.bench import machine, results, scaling, session
from benchmarks.bench.columns import Columns
from benchmarks.bench.device import BenchDevice, open_device
from benchmarks.bench.gemm import Gemm
from benchmarks.bench.gf256 import Gf256
from benchmarks.bench.session import Subject
from benchmarks.bench.solvers import Solvers
from benchmarks.bench.sparse import Sparse
from dasp.cli.bench import add_measuring_options
from dasp.cli.options import add_device_option, add_format_option, duration, positive


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.bench`."""
    parser = argparse.ArgumentParser(prog="benchmarks.bench", description=__doc__)
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    for name, (add, summary) in BENCHMARKS.items():
        add(commands.add_parser(name, help=summary))
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Run a benchmark; 1 if a product was wrong, 2 if what was asked for cannot be done."""
    try:
        arguments = build_parser().parse_args(given)
        status: int = arguments.run(arguments)
    except SystemExit as leaving:  # argparse has said why
        return leaving.code if isinstance(leaving.code, int) else 2
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        print(f"benchmarks.bench: error: {error}", file=sys.stderr)
        return 2
    return status


def words(text: str) -> tuple[str, ...]:
    """Return the words between commas, for argparse."""
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def counts(text: str) -> tuple[int, ...]:
    """Return the whole numbers from 1 between commas, for argparse."""
    return tuple(positive(word) for word in words(text))


def _add_device_options(parser: argparse.ArgumentParser, *, threads: int | None) -> None:
    add_device_option(parser)
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        default=threads,
        help=f"CPU threads of every library ({'every core' if threads is None else threads})",
    )


def _add_sparse(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("matrix", nargs="*", metavar="MATRIX", help="to measure; X^2 is the square of X")
    parser.add_argument(
        "--collection",
        choices=("full", "small"),
        help="measure the files in the folder DASP_MATRICES and generated families of this size too",
    )
    add_measuring_options(parser)
    parser.add_argument("--repeat", type=positive, metavar="N", help="timed samples of each product")
    parser.add_argument(
        "--baselines",
        type=words,
        metavar="NAMES",
        help="comma-separated: scipy, numba_csr, mkl; cupy, cusparse_alg1, ...",
    )
    parser.add_argument(
        "--transpose",
        action="store_true",
        help="measure products with the transpose, and what it takes to make A.T",
    )
    _add_session_options(parser)
    parser.set_defaults(run=partial(measure_and_report, Sparse))


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("matrix", nargs="+", metavar="MATRIX", help="to measure")
    _add_device_options(parser, threads=None)
    add_format_option(parser)
    parser.add_argument(
        "--dtype", type=words, metavar="NAMES", default="float64,float32", help="comma-separated dtypes"
    )
    parser.add_argument(
        "--columns", type=counts, metavar="N,...", default="4,8,16,32", help="columns of X (%(default)s)"
    )
    parser.add_argument(
        "--orders", choices=("C", "F", "CF"), default="CF", help="of X and of the result (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of models (0)")
    _add_timing_options(parser, seconds=0.6)
    _add_session_options(parser)
    parser.set_defaults(run=partial(measure_and_report, Columns))


def _add_timing_options(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    parser.add_argument("--repeat", type=positive, metavar="N", help="timed samples of each product")
    parser.add_argument(
        "--seconds",
        type=duration,
        default=seconds,
        metavar="S",
        help=f"CPU time for the samples of each product ({seconds})",
    )


def _add_session_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    parser.add_argument(
        "--resume", action="store_true", help="skip what --csv has for this commit and machine"
    )


def _add_gemm(parser: argparse.ArgumentParser) -> None:
    _add_device_options(parser, threads=1)
    parser.add_argument(
        "--dtype", type=words, metavar="NAMES", default="float32,float64", help="comma-separated dtypes"
    )
    parser.add_argument(
        "--sizes",
        type=counts,
        metavar="N,...",
        default="128,256,512,1024,2048,4096,8192",
        help="sizes of the matrices (%(default)s)",
    )
    parser.add_argument("--kernels", type=words, metavar="NAMES", help="comma-separated (every rung)")
    _add_timing_options(parser, seconds=0.3)
    _add_session_options(parser)
    parser.set_defaults(run=partial(measure_and_report, Gemm))


def _add_gf256(parser: argparse.ArgumentParser) -> None:
    _add_device_options(parser, threads=1)
    parser.add_argument("--data", type=positive, default=10, metavar="K", help="data shards (10)")
    parser.add_argument("--parity", type=positive, default=4, metavar="M", help="parity shards (4)")
    parser.add_argument(
        "--columns", type=positive, metavar="N", help="bytes of a shard (CPU: 4 Mi, GPU: 64 Mi)"
    )
    parser.add_argument("--kernels", type=words, metavar="NAMES", help="comma-separated (every kernel)")
    _add_timing_options(parser, seconds=0.6)
    _add_session_options(parser)
    parser.set_defaults(run=partial(measure_and_report, Gf256))


def _add_solvers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "matrix",
        nargs="*",
        metavar="MATRIX",
        help="symmetric positive definite (poisson2d:200 poisson3d:40 fem3:16)",
    )
    _add_device_options(parser, threads=None)
    parser.add_argument(
        "--rtol", type=float, default=1e-8, metavar="X", help="residual over the norm of b (1e-8)"
    )
    parser.add_argument(
        "--methods",
        type=words,
        metavar="NAMES",
        help="some of cg, minres, bicgstab, gmres and multigrid (all); multigrid needs PyAMG",
    )
    parser.add_argument(
        "--helmholtz",
        action="store_true",
        help="solve A - (1 - i) / 10 in complex128, by default by bicgstab and gmres",
    )
    parser.add_argument("--alone", action="store_true", help="ours alone, no other library's solvers")
    parser.add_argument("--maxiter", type=positive, default=3000, metavar="N", help="iterations (3000)")
    parser.add_argument("--repeat", type=positive, metavar="N", help="timed solves, the best counts (3)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of models (0)")
    _add_session_options(parser)
    parser.set_defaults(run=partial(measure_and_report, Solvers), seconds=0.6)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=counts,
        default=(1, 2),
        metavar="N,...",
        help="of those started by mpirun or torchrun (1,2)",
    )
    parser.add_argument(
        "--weak", type=counts, default=(40,), metavar="N,...", help="edges of grids, rows of one rank (40)"
    )
    parser.add_argument("--strong", type=counts, default=(50,), metavar="N,...", help="edges of grids (50)")
    add_device_option(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    parser.set_defaults(run=_run_scaling)


def _run_scaling(args: argparse.Namespace) -> int:
    """Run the benchmark over ranks; rank 0 prints."""
    return scaling.main(args.ranks, args.weak, args.strong, args.device, args.csv)


def measure_and_report(
    kind: Callable[[argparse.Namespace, BenchDevice], Subject], args: argparse.Namespace
) -> int:
    """Measure a subject of a kind as the options say, and print its report; 1 if a product was wrong."""
    if args.csv:
        results.check(args.csv)
    device = open_device(args.device, threads=args.threads, seconds=args.seconds)
    subject = kind(args, device)
    print(f"{machine.provenance(device.columns())}; copy {device.bandwidth / 1e9:.0f} GB/s", file=sys.stderr)
    rows = session.run(subject, args.csv, resume=args.resume)
    print(subject.report(rows).text())
    judged = subject.judged(rows) if hasattr(subject, "judged") else rows
    return 0 if all(map(results.right, judged)) else 1


BENCHMARKS = {
    "sparse": (_add_sparse, "plan, verify and time matrices against every baseline"),
    "columns": (
        _add_columns,
        "verify and time products by several columns against cuSPARSE's SpMM or SciPy",
    ),
    "gemm": (_add_gemm, "verify and time every kernel of dense products against cuBLAS or NumPy's BLAS"),
    "gf256": (_add_gf256, "verify and time every kernel over GF(2^8) against ISA-L and the copy bandwidth"),
    "solvers": (_add_solvers, "solve systems by every method, against SciPy, CuPy and PyAMG"),
    "scaling": (_add_scaling, "multiply and solve over ranks: weak and strong scaling"),
}
"""The benchmarks: the function that adds the options of each, and a summary."""
