"""The commands `dasp tune gemm` and `dasp tune machine`: measure what choices depend on, on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dasp.cli.options import Subparsers, add_device_option, add_json_option, add_parser, duration
from dasp.dense.gemm.settings import user_table
from dasp.matrix.planning import find_device

GEMM_DTYPES = ("float32", "float64", "float16", "bfloat16")


def add_tune(subparsers: Subparsers) -> None:
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
    parser.add_argument(
        "--dtype",
        action="append",
        choices=GEMM_DTYPES,
        help="may be given several times (default: all but bfloat16, which float16's findings serve too)",
    )
    parser.add_argument(
        "--seconds", type=duration, metavar="S", default=300, help="for each kernel and dtype (300)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the table to write (default: the user's, DASP_TUNED)"
    )
    parser.set_defaults(run=_tune_gemm)


def _tune_gemm(arguments: argparse.Namespace) -> int:
    """Search, print what is found, and keep it."""
    from dasp.cli import tune_gemm as gemm
    from dasp.runtime.cuda import gpus

    gpus.use(find_device("cuda"))
    path = arguments.out or user_table()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    gemm.tune(arguments.dtype or GEMM_DTYPES[:3], path, seconds=arguments.seconds, say=say)
    print(f"table: {path}")
    return 0


def _add_machine(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "machine",
        help="search the numbers by which sparse matrices are packed",
        description="Plan some matrices with other numbers of the cost model, time their products, and keep "
        "the numbers with which products are faster here and none is much slower: a minute or two on a "
        "machine that does nothing else. Planning reads them from then on.",
    )
    add_device_option(parser)
    parser.add_argument(
        "--seconds", type=duration, default=0.2, metavar="S", help="CPU time for each product (0.2)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: the user's, DASP_COST_MODEL)"
    )
    add_json_option(parser)
    parser.set_defaults(run=_tune_machine)


def _tune_machine(arguments: argparse.Namespace) -> int:
    """Measure, print and keep."""
    from dasp.cli import tune_machine as machine
    from dasp.formats import cost, device_cuda
    from dasp.formats.cost import CostModel
    from dasp.runtime.cpu.compile import name_processor

    device = find_device(arguments.device)
    path = arguments.out or cost.find_file()
    if device == "cpu":
        name, model = name_processor(), CostModel.for_cpu()
        planner = machine.host_planner(arguments.seconds)
    else:
        gpu = device_cuda.describe_gpu(device)
        name, model, planner = gpu.name, CostModel.for_gpu(gpu), machine.gpu_planner(device)
    measured = machine.measure(model, machine.collection(model.kind), planner)
    cost.write_own_numbers(path, name, measured)
    if arguments.json:
        print(json.dumps(measured, indent=1, allow_nan=False))
    else:
        print(machine.table(model, measured))
        print(f"numbers of {name}: {path}")
    return 0
