"""`dasp completion`: what a shell must know to complete the command line."""

from __future__ import annotations

import argparse

from dasp.cli.options import Subparsers
from dasp.cli.summaries import add_parser


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp completion` to the command line."""
    parser = add_parser(
        subparsers,
        "completion",
        ", for example `dasp completion bash > ~/.local/share/bash-completion/completions/dasp`.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="which shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    print(shtab.complete(arguments.parser(), shell=arguments.shell))
    return 0
