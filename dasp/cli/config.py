"""`dasp config` and `dasp.show_config`: the devices and libraries that were found, and the reasons."""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version

from dasp._version import __version__
from dasp.cli.options import Subparsers, add_json_option, add_parser
from dasp.formats import cost_file, devices
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cuda import gpus
from dasp.runtime.cuda import source as _source

_LIBRARIES = ("numpy", "scipy", "numba", "matplotlib", "threadpoolctl")


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp config` to the command line."""
    parser = add_parser(subparsers, "config")
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(dict(describe()), indent=1))
    else:
        show_config()
    return 0


def show_config() -> None:
    """Print versions, the devices that work, and why the others do not."""
    print("\n".join(f"{name:<13} {value}" for name, value in describe()))


def describe() -> list[tuple[str, str]]:
    """Return the lines of `show_config` as (name, value)."""
    works, reason = gpus.available()
    device = "cuda:0" if works else "cpu"
    return [
        ("dasp", __version__),
        ("python", platform.python_version()),
        *((name, _find_version(name)) for name in _LIBRARIES),
        ("kernels", f"{_source.find()} ({_source.digest()})"),
        ("cpu", f"works: {_threads.get_num_threads()} threads, {platform.machine()}"),
        ("cuda", f"{'works' if works else 'does not work'}: {reason}"),
        ("auto", f"takes {'cuda' if works else 'cpu'}"),
        ("cost model", f"{_name_model(device)}; own numbers: {cost_file.find_path()}"),
    ]


def _name_model(device: str) -> str:
    """Return the name of the model by which choices are made for a device, or what is wrong with it."""
    try:
        return str(devices.find(device).find_cost_model(device).name)
    except ValueError as error:
        return str(error)


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
