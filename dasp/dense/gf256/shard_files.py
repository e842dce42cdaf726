"""Reed-Solomon shards of files larger than memory: encode, verify, repair and decode, stripe by stripe.

Whatever is written lies hidden beside its place until all of it is complete and checked (`staging`); until
then nothing that existed is touched. Memory is bounded by a few stripes, not by the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasp.dense.gf256 import staging
from dasp.dense.gf256.reed_solomon import ReedSolomon
from dasp.dense.gf256.shard_format import MAX_CHUNK_BYTES, Header, read_header, write_chunk
from dasp.dense.gf256.shard_set import (
    STRIPES_IN_MEMORY,
    Shard,
    ShardSet,
    Warn,
    open_set,
    open_shard,
    warn_user,
)
from dasp.dense.gf256.staging import naming, refuse_existing, shown
from dasp.runtime.memory import refuse_oversize

STRIPE_BYTES = 64 << 20
"""Memory for the chunks of one stripe, parity included."""

_WORTH_A_THREAD = 1 << 20
"""Bytes from which on hashing beside the other work pays for starting a thread."""

Progress = Callable[[int], Any]
"""Called with the bytes of the file that were dealt with since the last call."""


def _no_progress(_: int) -> None:
    return None


class _Digest:
    """The SHA-256 of a file, computed beside the reading and writing of it, one stripe behind."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._thread: threading.Thread | None = None

    def update(self, parts: Sequence[Any]) -> None:
        """Add buffers, which must not change until the next call."""
        self._wait()
        if sum(len(part) for part in parts) < _WORTH_A_THREAD:
            self._add(parts)
            return
        thread = threading.Thread(target=self._add, args=(parts,), name="dasp-digest")
        try:
            thread.start()
        except RuntimeError:  # no thread can be started: too many, or the interpreter is ending
            self._add(parts)
        else:
            self._thread = thread

    def digest(self) -> bytes:
        """Return the digest of all that was added."""
        self._wait()
        return self._hash.digest()

    def _add(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._hash.update(part)

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def encode_file(
    path: str | os.PathLike[str],
    directory: str | os.PathLike[str] | None = None,
    *,
    data: int = 10,
    parity: int = 4,
    chunk_bytes: int | None = None,
    force: bool = False,
    progress: Progress = _no_progress,
) -> list[Path]:
    """Write the shards of a file.

    Parameters
    ----------
    path : path of the file
        Any name that leaves room for the 7 bytes that a shard's name adds.
    directory : path, optional
        Where the shards go; made if absent. By default beside the file, in `<name>.shards`.
    data, parity : int
        The code: any `parity` shards may be lost.
    chunk_bytes : int, optional
        Bytes of a chunk, each under its own checksum; by default up to 1 MiB, so that a stripe fits 64 MiB
        of memory.
    force : bool
        Whether shards that exist already may be replaced; those of the file's name that a larger code left
        are removed. It happens to all of them or to none, even if the process is killed: the next command
        in the folder finishes what had been committed.
    progress : callable
        Told the bytes of the file that were encoded since it was last called.

    Returns
    -------
    list of Path
        The `data + parity` shard files, in order, named `<name>.000.rs` and so on. They can be read by no
        more users than the file.

    Raises
    ------
    ValueError
        If the counts do not make a code, the file is no regular file or its name too long, a shard exists
        already, a stripe would not fit into memory, or the file changed while it was read.
    OSError
        If the file cannot be read or a shard not be written; no shard is left behind then.
    """
    path = Path(path)
    code = ReedSolomon(data, parity)
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{shown(path)} is no regular file; copy what it yields into one")
    header = Header(data, parity, 0, _chunk_bytes(code, chunk_bytes), status.st_size, bytes(32), path.name)
    folder = Path(directory) if directory is not None else path.with_name(path.name + ".shards")
    names = [header.sibling(i).file_name for i in range(code.shards)]
    _refuse_long_name(path, folder, names[0])
    with open(path, "rb") as file:
        if folder.is_dir():
            staging.recover(folder)
        for name in names:
            refuse_existing(folder / name, force)
        stale = _stale(folder, header, force)
        folder.mkdir(parents=True, exist_ok=True)
        with staging.Stage(folder, replace=force) as stage:
            shards = [stage.create(name, stat.S_IMODE(status.st_mode)) for name in names]
            for name in stale:
                stage.remove(name)
            _write_shards(file, path, header, shards, progress)
            stage.commit()
    return [folder / name for name in names]


def _chunk_bytes(code: ReedSolomon, wanted: int | None) -> int:
    if wanted is None:
        return min(1 << 20, STRIPE_BYTES // code.shards)
    if not 0 < wanted <= MAX_CHUNK_BYTES:
        raise ValueError(f"chunk_bytes is {wanted}; 1 to {MAX_CHUNK_BYTES} are needed")
    refuse_oversize(
        f"a stripe with chunk_bytes={wanted}", STRIPES_IN_MEMORY * code.shards * wanted, "choose fewer bytes"
    )
    return wanted


def _refuse_long_name(path: Path, folder: Path, name: str) -> None:
    limit, needed = staging.name_limit(folder), len(os.fsencode(name))
    if needed > limit:
        raise ValueError(
            f"the name of {shown(path)} makes shards' names of {needed} bytes; {shown(folder)} takes "
            f"{limit}; rename the file, or link to it under a shorter name"
        )


def _stale(folder: Path, header: Header, force: bool) -> list[str]:
    """Return the shards of another file of this name that the new ones do not replace."""
    found = []
    for i in range(header.shards, 256):
        place = folder / header.sibling(i).file_name
        if os.path.lexists(place) and _is_shard_of(place, header.name):
            refuse_existing(place, force)
            found.append(place.name)
    return found


def _is_shard_of(place: Path, name: str) -> bool:
    try:
        shard = open_shard(place, place)
    except (OSError, ValueError):
        return False
    shard.file.close()
    return shard.header.name == name


def _write_shards(
    file: BinaryIO, path: Path, header: Header, shards: list[BinaryIO], progress: Progress
) -> None:
    code, digest = ReedSolomon(header.data, header.parity), _Digest()
    places = [Path(header.sibling(i).file_name) for i in range(header.shards)]
    _write_headers(shards, places, header)
    for stripe in range(header.stripes):
        block = _read_stripe(file, path, header, stripe)
        digest.update([block.data.cast("B")[: header.stripe_bytes(stripe)]])
        for shard, place, chunk in zip(shards, places, [*block, *code.encode(block)], strict=True):
            with naming(place):
                write_chunk(shard, chunk.data)
        progress(header.stripe_bytes(stripe))
    with naming(path):
        if file.read(1):
            raise ValueError(f"{shown(path)} grew while it was read; encode it when nothing writes to it")
    _write_headers(shards, places, replace(header, digest=digest.digest()))


def _write_headers(shards: list[BinaryIO], places: list[Path], header: Header) -> None:
    for i, (shard, place) in enumerate(zip(shards, places, strict=True)):
        with naming(place):
            shard.seek(0)
            shard.write(header.sibling(i).pack())


def _read_stripe(
    file: BinaryIO, path: Path, header: Header, stripe: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a stripe of the file as data chunks, shape (data, length), padded with zeros."""
    block = np.zeros((header.data, header.chunk_length(stripe)), np.uint8)
    want = header.stripe_bytes(stripe)
    view = block.data.cast("B")[:want]
    got = 0
    while got < want:
        with naming(path):
            count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            raise ValueError(f"{shown(path)} shrank while it was read; encode it when nothing writes to it")
        got += count
    return block


@dataclass(frozen=True)
class Survey:
    """Which shards of a file there are, and what is wrong with them.

    Attributes
    ----------
    header : Header
        The header that the sound shards share, with index 0.
    paths : dict of int to Path
        The shard files whose header is sound.
    faults : dict of int to str
        What is wrong, by shard: absent, or damaged and where. Empty if all is well.
    rejected : dict of Path to str
        Other files that were named, or lie in a folder that was, and why they do not count.
    worst : int
        The most shards that are lost in any one stripe; not all stripes are read once too many are.
    misnamed : dict of int to Path
        Shards whose file bears the name of another one.
    """

    header: Header
    paths: dict[int, Path]
    faults: dict[int, str]
    rejected: dict[Path, str]
    worst: int
    misnamed: dict[int, Path] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether every shard is there, intact, and called what it is."""
        return not self.faults and not self.misnamed

    @property
    def repairable(self) -> bool:
        """Whether every stripe has enough intact chunks."""
        return self.worst <= self.header.parity


def verify_files(
    places: Iterable[str | os.PathLike[str]], *, progress: Progress = _no_progress, warn: Warn = warn_user
) -> Survey:
    """Read every chunk of a file's shards and say which are lost or damaged.

    Parameters
    ----------
    places : paths
        Shard files of one file, or folders that hold them.
    progress : callable
    warn : callable
        Told, in words, of an interrupted command that cannot be finished.

    Returns
    -------
    Survey
        Chunks are checked against their checksums; stripes whose chunks are all intact also against their
        parity. What cannot be read counts as lost.

    Raises
    ------
    ValueError
        If there is no sound shard, the shards are of several files of which not exactly one has enough, or a
        stripe of intact chunks has the wrong parity (a wrong shard with a right checksum: nothing can tell
        which).
    OSError
        If nothing was found.
    """
    with open_set(places, warn) as shards:
        return _survey(shards, progress)


def _survey(shards: ShardSet, progress: Progress) -> Survey:
    header = shards.header
    code = ReedSolomon(header.data, header.parity)
    faults = {i: "absent" for i in range(header.shards) if i not in shards.shards}
    for i, (shard, *_) in shards.shards.items():
        if shard.size != header.shard_bytes:
            faults[i] = f"has {shard.size} bytes instead of {header.shard_bytes}"
    worst = 0  # of an empty file one header is enough
    readable = shards.readable_stripes(1)
    if readable < header.stripes:
        worst = header.shards
    for stripe in range(readable):
        chunks, damaged = shards.chunks(stripe)
        for i in damaged:
            reason = shards.shards[i][0].trouble or "does not match its checksum"
            faults.setdefault(i, f"chunk {stripe} of {header.stripes} {reason}")
        lost = sum(chunk is None for chunk in chunks)
        worst = max(worst, lost)
        if not lost and not code.verify(chunks):
            raise ValueError(
                f"stripe {stripe} has the wrong parity though every checksum is right; encode again"
            )
        progress(header.stripe_bytes(stripe))
        if worst > header.parity and len(faults) == header.shards:
            break  # nothing is left to be found, however long the header says that the file is
    misnamed = {i: copies[0].path for i, copies in shards.shards.items() if copies[0].misnamed}
    return Survey(header, shards.paths, faults, shards.rejected, worst, misnamed)


def _stripes(shards: ShardSet, wanted: list[int]) -> Iterator[tuple[int, list[Any]]]:
    """Yield each stripe and its chunks, reconstructed if one wanted is lost; then check the digest."""
    header = shards.header
    code, digest = ReedSolomon(header.data, header.parity), _Digest()
    readable = shards.readable_stripes(header.data)
    if readable < header.stripes:  # however long the header says that the file is
        _refuse_lost(header, readable, shards.chunks(readable)[0])
    for stripe in range(header.stripes):
        chunks, _ = shards.chunks(stripe)
        _refuse_lost(header, stripe, chunks)
        if any(chunks[i] is None for i in wanted):
            chunks = code.reconstruct(chunks)
        digest.update(_content(chunks, header, stripe))
        yield stripe, chunks
    if digest.digest() != header.digest:
        raise ValueError(
            f"the content does not match the digest of {shown(header.name)}; nothing was written"
        )


def _refuse_lost(header: Header, stripe: int, chunks: list[Any]) -> None:
    lost = [i for i, chunk in enumerate(chunks) if chunk is None]
    if len(lost) > header.parity:
        raise ValueError(
            f"stripe {stripe} of {header.stripes} has lost shards {lost}; "
            f"with {header.parity} parity shards at most {header.parity} may be lost"
        )


def _content(chunks: list[Any], header: Header, stripe: int) -> list[memoryview]:
    """Return the bytes of the file that the data chunks of a stripe hold, without the zeros at the end."""
    left = header.stripe_bytes(stripe)
    parts = []
    for chunk in chunks[: header.data]:
        parts.append(chunk[: max(0, left)].data)
        left -= chunk.size
    return parts


def repair_files(
    places: Iterable[str | os.PathLike[str]], *, progress: Progress = _no_progress, warn: Warn = warn_user
) -> list[Path]:
    """Write again every shard that is absent or damaged, and give each the name that it should have.

    Shards that are damaged in different stripes help each other: a stripe needs any `data` intact chunks.
    The repaired file is checked against its digest before any shard is replaced. A file in the way that may
    be worth keeping, such as a shard of another file or one that cannot be read, is kept under a name that
    ends in `.aside`.

    Parameters
    ----------
    places : paths
        Shard files of one file, or folders that hold them.
    progress : callable
        Told the bytes of the file dealt with; shards are read twice, first to find the damage.
    warn : callable
        Told, in words, of every file that was passed over or kept aside.

    Returns
    -------
    list of Path
        The shards that were written: a damaged one in its place, one under another's name where it belongs,
        an absent one beside the first sound one. Empty if there was nothing to do.

    Raises
    ------
    ValueError
        As `verify_files`, and if too many chunks of a stripe are lost. Nothing has been written then.
    OSError
        If a shard cannot be written. In each folder all was done or nothing.
    """
    with open_set(places, warn) as shards:
        survey = _survey(shards, progress)
        shards.warn_of_losses(warn)
        if survey.healthy:
            return []
        header = shards.header
        if not survey.repairable:
            raise ValueError(
                f"{survey.worst} of {header.shards} shards are lost in one stripe; "
                f"with {header.parity} parity shards at most {header.parity} may be lost"
            )
        targets = _places(shards, survey)
        for place in targets.values():
            _refuse_unnamed(place, shards)
        with contextlib.ExitStack() as stack:
            stages = {
                folder: stack.enter_context(staging.Stage(folder, replace=True))
                for folder in {place.parent for place in targets.values()}
            }
            kept = _prepare(stages, targets, shards)
            _write_again(stages, targets, shards, progress)
            for stage in stages.values():
                stage.commit()
        for place, aside in kept.items():
            warn(f"{shown(place)}: was in the way; kept as {shown(aside)}")
    return list(targets.values())


def _places(shards: ShardSet, survey: Survey) -> dict[int, Path]:
    """Return where each shard that is to be written belongs."""
    folder = next(iter(survey.paths.values())).parent
    targets = {}
    for i in sorted({*survey.faults, *survey.misnamed}):
        copies = shards.shards.get(i)
        targets[i] = copies[0].target if copies else folder / shards.header.sibling(i).file_name
    return targets


def _refuse_unnamed(place: Path, shards: ShardSet) -> None:
    """Refuse to replace a file of which nothing is known."""
    if os.path.lexists(place) and place not in {*shards.paths.values(), *shards.rejected}:
        raise ValueError(f"{shown(place)} exists and was not named as a shard; move it away, or name it too")


def _prepare(
    stages: dict[Path, staging.Stage], targets: dict[int, Path], shards: ShardSet
) -> dict[Path, Path]:
    """Stage the removal of wrong names, and keep what is in the way; returns what is kept where."""
    kept = {}
    for place in targets.values():
        if place in shards.rejected and place not in shards.replaceable and os.path.lexists(place):
            kept[place] = stages[place.parent].set_aside(place.name)
    for i, place in targets.items():
        copies: list[Shard] = shards.shards.get(i, [])
        if copies and copies[0].path != place and copies[0].path not in targets.values():
            stages[place.parent].remove(copies[0].path.name)
    return kept


def _write_again(
    stages: dict[Path, staging.Stage], targets: dict[int, Path], shards: ShardSet, progress: Progress
) -> None:
    header = shards.header
    new = {i: stages[place.parent].create(place.name, shards.mode) for i, place in targets.items()}
    for i, file in new.items():
        with naming(targets[i]):
            file.write(header.sibling(i).pack())
    for stripe, chunks in _stripes(shards, [*range(header.data), *targets]):
        for i, file in new.items():
            with naming(targets[i]):
                write_chunk(file, chunks[i].data)
        progress(header.stripe_bytes(stripe))


def decode_files(
    places: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = _no_progress,
    warn: Warn = warn_user,
) -> Path:
    """Write the file that shards hold, from any `data` intact chunks of each stripe.

    Parameters
    ----------
    places : paths
        Shard files of one file, or folders that hold them.
    output : path, optional
        By default the file's own name, in the current folder.
    force : bool
        Whether a file that exists already may be replaced; never one of the shards.
    progress : callable
    warn : callable
        Told, in words, of every file that was passed over, in whole or in part.

    Returns
    -------
    Path
        The file, which matches its digest. It can be read by no more users than every shard.

    Raises
    ------
    ValueError
        If too much is lost, the digest does not match, the file exists already, or is one of the shards.
        Nothing has been written then.
    OSError
        If the file cannot be written.
    """
    with open_set(places, warn) as shards:
        header = shards.header
        place = Path(output) if output is not None else _own_name(header)
        _refuse_shard(place, shards)
        try:
            with staging.new_file(place, shards.mode, force=force) as result:
                for stripe, chunks in _stripes(shards, list(range(header.data))):
                    with naming(place):
                        for part in _content(chunks, header, stripe):
                            result.write(part)
                    progress(header.stripe_bytes(stripe))
        finally:
            shards.warn_of_losses(warn)
    return place


def _own_name(header: Header) -> Path:
    path = Path(header.name)
    if path.name != header.name or path.is_absolute():  # a name of another system means a folder here
        raise ValueError(f"the file's name is {shown(header.name)}, which is none here; say where it goes")
    return path


def _refuse_shard(place: Path, shards: ShardSet) -> None:
    """Refuse to write over what is being read, or what could be."""
    try:
        status = os.stat(place)
        identity = status.st_dev, status.st_ino
        taken = any(identity == shard.identity for copies in shards.shards.values() for shard in copies)
        if not taken and stat.S_ISREG(status.st_mode):
            with open(place, "rb") as file:
                taken = read_header(file).sibling(0) == shards.header
    except (OSError, ValueError):
        return
    if taken:
        raise ValueError(f"{shown(place)} is one of the shards; choose another place for the file")
