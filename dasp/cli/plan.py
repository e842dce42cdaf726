"""`dasp plan`: plan a matrix once and keep the plan in a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from dasp.cli.options import (
    Subparsers,
    add_device_option,
    add_matrix_option,
    add_parser,
    add_policy_options,
    plan_timed,
    policy_from,
    seed_from,
)


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp plan` to the command line."""
    parser = add_parser(
        subparsers, "plan", "; `dasp.SpMatrix(dasp.load_plan(FILE))` multiplies by it without planning again."
    )
    add_matrix_option(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="the plan to write, replaced only when whole")
    add_device_option(parser)
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan, save and say what was written."""
    from dasp.io import load_matrix, save_plan

    policy = policy_from(arguments)
    matrix = load_matrix(arguments.matrix, seed=seed_from(arguments))
    planned, seconds = plan_timed(matrix, policy, arguments.device)
    save_plan(arguments.file, planned.to_device("cpu").plan)
    print(planned)
    print(f"planned in {seconds:.3g} s; {arguments.file}: {arguments.file.stat().st_size:,} bytes")
    return 0
