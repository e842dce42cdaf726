"""Reed-Solomon shards of files larger than memory: encode, verify, repair and decode, stripe by stripe.

Whatever is written goes to a file beside its place under another name, and is moved there when all of it is
complete and checked; until then nothing that existed is touched. Memory is bounded by a stripe, not by the
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dasp.dense.gf256.reed_solomon import ReedSolomon
from dasp.dense.gf256.shard_format import MAX_CHUNK_BYTES, Header, read_chunk, read_header, write_chunk

STRIPE_BYTES = 64 << 20
"""Memory for the chunks of one stripe, parity included."""

Progress = Callable[[int], Any]
"""Called with the bytes of the file that were dealt with since the last call."""


def _no_progress(_: int) -> None:
    return None


class _Digest:
    """The SHA-256 of a file, computed beside the reading and writing of it, one stripe behind."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dasp-digest")
        self._pending: Future[None] | None = None

    def __enter__(self) -> _Digest:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def update(self, parts: Sequence[Any]) -> None:
        """Add buffers, which must not change until the next call."""
        self._wait()
        self._pending = self._pool.submit(self._add, parts)

    def digest(self) -> bytes:
        """Return the digest of all that was added."""
        self._wait()
        return self._hash.digest()

    def _add(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._hash.update(part)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()


class _NewFiles:
    """Files written beside their places, and moved there together or not at all."""

    def __init__(self) -> None:
        self._open: list[tuple[BinaryIO, Path, Path]] = []

    def create(self, place: Path) -> BinaryIO:
        """Open a new file that will be at `place`."""
        partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
        file = open(partial, "xb")  # noqa: SIM115 - closed by commit or discard
        self._open.append((file, partial, place))
        return file

    def commit(self) -> None:
        """Move every file to its place, after all of them have reached the disk."""
        for file, _, _ in self._open:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        while self._open:
            _, partial, place = self._open[0]
            os.replace(partial, place)
            del self._open[0]

    def discard(self) -> None:
        """Remove what was not moved."""
        for file, partial, _ in self._open:
            file.close()
            partial.unlink(missing_ok=True)
        self._open.clear()


@contextlib.contextmanager
def _new_files() -> Iterator[_NewFiles]:
    files = _NewFiles()
    try:
        yield files
    finally:
        files.discard()


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
    directory : path, optional
        Where the shards go; made if absent. By default beside the file, in `<name>.shards`.
    data, parity : int
        The code: any `parity` shards may be lost.
    chunk_bytes : int, optional
        Bytes of a chunk, each under its own checksum; by default up to 1 MiB, so that a stripe fits 64 MiB
        of memory.
    force : bool
        Whether shards that exist already may be replaced.
    progress : callable
        Told the bytes of the file that were encoded since it was last called.

    Returns
    -------
    list of Path
        The `data + parity` shard files, in order, named `<name>.000.rs` and so on.

    Raises
    ------
    ValueError
        If the counts do not make a code, a shard exists already, or the file changed while it was read.
    OSError
        If the file cannot be read or a shard not be written; no shard is left behind then.
    """
    path = Path(path)
    code = ReedSolomon(data, parity)
    if chunk_bytes is None:
        chunk_bytes = min(1 << 20, STRIPE_BYTES // code.shards)
    if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
        raise ValueError(f"chunk_bytes is {chunk_bytes}; 1 to {MAX_CHUNK_BYTES} are needed")
    with open(path, "rb") as file, _new_files() as new, _Digest() as digest:
        length = os.fstat(file.fileno()).st_size
        header = Header(data, parity, 0, chunk_bytes, length, bytes(32), path.name)
        folder = Path(directory) if directory is not None else path.with_name(path.name + ".shards")
        places = [folder / header.sibling(i).file_name for i in range(code.shards)]
        _refuse_existing(places, force)
        folder.mkdir(parents=True, exist_ok=True)
        shards = [new.create(place) for place in places]
        _write_headers(shards, header)
        for stripe in range(header.stripes):
            block = _read_stripe(file, header, stripe)
            digest.update([block.data.cast("B")[: header.stripe_bytes(stripe)]])
            for shard, chunk in zip(shards, [*block, *code.encode(block)], strict=True):
                write_chunk(shard, chunk.data)
            progress(header.stripe_bytes(stripe))
        if file.read(1):
            raise ValueError(f"{path} grew while it was read; encode it when nothing writes to it")
        _write_headers(shards, Header(data, parity, 0, chunk_bytes, length, digest.digest(), path.name))
        new.commit()
    return places


def _refuse_existing(places: Iterable[Path], force: bool) -> None:
    for place in places:
        if place.exists() and not force:
            raise ValueError(f"{place} exists; allow it to be replaced (force), or choose another place")


def _write_headers(shards: list[BinaryIO], header: Header) -> None:
    for i, shard in enumerate(shards):
        shard.seek(0)
        shard.write(header.sibling(i).pack())


def _read_stripe(file: BinaryIO, header: Header, stripe: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a stripe of the file as data chunks, shape (data, length), padded with zeros."""
    block = np.zeros((header.data, header.chunk_length(stripe)), np.uint8)
    want = header.stripe_bytes(stripe)
    view = block.data.cast("B")[:want]
    got = 0
    while got < want:
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            raise ValueError(f"{header.name} shrank while it was read; encode it when nothing writes to it")
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
    strangers : dict of Path to str
        Files that look like shards and whose header is damaged.
    worst : int
        The most shards that are lost in any one stripe.
    """

    header: Header
    paths: dict[int, Path]
    faults: dict[int, str]
    strangers: dict[Path, str]
    worst: int

    @property
    def healthy(self) -> bool:
        """Whether every shard is there and intact."""
        return not self.faults

    @property
    def repairable(self) -> bool:
        """Whether every stripe has enough intact chunks."""
        return self.worst <= self.header.parity


def _candidates(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the shard files that paths name: files as they are, folders for the `.rs` files in them."""
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            found += sorted(place.glob("*.rs"))
        elif place.exists():
            found.append(place)
        else:
            raise FileNotFoundError(f"{place} does not exist; name shard files or the folder that holds them")
    return list(dict.fromkeys(found))


def _headers(paths: list[Path]) -> tuple[dict[int, Path], Header, dict[Path, str]]:
    """Return the sound shards by index, their common header, and the files with no sound header."""
    shards: dict[int, Path] = {}
    common: Header | None = None
    strangers: dict[Path, str] = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                header = read_header(file)
        except ValueError as error:
            strangers[path] = str(error)
            continue
        if common is not None and header.sibling(0) != common:
            raise ValueError(
                f"{path} and {next(iter(shards.values()))} are not of one file; name the shards of one"
            )
        if header.index in shards:
            raise ValueError(
                f"{path} and {shards[header.index]} are both shard {header.index}; name one of them"
            )
        common = header.sibling(0)
        shards[header.index] = path
    if common is None:
        reason = f" ({next(iter(strangers.values()))})" if strangers else ""
        raise ValueError(f"no sound shard among {len(paths)} files{reason}; name shard files or their folder")
    return shards, common, strangers


def verify_files(places: Iterable[str | os.PathLike[str]], *, progress: Progress = _no_progress) -> Survey:
    """Read every chunk of a file's shards and say which are lost or damaged.

    Parameters
    ----------
    places : paths
        Shard files of one file, or folders that hold them.
    progress : callable

    Returns
    -------
    Survey
        Chunks are checked against their checksums; stripes whose chunks are all intact also against their
        parity.

    Raises
    ------
    ValueError
        If there is no sound shard, the shards are of several files, or a stripe of intact chunks has the
        wrong parity (a wrong shard with a right checksum: nothing can tell which).
    OSError
        If a file cannot be read.
    """
    paths, header, strangers = _headers(_candidates(places))
    code = ReedSolomon(header.data, header.parity)
    faults = {i: "absent" for i in range(header.shards) if i not in paths}
    for i, path in paths.items():
        size = path.stat().st_size
        if size != header.shard_bytes:
            faults[i] = f"has {size} bytes instead of {header.shard_bytes}"
    worst = len(faults) if not header.stripes else 0
    with contextlib.ExitStack() as stack:
        files = {i: stack.enter_context(open(path, "rb")) for i, path in paths.items()}
        for stripe in range(header.stripes):
            chunks = _read_chunks(files, header, stripe)
            for i in paths:
                if chunks[i] is None:
                    faults.setdefault(i, f"chunk {stripe} of {header.stripes} does not match its checksum")
            lost = sum(chunk is None for chunk in chunks)
            worst = max(worst, lost)
            if not lost and not code.verify(chunks):
                raise ValueError(
                    f"stripe {stripe} has the wrong parity though every checksum is right; encode again"
                )
            progress(header.stripe_bytes(stripe))
    return Survey(header, paths, faults, strangers, worst)


def _read_chunks(files: Mapping[int, BinaryIO], header: Header, stripe: int) -> list[Any]:
    """Return the chunks of a stripe as arrays, None for each that is absent or damaged."""
    chunks: list[Any] = [None] * header.shards
    for i, file in files.items():
        chunk = read_chunk(file, header, stripe)
        if chunk is not None:
            chunks[i] = np.frombuffer(chunk, np.uint8)
    return chunks


def _stripes(
    files: Mapping[int, BinaryIO], header: Header, wanted: list[int]
) -> Iterator[tuple[int, list[Any]]]:
    """Yield each stripe and its chunks, reconstructed if one wanted is lost; then check the digest."""
    code = ReedSolomon(header.data, header.parity)
    with _Digest() as digest:
        for stripe in range(header.stripes):
            chunks = _read_chunks(files, header, stripe)
            lost = [i for i, chunk in enumerate(chunks) if chunk is None]
            if len(lost) > header.parity:
                raise ValueError(
                    f"stripe {stripe} of {header.stripes} has lost shards {lost}; "
                    f"with {header.parity} parity shards at most {header.parity} may be lost"
                )
            if any(chunks[i] is None for i in wanted):
                chunks = code.reconstruct(chunks)
            digest.update(_content(chunks, header, stripe))
            yield stripe, chunks
        if digest.digest() != header.digest:
            raise ValueError(f"the content does not match the digest of {header.name}; nothing was written")


def _content(chunks: list[Any], header: Header, stripe: int) -> list[memoryview]:
    """Return the bytes of the file that the data chunks of a stripe hold, without the zeros at the end."""
    left = header.stripe_bytes(stripe)
    parts = []
    for chunk in chunks[: header.data]:
        parts.append(chunk[: max(0, left)].data)
        left -= chunk.size
    return parts


def repair_files(
    places: Iterable[str | os.PathLike[str]], *, progress: Progress = _no_progress
) -> list[Path]:
    """Write again every shard that is absent or damaged.

    Shards that are damaged in different stripes help each other: a stripe needs any `data` intact chunks.
    The repaired file is checked against its digest before any shard is replaced.

    Parameters
    ----------
    places : paths
        Shard files of one file, or folders that hold them.
    progress : callable
        Told the bytes of the file dealt with; shards are read twice, first to find the damage.

    Returns
    -------
    list of Path
        The shards that were written: a damaged one in its place, an absent one beside the first sound one.
        Empty if there was nothing to do.

    Raises
    ------
    ValueError
        As `verify_files`, and if too many chunks of a stripe are lost. Nothing has been written then.
    OSError
        If a file cannot be read or written.
    """
    survey = verify_files(places, progress=progress)
    header, faults = survey.header, sorted(survey.faults)
    if not faults:
        return []
    if not survey.repairable:
        raise ValueError(
            f"{survey.worst} of {header.shards} shards are lost in one stripe; "
            f"with {header.parity} parity shards at most {header.parity} may be lost"
        )
    folder = next(iter(survey.paths.values())).parent
    with contextlib.ExitStack() as stack:
        files = {i: stack.enter_context(open(path, "rb")) for i, path in survey.paths.items()}
        new = stack.enter_context(_new_files())
        places_of = [survey.paths.get(i, folder / header.sibling(i).file_name) for i in faults]
        _refuse_strangers(places_of, survey)
        shards = [new.create(place) for place in places_of]
        for i, shard in zip(faults, shards, strict=True):
            shard.write(header.sibling(i).pack())
        for stripe, chunks in _stripes(files, header, [*range(header.data), *faults]):
            for i, shard in zip(faults, shards, strict=True):
                write_chunk(shard, chunks[i].data)
            progress(header.stripe_bytes(stripe))
        new.commit()
    return places_of


def _refuse_strangers(places: list[Path], survey: Survey) -> None:
    """Refuse to replace a file that is neither a shard of this file nor the ruin of one."""
    for place in places:
        if place.exists() and place not in survey.paths.values() and place not in survey.strangers:
            raise ValueError(f"{place} exists and was not named as a shard; move it away, or name it too")


def decode_files(
    places: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = _no_progress,
) -> Path:
    """Write the file that shards hold, from any `data` intact chunks of each stripe.

    Parameters
    ----------
    places : paths
        Shard files of one file, or folders that hold them.
    output : path, optional
        By default the file's own name, in the current folder.
    force : bool
        Whether a file that exists already may be replaced.
    progress : callable

    Returns
    -------
    Path
        The file, which matches its digest.

    Raises
    ------
    ValueError
        If too much is lost, the digest does not match, or the file exists already. Nothing has been written
        then.
    OSError
        If a file cannot be read or written.
    """
    paths, header, _ = _headers(_candidates(places))
    place = Path(output) if output is not None else Path(header.name)
    _refuse_existing([place], force)
    with contextlib.ExitStack() as stack:
        files = {i: stack.enter_context(open(path, "rb")) for i, path in paths.items()}
        new = stack.enter_context(_new_files())
        result = new.create(place)
        for stripe, chunks in _stripes(files, header, list(range(header.data))):
            for part in _content(chunks, header, stripe):
                result.write(part)
            progress(header.stripe_bytes(stripe))
        new.commit()
    return place
