"""Attack on shards of files: damaged sets, killed writers, full disks; seeded, and as long as one likes.

    python -m tests.attack.shards --seconds 600 --seed 7

Every case is made from the seed and its own number, so that one that fails is made again with `--case`. What
must come out is decided by a reader of the format that shares no code with dasp. Prints what was tried and
ends with status 1 if anything was wrong; the folder of a case that failed is kept.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dasp.dense.gf256.shard_files import decode_files, encode_file, repair_files, verify_files
from tests.attack._command import attack_by_command

FIXED = struct.Struct("<8sHHHHIQ32sH66x")
MOST_CPU_SECONDS = 60


# ---- a second reader of the format --------------------------------------------------------------------


class Parsed(NamedTuple):
    """What a shard file says, and which of its chunks are right."""

    group: tuple[object, ...]
    data: int
    index: int
    stripes: int
    intact: frozenset[int]
    whole: bool


def parse(content: bytes) -> Parsed | None:
    """Read a shard, or None if its header is none that an encoder writes."""
    if len(content) < FIXED.size:
        return None
    magic, version, data, parity, index, chunk, size, digest, named = FIXED.unpack_from(content)
    end = FIXED.size + named
    if (magic, version) != (b"DASP-RS\n", 1) or content[end : end + 4] != _crc(content[:end]):
        return None
    if not (data >= 1 and data + parity <= 256 and index < data + parity and 0 < chunk <= 64 << 20):
        return None
    stripes = -(-size // (data * chunk))
    if stripes * (chunk + 4) > 2**63 - 1000:
        return None
    intact = set()
    for stripe in range(min(stripes, len(content))):
        start = end + 4 + stripe * (chunk + 4)
        length = min(chunk, -(-(size - stripe * data * chunk) // data))
        body = content[start : start + length]
        if len(body) == length and content[start + length : start + length + 4] == _crc(body):
            intact.add(stripe)
        if start > len(content):
            break
    last = size - (stripes - 1) * data * chunk
    right = end + 4 + ((stripes - 1) * (chunk + 4) + -(-last // data) + 4 if stripes else 0)
    group = data, parity, chunk, size, digest, content[FIXED.size : end]
    whole = len(intact) == stripes and len(content) == right
    return Parsed(group, data, index, stripes, frozenset(intact), whole)


def _crc(content: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(content))


def readable(path: Path) -> bytes | None:
    """Return the content of a regular file, or None; never waits."""
    try:
        return path.read_bytes() if path.is_file() and os.path.realpath(path) != "/proc/self/mem" else None
    except OSError:
        return None


def all_shards(folder: Path) -> list[Parsed]:
    """Return every sound header in a folder's shard files, set-aside ones included."""
    contents = [readable(path) for path in folder.iterdir() if not path.name.startswith(".dasp-")]
    found = [parse(content) for content in contents if content is not None]
    return [shard for shard in found if shard is not None]


def can_be_decoded(folder: Path, group: tuple[object, ...]) -> bool:
    """Whether each stripe has enough intact chunks in the `.rs` files of a folder."""
    contents = [readable(path) for path in folder.iterdir() if path.name.endswith(".rs")]
    found = [shard for c in contents if c is not None and (shard := parse(c)) and shard.group == group]
    if not found:
        return False
    return all(
        len({shard.index for shard in found if stripe in shard.intact}) >= found[0].data
        for stripe in range(found[0].stripes)
    )


# ---- damage -------------------------------------------------------------------------------------------

Damage = Callable[[random.Random, Path, list[Path]], None]


def _pick(rng: random.Random, shards: list[Path]) -> Path:
    return rng.choice(shards)


def lose(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Remove a shard."""
    remove(_pick(rng, shards))


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _edit(path: Path, change: Callable[[bytearray], None]) -> None:
    content = readable(path)
    if content is not None and not path.is_symlink():
        edited = bytearray(content)
        change(edited)
        path.write_bytes(edited)


def flip(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Flip some bits anywhere."""

    def change(content: bytearray) -> None:
        for _ in range(rng.choice((1, 1, 5))):
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)

    _edit(_pick(rng, shards), change)


def zero(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Overwrite a run with zeros or noise, as a disk does."""

    def change(content: bytearray) -> None:
        start = rng.randrange(len(content) + 1)
        count = min(len(content) - start, rng.choice((1, 16, 512, 4096)))
        content[start : start + count] = rng.randbytes(count) if rng.random() < 0.5 else bytes(count)

    _edit(_pick(rng, shards), change)


def cut(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Cut the end off."""
    _edit(
        _pick(rng, shards), lambda content: content.__delitem__(slice(rng.randrange(len(content) + 1), None))
    )


def lengthen(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Append bytes."""
    _edit(_pick(rng, shards), lambda content: content.extend(rng.randbytes(rng.randint(1, 300))))


def swap(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Exchange the names of two."""
    one, two = _pick(rng, shards), _pick(rng, shards)
    aside = folder / "swap"
    for source, target in ((one, aside), (two, one), (aside, two)):
        if os.path.lexists(source) and source != target:
            remove(target)
            os.rename(source, target)


def move(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Give a shard the name of another one, which is lost, or a new one."""
    source = _pick(rng, shards)
    target = rng.choice([*shards, folder / "mine.rs"])
    if os.path.lexists(source) and source != target:
        remove(target)
        os.rename(source, target)


def copy(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Copy a shard over another one, or beside it."""
    source, target = _pick(rng, shards), rng.choice([*shards, folder / "copy.rs"])
    content = readable(source)
    if content is not None and source != target:
        remove(target)
        target.write_bytes(content)


def obstruct(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Put something that cannot be read where a shard was."""
    place = _pick(rng, shards)
    remove(place)
    make = rng.choice(
        (os.mkdir, os.mkfifo, *map(_linked, ("nowhere", "/proc/self/mem", "/dev/zero", place.name)))
    )
    make(place)


def _linked(target: str) -> Callable[[Path], None]:
    return lambda place: os.symlink(target, place)


def forge(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Change a field of a header and make its checksum right."""

    def change(content: bytearray) -> None:
        if parse(bytes(content)) is None:
            return
        fields = list(FIXED.unpack_from(content))
        field, values = rng.choice(
            [
                (2, (0, 1, 255, 65535)),
                (3, (0, 255, 65535)),
                (5, (0, 1, 64 << 20, 2**32 - 1)),
                (6, (0, 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)),
                (7, (bytes(32), rng.randbytes(32))),
            ]
        )
        fields[field] = rng.choice(values)
        end = FIXED.size + fields[8]
        FIXED.pack_into(content, 0, *fields)
        content[end : end + 4] = _crc(bytes(content[:end]))

    _edit(_pick(rng, shards), change)


def mix(rng: random.Random, folder: Path, shards: list[Path]) -> None:
    """Put a shard of another file of the same name in a place."""
    with tempfile.TemporaryDirectory() as room:
        other = Path(room, shards[0].name[:-7])
        other.write_bytes(rng.randbytes(rng.randint(0, 3000)))
        made = encode_file(other, data=5, parity=2, chunk_bytes=300)
        target = _pick(rng, shards)
        remove(target)
        target.write_bytes(rng.choice(made).read_bytes())


DAMAGES: tuple[Damage, ...] = (
    lose, lose, flip, flip, zero, cut, lengthen, swap, move, copy, obstruct, forge, mix,
)  # fmt: skip


# ---- cases --------------------------------------------------------------------------------------------


def draw_name(rng: random.Random) -> str:
    """Return a name of any bytes that a file may have."""
    while True:
        raw = rng.randbytes(rng.choice((1, 3, 8, 40, 248))).replace(b"/", b"\\").replace(b"\0", b"\n")
        if raw not in (b".", b".."):
            return os.fsdecode(raw if rng.random() < 0.5 else b"file")


def draw_set(rng: random.Random, room: Path) -> tuple[bytes, Path, list[Path]]:
    """Encode a random file; returns its content, the folder, and the shards."""
    content = rng.randbytes(rng.choice((0, 1, 100, rng.randint(0, 5_000), rng.randint(0, 100_000))))
    source = room / draw_name(rng)
    source.write_bytes(content)
    data, parity = rng.choice(
        ((1, 1), (2, 1), (4, 2), (3, 3), (10, 4), (rng.randint(1, 20), rng.randint(0, 8)))
    )
    chunk = rng.choice((1 << 20, 64, 512, 5000, max(1, len(content) // data // 3 + 1)))
    shards = encode_file(source, room / "set", data=data, parity=parity, chunk_bytes=chunk)
    source.unlink()
    return content, room / "set", shards


def damaged(rng: random.Random, room: Path, counts: collections.Counter[str]) -> None:
    """Damage a set in some ways; decoded and repaired exactly if the other reader says so."""
    content, folder, shards = draw_set(rng, room)
    group = parse(shards[0].read_bytes()).group  # type: ignore[union-attr]
    total = len(shards)
    for damage in rng.choices(DAMAGES, k=rng.randint(1, rng.choice((2, 4, 8)))):
        damage(rng, folder, shards)
        counts[f"  damage {damage.__name__}"] += 1
    possible = can_be_decoded(folder, group)
    before = collections.Counter((s.group, s.index) for s in all_shards(folder) if s.whole)
    names = {s.group for s in all_shards(folder)}
    # Headers forged with another code may say right what there is; what they decode to has the digest.
    forged = any(g[4] == group[4] and g != group for g in names)
    out = room / "out"

    decoded = _attempt(lambda: decode_files([folder], out, warn=lambda _: None))
    if decoded is None:
        assert out.read_bytes() == content, "decoded wrongly"
        assert possible or forged, "decoded what has lost too much"
    else:
        assert not out.exists(), "left a file though it failed"
        assert not possible or len(names) > 1, f"not decoded: {decoded}"
    surveyed = _attempt(lambda: verify_files([folder]))
    repaired = _attempt(lambda: repair_files([folder], warn=lambda _: None))
    if repaired is None:
        assert possible or forged, "repaired what has lost too much"
        survey = verify_files([folder])
        assert survey.healthy, "not healthy after repair"
        mine = {s.index for s in all_shards(folder) if s.group == group and s.whole}
        assert forged or mine == set(range(total)), f"shards are missing after repair: {mine} of {total}"
    else:
        assert decoded is not None, f"decoded but not repaired: {repaired}"
        assert surveyed is not None or not verify_files([folder]).healthy
    after = collections.Counter((s.group, s.index) for s in all_shards(folder) if s.whole)
    lost = [key for key, count in before.items() if not after[key]]
    assert not lost, f"sound shards are gone: {lost}"
    _nothing_hidden(folder, room)
    refused = "sets of several files" if possible else "sets that lost too much"
    counts[f"{refused}, refused" if decoded else "sets decoded and repaired"] += 1


def _attempt(call: Callable[[], object]) -> str | None:
    """Return None, or the words of an error that a user may see; others pass."""
    began = time.process_time()
    try:
        call()
        return None
    except (ValueError, OSError) as error:
        return str(error) or type(error).__name__
    finally:
        assert time.process_time() - began < MOST_CPU_SECONDS, "took too long"


def _nothing_hidden(*folders: Path) -> None:
    for folder in folders:
        left = [name for name in os.listdir(folder) if name.startswith(".dasp-")]
        assert not left, f"left behind: {left}"


@contextlib.contextmanager
def _child(work: Callable[[], object]) -> Iterator[int]:
    """Run in a fork that this process may kill."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    yield child
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"a child ended with {status}"


def _kill_at_some_time(rng: random.Random, child: int, seconds: float) -> None:
    time.sleep(rng.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)


def _sources(rng: random.Random, room: Path) -> list[Path]:
    """Return two files of one name and different content."""
    sources = []
    name = draw_name(rng)
    for i in range(2):
        (room / str(i)).mkdir()
        sources.append(room / str(i) / name)
        sources[i].write_bytes(rng.randbytes(rng.randint(0, 60_000)))
    return sources


def killed_encoder(rng: random.Random, room: Path, counts: collections.Counter[str]) -> None:
    """Kill a process that replaces one set by another; one of the two decodes, always."""
    sources, folder = _sources(rng, room), room / "set"
    texts = [source.read_bytes() for source in sources]
    encode_file(sources[0], folder, data=4, parity=2, chunk_bytes=1000)

    def work() -> None:
        i = 0
        while True:
            i += 1
            encode_file(sources[i % 2], folder, data=3 + i % 3, parity=2, chunk_bytes=1000, force=True)

    for _ in range(8):
        with _child(work) as child:
            _kill_at_some_time(rng, child, 0.06)
        if rng.random() < 0.5:
            with _child(lambda: decode_files([folder], room / "x", force=True)) as child:
                _kill_at_some_time(rng, child, 0.01)
        assert decode_files([folder], room / "out", force=True).read_bytes() in texts
        assert verify_files([folder]).healthy
        counts["encoders killed"] += 1
    encode_file(sources[1], folder, data=4, parity=2, force=True)
    assert decode_files([folder], room / "out", force=True).read_bytes() == texts[1]
    (room / "x").unlink(missing_ok=True)
    decode_files([folder], room / "x")
    _nothing_hidden(folder, room)


def killed_repairer(rng: random.Random, room: Path, counts: collections.Counter[str]) -> None:
    """Kill a process that repairs; the set stays repairable."""
    content, folder, shards = draw_set(rng, room)
    parity = len(shards) - parse(shards[0].read_bytes()).data  # type: ignore[union-attr]
    for _ in range(8):
        for victim in rng.sample(shards, rng.randint(0, parity)):
            remove(victim)
        swap(rng, folder, shards)
        with _child(lambda: repair_files([folder], warn=lambda _: None)) as child:
            _kill_at_some_time(rng, child, 0.01)
        assert verify_files([folder]).repairable
        repair_files([folder], warn=lambda _: None)
        assert verify_files([folder]).healthy
        counts["repairers killed"] += 1
    assert decode_files([folder], room / "out").read_bytes() == content
    _nothing_hidden(folder)


def killed_command(rng: random.Random, room: Path, counts: collections.Counter[str]) -> None:
    """Kill `dasp rs encode --force` itself, started as a user starts it."""
    sources, folder = _sources(rng, room), room / "set"
    sources[1].write_bytes(rng.randbytes(4 << 20))
    texts = [source.read_bytes() for source in sources]
    encode_file(sources[0], folder, data=3, parity=2)
    command = [sys.executable, "-m", "dasp", "rs", "encode", "--force", "--quiet", "--out", str(folder)]
    command += ["--", os.fspath(sources[1])]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(rng.uniform(0.5, 2.5))
    process.kill()
    assert process.wait() in (0, -signal.SIGKILL)
    assert decode_files([folder], room / "out").read_bytes() in texts
    counts["commands killed"] += 1


def full_disk(rng: random.Random, room: Path, counts: collections.Counter[str]) -> None:
    """Let every file end at a random size: what was stays, and nothing partial is left."""
    content, folder, shards = draw_set(rng, room)
    (room / "0").mkdir()
    other = room / "0" / os.path.basename(shards[0])[:-7]
    other.write_bytes(rng.randbytes(rng.randint(0, 50_000)))
    for victim in shards[: rng.randint(0, 2)]:
        flip(rng, folder, [victim])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    limit = rng.choice((0, 1, 130, rng.randint(0, 1 + shards[-1].stat().st_size)))

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        encoded = _attempt(lambda: encode_file(other, folder, data=2, parity=1, force=True))
        _attempt(lambda: encode_file(other, room / "new", data=2, parity=1))
        _attempt(lambda: decode_files([folder], room / "out", warn=lambda _: None))
        _nothing_hidden(folder, room, room / "new")
        if encoded is not None:
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
            assert os.listdir(room / "new") == []
            assert not (room / "out").exists() or (room / "out").read_bytes() == content

    with _child(work):
        counts["full disks"] += 1


CASES = ((damaged, 90), (full_disk, 5), (killed_encoder, 3), (killed_repairer, 3), (killed_command, 0.3))


def attack(
    seed: int, seconds: float, only: int | None = None, kinds: Sequence[str] = ()
) -> tuple[collections.Counter[str], list[str]]:
    """Try cases until the time is over, or only one; returns what was tried, and what failed."""
    counts: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    cases = [row for row in CASES if not kinds or row[0].__name__ in kinds]
    end = time.monotonic() + seconds
    number = only or 0
    while time.monotonic() < end or only is not None:
        rng = random.Random(f"{seed}-{number}")
        (case,) = rng.choices([c for c, _ in cases], [weight for _, weight in cases])
        room = Path(tempfile.mkdtemp(prefix="dasp-attack-"))
        try:
            case(rng, room, counts)
            shutil.rmtree(room)
        except Exception as error:
            traceback.print_exc()
            where = "".join(str(error).split("\n")[:1])
            failures.append(f"seed {seed}, case {number} ({case.__name__}): {where}; kept in {room}")
        counts["cases"] += 1
        number += 1
        if only is not None:
            break
    return counts, failures


if __name__ == "__main__":
    sys.exit(attack_by_command("shards", __doc__, attack))
