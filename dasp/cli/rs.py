"""`dasp rs`: Reed-Solomon shards of files on the command line."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dasp.cli.summaries import add_parser


def add_command(subparsers: Any) -> None:
    """Add `rs` and its actions to the subparsers of `dasp`.

    Each action sets `run`, a function that takes the parsed arguments and returns the exit status. Wrong
    arguments and unreadable files raise ValueError or OSError with one line.
    """
    parser = add_parser(subparsers, "rs")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    encode = actions.add_parser("encode", help="write the shards of a file")
    encode.add_argument("file", type=Path, metavar="FILE")
    encode.add_argument("--data", type=int, default=10, metavar="K", help="shards that carry the data (10)")
    encode.add_argument("--parity", type=int, default=4, metavar="M", help="shards that may be lost (4)")
    encode.add_argument("--out", type=Path, metavar="DIR", help="where the shards go (FILE.shards)")
    encode.set_defaults(run=_encode)

    verify = actions.add_parser("verify", help="say which shards are absent or damaged; status 1 if any is")
    verify.set_defaults(run=_verify)
    repair = actions.add_parser("repair", help="write again the shards that are absent or damaged")
    repair.set_defaults(run=_repair)
    decode = actions.add_parser("decode", help="write the file that shards hold")
    decode.add_argument(
        "--out", type=Path, metavar="FILE", help="where it goes (its own name, in this folder)"
    )
    decode.set_defaults(run=_decode)
    for action in (verify, repair, decode):
        action.add_argument(
            "shards", type=Path, nargs="+", metavar="DIR|SHARD", help="shard files, or their folder"
        )
    for action in (encode, decode):
        action.add_argument("--force", action="store_true", help="replace files that exist")
    for action in (encode, verify, repair, decode):
        action.add_argument("--quiet", action="store_true", help="no progress bar")


@contextlib.contextmanager
def _bar(quiet: bool, word: str, total: int | None) -> Iterator[Callable[[int], Any]]:
    """A progress bar on standard error where tqdm is installed; yields what is told the bytes."""
    try:
        from tqdm import tqdm
    except ImportError:
        quiet = True
    if quiet:
        yield lambda count: None
        return
    with tqdm(desc=word, total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        yield bar.update


def _say(text: str) -> None:
    """Print a line, whatever characters its file names hold."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _warn(text: str) -> None:
    print(f"dasp: warning: {text}", file=sys.stderr)


def _encode(arguments: argparse.Namespace) -> int:
    from dasp.dense.gf256.shard_files import encode_file
    from dasp.dense.gf256.staging import shown

    size = arguments.file.stat().st_size
    with _bar(arguments.quiet, "encode", size) as progress:
        shards = encode_file(
            arguments.file,
            arguments.out,
            data=arguments.data,
            parity=arguments.parity,
            force=arguments.force,
            progress=progress,
        )
    _say(f"{len(shards)} shards in {shown(shards[0].parent)}; any {arguments.parity} may be lost")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from dasp.dense.gf256.shard_files import verify_files
    from dasp.dense.gf256.staging import shown

    with _bar(arguments.quiet, "verify", None) as progress:
        survey = verify_files(arguments.shards, progress=progress, warn=_warn)
    for i, fault in sorted(survey.faults.items()):
        _say(f"{shown(survey.paths.get(i, survey.header.sibling(i).file_name))}: {fault}")
    for i, path in sorted(survey.misnamed.items()):
        _say(f"{shown(path)}: holds shard {i}; repair renames it")
    for path, reason in survey.rejected.items():
        _say(f"{shown(path)}: {reason}")
    sound = survey.header.shards - len(survey.faults)
    verdict = "" if survey.healthy else ", repairable" if survey.repairable else ", beyond repair"
    _say(f"{shown(survey.header.name)}: {sound} of {survey.header.shards} shards intact{verdict}")
    return 0 if survey.healthy else 1


def _repair(arguments: argparse.Namespace) -> int:
    from dasp.dense.gf256.shard_files import repair_files
    from dasp.dense.gf256.staging import shown

    with _bar(arguments.quiet, "repair", None) as progress:
        written = repair_files(arguments.shards, progress=progress, warn=_warn)
    for path in written:
        _say(f"{shown(path)}: written")
    if not written:
        _say("every shard is intact")
    return 0


def _decode(arguments: argparse.Namespace) -> int:
    from dasp.dense.gf256.shard_files import decode_files
    from dasp.dense.gf256.staging import shown

    with _bar(arguments.quiet, "decode", None) as progress:
        place = decode_files(
            arguments.shards, arguments.out, force=arguments.force, progress=progress, warn=_warn
        )
    _say(shown(place))
    return 0
