"""`dasp config`: what was found on this machine, and why."""

from __future__ import annotations

import argparse

from dasp.cli.options import Subparsers, add_json_option
from dasp.cli.summaries import add_parser


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp config` to the command line."""
    parser = add_parser(subparsers, "config")
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dasp.cli import configuration

    if arguments.json:
        import json

        print(json.dumps(dict(configuration.describe()), indent=1))
    else:
        configuration.show_config()
    return 0
