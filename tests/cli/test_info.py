"""`dasp info`: what it prints, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import dasp
from dasp import formats
from dasp.cli import info
from dasp.models import generate
from tests.support.command import CPU, run


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Measure on one thread: Numba's threads wait very long for each other on busy cores."""
    threads = numba.config.NUMBA_NUM_THREADS
    numba.config.NUMBA_NUM_THREADS = 1
    yield
    numba.config.NUMBA_NUM_THREADS = threads
    numba.set_num_threads(threads)
    dasp.set_num_threads(None)


def test_info_shows_the_matrix_and_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "info", "poisson2d:30", *CPU)
    assert (status, err) == (0, "")
    matrix = generate("poisson2d:30")
    assert f"900 x 900, {matrix.nnz:,} entries" in out
    assert repr(dasp.SpMatrix.from_scipy(matrix, device="cpu")) in out
    assert "planned in" in out
    assert "0 empty rows" in out


def test_info_plans_in_the_format_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {
        name: run(capsys, "info", "rmat:8", *CPU, "--format", name)[1] for name in ("auto", "sell", "dasp")
    }
    for name, out in shown.items():
        planned = dasp.SpMatrix(generate("rmat:8"), "cpu", policy=dasp.Policy(format=name))
        assert repr(planned) in out
    assert shown["auto"].partition("planned in")[0] == shown["sell"].partition("planned in")[0]
    assert shown["auto"].partition("planned in")[0] != shown["dasp"].partition("planned in")[0]


def test_info_takes_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "info", "rmat:8", *CPU, "--seed", "5")
    assert f"{generate('rmat:8', seed=5).nnz:,} entries" in out


class Page(HTMLParser):
    """What a page opens and closes, what it loads, and its text."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for key, value in attributes if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_info_writes_a_page_that_needs_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    matrix = dasp.models.generate("rmat:9")
    name = str(tmp_path / "a<b&c.npz")
    scipy.sparse.save_npz(name, matrix)
    target = tmp_path / "page.html"
    status, out, err = run(capsys, "info", name, *CPU, "--html", str(target))
    assert (status, err) == (0, "")
    assert f"wrote {target}" in out
    text = target.read_text(encoding="utf-8")
    found = Page(text)
    assert found.open == []
    assert found.loads == ["data:,"]
    assert "script" not in found.tags
    assert text.count("url(") == text.count("url(#")
    assert name in found.text  # escaped in the source, whole in the text
    assert found.tags.count("svg") == 1
    for word in ("slices", "values", "/roofline", "best baseline", "pays after", f"{matrix.nnz:,} entries"):
        assert word in found.text


def test_a_notebook_shows_the_parts() -> None:
    A = dasp.SpMatrix.from_scipy(dasp.models.generate("rmat:8"), device="cpu", policy=dasp.Policy.dasp())
    found = Page(A._repr_html_())
    assert found.open == []
    assert found.loads == []
    for part in ("long", "regular", "irregular", "short", f"{A.nnz} entries"):
        assert part in found.text


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (1, 900)])
def test_info_of_a_matrix_with_nothing_in_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shape: tuple[int, int]
) -> None:
    scipy.sparse.save_npz(tmp_path / "empty.npz", csr_array(shape))
    page = tmp_path / "page.html"
    status, out, err = run(capsys, "info", str(tmp_path / "empty.npz"), *CPU, "--html", str(page))
    assert (status, err) == (0, "")
    assert f"{shape[0]} x {shape[1]}, 0 entries" in out
    assert "there are no entries" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("value", "words"), [(np.nan, "Not measured: "), (1j, "best baseline")])
def test_products_of_any_type_are_measured_for_the_page_if_they_are_finite(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, value: complex, words: str
) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array(np.full((3, 3), value)))
    page = tmp_path / "page.html"
    assert run(capsys, "info", str(tmp_path / "a.npz"), *CPU, "--html", str(page))[0] == 0
    assert words in page.read_text(encoding="utf-8")


@given(st.lists(st.integers(0, 5000), max_size=60))
def test_length_classes_count_every_row_and_entry(lengths: list[int]) -> None:
    classes = info.length_classes(np.array(lengths, dtype=np.int64))
    assert sum(rows for _, _, rows, _ in classes) == len(lengths)
    assert sum(entries for *_, entries in classes) == sum(lengths)
    assert [first for first, *_ in classes[1:]] == [last + 1 for _, last, *_ in classes[:-1]]
    for first, last, rows, _ in classes:
        assert rows == sum(first <= length <= last for length in lengths)
    assert str(len(lengths)) in info.histogram(np.full(len(lengths), 3)) or not lengths


@given(m=st.integers(1, 70), n=st.integers(1, 70), pixels=st.integers(1, 80), seed=st.integers(0, 9))
def test_the_density_image_counts_every_entry(m: int, n: int, pixels: int, seed: int) -> None:
    matrix = generate(f"random:{m}:{n}:0.2", seed)
    image = info.density_image(matrix, pixels)
    down, across = image.shape
    assert down <= min(m, pixels)
    assert across <= min(n, pixels)
    row, column = np.arange(m) * down // m, np.arange(n) * across // n
    want = np.zeros(image.shape)
    np.add.at(want, (row[:, None], column[None, :]), matrix.toarray() != 0)
    want /= np.outer(np.bincount(row, minlength=down), np.bincount(column, minlength=across))
    np.testing.assert_array_equal(image, want)


@pytest.mark.parametrize("spec", ["circuit:2000", "poisson3d:8", "spikes:900:2:600", "short:700"])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_the_shares_of_a_plan_add_up(spec: str, layout: str) -> None:
    policy = dasp.Policy(format=layout)
    planned = dasp.SpMatrix.from_scipy(generate(spec), policy=policy, device="cpu")
    parts = formats.find(layout).list_parts(planned.plan)
    for what, shares in formats.count_shares(planned.plan).items():
        whole = planned.plan.nbytes if what == "bytes" else sum(part.slots for part in parts)
        assert sum(shares.values()) == whole
        assert min(shares.values()) > 0
