"""The shards of one file, found among the files and folders that somebody names, open to be read.

A file that cannot be read, or is no shard, is a lost shard and no more: the reason is kept and the others are
used. Names count for nothing; what a shard is stands in its header.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from dasp.dense.gf256 import staging
from dasp.dense.gf256.shard_format import DamagedHeaderError, Header, read_chunk, read_header
from dasp.dense.gf256.staging import shown
from dasp.runtime.memory import refuse_oversize

Warn = Callable[[str], Any]
"""Told, in words, of what was passed over."""

STRIPES_IN_MEMORY = 3
"""How many stripes the work on one takes: itself, the one before, and what is reconstructed."""

_SHORT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that say nothing of the file."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class ShardWarning(UserWarning):
    """A shard was passed over, or an interrupted command left work that cannot be finished."""


def warn_user(text: str) -> None:
    """Warn as Python does."""
    warnings.warn(text, ShardWarning, stacklevel=3)


@dataclass
class Shard:
    """A shard file, open.

    Attributes
    ----------
    path : Path
        Where it belongs to the user's eyes.
    header : Header
    size : int
        Bytes that it has.
    mode : int
        Its permissions.
    identity : tuple of int
        Device and inode.
    file : BinaryIO
    trouble : str
        What the system said when a part of it could not be read; empty if nothing.
    """

    path: Path
    header: Header
    size: int
    mode: int
    identity: tuple[int, int]
    file: BinaryIO
    trouble: str = ""

    @property
    def misnamed(self) -> bool:
        """Whether its file bears the name of another shard of the same file."""
        names = (self.header.sibling(i).file_name for i in range(self.header.shards))
        return self.path.name != self.header.file_name and self.path.name in names

    @property
    def target(self) -> Path:
        """Where it belongs: where it is, unless it bears the name of another shard."""
        return self.path.with_name(self.header.file_name) if self.misnamed else self.path

    def chunk(self, stripe: int) -> Any:
        """Return a chunk as an array, or None if it is damaged or cannot be read."""
        try:
            chunk = read_chunk(self.file, self.size, self.header, stripe)
        except OSError as error:
            self.trouble = self.trouble or f"cannot be read ({error.strerror or error})"
            return None
        return None if chunk is None else np.frombuffer(chunk, np.uint8)


def open_shard(path: Path, shown_as: Path) -> Shard:
    """Open a shard file.

    Raises
    ------
    DamagedHeaderError, ValueError
        If it is no shard; the first if nothing in it can be.
    OSError
        If it cannot be read.
    """
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:  # opening a pipe would wait, opening a device may move it
        raise ValueError(f"is {_KINDS.get(kind, 'no file')}")
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - kept open in what is returned
    try:
        status = os.fstat(file.fileno())
        header = read_header(file)
        identity = status.st_dev, status.st_ino
        return Shard(shown_as, header, status.st_size, stat.S_IMODE(status.st_mode), identity, file)
    except BaseException:
        file.close()
        raise


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@dataclass
class ShardSet:
    """The shards of one file.

    Attributes
    ----------
    header : Header
        What they share, with index 0.
    shards : dict of int to list of Shard
        By index; the first is the one that counts, others are copies, read where it is damaged.
    rejected : dict of Path to str
        Files that were named, or lie in a folder that was, and are none of these; and why.
    replaceable : set of Path
        Those of them that were read and hold no shard: what may be replaced.
    """

    header: Header
    shards: dict[int, list[Shard]]
    rejected: dict[Path, str]
    replaceable: set[Path]

    @property
    def paths(self) -> dict[int, Path]:
        """The file of each shard that there is."""
        return {i: copies[0].path for i, copies in sorted(self.shards.items())}

    @property
    def mode(self) -> int:
        """The permissions that all of them have."""
        return functools.reduce(int.__and__, (s.mode for copies in self.shards.values() for s in copies))

    def readable_stripes(self, count: int) -> int:
        """Return how many stripes reach into at least `count` shards, by the sizes of their files."""
        held = [max(self.header.chunks_in(shard.size) for shard in copies) for copies in self.shards.values()]
        held += [0] * (count - len(held))
        return min(self.header.stripes, sorted(held, reverse=True)[count - 1])

    def chunks(self, stripe: int) -> tuple[list[Any], list[int]]:
        """Return the chunks of a stripe, None for each that is lost, and the shards whose own is damaged."""
        chunks: list[Any] = [None] * self.header.shards
        damaged = []
        for i, copies in self.shards.items():
            chunks[i] = copies[0].chunk(stripe)
            if chunks[i] is None:
                damaged.append(i)
                found = (copy.chunk(stripe) for copy in copies[1:])
                chunks[i] = next((chunk for chunk in found if chunk is not None), None)
        return chunks, damaged

    def warn_of_losses(self, warn: Warn) -> None:
        """Name every file that was passed over, in whole or in part."""
        for path, reason in self.rejected.items():
            warn(f"{shown(path)}: {reason}")
        for copies in self.shards.values():
            for shard in copies:
                if shard.trouble:
                    warn(f"{shown(shard.path)}: a part of it {shard.trouble}")


@dataclass
class _Search:
    """What is found on the way.

    Attributes
    ----------
    places : dict of Path to Path
        Candidates, as the user sees them, and where each lies.
    missing : Path
        Something that was named and is not there.
    """

    places: dict[Path, Path] = field(default_factory=dict)
    rejected: dict[Path, str] = field(default_factory=dict)
    replaceable: set[Path] = field(default_factory=set)
    missing: Path | None = None

    def pass_over(self, path: Path, error: Exception) -> None:
        """Keep why a candidate is none of the shards."""
        if isinstance(error, OSError):
            if error.errno in _SHORT_OF_RESOURCES:
                raise error
            self.rejected[path] = f"cannot be read ({error.strerror or error})"
            return
        self.rejected[path] = str(error)
        if isinstance(error, DamagedHeaderError):
            self.replaceable.add(path)


@contextlib.contextmanager
def open_set(places: Iterable[str | os.PathLike[str]], warn: Warn = warn_user) -> Iterator[ShardSet]:
    """Open the shards of one file.

    What an interrupted command had committed in the folders concerned is finished first.

    Parameters
    ----------
    places : paths
        Shard files as they are, and folders for the `.rs` files in them.
    warn : callable
        Told of an interrupted command that cannot be finished.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    ValueError
        If there is no shard, or there are shards of several files of which not exactly one has enough, or a
        stripe would not fit into memory.
    OSError
        If there are too many open files, or no memory.
    """
    named = [Path(place) for place in places]
    folders = sorted({path if os.path.isdir(path) else path.parent for path in named})
    moved = [path for folder in folders for path in _recover(folder, warn)]
    with contextlib.ExitStack() as opened:
        with contextlib.ExitStack() as locks:
            for folder in folders:
                locks.enter_context(staging.locked(folder, shared=True))
            search = _candidates(named, folders, moved)
            header, members = _choose(search)
            shards = _open_all(header, members, search, opened)
        yield ShardSet(header, shards, search.rejected, search.replaceable)


def _recover(folder: Path, warn: Warn) -> list[Path]:
    try:
        return staging.recover(folder)
    except OSError as error:
        if os.path.isdir(folder) and _pending(folder):
            warn(
                f"{shown(folder)}: an interrupted command cannot be finished ({error.strerror or error}); "
                "reading what it committed"
            )
        return []


def _pending(folder: Path) -> dict[Path, Path | None]:
    try:
        return staging.pending(folder)
    except OSError:
        return {}


def _candidates(named: list[Path], folders: list[Path], moved: list[Path]) -> _Search:
    """Return the files that may be shards, under the names that they have when all commits are finished."""
    search = _Search()
    waiting = {place: lies for folder in folders for place, lies in _pending(folder).items()}
    wanted: list[Path] = []
    for path in named:
        if os.path.isdir(path):
            wanted += _listed(path, [place for place in waiting if place.parent == path], search)
        elif os.path.lexists(path) or path in waiting:
            wanted.append(path)
            # A shell wrote out `folder/*.rs` before the moves were finished.
            wanted += [p for p in (*moved, *waiting) if _stem(p) == _stem(path)]
        else:
            search.rejected[path] = "does not exist"
            search.missing = path
    seen = set()
    for path in wanted:
        key = os.path.realpath(path.parent), path.name
        lies = waiting.get(path, path)
        if key not in seen and lies is not None:
            search.places[path] = lies
        seen.add(key)
    return search


def _stem(path: Path) -> Path:
    """Return what the shard files of one file in one folder have in common."""
    return path.with_name(path.name[: -len(".000.rs")] or path.name)


def _listed(folder: Path, waiting: list[Path], search: _Search) -> list[Path]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        search.pass_over(folder, error)
        return waiting
    found = [folder / name for name in names if name.endswith(".rs")]
    if not found and folder.name.endswith(".rs"):
        search.rejected[folder] = "is a folder"
    return sorted({*found, *waiting})


class _Member(NamedTuple):
    """A candidate that is a shard: the header, bytes and identity that it has, and whether it is a link."""

    path: Path
    header: Header
    size: int
    identity: tuple[int, int]
    is_link: bool


def _choose(search: _Search) -> tuple[Header, list[_Member]]:
    """Return the header of the one file whose shards these are, and the files of its shards."""
    groups: dict[Header, list[_Member]] = {}
    for path, lies in search.places.items():
        try:
            shard = open_shard(lies, path)
        except (OSError, ValueError) as error:
            search.pass_over(path, error)
            continue
        shard.file.close()
        member = _Member(path, shard.header, shard.size, shard.identity, os.path.islink(lies))
        groups.setdefault(shard.header.sibling(0), []).append(member)
    if not groups:
        _refuse_nothing(search)
    chosen = _one_with_enough(groups) if len(groups) > 1 else next(iter(groups))
    for header, members in groups.items():
        if header != chosen:
            for m in members:
                search.rejected[m.path] = f"is shard {m.header.index} of another file, {shown(m.header.name)}"
    return chosen, groups[chosen]


def _refuse_nothing(search: _Search) -> NoReturn:
    if search.missing is not None and not search.places:
        raise FileNotFoundError(
            f"{shown(search.missing)} does not exist; name shard files or the folder that holds them"
        )
    reason = f" ({next(iter(search.rejected.values()))})" if search.rejected else ""
    raise ValueError(
        f"no sound shard among {len(search.places)} files{reason}; name shard files or their folder"
    )


def _one_with_enough(groups: dict[Header, list[_Member]]) -> Header:
    """Return the header of the only group that can be decoded."""
    whole = {
        header: [m for m in members if m.size == header.shard_bytes] for header, members in groups.items()
    }
    for candidates in (groups, whole):
        enough = [h for h, found in candidates.items() if len({m.header.index for m in found}) >= h.data]
        if len(enough) == 1:
            return enough[0]
    first, second = (members[0].path for members in list(groups.values())[:2])
    which = "several of them have" if enough else "none of them has"
    raise ValueError(
        f"{shown(first)} and {shown(second)} are not of one file, and {which} enough shards here; "
        "name the shards of one"
    )


def _open_all(
    header: Header, members: list[_Member], search: _Search, opened: contextlib.ExitStack
) -> dict[int, list[Shard]]:
    """Open the shards of the chosen file; what changed since its header was read is passed over."""
    count = header.shards * (header.chunk_length(0) if header.stripes else 0)
    refuse_oversize(
        f"a stripe of {shown(header.name)}", STRIPES_IN_MEMORY * count, "use a machine with more memory"
    )
    shards: dict[int, list[Shard]] = {}
    files = {m.identity for m in members if not m.is_link}

    def demerits(m: _Member) -> tuple[bool, bool, bool]:
        # A link to another candidate is no shard of its own: it changes with what it points to.
        alias = m.is_link and m.identity in files
        return alias, m.path.name != m.header.file_name, m.size != header.shard_bytes

    for member in sorted(members, key=demerits):
        path = member.path
        try:
            shard = open_shard(search.places[path], path)
            opened.callback(shard.file.close)
            if shard.header != member.header:
                raise ValueError("changed while it was read")
        except (OSError, ValueError) as error:
            search.pass_over(path, error)
            continue
        shards.setdefault(shard.header.index, []).append(shard)
    for i, (_, *copies) in shards.items():
        for copy in copies:
            search.rejected[copy.path] = f"is another copy of shard {i}"
    return shards
