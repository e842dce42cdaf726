"""Shards on a hostile disk: odd names, files that cannot be read, kills at every step, full disks."""

import contextlib
import errno
import hashlib
import itertools
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp.cli.main import main
from dasp.dense.gf256 import shard_files, shard_set, staging
from dasp.dense.gf256.shard_files import decode_files, encode_file, repair_files, verify_files
from dasp.dense.gf256.shard_format import Header, read_header
from dasp.dense.gf256.shard_set import ShardWarning
from dasp.runtime import memory as _memory
from tests.attack import shards as shards_attack

pytestmark = pytest.mark.skipif(os.name == "nt", reason="names, links and kills of POSIX systems")

CODE = {"data": 4, "parity": 2, "chunk_bytes": 256}
SIZE = 3_000


def random_bytes(seed, count):
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


@pytest.fixture
def original(tmp_path):
    path = tmp_path / "B"
    path.write_bytes(random_bytes(1, SIZE))
    return path


@pytest.fixture
def folder(original, tmp_path):
    encode_file(original, tmp_path / "d", **CODE)
    return tmp_path / "d"


def shard(folder, i):
    return folder / f"B.{i:03d}.rs"


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def restore(folder, files):
    """Make the folder hold these files and nothing else."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def silent(_):
    """Takes warnings where a test is about something else."""


# ---- names --------------------------------------------------------------------------------------------

NAMES = [
    b"notes\\2024.txt",
    b"two\nlines",
    b"-x",
    b"--force",
    b" ",
    b"...",
    b".hidden",
    b"*?[x]{1}",
    b"\xff\xfe",
    b"latin-\xe9",
    "e\u0301".encode(),
    b"remove",
    b"x.000.rs",
    b"\x01\x7f\x1b[31m",
    b"n" * 248,
]


@pytest.mark.parametrize("raw", NAMES, ids=repr)
def test_a_name_comes_back_byte_for_byte(raw, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(raw)
    Path(name).write_bytes(b"precious")
    assert main(["rs", "encode", "--quiet", "--data", "2", "--parity", "1", "--", name]) == 0
    os.unlink(name)
    folder = name + ".shards"
    os.unlink(os.path.join(folder, name + ".001.rs"))
    assert main(["rs", "verify", "--quiet", "--", folder]) == 1
    assert main(["rs", "repair", "--quiet", "--", folder]) == 0
    assert main(["rs", "verify", "--quiet", "--", folder]) == 0
    assert main(["rs", "decode", "--quiet", "--", folder]) == 0
    assert sorted(os.listdir(os.fsencode(tmp_path))) == sorted([raw, raw + b".shards"])
    assert Path(name).read_bytes() == b"precious"
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 6  # every name on the line that speaks of it


@settings(max_examples=150)
@given(
    raw=st.binary(min_size=1, max_size=255).filter(
        lambda b: b"/" not in b and b"\0" not in b and b not in (b".", b"..")
    )
)
def test_any_name_comes_back_or_is_refused_before_anything_is_written(raw, tmp_path_factory):
    place, shards = tmp_path_factory.mktemp("names"), tmp_path_factory.mktemp("shards") / "d"
    path = place / os.fsdecode(raw)
    path.write_bytes(b"precious")
    if len(raw) > 248:
        with pytest.raises(ValueError, match=r"bytes; .* takes 255; rename the file"):
            encode_file(path, shards)
        assert os.listdir(os.fsencode(place)) == [raw]
        assert not shards.exists()
        return
    encode_file(path, shards, data=1, parity=1)
    path.unlink()
    decode_files([shards], path)
    assert os.listdir(os.fsencode(place)) == [raw]
    assert path.read_bytes() == b"precious"
    with open(shards / f"{path.name}.001.rs", "rb") as file:
        assert os.fsencode(read_header(file).name) == raw


def test_names_are_printed_whatever_the_terminal_knows(tmp_path):
    (tmp_path / "\u00e9\udcff").write_bytes(b"x")
    for words in (["encode", "\u00e9\udcff"], ["decode", "\u00e9\udcff.shards", "--out", "\u03c0"]):
        command = [sys.executable, "-m", "dasp", "rs", *words, "--quiet"]
        told = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1", "PYTHONPATH": os.getcwd()}
        done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "\u03c0").read_bytes() == b"x"


@pytest.mark.parametrize("action", ["encode", "verify", "repair", "decode"])
def test_an_error_is_one_line_whatever_the_name(action, tmp_path, capsys):
    assert main(["rs", action, str(tmp_path / "no\nsuch\udcff")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no\\nsuch\\udcff" in error


def test_a_shard_of_the_first_release_is_read(tmp_path):
    """Written here from the description of the format, with a name that was once refused."""
    content, name = b"abcde", b"a\\b"
    chunks = [b"abc", b"de\0", bytes(x ^ y for x, y in zip(b"abc", b"de\0", strict=True))]
    for i, chunk in enumerate(chunks):
        digest = hashlib.sha256(content).digest()
        header = struct.pack("<8sHHHHIQ32sH66x", b"DASP-RS\n", 1, 2, 1, i, 100, 5, digest, len(name)) + name
        header += struct.pack("<I", zlib.crc32(header))
        place = tmp_path / f"a\\b.{i:03d}.rs"
        place.write_bytes(header + chunk + struct.pack("<I", zlib.crc32(chunk)))
    assert verify_files([tmp_path]).healthy
    (tmp_path / "a\\b.000.rs").unlink()
    assert decode_files([tmp_path], tmp_path / "out").read_bytes() == content


def test_a_name_of_another_system_needs_a_place(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = Header(1, 0, 0, 4, 0, hashlib.sha256(b"").digest(), "x")
    (tmp_path / "one.rs").write_bytes(header.pack())
    monkeypatch.setattr(shard_files, "Path", lambda name: Path(name).parent / f"c:{name}")
    with pytest.raises(ValueError, match="the file's name is x, which is none here; say where it goes"):
        shard_files._own_name(header)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/null", p)])
def test_what_is_no_regular_file_is_not_encoded(make, tmp_path):
    make(tmp_path / "odd")
    with pytest.raises(ValueError, match="odd is no regular file; copy what it yields into one"):
        encode_file(tmp_path / "odd")
    assert os.listdir(tmp_path) == ["odd"]


# ---- shards that cannot be read -----------------------------------------------------------------------


def _dangling(path):
    os.symlink("nowhere", path)


def _endless(path):
    os.symlink(path.name, path)


def _broken_disk(path):
    os.symlink("/proc/self/mem", path)  # opens, and reading gives EIO


def _device(path):
    os.symlink("/dev/zero", path)


def _socket(path):
    import socket

    here = os.open(path.parent, os.O_RDONLY)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as end:
        end.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _full_folder(path):
    path.mkdir()
    (path / "inside").write_bytes(b"mine")


OBSTACLES = [_dangling, _endless, _broken_disk, _device, _socket, _full_folder, os.mkdir, os.mkfifo]
NAME_OF_OBSTACLE = [make.__name__.strip("_") for make in OBSTACLES]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that cannot be read is Linux's")
@pytest.mark.parametrize("make", OBSTACLES, ids=NAME_OF_OBSTACLE)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_shard_that_cannot_be_read_is_a_lost_shard(make, by_name, folder, original, tmp_path, capsys):
    whole = contents(folder)
    shard(folder, 3).unlink()
    make(shard(folder, 3))
    mine = os.lstat(shard(folder, 3)).st_ino
    words = [str(path) for path in sorted(folder.iterdir())] if by_name else [str(folder)]

    assert main(["rs", "verify", *words, "--quiet"]) == 1
    said = capsys.readouterr().out
    assert "B.003.rs: absent" in said
    assert f"{shard(folder, 3)}: " in said
    assert main(["rs", "decode", *words, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert f"dasp: warning: {shard(folder, 3)}: " in capsys.readouterr().err
    assert (tmp_path / "out").read_bytes() == original.read_bytes()
    assert main(["rs", "repair", *words, "--quiet"]) == 0
    assert "was in the way; kept as" in capsys.readouterr().err
    assert main(["rs", "verify", str(folder), "--quiet"]) == 0
    found = {name: inode for name, inode in ((p.name, os.lstat(p).st_ino) for p in folder.iterdir())}
    (aside,) = set(found) - set(whole)
    assert found[aside] == mine
    assert {name: (folder / name).read_bytes() for name in whole} == whole


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EPERM])
def test_a_shard_that_cannot_be_opened_is_kept(code, folder, original, tmp_path, monkeypatch):
    """It may be sound, so repair does not replace it."""
    whole = contents(folder)
    right = shard_set._open_at_once

    def refuse(path, flags):
        if Path(path).name == "B.003.rs":
            raise OSError(code, os.strerror(code), path)
        return right(path, flags)

    monkeypatch.setattr(shard_set, "_open_at_once", refuse)
    survey = verify_files([folder])
    assert survey.faults == {3: "absent"}
    assert survey.rejected == {shard(folder, 3): f"cannot be read ({os.strerror(code)})"}
    with pytest.warns(ShardWarning, match=r"B\.003\.rs: cannot be read"):
        decode_files([folder], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == original.read_bytes()
    with pytest.warns(ShardWarning, match=r"B\.003\.rs"):
        assert repair_files([folder]) == [shard(folder, 3)]
    monkeypatch.undo()
    assert verify_files([folder]).healthy
    (aside,) = set(contents(folder)) - set(whole)
    assert contents(folder) == {**whole, aside: whole["B.003.rs"]}


def test_permissions_of_the_system(original):
    """The real thing: another user's shard, in a folder that is not ours."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shards = encode_file(original, place, **CODE)
        shards[3].chmod(0)
        mine = tempfile.mkdtemp(dir=place)
        os.chmod(mine, 0o777)

        def as_nobody():
            os.setuid(65534)
            assert verify_files([place]).faults == {3: "absent"}
            told = []
            out = decode_files([place], Path(mine, "out"), warn=told.append)
            assert out.read_bytes() == content
            assert told == [f"{shards[3]}: cannot be read (Permission denied)"]
            with pytest.raises(PermissionError, match="Permission denied"):
                repair_files([place], warn=silent)

        content = original.read_bytes()
        assert in_child(as_nobody) == 0


@pytest.mark.parametrize("files", [4, 8, 12, 16])
def test_a_process_that_may_open_few_files(files, folder, original, tmp_path):
    """The real thing: whatever does not work changes nothing and leaves nothing."""
    shard(folder, 2).unlink()
    before = contents(folder)

    def work():
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + files - 4, used + files - 4))
        for call in (
            lambda: repair_files([folder]),
            lambda: encode_file(original, tmp_path / "e", **CODE),
            lambda: decode_files([folder], tmp_path / "out"),
        ):
            with contextlib.suppress(OSError):
                call()

    assert in_child(work) == 0
    after = contents(folder)
    assert after == before or len(after) == 6
    assert not (tmp_path / "out").exists() or (tmp_path / "out").read_bytes() == original.read_bytes()
    assert not (tmp_path / "e").exists() or len(os.listdir(tmp_path / "e")) in (0, 6)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_a_process_short_of_files_loses_no_shard(code, folder, monkeypatch):
    def refuse(path, flags):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(shard_set, "_open_at_once", refuse)
    for call in (verify_files, repair_files, decode_files):
        with pytest.raises(OSError, match=os.strerror(code)):
            call([folder])


def test_an_error_in_the_middle_of_shards(folder, original, tmp_path, monkeypatch, capsys):
    """Every shard of six has a sector that cannot be read, each in a stripe of its own."""
    whole = contents(folder)
    right = shard_set.read_chunk

    def broken(file, size, header, stripe):
        if header.index // 2 == stripe and ".aside" not in file.name:
            raise OSError(errno.EIO, "Input/output error")
        return right(file, size, header, stripe)

    monkeypatch.setattr(shard_set, "read_chunk", broken)
    assert main(["rs", "verify", str(folder), "--quiet"]) == 1
    assert "B.005.rs: chunk 2 of 3 cannot be read (Input/output error)" in capsys.readouterr().out
    assert main(["rs", "decode", str(folder), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "B.001.rs: a part of it cannot be read (Input/output error)" in capsys.readouterr().err
    assert (tmp_path / "out").read_bytes() == original.read_bytes()
    assert len(repair_files([folder], warn=silent)) == 6
    monkeypatch.undo()
    assert contents(folder) == whole


def test_places_that_are_gone_are_named_and_the_others_used(folder, original, tmp_path):
    words = [shard(folder, i) for i in range(6)] + [tmp_path / "gone"]
    shard(folder, 0).unlink()
    with pytest.warns(ShardWarning, match=r"does not exist"):
        decode_files(words, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == original.read_bytes()
    with pytest.raises(FileNotFoundError, match="gone does not exist; name shard files"):
        decode_files([tmp_path / "gone"])


def test_errors_name_the_file(original, folder, tmp_path, monkeypatch):
    shard(folder, 1).unlink()

    def full(file, chunk):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shard_files, "write_chunk", full)
    with pytest.raises(OSError, match=r"No space left on device: .*B\.000\.rs"):
        encode_file(original, tmp_path / "e", **CODE)
    with pytest.raises(OSError, match=r"No space left on device: .*B\.001\.rs"):
        repair_files([folder])
    with pytest.raises(OSError, match=r"No such file or directory: .*nowhere/out"):
        decode_files([folder], tmp_path / "nowhere" / "out")


# ---- repair writes over no sound shard ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_shards_under_each_others_names(seed, folder, original, tmp_path):
    """Names permuted, some shards lost, some damaged: repair puts everything where it belongs."""
    rng = random.Random(seed)
    whole = contents(folder)
    order = list(range(6))
    rng.shuffle(order)
    for name in whole:
        (folder / name).unlink()
    for i, j in enumerate(order):
        shard(folder, j).write_bytes(whole[f"B.{i:03d}.rs"])
    for victim in rng.sample(range(6), rng.randint(0, 2)):
        if rng.random() < 0.5:
            shard(folder, victim).unlink()
        else:
            flip(shard(folder, victim), rng.randrange(len(whole["B.000.rs"])))
    moved = contents(folder) != whole
    survey = verify_files([folder])
    assert survey.healthy is not moved
    assert decode_files([folder], tmp_path / "o", warn=silent).read_bytes() == original.read_bytes()
    assert bool(repair_files([folder], warn=silent)) is moved
    assert contents(folder) == whole
    assert verify_files([folder]).healthy


def test_a_shard_under_the_name_of_a_lost_one(folder, capsys):
    whole = contents(folder)
    shard(folder, 3).unlink()
    shard(folder, 1).rename(shard(folder, 3))
    assert main(["rs", "verify", str(folder), "--quiet"]) == 1
    assert "B.003.rs: holds shard 1; repair renames it" in capsys.readouterr().out
    assert main(["rs", "repair", str(folder), "--quiet"]) == 0
    assert main(["rs", "verify", str(folder), "--quiet"]) == 0
    assert contents(folder) == whole


def test_a_name_of_the_users_own_is_kept(folder):
    shard(folder, 1).rename(folder / "mine.rs")
    assert verify_files([folder]).healthy
    shard(folder, 2).unlink()
    assert repair_files([folder]) == [shard(folder, 2)]
    assert (folder / "mine.rs").exists()
    assert not shard(folder, 1).exists()
    assert verify_files([folder]).healthy


def other_file(tmp_path, **change):
    other = tmp_path / "other" / "B"
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(random_bytes(9, SIZE))
    return encode_file(other, **{**CODE, **change}, force=True)


def copy_of_another_shard(folder, tmp_path):
    return shard(folder, 1).read_bytes()


def shard_of_another_file(folder, tmp_path):
    return other_file(tmp_path)[3].read_bytes()


def shard_of_a_later_version(folder, tmp_path):
    data = bytearray(shard(folder, 3).read_bytes())
    data[8] = 2
    return bytes(data)


@pytest.mark.parametrize("make", [copy_of_another_shard, shard_of_another_file, shard_of_a_later_version])
def test_a_sound_shard_in_the_way_is_kept(make, folder, original, tmp_path):
    whole = contents(folder)
    strange = make(folder, tmp_path)
    shard(folder, 3).write_bytes(strange)
    assert verify_files([folder]).faults == {3: "absent"}
    assert decode_files([folder], tmp_path / "o", warn=silent).read_bytes() == original.read_bytes()
    with pytest.warns(ShardWarning, match=r"B\.003\.rs: was in the way; kept as .*\.aside"):
        repair_files([folder])
    (aside,) = set(contents(folder)) - set(whole)
    assert contents(folder) == {**whole, aside: strange}
    assert verify_files([folder]).healthy


def test_long_names_are_kept_apart(tmp_path):
    """What is set aside of shards whose names leave no room for more."""
    path = tmp_path / ("n" * 248)
    path.write_bytes(random_bytes(1, SIZE))
    shards = encode_file(path, tmp_path / "d", **CODE)
    other = tmp_path / "other" / path.name
    other.parent.mkdir()
    other.write_bytes(random_bytes(2, SIZE))
    strange = [place.read_bytes() for place in encode_file(other, tmp_path / "e", **CODE)]
    shards[1].write_bytes(strange[1])
    shards[4].write_bytes(strange[4])
    repair_files([tmp_path / "d"], warn=silent)
    assert verify_files([tmp_path / "d"]).healthy
    kept = [place.read_bytes() for place in (tmp_path / "d").iterdir() if place.suffix == ".aside"]
    assert sorted(kept) == sorted([strange[1], strange[4]])


def test_links_among_the_shards(folder, original, tmp_path):
    """A link to another shard's file is not taken for a shard of its own, whatever it is called."""
    whole = contents(folder)
    shard(folder, 0).unlink()
    shard(folder, 1).rename(shard(folder, 0))
    shard(folder, 1).symlink_to("B.000.rs")
    shard(folder, 2).unlink()
    shard(folder, 2).symlink_to("B.001.rs")
    assert decode_files([folder], tmp_path / "o", warn=silent).read_bytes() == original.read_bytes()
    repair_files([folder], warn=silent)
    assert verify_files([folder]).healthy
    for name, data in whole.items():
        assert (folder / name).read_bytes() == data
        assert not (folder / name).is_symlink()


def test_links_to_shards_elsewhere(folder, tmp_path):
    """Shards on several disks, linked into one folder."""
    far = tmp_path / "far"
    far.mkdir()
    for i in range(6):
        shard(folder, i).rename(far / f"{i}")
        shard(folder, i).symlink_to(far / f"{i}")
    before = contents(far)
    shard(folder, 4).unlink()
    assert repair_files([folder]) == [shard(folder, 4)]
    assert verify_files([folder]).healthy
    assert contents(far) == before
    assert [shard(folder, i).is_symlink() for i in range(6)] == [True] * 4 + [False, True]


def test_copies_help_each_other(folder, original, tmp_path):
    """Two copies of each shard, damaged in different chunks; no shard of either is whole."""
    more = tmp_path / "more"
    more.mkdir()
    for path in folder.iterdir():
        (more / path.name).write_bytes(path.read_bytes())
    start = len(Header(4, 2, 0, 256, SIZE, bytes(32), "B").pack())
    for i in range(6):
        flip(shard(folder, i), start + 3)
        flip(shard(more, i), start + 260 + 3)
    decode_files([folder, more], tmp_path / "o", warn=silent)
    assert (tmp_path / "o").read_bytes() == original.read_bytes()
    with pytest.raises(ValueError, match=r"stripe 0 of 3 has lost"):
        decode_files([folder], tmp_path / "p")


def test_shards_of_several_files(folder, original, tmp_path):
    strange = other_file(tmp_path)
    six = [shard(folder, i) for i in range(6)]
    survey = verify_files([*six, *strange[:3]])
    assert survey.healthy
    assert survey.rejected[strange[2]] == "is shard 2 of another file, B"
    decode_files([*six[:4], *strange[:3]], tmp_path / "o", warn=silent)
    assert (tmp_path / "o").read_bytes() == original.read_bytes()
    for call in (verify_files, repair_files, decode_files):
        with pytest.raises(ValueError, match="are not of one file, and several of them have enough"):
            call([*six, *strange])
        with pytest.raises(ValueError, match="are not of one file, and none of them has enough"):
            call([*six[:3], *strange[3:]])


def test_repair_of_shards_in_several_folders(folder, tmp_path):
    whole = contents(folder)
    far = tmp_path / "far"
    far.mkdir()
    for i, j in ((3, 4), (4, 3), (5, 5)):
        shard(folder, i).rename(shard(far, j))
    flip(shard(far, 5), 400)
    shard(folder, 1).unlink()
    written = repair_files([folder, far])
    assert set(written) == {shard(folder, 1), shard(far, 3), shard(far, 4), shard(far, 5)}
    assert {**contents(folder), **contents(far)} == whole


# ---- killed at every step -----------------------------------------------------------------------------


def in_child(work):
    """Run in a fork; its exit status, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


STEPS = ("mkdir", "open", "rename", "replace", "link", "unlink", "rmdir", "fsync", "close")


def killed_at(step, work):
    """Run in a fork that is killed just before the step; whether it got that far."""

    def run():
        counter = itertools.count()
        for name in STEPS:
            right = getattr(os, name)

            def wrapped(*arguments, _right=right, **named):
                if next(counter) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return _right(*arguments, **named)

            setattr(os, name, wrapped)
        work()

    status = in_child(run)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".dasp-")]


@pytest.mark.parametrize("new_code", [(4, 2), (3, 1), (5, 4)], ids=str)
def test_encode_killed_at_every_step_leaves_the_old_or_the_new(new_code, folder, original, tmp_path):
    old, new = original.read_bytes(), random_bytes(5, SIZE + 77)
    kept = contents(folder)
    original.write_bytes(new)
    again = {"data": new_code[0], "parity": new_code[1], "chunk_bytes": 256, "force": True}
    encode_file(original, tmp_path / "want", **{**again, "force": False})
    want = contents(tmp_path / "want")
    outcomes = []
    for step in itertools.count():
        restore(folder, kept)
        if not killed_at(step, lambda: encode_file(original, folder, **again)):
            break
        named = sorted(folder.glob("*.rs"))
        if step % 2:  # as a shell writes them out
            got = decode_files(named, tmp_path / "o", force=True, warn=silent).read_bytes()
            assert got in (old, new)
        got = decode_files([folder], tmp_path / "o", force=True).read_bytes()
        assert got in (old, new)
        outcomes.append(got == new)
        assert contents_of_files(folder) == (want if got == new else kept)
        assert verify_files([folder]).healthy
        encode_file(original, folder, **again)
        assert contents(folder) == want  # and nothing hidden
    assert contents(folder) == want
    assert outcomes == sorted(outcomes)  # old up to the commit, new from there on
    assert {False, True} == set(outcomes)


def contents_of_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".rs"}


def test_recovery_killed_at_every_step_too(folder, original, tmp_path):
    new = random_bytes(5, SIZE)
    kept = contents(folder)
    original.write_bytes(new)

    def encode():
        encode_file(original, folder, data=3, parity=1, chunk_bytes=256, force=True)

    def decode():
        decode_files([folder], tmp_path / "o", force=True)

    tried = 0
    for step in itertools.count():
        restore(folder, kept)
        if not killed_at(step, encode):
            break
        if not any(name.endswith(".commit") for name in hidden(folder)):
            continue
        for second in itertools.count(step % 3, 3):
            more = killed_at(second, decode)
            tried += 1
            assert decode_files(sorted(folder.glob("*.rs")), tmp_path / "p", force=True).read_bytes() == new
            if not more:
                break
        assert verify_files([folder]).healthy
        assert len(contents(folder)) == 4
    assert tried > 30


def test_a_commit_where_nothing_may_be_written_is_read_through(folder, original, tmp_path, monkeypatch):
    new = random_bytes(5, SIZE)
    original.write_bytes(new)

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="Read-only file system"):
        encode_file(original, folder, data=3, parity=1, chunk_bytes=256, force=True)
    before = contents_of_files(folder)
    for places in ([folder], sorted(folder.glob("*.rs"))):
        told = []
        assert verify_files(places, warn=told.append).healthy
        assert len(told) == 1
        assert "an interrupted command cannot be finished (Read-only file system)" in told[0]
    assert contents_of_files(folder) == before
    monkeypatch.undo()
    assert decode_files([folder], tmp_path / "o").read_bytes() == new
    assert len(contents(folder)) == 4


def test_repair_killed_at_every_step_loses_nothing(folder, original, tmp_path):
    whole = contents(folder)
    for step in itertools.count():
        restore(folder, whole)
        shard(folder, 3).unlink()
        shard(folder, 1).rename(shard(folder, 3))
        shard(folder, 4).rename(tmp_path / "t")
        shard(folder, 5).rename(shard(folder, 4))
        (tmp_path / "t").rename(shard(folder, 5))
        flip(shard(folder, 0), 300)
        if not killed_at(step, lambda: repair_files([folder], warn=silent)):
            break
        survey = verify_files([folder])
        assert len(survey.faults) <= 2
        repair_files([folder], warn=silent)
        assert contents(folder) == whole
    assert contents(folder) == whole
    assert step > 20


def test_decode_killed_at_every_step_leaves_the_old_file_or_the_new(folder, original, tmp_path):
    place = tmp_path / "room" / "out"
    place.parent.mkdir()
    for step in itertools.count():
        place.write_bytes(b"old")
        if not killed_at(step, lambda: decode_files([folder], place, force=True)):
            break
        assert place.read_bytes() in (b"old", original.read_bytes())
        assert set(contents(place.parent)) - {"out"} == set(hidden(place.parent))
    assert contents(place.parent) == {"out": original.read_bytes()}  # what the killed left is removed


def test_kills_at_random_times(folder, original, tmp_path):
    """A child that encodes two contents in turn, killed whenever it may be."""
    texts = [original.read_bytes(), random_bytes(5, 200_000)]
    sources = []
    for i, text in enumerate(texts):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "B").write_bytes(text)
        sources.append(tmp_path / str(i) / "B")

    def endless():
        for i in itertools.count():
            encode_file(sources[i % 2], folder, data=3 + i % 2, parity=2, chunk_bytes=4096, force=True)

    rng = random.Random(7)
    for _ in range(40):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                endless()
            os._exit(1)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert decode_files([folder], tmp_path / "o", force=True).read_bytes() in texts
        assert verify_files([folder]).healthy
    encode_file(sources[0], folder, **CODE, force=True)
    assert len(contents(folder)) == 6


def test_encoders_at_the_same_time_leave_one_whole_set(folder, original, tmp_path):
    children = []
    for i in range(6):
        source = tmp_path / str(i) / "B"
        source.parent.mkdir()
        source.write_bytes(random_bytes(i, SIZE))
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                for _ in range(5):
                    encode_file(source, folder, data=2 + i % 3, parity=2, chunk_bytes=256, force=True)
                status = 0
            os._exit(status)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert verify_files([folder]).healthy
    got = decode_files([folder], tmp_path / "o").read_bytes()
    assert got in [random_bytes(i, SIZE) for i in range(6)]
    assert hidden(folder) == []


def test_what_came_meanwhile_is_not_replaced(original, tmp_path, folder):
    def arrive(_):
        (tmp_path / "e" / "B.004.rs").write_bytes(b"mine")

    with pytest.raises(ValueError, match=r"B\.004\.rs exists; allow it to be replaced"):
        encode_file(original, tmp_path / "e", **CODE, progress=arrive)
    assert contents(tmp_path / "e") == {"B.004.rs": b"mine"}

    def come(_):
        (tmp_path / "out").write_bytes(b"mine")

    with pytest.raises(ValueError, match="out exists; allow it to be replaced"):
        decode_files([folder], tmp_path / "out", progress=come)
    assert (tmp_path / "out").read_bytes() == b"mine"
    assert hidden(tmp_path) == []


def test_a_smaller_code_lets_the_larger_ones_shards_go(folder, original):
    foreign = shard(folder, 9)
    foreign.write_bytes(b"mod shards;")  # Rust
    with pytest.raises(ValueError, match=r"B\.00\d\.rs exists; allow"):
        encode_file(original, folder, data=2, parity=1)
    encode_file(original, folder, data=2, parity=1, force=True)
    assert sorted(contents(folder)) == ["B.000.rs", "B.001.rs", "B.002.rs", "B.009.rs"]
    assert foreign.read_bytes() == b"mod shards;"
    foreign.unlink()
    assert verify_files([folder]).healthy


# ---- full disks ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 128 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(place)]
    try:
        done = subprocess.run(words, capture_output=True).returncode == 0
    except OSError:
        done = False
    if not done:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_runs_full(small_disk, tmp_path):
    path = tmp_path / "B"
    path.write_bytes(random_bytes(1, 60_000))
    encode_file(path, small_disk / "d", data=4, parity=2)  # 90 kB of 128
    whole = contents(small_disk / "d")
    for call in (
        lambda: encode_file(path, small_disk / "d", data=4, parity=2, force=True),
        lambda: encode_file(path, small_disk / "e", data=4, parity=2),
        lambda: decode_files([small_disk / "d"], small_disk / "out"),
    ):
        with pytest.raises(OSError, match=r"No space left on device: .*(rs|out)"):
            call()
        assert contents(small_disk / "d") == whole
        assert set(os.listdir(small_disk)) <= {"d", "e"}
        assert not (small_disk / "e").exists() or os.listdir(small_disk / "e") == []
    flip(shard(small_disk / "d", 0), 999)
    flip(shard(small_disk / "d", 5), 999)
    (small_disk / "filler").write_bytes(bytes(16_000))
    harmed = contents(small_disk / "d")
    with pytest.raises(OSError, match="No space left on device"):
        repair_files([small_disk / "d"])
    assert contents(small_disk / "d") == harmed
    (small_disk / "filler").unlink()
    repair_files([small_disk / "d"])
    assert contents(small_disk / "d") == whole


@pytest.mark.parametrize("limit", [0, 1, 100, 200, 500, 700])
def test_a_limit_on_the_size_of_files(limit, folder, original, tmp_path):
    """What is buffered meets the limit when it is flushed, or only when the file is closed."""
    shard(folder, 2).unlink()
    before = contents(folder)

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for call in (
            lambda: repair_files([folder]),
            lambda: encode_file(original, folder, **CODE, force=True),
            lambda: encode_file(original, tmp_path / "e", **CODE),
            lambda: decode_files([folder], tmp_path / "out"),
        ):
            with pytest.raises(OSError, match=r"File too large: ") as caught:
                call()
            assert caught.value.errno == errno.EFBIG

    assert in_child(work) == 0
    assert contents(folder) == before
    assert os.listdir(tmp_path / "e") == []
    assert sorted(os.listdir(tmp_path)) == ["B", "d", "e"]


FAILING = ("mkdir", "open", "fsync", "rename", "replace", "link")


def failing_at(step, kind, monkeypatch):
    """Let one step fail; returns what counts the steps."""
    counter = itertools.count()
    for name in FAILING:
        right = getattr(os, name)

        def wrapped(*arguments, _right=right, **named):
            if next(counter) == step:
                raise OSError(errno.ENOSPC, "No space left") if kind is OSError else kind
            return _right(*arguments, **named)

        monkeypatch.setattr(os, name, wrapped)
    return counter


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt, MemoryError])
def test_a_failure_at_any_step_leaves_nothing_hidden(kind, folder, original, tmp_path, monkeypatch):
    """Up to the commit everything is as it was; after it the next command finishes."""
    before = contents(folder)
    new = random_bytes(5, SIZE)
    original.write_bytes(new)
    committed = 0
    for step in itertools.count():
        restore(folder, before)
        counter = failing_at(step, kind, monkeypatch)
        failed = None
        try:
            encode_file(original, folder, **CODE, force=True)
        except kind as error:
            failed = error
        reached = next(counter) > step
        monkeypatch.undo()
        if not reached:
            break
        assert failed is None or kind is not OSError or failed.filename
        if failed and contents_of_files(folder) == before and not hidden(folder):
            continue
        committed += 1
        assert decode_files([folder], tmp_path / "o", force=True).read_bytes() == new
        assert hidden(folder) == []
        assert verify_files([folder]).healthy
    assert step > 20
    assert 0 < committed < step / 2


# ---- forged headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("file_bytes", [2**63, 2**63 - 1, 2**61, 2**50, 2**40])
@pytest.mark.parametrize("who", [range(1), range(6)], ids=["one", "all"])
def test_a_header_that_says_too_much_costs_no_time(file_bytes, who, folder, original, tmp_path):
    for i in who:
        with open(shard(folder, i), "rb") as file:
            header = read_header(file)
            body = file.read()
        forged = Header(4, 2, i, 1, file_bytes, header.digest, "B").pack()
        shard(folder, i).write_bytes(forged + body)
    began = time.process_time()
    if len(who) == 1:
        assert set(verify_files([folder]).faults) == {0}
        assert decode_files([folder], tmp_path / "o", warn=silent).read_bytes() == original.read_bytes()
    else:
        with contextlib.suppress(ValueError):
            survey = verify_files([folder])
            assert not survey.repairable
            assert len(survey.faults) == 6
        for call in (repair_files, lambda places: decode_files(places, tmp_path / "o")):
            with pytest.raises(ValueError, match=r"lost|no sound shard"):
                call([folder])
        assert not (tmp_path / "o").exists()
    assert time.process_time() - began < 5


def test_chunks_that_are_not_there_take_no_memory(tmp_path):
    """Headers of 64 MiB a chunk on files of 140 bytes."""
    for i in range(256):
        header = Header(200, 56, i, 64 << 20, 200 * (64 << 20), bytes(32), "B")
        (tmp_path / f"B.{i:03d}.rs").write_bytes(header.pack() + b"x")
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        assert not verify_files([tmp_path]).repairable
    with pytest.raises(ValueError, match=r"lost shards|would take about"):
        decode_files([tmp_path], tmp_path / "o")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_stripe_beyond_memory_is_refused(folder, original, tmp_path, monkeypatch):
    monkeypatch.setattr(_memory, "machine_bytes", lambda: 1 << 13)
    for call in (verify_files, repair_files, decode_files):
        with pytest.raises(ValueError, match=r"a stripe of B would take about .* to build"):
            call([folder])
    with pytest.raises(ValueError, match="a stripe with chunk_bytes=256 would take about"):
        encode_file(original, tmp_path / "e", **CODE)
    assert not (tmp_path / "e").exists()


def test_a_planted_commit_reaches_only_shards_of_its_folder(folder, tmp_path):
    """Archives may hold anything: links, folders, names that are not shards'."""
    planted = folder / ".dasp-0123abcd.commit"
    planted.mkdir()
    (folder / "Makefile").write_bytes(b"mine")
    (planted / "Makefile").write_bytes(b"theirs")
    (planted / "B.001.rs").symlink_to("/etc/passwd")
    (planted / "B.002.rs").mkdir()
    (planted / "remove").symlink_to(tmp_path)
    os.mkfifo(folder / ".dasp-00000000.partial")
    deep = folder / ".dasp-00000002.new"
    for _ in range(700):
        deep = deep / "a"
    deep.mkdir(parents=True)
    (folder / ".dasp-00000001.new").symlink_to(tmp_path)
    assert verify_files([folder]).healthy
    encode_file(tmp_path / "B", folder, **CODE, force=True)
    assert (folder / "Makefile").read_bytes() == b"mine"
    assert (tmp_path / "B").exists()
    assert verify_files([folder]).healthy


# ---- where a decoded file may go ----------------------------------------------------------------------


def test_a_decoded_file_is_never_one_of_the_shards(folder, tmp_path):
    before = contents(folder)
    link = tmp_path / "link"
    link.symlink_to(shard(folder, 2))
    for place in (shard(folder, 0), link):
        with pytest.raises(ValueError, match="is one of the shards; choose another place"):
            decode_files([folder], place, force=True)
    with pytest.raises(ValueError, match="is one of the shards"):  # though it was not named
        decode_files([shard(folder, i) for i in range(4)], shard(folder, 5), force=True)
    assert contents(folder) == before
    assert link.is_symlink()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda p: os.symlink("/dev/null", p)])
def test_a_decoded_file_replaces_only_files(make, folder, tmp_path):
    make(tmp_path / "out")
    before = os.lstat(tmp_path / "out")
    for force, message in ((False, "exists; allow it"), (True, "exists and is no file")):
        with pytest.raises(ValueError, match=message):
            decode_files([folder], tmp_path / "out", force=force)
    assert os.lstat(tmp_path / "out").st_mode == before.st_mode
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_decoded_file_goes_where_a_link_points(exists, folder, original, tmp_path):
    (tmp_path / "far").mkdir()
    if exists:
        (tmp_path / "far" / "file").write_bytes(b"old")
    (tmp_path / "out").symlink_to("far/file")
    with pytest.raises(ValueError, match="exists; allow it to be replaced"):
        decode_files([folder], tmp_path / "out")
    decode_files([folder], tmp_path / "out", force=True)
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "far" / "file").read_bytes() == original.read_bytes()
    assert os.listdir(tmp_path / "far") == ["file"]


def test_a_file_system_without_links(folder, original, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert decode_files([folder], tmp_path / "o").read_bytes() == original.read_bytes()
    assert hidden(tmp_path) == []


def test_where_nothing_can_be_locked(folder, original, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "fcntl", None)
    encode_file(original, folder, data=3, parity=1, force=True)
    shard(folder, 0).unlink()
    repair_files([folder])
    assert verify_files([folder]).healthy
    assert decode_files([folder], tmp_path / "o").read_bytes() == original.read_bytes()
    assert hidden(folder) == hidden(tmp_path) == []


def test_nobody_else_may_read_what_is_made_of_a_private_file(original, tmp_path):
    original.chmod(0o600)
    shards = encode_file(original, tmp_path / "e", **CODE)
    shards[0].unlink()
    repair_files([tmp_path / "e"])
    decode_files([tmp_path / "e"], tmp_path / "out")
    for path in (*shards, tmp_path / "out"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in shards[1:]:
        path.chmod(0o644)
    shards[5].chmod(0o640)
    shards[4].unlink()
    repair_files([tmp_path / "e"])
    assert stat.S_IMODE(shards[4].stat().st_mode) == 0o600  # what all shards allow
    (tmp_path / "new").write_bytes(b"old")
    (tmp_path / "new").chmod(0o600)
    for path in shards:
        path.chmod(0o644)
    decode_files([tmp_path / "e"], tmp_path / "new", force=True)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_the_digest_needs_no_thread(original, folder, tmp_path, monkeypatch):
    """As in a process that may start none, or at the end of the interpreter."""
    import threading

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(shard_files, "_WORTH_A_THREAD", 1)
    assert decode_files([folder], tmp_path / "o").read_bytes() == original.read_bytes()


def test_the_digest_beside_the_work_is_the_same(original, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_files, "_WORTH_A_THREAD", 1)
    (first, *_) = encode_file(original, tmp_path / "e", **CODE)
    with open(first, "rb") as file:
        assert read_header(file).digest == hashlib.sha256(original.read_bytes()).digest()


# ---- the attack ---------------------------------------------------------------------------------------


def test_the_attack_finds_a_defect(monkeypatch):
    """Repair as it once was: what lies in a shard's place is replaced, whatever it is."""
    monkeypatch.setattr(staging.Stage, "set_aside", lambda stage, name: Path(name))
    found = []
    for case in range(400):
        _, failures = shards_attack.attack(seed=0, seconds=0, only=case, kinds=("damaged",))
        found += failures
        if found:
            break
    assert "sound shards are gone" in found[0]
    shutil.rmtree(found[0].rsplit(" ", 1)[1])
