"""`dasp config`: what was found on this machine, and why."""

import argparse

import dasp
from dasp.commands.options import Subparsers


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp config` to the command line."""
    summary = "say which devices and libraries were found, and why not"
    parser = subparsers.add_parser("config", help=summary, description=summary)
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    dasp.show_config()
    return 0
