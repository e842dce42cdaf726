"""Reed-Solomon codes: every pattern of losses, shards of files, and that nothing is replaced too early."""

import itertools
import os
from pathlib import Path

import galois
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp.cli.main import main
from dasp.dense.gf256 import ReedSolomon, shard_files
from dasp.dense.gf256.shard_files import decode_files, encode_file, repair_files, verify_files
from dasp.dense.gf256.shard_format import Header, read_header

FIELD = galois.GF(2**8, irreducible_poly=0x11D)


def random_bytes(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def all_shards(code, n=100, seed=0):
    d = random_bytes(seed, code.data, n)
    return [*d, *code.encode(d)]


# ---- in memory ----------------------------------------------------------------------------------------


def test_parity_is_the_matrix_times_the_data():
    code = ReedSolomon(10, 4)
    d = random_bytes(1, 10, 333)
    np.testing.assert_array_equal(code.encode(d), np.asarray(FIELD(code.matrix) @ FIELD(d)))
    np.testing.assert_array_equal(code.encode(d)[0], np.bitwise_xor.reduce(d))
    assert repr(code) == "ReedSolomon(data=10, parity=4)"


@pytest.mark.parametrize(("data", "parity"), [(1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (3, 3), (5, 3), (4, 0)])
def test_every_pattern_of_losses(data, parity):
    code = ReedSolomon(data, parity)
    shards = all_shards(code, 37)
    for count in range(code.shards + 1):
        for lost in itertools.combinations(range(code.shards), count):
            given_shards = [None if i in lost else shard for i, shard in enumerate(shards)]
            if count > parity:
                with pytest.raises(ValueError, match=f"{count} of {code.shards} shards are lost"):
                    code.reconstruct(given_shards)
                continue
            found = code.reconstruct(given_shards)
            assert len(found) == code.shards
            for i, shard in enumerate(shards):
                np.testing.assert_array_equal(found[i], shard)
                assert i in lost or found[i] is shard


@settings(max_examples=60)
@given(counts=st.tuples(st.integers(1, 40), st.integers(0, 20)), n=st.integers(0, 5000), data=st.data())
def test_any_lost_shards_come_back(counts, n, data):
    code = ReedSolomon(*counts)
    shards = all_shards(code, n)
    everyone = st.sets(st.integers(0, code.shards - 1), max_size=code.parity)
    lost = data.draw(everyone)
    assert code.verify(shards)
    found = code.reconstruct([None if i in lost else shard for i, shard in enumerate(shards)])
    for got, shard in zip(found, shards, strict=True):
        np.testing.assert_array_equal(got, shard)


def test_the_largest_code():
    code = ReedSolomon(128, 128)
    shards = all_shards(code, 50)
    found = code.reconstruct([None] * 128 + shards[128:])
    np.testing.assert_array_equal(np.array(found), np.array(shards))


def test_shards_longer_than_what_is_gathered_at_once(monkeypatch):
    from dasp.dense.gf256 import reed_solomon

    monkeypatch.setitem(reed_solomon.STACK_BYTES, "cpu", 3 * 4096)
    code = ReedSolomon(3, 2)
    shards = all_shards(code, 10_001)
    found = code.reconstruct([None, shards[1], None, *shards[3:]])
    np.testing.assert_array_equal(np.array(found), np.array(shards))
    shards[4][10_000] ^= 1
    assert not code.verify(shards)


@pytest.mark.parametrize("shard", range(6))
@pytest.mark.parametrize("byte", [0, 99])
def test_one_wrong_bit_is_seen(shard, byte):
    code = ReedSolomon(4, 2)
    shards = [s.copy() for s in all_shards(code)]
    assert code.verify(shards)
    shards[shard][byte] ^= 0x10
    assert not code.verify(shards)
    with pytest.raises(ValueError, match=r"a shard is corrupted; pass None"):
        code.reconstruct(shards)
    lost = [None if i == (shard + 1) % 6 else s for i, s in enumerate(shards)]
    with pytest.raises(ValueError, match=r"a shard is corrupted; pass None"):
        code.reconstruct(lost)  # one spare shard is left, which disagrees


def test_verify_takes_a_matrix_too():
    code = ReedSolomon(3, 2)
    assert code.verify(np.array(all_shards(code)))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "data is 2.0; a number of shards", lambda: ReedSolomon(2.0, 1)),
        (TypeError, "parity is True; a number of shards", lambda: ReedSolomon(2, True)),
        (ValueError, "data is 0; at least 1", lambda: ReedSolomon(0, 1)),
        (ValueError, "parity is -1; at least 0", lambda: ReedSolomon(1, -1)),
        (ValueError, r"data \+ parity is 257; .* 256", lambda: ReedSolomon(200, 57)),
        (ValueError, r"takes 3 data shards", lambda: ReedSolomon(3, 2).encode(np.zeros((2, 9), np.uint8))),
        (TypeError, "b has dtype int16", lambda: ReedSolomon(3, 2).encode(np.zeros((3, 9), np.int16))),
        (
            ValueError,
            r"4 shards were given; this code has 3 \+ 2",
            lambda: ReedSolomon(3, 2).verify([None] * 4),
        ),
    ],
)
def test_wrong_codes_and_data(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "shard 1 has 99 bytes and shard 0 has 100", lambda s: s[:99]),
        (TypeError, "shard 1 has dtype int8", lambda s: s.view(np.int8)),
        (ValueError, r"shard 1 has shape \(100, 1\)", lambda s: s[:, None]),
        (TypeError, "shard 1 is a bytes; a numpy.ndarray or", lambda s: s.tobytes()),
    ],
)
def test_wrong_shards_are_refused(error, message, change):
    code = ReedSolomon(3, 2)
    shards = all_shards(code)
    shards[1] = change(shards[1])
    for call in (code.verify, code.reconstruct):
        with pytest.raises(error, match=message):
            call(shards)
    shards[1] = None
    with pytest.raises(ValueError, match=r"shards \[1\] are None; verify needs every shard"):
        code.verify(shards)


# ---- files --------------------------------------------------------------------------------------------


@pytest.fixture
def original(tmp_path):
    """A file of three stripes and a bit, for 3 + 2 shards of chunks of 1,000 bytes."""
    path = tmp_path / "original.bin"
    path.write_bytes(random_bytes(2, 9_123).tobytes())
    return path


@pytest.fixture
def shards(original):
    return encode_file(original, data=3, parity=2, chunk_bytes=1000)


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2_999, 3_000, 3_001, 6_000, 9_123])
def test_every_pair_of_lost_shards_of_a_file(size, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(random_bytes(size, size).tobytes())
    encode_file(path, tmp_path / "s", data=3, parity=2, chunk_bytes=1000)
    whole = contents(tmp_path / "s")
    assert len(whole) == 5
    for lost in itertools.combinations(sorted(whole), 2):
        for name in lost:
            (tmp_path / "s" / name).unlink()
        place = decode_files([tmp_path / "s"], tmp_path / "again", force=True)
        assert place.read_bytes() == path.read_bytes()
        assert sorted(p.name for p in repair_files([tmp_path / "s"])) == list(lost)
        assert contents(tmp_path / "s") == whole
    assert verify_files([tmp_path / "s"]).healthy


def test_a_shard_says_what_it_is(original, shards):
    with open(shards[4], "rb") as file:
        header = read_header(file)
    assert (header.data, header.parity, header.index, header.file_bytes) == (3, 2, 4, 9_123)
    assert header.name == original.name
    assert header.shard_bytes == shards[4].stat().st_size
    assert [path.name for path in shards] == [f"original.bin.{i:03d}.rs" for i in range(5)]


def test_shards_damaged_in_different_stripes_help_each_other(shards):
    whole = contents(shards[0].parent)
    with open(shards[0], "rb") as file:
        start = read_header(file).header_bytes
    flip(shards[0], start + 5)
    flip(shards[1], start + 1004 + 5)
    flip(shards[2], start + 2 * 1004 + 1002)  # a checksum
    shards[3].unlink()
    survey = verify_files([shards[0].parent])
    assert sorted(survey.faults) == [0, 1, 2, 3]
    assert survey.worst == 2
    assert survey.repairable
    assert len(repair_files([shards[0].parent])) == 4
    assert contents(shards[0].parent) == whole


def damaged_header(path):
    flip(path, 20)


def cut(path):
    path.write_bytes(path.read_bytes()[:-500])


def longer(path):
    path.write_bytes(path.read_bytes() + b"x")


def empty(path):
    path.write_bytes(b"")


@pytest.mark.filterwarnings("ignore::dasp.dense.gf256.shard_set.ShardWarning")
@pytest.mark.parametrize("harm", [damaged_header, cut, longer, empty, Path.unlink])
def test_any_harm_to_a_shard_is_found_and_repaired(harm, shards, original):
    whole = contents(shards[0].parent)
    harm(shards[1])
    harm(shards[4])
    survey = verify_files([shards[0].parent])
    assert sorted(survey.faults) == [1, 4]
    assert not survey.healthy
    assert survey.repairable
    assert decode_files([shards[0].parent], original.with_name("again")).read_bytes() == original.read_bytes()
    repair_files([shards[0].parent])
    assert contents(shards[0].parent) == whole


def test_too_much_harm_changes_nothing(shards, original, tmp_path):
    for path in shards[:3]:
        flip(path, 500)
    before = contents(shards[0].parent)
    with pytest.raises(
        ValueError, match="3 of 5 shards are lost in one stripe; with 2 parity shards at most 2"
    ):
        repair_files([shards[0].parent])
    with pytest.raises(ValueError, match=r"stripe 0 of 4 has lost shards \[0, 1, 2\]"):
        decode_files([shards[0].parent], tmp_path / "again")
    assert contents(shards[0].parent) == before
    assert contents(tmp_path) == {"original.bin": original.read_bytes()}


def test_a_forged_shard_is_caught(original, shards, tmp_path):
    """The checksums of a shard are right and its content is wrong: parity and digest tell."""
    other = tmp_path / "other" / original.name
    other.parent.mkdir()
    other.write_bytes(random_bytes(3, 9_123).tobytes())
    forged = encode_file(other, data=3, parity=2, chunk_bytes=1000)[1]
    with open(shards[1], "rb") as file:
        header = read_header(file).pack()
    shards[1].write_bytes(header + forged.read_bytes()[len(header) :])
    with pytest.raises(ValueError, match="stripe 0 has the wrong parity"):
        verify_files([shards[0].parent])
    shards[3].unlink()
    shards[4].unlink()
    before = contents(tmp_path), contents(shards[0].parent)
    with pytest.raises(ValueError, match="does not match the digest"):
        decode_files([shards[0].parent], tmp_path / "again")
    with pytest.raises(ValueError, match="does not match the digest"):
        repair_files([shards[0].parent])
    assert (contents(tmp_path), contents(shards[0].parent)) == before


def test_shards_of_two_files_do_not_mix(shards, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    strange = encode_file(other, data=3, parity=2)
    survey = verify_files([*shards, strange[0]])
    assert survey.healthy
    assert survey.rejected == {strange[0]: "is shard 0 of another file, other"}
    with pytest.raises(ValueError, match="are not of one file"):
        verify_files([*shards, *strange])
    twin = tmp_path / "twin.rs"
    twin.write_bytes(shards[0].read_bytes())
    assert verify_files([*shards, twin]).rejected == {twin: "is another copy of shard 0"}


def test_what_exists_is_not_replaced_unasked(original, shards):
    before = contents(shards[0].parent)
    with pytest.raises(ValueError, match=r"\.000\.rs exists; allow it to be replaced"):
        encode_file(original, data=3, parity=2)
    with pytest.raises(ValueError, match="exists; allow it"):
        decode_files(shards, original)
    assert contents(shards[0].parent) == before
    stranger = shards[0].parent / "original.bin.001.rs"
    stranger.write_bytes(shards[0].read_bytes())
    with pytest.raises(ValueError, match="exists and was not named as a shard"):
        repair_files([shards[0], *shards[2:]])
    encode_file(original, data=3, parity=2, chunk_bytes=1000, force=True)
    assert contents(shards[0].parent) == before


def failing_after(monkeypatch, chunks):
    """Make the disk full after some chunks."""
    written = itertools.count()
    original = shard_files.write_chunk

    def write_chunk(file, chunk):
        if next(written) >= chunks:
            raise OSError(28, "No space left on device")
        original(file, chunk)

    monkeypatch.setattr(shard_files, "write_chunk", write_chunk)


def test_a_full_disk_leaves_everything_as_it_was(original, shards, monkeypatch, tmp_path):
    shards[0].unlink()
    flip(shards[1], 700)
    before = contents(shards[0].parent)
    failing_after(monkeypatch, 5)
    with pytest.raises(OSError, match="No space left"):
        repair_files([shards[0].parent])
    with pytest.raises(OSError, match="No space left"):
        encode_file(original, data=3, parity=2, chunk_bytes=1000, force=True)
    with pytest.raises(OSError, match="No space left"):
        encode_file(original, tmp_path / "new", data=3, parity=2, chunk_bytes=1000)
    assert contents(shards[0].parent) == before
    assert contents(tmp_path / "new") == {}


def test_a_file_that_changes_while_it_is_read(original, tmp_path):
    def grow(_):
        with open(original, "ab") as file:
            file.write(b"more")

    def shrink(_):
        os.truncate(original, 100)

    for change, message in ((grow, "grew while it was read"), (shrink, "shrank while it was read")):
        with pytest.raises(ValueError, match=message):
            encode_file(original, tmp_path / "new", data=3, parity=2, chunk_bytes=1000, progress=change)
    assert contents(tmp_path / "new") == {}


def test_places_that_hold_no_shard(tmp_path, original):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist; name shard files"):
        verify_files([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no sound shard among 0 files"):
        verify_files([tmp_path])
    with pytest.raises(ValueError, match=r"no sound shard among 1 files .the file does not begin as"):
        verify_files([original])


@pytest.mark.parametrize(
    "change",
    [
        {"index": 5},
        {"data": 0},
        {"data": 255},
        {"chunk_bytes": 0},
        {"chunk_bytes": 1 << 30},
        {"name": "../up"},
    ],
    ids=str,
)
def test_a_header_that_no_encoder_writes(change, shards):
    with open(shards[0], "rb") as file:
        header = read_header(file)
    fields = {**header.__dict__, **change}
    shards[0].write_bytes(Header(**fields).pack())
    with open(shards[0], "rb") as file, pytest.raises(ValueError, match="values that no encoder writes"):
        read_header(file)


def test_memory_is_bounded_by_a_stripe(tmp_path):
    """No chunk is longer than chunk_bytes, however long the file: read sizes show it."""
    path = tmp_path / "long"
    path.write_bytes(bytes(1_000_000))
    progress = []
    encode_file(path, data=4, parity=1, chunk_bytes=512, progress=progress.append)
    assert max(progress) == 4 * 512
    assert sum(progress) == 1_000_000


# ---- the command --------------------------------------------------------------------------------------


def test_the_command_end_to_end(original, tmp_path, capsys):
    folder = tmp_path / "shards"
    counts = ["--data", "3", "--parity", "2"]
    assert main(["rs", "encode", str(original), *counts, "--out", str(folder), "--quiet"]) == 0
    assert "5 shards" in capsys.readouterr().out
    assert main(["rs", "verify", str(folder)]) == 0
    (folder / "original.bin.000.rs").unlink()
    flip(folder / "original.bin.003.rs", 400)
    assert main(["rs", "verify", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "original.bin.000.rs: absent" in said
    assert "3 of 5 shards intact, repairable" in said
    assert main(["rs", "decode", str(folder), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_bytes() == original.read_bytes()
    assert main(["rs", "repair", str(folder)]) == 0
    assert main(["rs", "repair", str(folder)]) == 0
    assert "every shard is intact" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["verify", "nowhere"], ["encode", "nowhere"], ["encode", __file__, "--data", "300"], ["turn"]]
)
def test_the_command_reports_errors_in_one_line(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["rs", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dasp: error: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
