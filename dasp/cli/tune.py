"""The commands `dasp tune gemm` and `dasp tune machine`: measure what choices depend on, on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dasp.cli.options import Subparsers, add_json_option, add_parser, duration, words
from dasp.dense.gemm.settings import SIZES, user_table


def add_command(subparsers: Subparsers) -> None:
    """Add `tune` to the sub-commands of `dasp`."""
    parser = add_parser(subparsers, "tune")
    commands = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    _add_gemm(commands)
    _add_machine(commands)


def _add_gemm(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "gemm",
        help="find the tile sizes with which dense products run fastest on this GPU",
        description="Compile every valid set of tile sizes, check each, time it against cuBLAS, and keep the "
        "winner of each size class. dasp.dense.gemm reads the table.",
    )
    parser.add_argument("--dtype", type=words, metavar="NAMES", help="comma-separated dtypes (all)")
    parser.add_argument("--sizes", type=words, metavar="N,...", help="size classes to search for (all)")
    parser.add_argument("--rungs", type=words, metavar="NAMES", help="only these rungs, such as split,tensor")
    parser.add_argument(
        "--seconds", type=duration, metavar="S", default=300, help="for each rung and dtype (300)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the table to write (default: the user's, DASP_TUNED)"
    )
    parser.set_defaults(run=run_gemm)


def _add_machine(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "machine",
        help="search the numbers by which sparse matrices are packed",
        description="Plan some matrices with other numbers of the cost model, time their products, and keep "
        "the numbers with which products are faster here and none is much slower: a minute or two on a "
        "machine that does nothing else. Planning reads them from then on.",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what to measure")
    parser.add_argument(
        "--seconds", type=duration, default=0.2, metavar="S", help="CPU time for each product (0.2)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: the user's, DASP_COST_MODEL)"
    )
    add_json_option(parser)
    parser.set_defaults(run=run_machine)


def run_machine(args: argparse.Namespace) -> int:
    """Measure, print and keep."""
    from dasp.cli import tune_machine as machine
    from dasp.formats import cost_file, device_cuda
    from dasp.formats.cost import CostModel
    from dasp.runtime.cpu.host import name_processor

    path = args.out or cost_file.find_path()
    if _takes_gpu(args.device, "the measurement"):
        gpu = device_cuda.describe_gpu("cuda:0")
        name, model, planner = gpu.name, CostModel.for_gpu(gpu), machine.gpu_planner()
    else:
        name, model, planner = name_processor(), CostModel.for_cpu(), machine.host_planner(args.seconds)
    measured = machine.measure(model, machine.collection(model.kind), planner)
    cost_file.write(path, name, measured)
    if args.json:
        print(json.dumps(measured, indent=1, allow_nan=False))
    else:
        print(machine.table(model, measured))
        print(f"numbers of {name}: {path}")
    return 0


def _takes_gpu(device: str, what: str) -> bool:
    """Return True if the GPU is meant; RuntimeError if it is asked for and none works."""
    from dasp.runtime.cuda.gpus import available

    works, reason = available()
    if device == "cuda" and not works:
        raise RuntimeError(f"no GPU works here: {reason}; {what} needs one")
    return works and device != "cpu"


def run_gemm(args: argparse.Namespace) -> int:
    """Search, print what is found, and keep it."""
    from dasp.cli import tune_gemm as gemm

    _takes_gpu("cuda", "the search")
    dtypes = args.dtype or tuple(gemm.RUNGS)[:3]
    unknown = [name for name in dtypes if name not in gemm.RUNGS]
    if unknown:
        raise ValueError(f"--dtype names {', '.join(unknown)}; some of {', '.join(gemm.RUNGS)} are needed")
    sizes = [int(word) for word in args.sizes or SIZES]
    path = args.out or user_table()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    gemm.tune(dtypes, sizes, path, seconds=args.seconds, say=say, rungs=args.rungs)
    print(f"table: {path}")
    return 0
