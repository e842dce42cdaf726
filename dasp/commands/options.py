"""Options that several sub-commands share: which matrix, which device, which policy."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from dasp.preprocess import Policy

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = argparse._SubParsersAction

LAYOUTS = ("auto", "slices", "published")
_KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


def add_matrix_option(parser: argparse.ArgumentParser) -> None:
    """Add the MATRIX argument and the seed of its model."""
    parser.add_argument(
        "matrix",
        metavar="MATRIX",
        help="a .mtx, .mtx.gz or .npz file, a name in DASP_MATRICES, or a model such as poisson3d:50",
    )
    parser.add_argument("--seed", type=int, default=0, help="of a random model and of random vectors (0)")


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device", default="auto", help="auto (the GPU if one works), cpu, cuda or cuda:N (default: auto)"
    )


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each choice of `dasp.Policy`, and --published for the format of the paper."""
    group = parser.add_argument_group("policy", "how the matrix is packed; see dasp.Policy")
    group.add_argument("--published", action="store_true", help="the published format; as --layout published")
    for field in fields(Policy):
        kind = _KINDS[str(field.type).partition(" ")[0]]
        name = "--" + field.name.replace("_", "-")
        usual = "left to the matrix and the device" if field.default is None else field.default
        shown = f"{kind.__name__} (default: {usual})"
        if field.name == "layout":
            group.add_argument(name, "--policy", choices=LAYOUTS, default=None, help=f"(default: {usual})")
        elif kind is bool:
            group.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=shown)
        else:
            group.add_argument(name, type=kind, metavar=kind.__name__.upper(), default=None, help=shown)


def policy_from(arguments: argparse.Namespace) -> Policy | None:
    """Make the policy that the options ask for; None if they ask for nothing.

    Raises
    ------
    TypeError, ValueError
        As `dasp.Policy` does.
    """
    given: dict[str, Any] = {
        field.name: getattr(arguments, field.name)
        for field in fields(Policy)
        if getattr(arguments, field.name) is not None
    }
    if not given and not arguments.published:
        return None
    return replace(Policy.published() if arguments.published else Policy(), **given)


def seed_from(arguments: argparse.Namespace) -> int:
    """Return the seed; ValueError if NumPy cannot take it."""
    seed: int = arguments.seed
    if seed < 0:
        raise ValueError(f"--seed is {seed}; it must be 0 or more")
    return seed
