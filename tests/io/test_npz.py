"""Matrices in .npz files: round trips, and one clear line for whatever can be wrong with one."""

from __future__ import annotations

import io
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from dasp.io import MatrixFileError, load_matrix, load_plan
from dasp.io.plans import pack_plan
from dasp.models import generate
from tests.support.files import CSR, FILE, dasp_plan, matrices, npy, npz, refusal, same, write


@FILE
@given(matrix=matrices(), form=st.sampled_from(["csr", "csc", "coo", "bsr", "dia"]), packed=st.booleans())
def test_npz_comes_back_as_scipy_reads_it(tmp_path: Path, matrix: coo_array, form: str, packed: bool) -> None:
    if form in ("bsr", "dia") and (matrix.dtype == np.bool_ or 0 in matrix.shape):
        form = "csr"  # SciPy cannot convert those
    given_form = matrix.asformat(form)
    path = tmp_path / "a.npz"
    scipy.sparse.save_npz(path, given_form, compressed=packed)
    loaded = load_matrix(path)
    assert same(loaded, csr_array(given_form))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_half_precision_is_widened_for_scipy(tmp_path: Path, form: str) -> None:
    matrix = csr_array(np.diag([0.1, 2.0]).astype(np.float32)).asformat(form)
    matrix.data = matrix.data.astype(np.float16)
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    loaded = load_matrix(tmp_path / "a.npz")
    assert loaded.dtype == np.float32
    assert (loaded @ np.ones(2)).tolist() == [float(np.float16(0.1)), 2.0]


def test_unsorted_entries_and_duplicates_of_an_npz_are_kept(tmp_path: Path) -> None:
    matrix = csr_array((np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    assert same(load_matrix(tmp_path / "a.npz"), matrix)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"indices": np.array([0, 3], dtype=np.int32)}, []),
        ({"indices": np.array([0, -1], dtype=np.int32)}, []),
        ({"indices": np.array([0.5, 1])}, []),
        ({"indptr": np.array([0, 2, 1], dtype=np.int32)}, []),
        ({"indptr": np.array([0, 1], dtype=np.int32)}, []),
        ({"indptr": np.array([1, 1, 2], dtype=np.int32)}, []),
        ({"indptr": np.array([0, 1, 9], dtype=np.int32)}, []),
        ({"shape": np.array([2, 3, 4])}, []),
        ({"shape": np.array([-2, 3])}, []),
        ({"format": b"xyz"}, ["xyz"]),
        ({"data": np.array(["a", "b"])}, ["numbers are needed"]),
        ({"data": np.array([{}, {}], dtype=object)}, ["allow_pickle=False"]),
        ({"indices": None}, []),
        ({"data": None}, ["format, indices, indptr", "save_npz"]),
        ({"format": None}, ["save_npz"]),
    ],
)
def test_a_bad_npz_is_one_clear_line(tmp_path: Path, change: dict[str, object], words: list[str]) -> None:
    members = {name: value for name, value in {**CSR, **change}.items() if value is not None}
    path = write(tmp_path / "a.npz", npz(**members))
    message = refusal(path)
    assert str(path) in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("bad", [{"row": [0, 2]}, {"row": [0, -1]}, {"col": [0, 3]}])
def test_coordinates_out_of_range_are_refused(tmp_path: Path, bad: dict[str, list[int]]) -> None:
    members = {"row": [0, 1], "col": [0, 1], **bad}
    content = npz(
        format=b"coo", shape=np.array([2, 3]), data=np.ones(2), **{k: np.array(v) for k, v in members.items()}
    )
    refusal(write(tmp_path / "a.npz", content))


def test_every_way_to_cut_an_npz_is_refused(tmp_path: Path) -> None:
    whole = npz(**CSR)
    assert load_matrix(write(tmp_path / "whole.npz", whole)).shape == (2, 3)
    for length in range(0, len(whole), 41):
        refusal(write(tmp_path / "cut.npz", whole[:length]))


def test_a_flipped_byte_of_an_npz_is_refused_or_harmless(tmp_path: Path) -> None:
    whole = npz(**CSR)
    want = load_matrix(write(tmp_path / "whole.npz", whole))
    refused = 0
    for place in range(0, len(whole), 23):
        broken = bytearray(whole)
        broken[place] ^= 0x55
        path = write(tmp_path / "a.npz", bytes(broken))
        try:
            matrix = load_matrix(path)
        except MatrixFileError:
            refused += 1
        else:
            assert same(matrix, want), place
    assert refused > 5


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
def test_entries_that_indptr_denies_are_no_matrix(tmp_path: Path, form: str) -> None:
    # SciPy's own check goes no further than a last number of 0, and compiled code reads the others.
    members = {
        "format": form.encode(),
        "shape": np.array([3, 3]),
        "data": np.ones((4, 1, 1) if form == "bsr" else 4),
        "indices": np.array([0, 1, 2, 0], np.int32),
        "indptr": np.array([0, 2, 4, 0], np.int32),
    }
    assert "indptr does not rise" in refusal(write(tmp_path / "a.npz", npz(**members)))


@pytest.mark.parametrize("offset", [-3, 3, 10**18, -(10**18)])
def test_diagonals_outside_the_matrix_are_left_out(tmp_path: Path, offset: int) -> None:
    members = {"format": b"dia", "shape": np.array([3, 3]), "data": np.ones((2, 3))}
    path = write(tmp_path / "a.npz", npz(**members, offsets=np.array([0, offset])))
    np.testing.assert_array_equal(load_matrix(path).toarray(), np.eye(3))


def test_diagonals_need_as_many_offsets(tmp_path: Path) -> None:
    for count in (0, 1, 3):
        members = {"format": b"dia", "shape": np.array([3, 3]), "data": np.ones((2, 3))}
        path = write(tmp_path / "a.npz", npz(**members, offsets=np.arange(count)))
        assert f"{count} offsets and 2 diagonals" in refusal(path)


def test_blocks_fill_the_shape(tmp_path: Path) -> None:
    # SciPy takes such a matrix and writes beyond its arrays when it converts it.
    for block, shape in (((4, 4), [21, 4]), ((2, 3), [4, 4]), ((1, 0), [4, 4])):
        rows = shape[0] // block[0]
        members = {
            "format": b"bsr",
            "shape": np.array(shape),
            "data": np.ones((rows, *block)),
            "indices": np.zeros(rows, np.int32),
            "indptr": np.arange(rows + 1, dtype=np.int32),
        }
        assert "its blocks have shape" in refusal(write(tmp_path / "a.npz", npz(**members)))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "dia"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_every_byte_order_of_an_npz_is_read(tmp_path: Path, form: str, order: str) -> None:
    matrix = generate("random:9:8:0.3").asformat(form)
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    with np.load(tmp_path / "a.npz") as members:
        arrays = {name: value.astype(value.dtype.newbyteorder(order)) for name, value in members.items()}
    np.savez(tmp_path / "b.npz", **arrays)
    assert same(load_matrix(tmp_path / "b.npz"), csr_array(matrix))


@pytest.mark.parametrize("form", ["coo", "csc", "dia"])
def test_a_small_file_of_many_rows_takes_no_memory(tmp_path: Path, form: str) -> None:
    shape = np.array([10**12, 3])
    extra = {
        "coo": {"row": np.array([0, 5]), "col": np.array([0, 1])},
        "csc": {"indices": np.array([0, 5]), "indptr": np.array([0, 1, 2, 2])},
        "dia": {"offsets": np.array([0])},
    }[form]
    data = np.ones((1, 2)) if form == "dia" else np.ones(2)
    path = write(tmp_path / "a.npz", npz(format=form.encode(), shape=shape, data=data, **extra))
    tracemalloc.start()
    try:
        assert "half of this machine's memory" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_a_complex_matrix_of_scipy_is_read(tmp_path: Path) -> None:
    matrix = csr_array(np.array([[0, 1j], [2.5, 0]]))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    found = load_matrix(tmp_path / "a.npz")
    assert found.dtype == np.complex128
    np.testing.assert_array_equal(found.toarray(), matrix.toarray())


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of members, whose names may occur twice."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


PARTS = {f"{name}.npy": npy(value) for name, value in CSR.items()}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped(*PARTS.items(), ("README", b"")), "the arrays README, data, format"),
        (zipped(*PARTS.items(), ("more.npy", npy([1]))), "the arrays data, format, indices, indptr, more"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (1,))}.items()), "goes on after its end"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (10**11,))}.items()), "a.npz"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (10**15,))}.items()), "memory"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (-1, -2))}.items()), "damaged"),
        (zipped(*{**PARTS, "data.npy": b"no array at all"}.items()), "damaged"),
        (zipped(*{**PARTS, "shape.npy": npy(np.zeros(99))}.items()), "its shape is"),
        (zipped(*{**PARTS, "shape.npy": npy([2.5, 3])}.items()), "its shape is"),
        (zipped(*{**PARTS, "shape.npy": npy(np.array([2, 2**64 - 1], np.uint64))}.items()), "its shape is"),
        (zipped(*{**PARTS, "format.npy": npy(b"coo")}.items()), "its format is 'coo'"),
        (zipped(*{**PARTS, "indices.npy": npy(np.array([[0, 2]]))}.items()), "not a list of integers"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones((2, 1)))}.items()), "data has shape (2, 1)"),
    ],
)
def test_an_archive_is_what_its_contents_say(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(write(tmp_path / "a.npz", content))


@pytest.mark.slow
def test_nothing_is_unpacked_that_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasp.runtime.sizes.machine_bytes", lambda: 10**7)
    zeros = npy(np.zeros(2 * 10**6))
    plan = {f"{name}.npy": npy(value) for name, value in pack_plan(dasp_plan()).items()}
    bombs = {
        "matrix": zipped(*{**PARTS, "data.npy": zeros}.items(), method=zipfile.ZIP_DEFLATED),
        "unknown": zipped(*PARTS.items(), ("more.npy", zeros), method=zipfile.ZIP_DEFLATED),
        "plan": zipped(*{**plan, "empty_rows.npy": zeros}.items(), method=zipfile.ZIP_DEFLATED),
        "unknown field": zipped(*plan.items(), ("more.npy", zeros), method=zipfile.ZIP_DEFLATED),
        "head": zipped(*{**plan, "dasp_plan.npy": zeros}.items(), method=zipfile.ZIP_DEFLATED),
    }
    for name, content in bombs.items():
        path = write(tmp_path / "a.npz", content)
        tracemalloc.start()
        try:
            with pytest.raises(MatrixFileError):
                load_matrix(path) if name in ("matrix", "unknown") else load_plan(path)
            assert tracemalloc.get_traced_memory()[1] < 10**7, name
        finally:
            tracemalloc.stop()
