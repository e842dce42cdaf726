"""Reed-Solomon codes: every pattern of losses, wrong bits, and shards that do not fit together."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp.dense.gf256 import ReedSolomon
from tests.support.bytes_field import product, random_bytes


def all_shards(code, n=100, seed=0):
    d = random_bytes(seed, code.data, n)
    return [*d, *code.encode(d)]


def test_parity_is_the_matrix_times_the_data():
    code = ReedSolomon(10, 4)
    d = random_bytes(1, 10, 333)
    np.testing.assert_array_equal(code.encode(d), product(code.matrix, d))
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
        (ValueError, r"data \+ parity is 300", lambda: ReedSolomon(np.uint8(200), np.uint8(100))),
        (ValueError, r"^d has shape \(3,\)", lambda: ReedSolomon(3, 2).encode(np.ones(3, np.uint8))),
        (ValueError, r"takes 3 data shards", lambda: ReedSolomon(3, 2).encode(np.zeros((2, 9), np.uint8))),
        (TypeError, "d has dtype int16", lambda: ReedSolomon(3, 2).encode(np.zeros((3, 9), np.int16))),
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
