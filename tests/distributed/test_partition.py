"""Rows cut for ranks, sent and in files. Ranks are threads here."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dasp.cli import main as cli
from dasp.distributed import SpMatrix, write_parts
from dasp.distributed.partition import collect, cut_rows
from dasp.io.files import MatrixFileError
from dasp.models import generate
from tests.support import gallery, reference
from tests.support.ranks import ThreadCommunicator, assert_within, everywhere, run_ranks

pytestmark = pytest.mark.ranks


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9))
def test_rows_are_cut_so_that_entries_are_balanced(lengths: list[int], ranks: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    starts = cut_rows(indptr, ranks)
    assert starts[0] == 0
    assert starts[-1] == len(lengths)
    assert (np.diff(starts) >= 0).all()
    weights = indptr + np.arange(len(indptr))
    share = weights[-1] / ranks
    assert (np.diff(weights[starts]) <= share + max(lengths, default=0) + 2).all()


def test_files_give_the_matrix_back(tmp_path: Path) -> None:
    """Every entry, also where the first row has so many that a rank is left without rows."""
    A = gallery.from_lengths([60, 0, 1, 0, 1, 0], 60, seed=11)
    found = write_parts(A, 3, tmp_path / "parts")
    assert sorted(rows for rows, _, _ in found) == [0, 1, 5]
    assert sum(entries for _, entries, _ in found) == A.nnz
    x = np.random.default_rng(12).standard_normal(60)

    def work(comm: Any) -> Any:
        D = SpMatrix.from_files(tmp_path / "parts", comm, device="cpu")
        reference.assert_same_entries(D.local_rows(), A[D.rows.first : D.rows.first + D.rows.count])
        return D @ x[D.columns.first : D.columns.first + D.columns.count]

    assert_within(np.concatenate(run_ranks(3, work)), A, x)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


@pytest.mark.parametrize("root", [0, 2])
def test_parts_of_a_vector_are_collected(root: int) -> None:
    whole, starts = np.random.default_rng(3).standard_normal(20).astype(np.float32), np.array([0, 7, 7, 20])

    def work(comm: Any) -> Any:
        return collect(comm, whole[starts[comm.rank] : starts[comm.rank + 1]], root)

    found = run_ranks(3, work)
    np.testing.assert_array_equal(found[root], whole)
    assert [one is None for one in found] == [rank != root for rank in range(3)]


def test_a_wrong_or_missing_partition_is_told_on_all_ranks(tmp_path: Path) -> None:
    A, folder, other = generate("poisson2d:6"), tmp_path / "parts", tmp_path / "other"
    write_parts(A, 2, folder)

    def read(comm: Any) -> Any:
        return SpMatrix.from_files(folder, comm, device="cpu")

    everywhere(3, read, MatrixFileError, "was cut for 2 ranks and there are 3")
    everywhere(2, lambda e: SpMatrix.from_files(tmp_path, e), MatrixFileError, "holds no part of rank 0")
    (tmp_path / "rank-00000-of-2x.npz").write_bytes(b"")
    everywhere(2, lambda e: SpMatrix.from_files(tmp_path, e), MatrixFileError, "holds no part of rank 0")
    part = folder / "rank-00001-of-00002.npz"
    whole = part.read_bytes()
    place = whole.index(A.data[-8:].tobytes())
    for damaged in (whole[:-100], whole[:place] + b"?" + whole[place + 1 :]):
        part.write_bytes(damaged)
        everywhere(2, read, MatrixFileError, "rank 1: .*rank-00001-of-00002.npz is damaged")
    part.unlink()
    everywhere(2, read, MatrixFileError, "rank 1: .*rank-00001-of-00002.npz")
    write_parts(2 * A, 2, other)
    shutil.copy(other / part.name, part)
    everywhere(2, read, MatrixFileError, r"not the part that was written with digests-of-00002\.npy")
    apart = lambda e: SpMatrix.from_files((folder, other)[e.rank], e, device="cpu")  # noqa: E731
    everywhere(2, apart, ValueError, r"digests of the parts is .* on rank 0 and .* on rank 1")
    note = folder / "digests-of-00002.npy"
    note.write_bytes(note.read_bytes()[:-10])
    everywhere(2, read, MatrixFileError, r"digests-of-00002\.npy is damaged")
    note.unlink()  # as where a program wrote the parts
    sp.save_npz(part, A[18:, :30])
    everywhere(2, read, ValueError, "columns of A is 36 on rank 0 and 30 on rank 1")
    sp.save_npz(part, A[20:])
    assert run_ranks(2, lambda e: read(e).shape) == [(34, 36)] * 2


def test_a_partition_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    A = generate("poisson2d:6")
    write_parts(A, 2, tmp_path / "parts")
    with pytest.raises(MatrixFileError, match="exists"):
        write_parts(A, 2, tmp_path / "parts")
    with pytest.raises(MatrixFileError, match="cannot be written"):
        write_parts(A, 2, tmp_path / "none" / "parts")
    with pytest.raises(ValueError, match="ranks is 0"):
        write_parts(A, 0, tmp_path / "other")
    with pytest.raises(TypeError, match=r"matrix is an ndarray; a scipy\.sparse matrix is needed"):
        write_parts(A.toarray(), 2, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_a_partition_that_is_ended_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*given: Any) -> None:
        assert list(tmp_path.iterdir())
        signal.raise_signal(signal.SIGTERM)

    command = ["partition", "poisson2d:4", "--out", str(tmp_path / "parts"), "--ranks"]
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main([*command, "9999999"]) == 2
    monkeypatch.setattr("dasp.distributed.partition._write", end)
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "2"])
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize(
    ("wrong", "kind"),
    [([0, 6], ValueError), ([0, 7, 6, 12], ValueError), ("half", TypeError), ([0.0] * 4, TypeError)],
)
def test_wrong_cuts_of_one_rank_are_told_by_all_which_go_on(name: str, wrong: Any, kind: Any) -> None:
    A, cut = sp.csr_array(sp.eye_array(12)), [0, 3, 7, 12]

    def run(comm: ThreadCommunicator) -> None:
        given = {"rows": cut, "columns": cut} | ({name: wrong} if comm.rank == 1 else {})
        with pytest.raises(kind, match=rf"rank 1: {name} is .*; 4 rising numbers from 0 to 12 are needed"):
            SpMatrix.from_scipy(A if comm.rank == 1 else None, comm, root=1, device="cpu", **given)
        D = SpMatrix.from_scipy(A if comm.rank == 1 else None, comm, root=1, rows=cut, device="cpu")
        assert (D @ np.ones(D.local_shape[1]) == 1).all()

    run_ranks(3, run)
