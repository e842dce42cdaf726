"""Reading matrices and plans: round trips, and one clear line for whatever can be wrong with a file."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import os
import re
import socket
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import coo_array, csr_array

from dasp import Policy
from dasp.formats import find, names
from dasp.formats.plan import PAD, Plan
from dasp.formats.sell.pattern import PAD_8, Coding, Width, shape_fields
from dasp.io import MatrixFileError, load_matrix, load_plan, market, save_plan
from dasp.io.plans import pack_plan, unpack_plan
from dasp.models import examples, generate
from dasp.runtime.dtypes import TABLE
from tests.support.planned import plan_of as planned
from tests.support.planned import unpacked

HEADER = "%%MatrixMarket matrix coordinate real general\n"
Change = Callable[[dict[str, np.ndarray], dict[str, object]], None]
GOOD = HEADER + "3 4 3\n1 1 1.5\n3 4 -2\n2 2 0\n"


def refusal(spec: object) -> str:
    """The message of load_matrix for something that it must refuse, which must be one line."""
    with pytest.raises(MatrixFileError) as caught:
        load_matrix(str(spec))
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 900
    return message


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def same(a: csr_array, b: csr_array) -> bool:
    """Whether two matrices have the same entries in the same order; a NaN is like another one."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("indptr", "indices"))
        and np.array_equal(a.data, b.data, equal_nan=a.dtype.kind == "f")
    )


# What is read


@pytest.mark.parametrize("ending", [".mtx", ".mtx.gz"])
def test_a_matrix_market_file_is_read(tmp_path: Path, ending: str) -> None:
    text = GOOD.encode()
    path = write(tmp_path / f"a{ending}", gzip.compress(text) if ending.endswith("gz") else text)
    matrix = load_matrix(path)
    assert isinstance(matrix, csr_array)
    np.testing.assert_array_equal(matrix.toarray(), [[1.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, -2]])
    assert matrix.nnz == 3  # the explicit zero is there


@pytest.mark.parametrize(
    ("header", "body", "want", "dtype"),
    [
        ("coordinate real symmetric", "2 2 2\n1 1 5\n2 1 3", [[5, 3], [3, 0]], np.float64),
        ("coordinate real skew-symmetric", "2 2 1\n2 1 3", [[0, -3], [3, 0]], np.float64),
        ("coordinate pattern symmetric", "2 2 1\n2 1", [[0, 1], [1, 0]], np.float64),
        ("coordinate pattern general", "2 3 2\n1 3\n2 1", [[0, 0, 1], [1, 0, 0]], np.float64),
        ("coordinate integer general", "2 2 1\n2 1 -7", [[0, 0], [-7, 0]], np.int64),
        ("array real general", "2 2\n1\n2\n3\n4", [[1, 3], [2, 4]], np.float64),
        ("array integer general", f"2 1\n{2**63 - 1}\n-{2**63}", [[2**63 - 1], [-(2**63)]], np.int64),
        ("coordinate real general", "% a remark\n\n2 2 2\n1 1 1\n1 1 2", [[3, 0], [0, 0]], np.float64),
        ("coordinate real general", "2 2 0", [[0, 0], [0, 0]], np.float64),
        ("coordinate real general", "0 3 0", np.zeros((0, 3)), np.float64),
        ("COORDINATE Real General", "1 1 1\r\n1 1 2.5e-3\r", [[2.5e-3]], np.float64),
        ("coordinate real general", "1 2 2\n1 1 nan\n1 2 -inf", [[np.nan, -np.inf]], np.float64),
    ],
)
def test_every_field_and_symmetry_is_read(
    tmp_path: Path, header: str, body: str, want: object, dtype: type
) -> None:
    path = write(tmp_path / "a.mtx", f"%%MatrixMarket matrix {header}\n{body}\n")
    matrix = load_matrix(path)
    assert matrix.dtype == dtype
    np.testing.assert_array_equal(matrix.toarray(), want)


FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


@st.composite
def matrices(draw: st.DrawFn) -> coo_array:
    m, n = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    count = draw(st.integers(0, 30)) if m and n else 0
    dtype = draw(st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.bool_]))
    row = draw(arrays.arrays(np.int32, count, elements=st.integers(0, max(m - 1, 0))))
    column = draw(arrays.arrays(np.int32, count, elements=st.integers(0, max(n - 1, 0))))
    data = draw(arrays.arrays(dtype, count, elements=arrays.from_dtype(np.dtype(dtype), allow_nan=False)))
    return coo_array((data, (row, column)), shape=(m, n))


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


@FILE
@given(matrix=matrices(), packed=st.booleans())
def test_matrix_market_comes_back(tmp_path: Path, matrix: coo_array, packed: bool) -> None:
    # SciPy writes neither bool nor, so that they come back, float32; and int64 is what comes back.
    matrix = matrix.astype(np.float64 if matrix.dtype.kind == "f" else np.int64)
    buffer = io.BytesIO()
    scipy.io.mmwrite(buffer, matrix, symmetry="general")
    text = buffer.getvalue()
    path = write(tmp_path / ("a.mtx.gz" if packed else "a.mtx"), gzip.compress(text) if packed else text)
    want = csr_array(matrix)
    if matrix.dtype.kind == "i":
        sums: dict[tuple[int, int], int] = {}
        for row, column, value in zip(*matrix.coords, matrix.data.tolist(), strict=True):
            sums[row, column] = sums.get((row, column), 0) + value
        if any(not -(2**63) <= total < 2**63 for total in sums.values()):
            assert "sum is beyond int64" in refusal(path)
            return
    loaded = load_matrix(path)
    np.testing.assert_array_equal(loaded.toarray(), want.toarray().astype(loaded.dtype))
    assert loaded.nnz == want.nnz


def test_unsorted_entries_and_duplicates_of_an_npz_are_kept(tmp_path: Path) -> None:
    matrix = csr_array((np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    assert same(load_matrix(tmp_path / "a.npz"), matrix)


def test_names_are_found_in_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = generate("random:9:8:0.3")
    scipy.sparse.save_npz(tmp_path / "one.npz", matrix)
    write(tmp_path / "two.mtx", GOOD)
    write(tmp_path / "three.mtx.gz", gzip.compress(GOOD.encode()))
    (tmp_path / "four").mkdir()
    write(tmp_path / "four" / "four.mtx", GOOD)
    monkeypatch.setenv("DASP_MATRICES", str(tmp_path))
    assert same(load_matrix("one"), matrix)
    for name in ("two", "three", "four", "two.mtx", str(tmp_path / "four")):
        assert load_matrix(name).shape == (3, 4)
    message = refusal("thre")
    assert "was not found" in message
    assert "three" in message
    monkeypatch.delenv("DASP_MATRICES")
    assert "DASP_MATRICES" in refusal("one")


def test_a_model_is_built() -> None:
    assert same(load_matrix("rmat:6", seed=3), generate("rmat:6", seed=3))


def test_a_file_goes_before_a_model_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "dense", GOOD)
    assert load_matrix("dense").shape == (3, 4)


NUMBERS = [
    *[
        "0",
        "-0",
        "+1.5",
        "1.",
        ".5",
        "-.5e1",
        "1e5",
        "1E+05",
        "007",
        "1e-5",
        "0e999",
        "1e-999",
        "0.0000e-400",
    ],
    *["1d5", "1D+5", "-2.5d-3", "1.5D05", "nan", "-NaN", "inf", "-Infinity", "INF"],
    *["1.7976931348623157e308", "4.9e-324", "2.4703282292062328e-324", "2.2250738585072011e-308"],
    *[
        "9007199254740993",
        "9007199254740993.0000000000000000000000001",
        "9007199254740992.99999999999999999999",
    ],
    *[
        "123456789012345678901234567890",
        "0." + 400 * "0" + "1e401",
        "1" + 400 * "0" + "e-400",
        900 * "7" + "e-800",
    ],
    *[
        "0.1",
        "0.3",
        "0.10000000000000000555111512312578270211815834045410156250001",
        "8.5e22",
        "1e23",
        "6e-26",
    ],
]
"""Ways to write a number, ties and near ties between two floats among them."""


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_rounded_to_the_nearest(tmp_path: Path, number: str) -> None:
    want = np.float64(number.lower().replace("d", "e"))
    matrix = load_matrix(write(tmp_path / "a.mtx", f"{HEADER}1 1 1\n1 1 {number}\n"))
    np.testing.assert_array_equal(matrix.data.view(np.uint64), want.reshape(1).view(np.uint64))


def converted(numbers: list[str]) -> np.ndarray:
    """The bits of what the reader makes of decimals."""
    head = market.Head(True, "real", "general", 1, 1, len(numbers), 2)
    stream = io.BytesIO("".join(f"1 1 {number}\n" for number in numbers).encode())
    return market._Reader(Path("a.mtx"), stream, head).read().values.view(np.uint64)


@given(
    numbers=st.lists(
        st.tuples(
            st.integers(0, 10**25),
            st.integers(-345, 280),
            st.integers(0, 30),
            st.sampled_from(["", "-", "+"]),
        ),
        max_size=50,
    )
)
def test_drawn_numbers_are_rounded_to_the_nearest(numbers: list[tuple[int, int, int, str]]) -> None:
    texts = []
    for digits, power, point, sign in numbers:
        text = str(digits).rjust(point, "0")
        texts.append(f"{sign}{text[: len(text) - point]}.{text[len(text) - point :]}e{power}")
    np.testing.assert_array_equal(converted(texts), np.array(list(map(float, texts))).view(np.uint64))


def test_halfway_between_two_floats_is_even() -> None:
    # The exact decimals half way between neighbours, and one digit to either side of them.
    texts = []
    for q in range(-330, 308):
        below = float(f"{q % 9 + 1}.7e{q}")
        half = (Fraction(below) + Fraction(math.nextafter(below, math.inf))) / 2
        scale = 10 ** max(0, half.denominator.bit_length())
        exact = half * scale
        assert exact.denominator == 1
        texts += [f"{exact.numerator * 10 + off}e-{len(str(scale))}" for off in (-1, 0, 1)]
    np.testing.assert_array_equal(converted(texts), np.array(list(map(float, texts))).view(np.uint64))


@pytest.mark.parametrize(
    ("field", "number", "want"),
    [
        ("integer", "9223372036854775807", 2**63 - 1),
        ("integer", "-9223372036854775808", -(2**63)),
        ("integer", "+0012", 12),
        ("unsigned-integer", "18446744073709551615", 2**64 - 1),
        ("integer", "-0", 0),
    ],
)
def test_whole_numbers_are_read_exactly(tmp_path: Path, field: str, number: str, want: int) -> None:
    text = f"%%MatrixMarket matrix coordinate {field} general\n1 1 1\n1 1 {number}\n"
    matrix = load_matrix(write(tmp_path / "a.mtx", text))
    assert matrix.dtype == (np.uint64 if field.startswith("u") else np.int64)
    assert matrix.data.tolist() == [want]


@pytest.mark.parametrize("form", ["real", "integer", "complex"])
@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
def test_storage_of_one_triangle_is_written_out(
    tmp_path: Path, form: str, layout: str, symmetry: str
) -> None:
    rng = np.random.default_rng(4)
    dense = rng.integers(1, 9, (7, 7)).astype(np.int64 if form == "integer" else np.float64)
    if form == "complex":
        dense = dense + 1j * rng.integers(-9, 9, (7, 7)) / 4
    if symmetry != "general":
        sign = -1 if symmetry == "skew-symmetric" else 1
        dense = np.tril(dense, -1 if sign < 0 else 0)
        if symmetry == "hermitian":
            np.fill_diagonal(dense, dense.diagonal().real)
        other = np.tril(dense, -1).T
        dense = dense + sign * (other.conj() if symmetry == "hermitian" else other)
    stored = [
        (i, j)
        for j in range(7)
        for i in range(7)
        if symmetry == "general" or i > j or (i == j and symmetry != "skew-symmetric")
    ]
    size = f"7 7 {len(stored)}" if layout == "coordinate" else "7 7"
    body = [
        f"{i + 1} {j + 1} " * (layout == "coordinate")
        + (f"{dense[i, j].real} {dense[i, j].imag}" if form == "complex" else str(dense[i, j]))
        for i, j in stored
    ]
    text = "\n".join([f"%%MatrixMarket matrix {layout} {form} {symmetry}", size, *body])
    matrix = load_matrix(write(tmp_path / "a.mtx", text))
    assert matrix.dtype == dense.dtype
    np.testing.assert_array_equal(matrix.toarray(), dense)


def test_a_hermitian_matrix_may_have_no_entries(tmp_path: Path) -> None:
    text = "%%MatrixMarket matrix coordinate complex hermitian\n3 3 0\n"
    matrix = load_matrix(write(tmp_path / "a.mtx", text))
    assert (matrix.shape, matrix.nnz, matrix.dtype) == ((3, 3), 0, np.complex128)


@pytest.mark.parametrize("block", [1 << 16, 200_000])
def test_a_file_of_many_blocks_is_read_as_scipy_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    rng = np.random.default_rng(5)
    count = 60_000
    row, column = rng.integers(0, 70_000, (2, count))
    digits = rng.integers(0, 22, count)
    text = ["%%MatrixMarket matrix coordinate real general", f"70000 70000 {count}"]
    for i, j, value, places in zip(row, column, rng.standard_normal(count), digits, strict=True):
        text.append(f"{i + 1}{' ' * (1 + places % 3)}{j + 1}\t{value * 10.0 ** (places - 9):.{places}e}")
        text.extend([""] * int(places == 7))
    content = "\r\n".join(text).encode()
    monkeypatch.setattr(market, "_BLOCK", block)
    want = csr_array(scipy.io.mmread(io.BytesIO(content + b"\n")))
    assert same(load_matrix(write(tmp_path / "a.mtx", content)), want)
    assert same(load_matrix(write(tmp_path / "a.mtx.gz", gzip.compress(content, 1))), want)
    lines = content.split(b"\r\n")
    for place in (5, count // 2, len(lines) - 1):
        bad = b"\r\n".join([*lines[:place], lines[place] + b"!", *lines[place + 1 :]])
        assert f"in line {place + 1};" in refusal(write(tmp_path / "b.mtx", bad))
    more = content + b"\r\n\r\n1 1 1\r\n"
    assert f"in line {len(lines) + 2};" in refusal(write(tmp_path / "b.mtx", more))
    fewer = b"\r\n".join(lines[:-1])
    assert f"{count - 1:,} of the {count:,}" in refusal(write(tmp_path / "b.mtx", fewer))


# What is refused


REAL, INTEGER = "coordinate real general", "coordinate integer general"
MALFORMED = {
    **{
        f"real {value!r}": (REAL, f"1 1 1\n1 1 {value}", 3)
        for value in [
            *[
                "1,5",
                "0x10",
                "1_000",
                "1e-",
                "1e",
                "1e+",
                "1d",
                "junk",
                "1 junk",
                "1 2",
                "1.5.2",
                "--1",
                "+-1",
            ],
            *[
                "-",
                ".",
                "e5",
                "1f",
                "1e999",
                "-1d400",
                "nan(1)",
                "infinit",
                "1+5",
                "1e5.5",
                "1;",
                "\u0661",
                "1\v",
            ],
            *[400 * "9", "1" + 5000 * "0", "1e9999999999999999999999", "'1'", "1/2", "1e 5", "(1,0)"],
        ]
    },
    **{
        f"integer {value!r}": (INTEGER, f"1 1 1\n1 1 {value}", 3)
        for value in [
            "1e3",
            "1.5",
            "1.",
            "7x",
            "0x7",
            "",
            "-",
            "1,000",
            "9223372036854775808",
            "99999999999999999999",
        ]
    },
    "a negative unsigned": ("coordinate unsigned-integer general", "1 1 1\n1 1 -1", 3),
    "a large unsigned": ("coordinate unsigned-integer general", "1 1 1\n1 1 18446744073709551616", 3),
    "a fractional row": (REAL, "2 2 1\n1.5 1 1", 3),
    "a fractional column": (REAL, "2 2 1\n1 1.5 1", 3),
    "no value": (REAL, "2 3 1\n1 2.7", 3),
    "no value at all": (REAL, "2 3 1\n1 2", 3),
    "a row alone": (REAL, "2 3 1\n1", 3),
    "a signed row": (REAL, "2 3 1\n+1 1 1", 3),
    "a negative row": (REAL, "2 3 1\n-1 1 1", 3),
    "a large row": (REAL, "2 3 1\n18446744073709551617 1 1", 3),
    "a larger row": (REAL, f"2 3 1\n{2**64 * 10**20 + 1} 1 1", 3),
    "commas": (REAL, "2 3 1\n1,1,1", 3),
    "a remark among entries": (REAL, "2 3 2\n1 1 1\n% here\n1 2 1", 4),
    "a remark at the end": (REAL, "2 3 1\n1 1 1\n% end", 4),
    "a value of a pattern": ("coordinate pattern general", "2 2 1\n1 1 1", 3),
    "two values in a line": ("array real general", "2 2\n1 2\n3 4", 3),
    "a large value of an array": ("array integer general", f"2 1\n{2**63}\n1", 3),
    "a larger value of an array": ("array integer general", f"2 1\n1\n{5000 * '9'}", 4),
    "an infinite value of an array": ("array real general", "2 1\n1\n-1d400", 4),
    "array values too many": ("array real general", "2 1\n1\n2\n\n3", 6),
    "a symmetric array and one": ("array real symmetric", "2 2\n1\n2\n3\n4", 6),
    "a carriage return": (REAL, "1 2 2\n1 1 1\r1 2 1\n", 3),
    **{f"sizes between {blank!r}": (REAL, f"1 1{blank}0", 2) for blank in "\v\f\x1c\x1f\x85\xa0,;"},
    "a late fault": (REAL, "9 9 3\n1 1 1\n\n2 2 2\n3 3 3x\n", 6),
}


def test_a_size_may_have_many_zeros_before_it(tmp_path: Path) -> None:
    text = f"%%MatrixMarket matrix {REAL}\n{2:050} 3 1\n2 3 7\n"
    assert load_matrix(write(tmp_path / "a.mtx", text)).shape == (2, 3)


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_line_is_named(tmp_path: Path, fault: str) -> None:
    header, body, line = MALFORMED[fault]
    message = refusal(write(tmp_path / "a.mtx", f"%%MatrixMarket matrix {header}\n{body}\n"))
    assert f"in line {line};" in message


@pytest.mark.parametrize(
    ("header", "body", "words"),
    [
        *[
            (f"array real {symmetry}", "3 3\n" + "1\n" * count, "was cut short")
            for symmetry, count in (
                *[("symmetric", count) for count in (0, 1, 4, 5)],
                *[("hermitian", 5), ("skew-symmetric", 2), ("general", 8)],
            )
        ],
        ("array real skew-symmetric", "3 3\n1\n2\n3\n4\n", "in line 6;"),
        ("array pattern general", "2 2\n", "pattern"),
        ("coordinate real skew-symmetric", "2 2 1\n2 2 3\n", "row 2 and column 2"),
        ("coordinate pattern skew-symmetric", "2 2 1\n2 2\n", "row 2 and column 2"),
        ("array unsigned-integer skew-symmetric", "2 2\n1\n", "unsigned"),
        ("coordinate unsigned-integer skew-symmetric", "2 2 1\n2 1 1\n", "unsigned"),
        ("coordinate real symmetric", "3 3 3\n2 1 3\n3 3 1\n1 2 3\n", "both entries (2, 1) and (1, 2)"),
        ("coordinate integer skew-symmetric", "2 2 1\n2 1 -9223372036854775808\n", "beyond int64"),
        ("array integer skew-symmetric", "2 2\n-9223372036854775808\n", "beyond int64"),
        ("coordinate integer general", "1 1 2\n1 1 9223372036854775807\n1 1 1\n", "sum is beyond int64"),
        ("coordinate real general", "%" + 70_000 * "-" + "\n1 1 1\n1 1 1\n", "remarks"),
    ],
)
def test_what_the_lines_mean_together_is_checked(tmp_path: Path, header: str, body: str, words: str) -> None:
    assert words in refusal(write(tmp_path / "a.mtx", f"%%MatrixMarket matrix {header}\n{body}"))


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_is_never_held_whole_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(market, "_BLOCK", 1 << 17)
    for line in (f"1 1 {'1' * 10**7}", f"1 1{' ' * 10**7}1", "\n" * 9 + "1 1 1" + " " * 10**7):
        content = f"{HEADER}1 1 1\n{line}\n".encode()
        path = write(tmp_path / "a.mtx", gzip.compress(content) if packed else content)
        assert "has a line of more than 65,536 bytes" in refusal(path)


def test_sound_oddities_of_symmetric_storage_are_read(tmp_path: Path) -> None:
    for header, body, want in (
        ("coordinate real skew-symmetric", "2 2 2\n2 2 -0\n2 1 1\n", [[0, -1], [1, 0]]),
        ("coordinate real symmetric", "2 2 1\n1 2 3\n", [[0, 3], [3, 0]]),
        ("coordinate real symmetric", "3 3 2\n1 2 3\n3 2 4\n", [[0, 3, 0], [3, 0, 4], [0, 4, 0]]),
        ("coordinate integer general", f"1 1 2\n1 1 {2**63 - 1}\n1 1 -5\n", [[2**63 - 6]]),
    ):
        matrix = load_matrix(write(tmp_path / "a.mtx", f"%%MatrixMarket matrix {header}\n{body}"))
        np.testing.assert_array_equal(matrix.toarray(), want)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.mtx", "", ["is empty", "%%MatrixMarket"]),
        (
            "page.mtx",
            "<!DOCTYPE html>\n<html><body>404</body></html>\n",
            ["a web page", "download the file itself"],
        ),
        ("page2.mtx", "<html>\n", ["a web page"]),
        ("reply.mtx", '{"error": "not found"}', ["JSON"]),
        ("words.mtx", "hello world\n", ["starts with 'hello world'", "%%MatrixMarket"]),
        ("binary.mtx", bytes(range(256)) * 4, ["starts with", "%%MatrixMarket"]),
        ("zip.mtx", b"PK\x03\x04rest", ["zip file", ".npz"]),
        ("matlab.mtx", b"MATLAB 5.0 MAT-file", ["MATLAB"]),
        ("packed.mtx.bz2", bz2.compress(b"%%MatrixMarket"), ["not by gzip", "bunzip2"]),
        ("packed.mtx.xz", lzma.compress(b"%%MatrixMarket"), ["not by gzip", "unxz"]),
        ("a.tar.gz", gzip.compress(b"x"), ["archive", "tar xf"]),
        ("vector.mtx", "%%MatrixMarket vector coordinate real general\n1 1 1\n", ["'vector'", "matrix"]),
        (
            "form.mtx",
            "%%MatrixMarket matrix elemental real general\n",
            ["'elemental'", "coordinate or array"],
        ),
        ("field.mtx", "%%MatrixMarket matrix coordinate quaternion general\n", ["'quaternion'", "real"]),
        ("symmetry.mtx", "%%MatrixMarket matrix coordinate real lower\n", ["'lower'", "symmetric"]),
        ("half.mtx", "%%MatrixMarket matrix\n", ["word 3"]),
        (
            "complex.mtx",
            "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1\n",
            ["line 3", "a number of the kind"],
        ),
        (
            "hermitian.mtx",
            "%%MatrixMarket matrix coordinate complex hermitian\n3 3 2\n1 1 1 0\n3 3 2 1\n",
            ["an imaginary part in row 3", "the diagonal of a hermitian matrix is real"],
        ),
        (
            "hermitian_array.mtx",
            "%%MatrixMarket matrix array complex hermitian\n2 2\n1 0\n2 1\n3 1\n",
            ["an imaginary part in row 2", "the diagonal of a hermitian matrix is real"],
        ),
        (
            "skew.mtx",
            "%%MatrixMarket matrix coordinate complex skew-symmetric\n2 2 1\n2 2 0 1\n",
            ["an entry in row 2", "is 0"],
        ),
        (
            "large.mtx",
            "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 1e999\n",
            ["line 3", "largest number"],
        ),
        ("nosize.mtx", HEADER + "% only a remark\n", ["before its size line", "cut short"]),
        ("nan.mtx", HEADER + "nan 2 1\n1 1 1\n", ["'nan 2 1'", "line 2", "whole numbers"]),
        ("words2.mtx", HEADER + "two by two\n", ["'two by two'", "whole numbers"]),
        ("two.mtx", HEADER + "2 2\n", ["'2 2'", "rows, columns and entries"]),
        ("minus.mtx", HEADER + "-2 2 1\n1 1 1\n", ["'-2 2 1'", "whole numbers"]),
        ("point.mtx", HEADER + "2.0 2 1\n1 1 1\n", ["'2.0 2 1'"]),
        (
            "oblong.mtx",
            "%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n2 1 1\n",
            ["2 x 3", "square"],
        ),
        ("short.mtx", HEADER + "3 3 3\n1 1 1\n2 2 2\n", ["cut short"]),
        ("cutline.mtx", HEADER + "3 3 2\n1 1 1\n2 ", ["line 4"]),
        ("long.mtx", HEADER + "3 3 1\n1 1 1\n2 2 2\n", ["line 4"]),
        ("high.mtx", HEADER + "3 3 2\n1 1 1\n4 2 2\n", ["line 4", "out of bounds"]),
        ("wide.mtx", HEADER + "3 3 1\n1 9 1\n", ["line 3", "out of bounds"]),
        ("zero.mtx", HEADER + "3 3 1\n0 1 1\n", ["out of bounds"]),
        ("text.mtx", HEADER + "3 3 1\n1 1 abc\n", ["line 3"]),
        ("zeros.mtx", HEADER + "3 3 2\n1 1 1\n" + 8 * "\0", ["zero bytes"]),
        ("zeros4.mtx", HEADER[:-1] + " a\0\n3 3 1\n1 1 1.5\n", ["zero bytes in line 1"]),
        ("zeros3.mtx", HEADER + "% a\0\n3 3 1\n1 1 1.5\n", ["zero bytes in line 2"]),
        ("zeros2.mtx", HEADER + "3 3 1\n1 1 1.5\0\0\n", ["zero bytes"]),
        ("zeros.mtx.gz", gzip.compress((HEADER + "3 3 1\n1 1 1.5\0\n").encode()), ["zero bytes"]),
        (
            "torn.mtx",
            "%%MatrixMarket matrix array real general\n2 2\n1\n99999i99E92",
            ["line 4", "one entry and nothing else"],
        ),
        ("promise.mtx", HEADER + "9 9 999999999999999\n1 1 1\n", ["promises 999,999,999,999,999 entries"]),
        ("rows.mtx", HEADER + "99999999999999 1 1\n1 1 1\n", ["half of this machine's memory"]),
        ("huge.mtx", HEADER + f"{10**30} 1 1\n1 1 1\n", ["2^63"]),
        ("array.mtx", "%%MatrixMarket matrix array real general\n99999999 99999999\n1\n", ["promises"]),
        ("plain.mtx.gz", GOOD, ["not a gzip file", "ends in .gz"]),
        ("cut.mtx.gz", gzip.compress(GOOD.encode() * 50)[:-20], ["cut short"]),
        ("start.mtx.gz", gzip.compress(GOOD.encode())[:14], ["cut short"]),
        ("page.mtx.gz", gzip.compress(b"<html></html>"), ["a web page"]),
        ("empty.mtx.gz", gzip.compress(b""), ["starts with ''"]),
        ("empty.npz", b"", ["is empty", "save_npz"]),
        ("text.npz", GOOD, ["not an .npz file", "save_npz"]),
        ("page.npz", "<html></html>", ["not an .npz file"]),
        ("head.npz", b"PK\x03\x04" + bytes(30), ["damaged"]),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 and "." in value else "",
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, name: str, content: str | bytes, words: list[str]
) -> None:
    message = refusal(write(tmp_path / name, content))
    assert name in message
    for word in words:
        assert word in message, message


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(GOOD.encode() * 100))
    packed[40] ^= 0xFF
    assert "a.mtx.gz" in refusal(write(tmp_path / "a.mtx.gz", bytes(packed)))


def npz(**members: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **members)
    return buffer.getvalue()


CSR = {
    "format": b"csr",
    "shape": np.array([2, 3]),
    "data": np.ones(2),
    "indices": np.array([0, 2], dtype=np.int32),
    "indptr": np.array([0, 1, 2], dtype=np.int32),
}


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
        ({"data": np.array([{}, {}], dtype=object)}, ["type object"]),
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


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of members, whose names may occur twice."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: object, said: tuple[int, ...] | None = None) -> bytes:
    """An array as a file; its head may say another shape."""
    array = np.asarray(array)
    buffer = io.BytesIO()
    head = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape if said is None else said}
    np.lib.format.write_array_header_1_0(buffer, head)
    return buffer.getvalue() + array.tobytes()


PARTS = {f"{name}.npy": npy(value) for name, value in CSR.items()}


def overlapping() -> bytes:
    """A zip whose table of contents has a second member inside the first."""
    content = bytearray(zipped(*PARTS.items()))
    second = content.rindex(b"PK\x01\x02")
    content[second + 42 : second + 46] = bytes(4)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped(*PARTS.items(), ("data.npy", PARTS["data.npy"])), "'data.npy' twice"),
        (zipped(*PARTS.items(), ("README", b"")), "'README' and it is no array"),
        (zipped(*PARTS.items(), ("more.npy", npy([1]))), "the arrays data, format, indices, indptr, more"),
        (zipped(*PARTS.items(), method=zipfile.ZIP_LZMA), "packed in an unknown way"),
        (overlapping(), "inside another"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (1,))}.items()), "its head says 8"),
        (
            zipped(*{**PARTS, "data.npy": npy(np.ones(2), (10**12,))}.items()),
            "its head says 8,000,000,000,000",
        ),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (-1, -2))}.items()), "shape (-1, -2)"),
        (zipped(*{**PARTS, "data.npy": b"no array at all"}.items()), "damaged"),
        (zipped(*{**PARTS, "shape.npy": npy(np.zeros(99))}.items()), "shape has 792 bytes"),
        (zipped(*{**PARTS, "shape.npy": npy([2.5, 3])}.items()), "its shape is"),
        (zipped(*{**PARTS, "shape.npy": npy(np.array([2, 2**64 - 1], np.uint64))}.items()), "its shape is"),
        (zipped(*{**PARTS, "format.npy": npy(b"coo")}.items()), "its format is 'coo'"),
        (zipped(*{**PARTS, "indices.npy": npy(np.array([[0, 2]]))}.items()), "not a list of integers"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones((2, 1)))}.items()), "data has shape (2, 1)"),
    ],
)
def test_an_archive_is_what_its_contents_say(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(write(tmp_path / "a.npz", content))


def test_an_archive_with_a_long_table_of_contents_is_refused(tmp_path: Path) -> None:
    content = zipped(*PARTS.items(), *((f"{i}", b"") for i in range(30_000)))
    assert "a table of contents of" in refusal(write(tmp_path / "a.npz", content))


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


def test_sums_of_an_npz_do_not_overflow(tmp_path: Path) -> None:
    members = {"format": b"coo", "shape": np.array([1, 1]), "row": np.array([0, 0]), "col": np.array([0, 0])}
    for data in (
        np.array([2**62, 2**62]),
        np.array([2**63, 2**63], np.uint64),
        np.array([100, 100], np.int8),
    ):
        assert "may be beyond" in refusal(write(tmp_path / "a.npz", npz(**members, data=data)))
    path = write(tmp_path / "a.npz", npz(**members, data=np.array([60, 60], np.int8)))
    assert load_matrix(path).toarray().tolist() == [[120]]


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


def test_nothing_is_unpacked_that_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasp.runtime.memory.machine_bytes", lambda: 10**8)
    zeros = npy(np.zeros(2 * 10**7))
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


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop", "dangling"])
@pytest.mark.parametrize("name", ["a.mtx", "a.npz", "plan"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)  # to open one for reading would wait for a writer for ever
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path if kind == "loop" else tmp_path / "nothing")
    with pytest.raises(MatrixFileError) as caught:
        load_plan(path) if name == "plan" else load_matrix(path)
    assert str(path) in str(caught.value)


def test_links_to_files_are_read(tmp_path: Path) -> None:
    write(tmp_path / "real", GOOD)
    (tmp_path / "link.mtx").symlink_to(tmp_path / "real")
    assert load_matrix(tmp_path / "link.mtx").nnz == 3


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    scipy.sparse.save_npz(path, generate("poisson2d:10"))
    monkeypatch.setattr("dasp.runtime.memory.machine_bytes", lambda: 1000)
    assert "half of this machine's memory" in refusal(path)


@FILE
@given(text=st.text(max_size=200), tail=st.binary(max_size=60))
def test_any_text_after_the_header_is_read_or_refused(tmp_path: Path, text: str, tail: bytes) -> None:
    path = write(tmp_path / "a.mtx", HEADER.encode() + text.encode("utf-8", "replace") + tail)
    message = ""
    try:
        load_matrix(path).check_format(full_check=True)
    except MatrixFileError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", ["must be a file"]),
        ("nosuchfile.mtx", ["nosuchfile.mtx", "not found", "DASP_MATRICES"]),
        ("no/such/folder/a.mtx", ["not found"]),
        ("a\0b", ["must be a file"]),
        ("x" * 5000, ["xxx"]),
        ("poison3d:4", ["known model", "did you mean poisson3d?"]),
        ("poisson3d", ["without parameters", examples()["poisson3d"]]),
        ("poisson3d:-1", ["at least 1"]),
        ("dense:10000000", ["half of this machine's memory"]),
        ("poison3d", ["did you mean", "poisson3d:20"]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_bad_name_is_one_clear_line(
    spec: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASP_MATRICES", raising=False)
    message = refusal(spec)
    for word in words:
        assert word in message, message


def test_close_matches_in_the_same_folder_are_suggested(tmp_path: Path) -> None:
    write(tmp_path / "stiffness.mtx", GOOD)
    assert "did you mean" in refusal(tmp_path / "stifness.mtx")
    assert str(tmp_path / "stiffness.mtx") in refusal(tmp_path / "stifness.mtx")


def test_a_folder_is_refused_with_what_is_in_it(tmp_path: Path) -> None:
    assert "it has none" in refusal(tmp_path)
    write(tmp_path / "a.mtx", GOOD)
    assert "a.mtx" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mtx", GOOD)
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def test_real_matrices_load_by_their_names(matrices: Path) -> None:
    files = sorted(matrices.glob("*.npz"))[:5]
    assert files, f"{matrices} holds no .npz file"
    for path in files:
        assert load_matrix(path.stem).nnz == scipy.sparse.load_npz(path).nnz


# Plans

VALUES = {
    Coding.PLAIN: np.random.default_rng(1).standard_normal,
    Coding.SINGLE: lambda count: np.random.default_rng(2).standard_normal(count).astype(np.float32),
    Coding.BYTE: lambda count: np.random.default_rng(3).integers(-128, 128, count),
    Coding.DICTIONARY: lambda count: np.random.default_rng(4).integers(0, 50, count) / 2,
    Coding.EQUAL: lambda count: np.full(count, 0.1),
    Coding.HALF: lambda count: np.random.default_rng(5).standard_normal(count).astype(np.float16),
}
"""Values that are stored in each coding."""


def plan_of(matrix: csr_array, **choices: Any) -> Plan:
    return planned(matrix, Policy(**choices))


def dasp_plan() -> Plan:
    return plan_of(generate("spikes:300:2:290"), format="dasp", long_row=100)


def sliced_plan(coding: Coding = Coding.DICTIONARY) -> Plan:
    """A plan whose slices have every array, segments, 1 to 32 lanes to a row and all widths but the last."""
    matrix = generate("spikes:300:2:290")
    matrix.data = VALUES[coding](matrix.nnz).astype(float)
    plan = plan_of(matrix, format="sell", steps=2, window=128)
    assert plan.values.coding == coding
    return plan


def assert_comes_back(plan: Plan, path: Path) -> None:
    save_plan(path, plan)
    loaded = load_plan(path)
    before, after = pack_plan(plan), pack_plan(loaded)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.dtype == after[name].dtype, name
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    assert (loaded.format, loaded.shape, loaded.dtype) == (plan.format, plan.shape, plan.dtype)
    assert loaded.pattern.index_dtype == plan.pattern.index_dtype
    for one, other in zip(unpacked(plan), unpacked(loaded), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


PLANS = ["rmat:8", "poisson2d:9", "short:400", "spikes:300:2:290", "random:40:30:0.2", "dense:9"]


@pytest.mark.parametrize("coding", VALUES)
@pytest.mark.parametrize("name", [name for name in TABLE if name not in ("float64", "float32")])
def test_a_plan_of_every_type_comes_back(tmp_path: Path, name: str, coding: Coding) -> None:
    matrix, dtype = generate("spikes:300:2:290"), TABLE[name].dtype
    values = VALUES[coding](matrix.nnz).astype(dtype)
    matrix = csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert_comes_back(plan_of(matrix, format="sell"), tmp_path / "p.npz")


def test_a_complex_matrix_of_scipy_is_read(tmp_path: Path) -> None:
    matrix = csr_array(np.array([[0, 1j], [2.5, 0]]))
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    found = load_matrix(tmp_path / "a.npz")
    assert found.dtype == np.complex128
    np.testing.assert_array_equal(found.toarray(), matrix.toarray())


@pytest.mark.parametrize("spec", PLANS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_a_plan_comes_back_bit_for_bit(tmp_path: Path, spec: str, dtype: type, layout: str) -> None:
    plan = plan_of(
        generate(spec).astype(dtype),
        format=layout,
        **({"steps": 2} if layout == "sell" else {"long_row": 100}),
    )
    assert_comes_back(plan, tmp_path / "p.npz")


@pytest.mark.parametrize("coding", VALUES)
def test_slices_of_every_coding_come_back(tmp_path: Path, coding: Coding) -> None:
    assert_comes_back(sliced_plan(coding), tmp_path / "p.npz")


def test_slices_of_every_width_come_back(tmp_path: Path) -> None:
    columns = np.concatenate([np.arange(32), np.arange(32) * 3, np.arange(32) * 999, np.arange(32) * 99_999])
    matrix = csr_array((np.ones(128), (np.arange(128), columns)), shape=(128, 4_000_000))
    plan = plan_of(matrix, format="sell")
    assert sorted(shape_fields(plan.pattern.headers[:, 3])[3]) == list(Width)
    assert_comes_back(plan, tmp_path / "p.npz")


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (3, 3)])
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_an_empty_plan_comes_back(tmp_path: Path, shape: tuple[int, int], layout: str) -> None:
    save_plan(tmp_path / "p.npz", plan_of(csr_array(shape), format=layout))
    assert load_plan(tmp_path / "p.npz").shape == shape


def test_saving_leaves_no_half_file(tmp_path: Path) -> None:
    plan = plan_of(generate("poisson2d:4"))
    save_plan(tmp_path / "plan", plan)  # the name is used as it is
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    with pytest.raises(MatrixFileError, match="cannot be written"):
        save_plan(tmp_path / "no" / "plan.npz", plan)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    plan = plan_of(generate("poisson2d:4"))
    other = write(tmp_path / "other", "mine")
    (tmp_path / "plan").symlink_to(other)
    save_plan(tmp_path / "plan", plan)
    assert other.read_text() == "mine"
    assert not (tmp_path / "plan").is_symlink()
    assert load_plan(tmp_path / "plan").shape == plan.shape


@pytest.mark.parametrize("path", ["", "a\0b", "/dev/null", ".", "/"])
def test_a_plan_goes_into_a_regular_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MatrixFileError, match="file"):
        save_plan(path, plan_of(generate("poisson2d:4")))
    assert not list(tmp_path.iterdir())
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_plan_comes_from_a_file_with_a_name(path: str) -> None:
    with pytest.raises(MatrixFileError, match="it must name a file"):
        load_plan(path)


def test_only_plans_are_saved(tmp_path: Path) -> None:
    for thing in (generate("poisson2d:4"), None, "plan.npz"):
        with pytest.raises(TypeError, match="a dasp plan is needed"):
            save_plan(tmp_path / "p.npz", thing)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_savers_of_one_path_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    plans = [plan_of(generate(f"poisson2d:{size}")) for size in (20, 30, 40, 50)]
    for _ in range(5):
        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(partial(save_plan, path), plans))
        assert load_plan(path).shape in [plan.shape for plan in plans]
        assert [entry.name for entry in tmp_path.iterdir()] == ["plan.npz"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_failed_save_leaves_the_older_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, at: str
) -> None:
    path = tmp_path / "plan.npz"
    old, new = (plan_of(generate(f"poisson2d:{size}")) for size in (4, 5))
    save_plan(path, old)

    def fail(*arguments: Any, **_: Any) -> None:
        if at == "write":
            arguments[0].write(b"PK")
        raise failure

    name = {"write": "numpy.savez", "fsync": "os.fsync", "replace": "os.replace"}[at]
    with monkeypatch.context() as patch:
        patch.setattr(name, fail)
        with pytest.raises((type(failure), MatrixFileError)) as caught:
            save_plan(path, new)
        if isinstance(failure, OSError):
            assert "cannot be written: No space left" in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.npz"]
    assert load_plan(path).shape == old.shape


FULL_DISK = """
import resource, signal, sys
from dasp.io import MatrixFileError, save_plan
from dasp import SpMatrix
from dasp.models import generate

plan = SpMatrix.from_scipy(generate("poisson2d:60"), device="cpu").plan
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    save_plan(sys.argv[1], plan)
except MatrixFileError as error:
    print(error)
"""


def test_a_full_disk_keeps_nothing_of_a_plan(tmp_path: Path) -> None:
    # A limit on the size of files fails in write and close as a full disk does.
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "p.npz"], capture_output=True, text=True, check=True
    )
    assert "p.npz cannot be written: File too large" in done.stdout
    assert not done.stderr
    assert not list(tmp_path.iterdir())


def broken(tmp_path: Path, plan: Plan | None = None, **changes: object) -> str:
    """Save a plan with some arrays replaced (None removes one), and return how it is refused."""
    packed: dict[str, object] = dict(pack_plan(plan or dasp_plan()))
    for name, value in changes.items():
        packed[name.replace("__", ".")] = value
    path = tmp_path / "p.npz"
    with open(path, "wb") as file:
        np.savez(file, **{name: value for name, value in packed.items() if value is not None})
    with pytest.raises(MatrixFileError) as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    for version in (0, 5, 7, "6", None):
        head = np.frombuffer(json.dumps({"version": version, "fields": {}}).encode(), dtype=np.uint8)
        assert "version" in broken(tmp_path, dasp_plan=head)
    assert "p.npz" in broken(tmp_path, dasp_plan=np.frombuffer(b"no json", dtype=np.uint8))
    assert "p.npz" in broken(tmp_path, dasp_plan=np.frombuffer(b"[1]", dtype=np.uint8))
    assert "holds no plan" in broken(tmp_path, dasp_plan=None)


def array_fields(kind: type, prefix: str = "") -> list[str]:
    """The paths of all arrays of a plan, by its types alone, so that collecting tests compiles nothing."""
    hints = get_type_hints(kind)
    names: list[str] = []
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            names += array_fields(hints[field.name], f"{prefix}{field.name}.")
        elif get_origin(hints[field.name]) is np.ndarray:
            names.append(prefix + field.name)
    return names


ARRAYS = [
    (layout, name)
    for layout in names()
    for name in array_fields(find(layout).pattern, "pattern.") + array_fields(find(layout).values, "values.")
]


assert {"pattern.headers", "values.codes", "pattern.long.rows"} <= {name for _, name in ARRAYS}


@pytest.mark.parametrize(("layout", "name"), ARRAYS)
def test_no_array_of_a_plan_can_be_wrong(tmp_path: Path, layout: str, name: str) -> None:
    plan = sliced_plan() if layout == "sell" else dasp_plan()
    good = pack_plan(plan)[name]
    key = name.replace(".", "__")
    assert name in broken(tmp_path, plan, **{key: None})
    broken(tmp_path, plan, **{key: good.reshape(1, -1)})
    if name != "values.table":  # it may be longer than its codes need
        one = np.ones((1, *good.shape[1:]), good.dtype)
        broken(tmp_path, plan, **{key: np.concatenate([good, one])})
    broken(tmp_path, plan, **{key: good.astype(np.int16)})
    if good.size and good.dtype.kind == "i":
        for value in (PAD, -2, 10**6):
            wrong = good.copy()
            wrong[-1] = value
            if value != good.flat[-1]:
                broken(tmp_path, plan, **{key: wrong})


def header(place: int, column: int, value: int, shift: int = 0, bits: int = 32) -> Change:
    """Write a number of `bits` bits into the header of the slice at `place`, from bit `shift` on."""

    def change(arrays: dict[str, np.ndarray], fields: dict[str, object]) -> None:
        headers = arrays["pattern.headers"] = arrays["pattern.headers"].copy()
        kept = int(headers[place, column]) & ~((1 << bits) - 1 << shift)
        headers[place, column] = kept | value << shift

    return change


def field(name: str, value: object) -> Change:
    """Write a number that is no array."""
    return lambda arrays, fields: fields.update({name: value})


def array(name: str, change: Callable[[np.ndarray], object]) -> Change:
    """Change a copy of an array in place, or return another one."""

    def changed(arrays: dict[str, np.ndarray], fields: dict[str, object]) -> None:
        path = ("values." if name in ("codes", "table") else "pattern.") + name
        copy = arrays[path].copy()
        other = change(copy)
        arrays[path] = other if isinstance(other, np.ndarray) else copy

    return changed


# What may be wrong with the slices of `sliced_plan`, and how it is named.
SLICE_FAULTS: dict[str, tuple[Change, str]] = {
    "a step later": (header(5, 0, 9999), "steps do not follow"),
    "a step twice": (header(1, 0, 0), "steps do not follow"),
    "no steps": (header(-1, 3, 0, 0, 12), "more full steps|steps do not follow"),
    "many steps": (header(-1, 3, 4095, 0, 12), "steps do not follow"),
    "many full steps": (header(-1, 3, 4095, 12, 12), "more full steps"),
    "full steps with pads": (header(-1, 3, 1, 12, 12), "a full step has a pad"),
    "64 lanes": (header(-1, 3, 6, 24, 3), "more than 32 lanes"),
    "other lanes": (header(-1, 3, 5, 24, 3), "positions"),
    "a segment of 16 lanes": (header(0, 3, 4, 24, 3), "fewer than 32 lanes"),
    "a wider width": (header(-1, 3, 3, 27, 2), "deltas do not follow"),
    "no width": (header(-1, 3, 0, 27, 2), "deltas do not follow"),
    "an unknown bit": (header(-1, 3, 1, 29, 1), "unknown bits"),
    "deltas elsewhere": (header(3, 2, 2**32 - 1), "deltas do not follow"),
    "a position later": (header(-1, 1, 10**6), "positions do not follow"),
    "a segment twice": (header(0, 1, 1), "do not cover the long rows"),
    "segments in another order": (
        array("headers", lambda a: a.__setitem__((slice(0, 2), 1), a[1::-1, 1])),
        "segments of a row do not follow",
    ),
    "a segment of another row": (
        array("segment_rows", lambda a: a.__setitem__(0, 1)),
        "segment_rows does not",
    ),
    "a base below": (array("bases", lambda a: a.__setitem__(0, -1)), "bases are out of range"),
    "a base beyond": (array("bases", lambda a: a.__setitem__(0, 300)), "bases are out of range"),
    "a column beyond": (array("bases", lambda a: a.__setitem__(0, 299)), "columns of slices are out of"),
    "all pads": (array("deltas", lambda a: a.fill(255)), "pad|entries"),
    "no pads": (array("deltas", lambda a: a.fill(0)), "without a row|entries"),
    "fewer deltas": (array("deltas", lambda a: a[:-32]), "deltas do not follow"),
    "odd deltas": (array("deltas", lambda a: a[:-1]), "whole number of blocks"),
    "fewer values": (array("codes", lambda a: a[:-32]), "codes has"),
    "a code beyond": (array("codes", lambda a: a.__setitem__(0, 255)), "a code is 255"),
    "pads with a code": (array("codes", lambda a: a.fill(1)), "a pad's code is not 0"),
    "a short table": (array("table", lambda a: a[:3]), "a code is"),
    "no table": (array("table", lambda a: a[:0]), "table has 0 values"),
    "a long table": (array("table", lambda a: np.resize(a, 257)), "table has 257 values"),
    "a row twice": (array("rows", lambda a: a.__setitem__(0, a[1])), "a row occurs twice"),
    "no rows": (array("rows", lambda a: a[:0]), "a row occurs twice"),
    "a long row twice": (array("long_rows", lambda a: a.__setitem__(0, a[1])), "a row occurs twice"),
    "a row without segments": (
        array("segment_offsets", lambda a: a.__setitem__(1, 0)),
        "a long row has no segment",
    ),
    "other segments": (array("segment_offsets", lambda a: a.__setitem__(1, 1)), "segment_rows does not"),
    "the first segment later": (array("segment_offsets", lambda a: a.__setitem__(0, 1)), "from 0 to"),
    "more entries": (field("pattern.entries", 10**6), "says 1000000 entries"),
    "no coding": (field("values.coding", 60), "no Coding has that number"),
    "parts of real values": (field("values.coding", 6), "values of float64 are coded as REAL"),
    "a coding in words": (field("values.coding", "PLAIN"), "no Coding has that number"),
    "plain codes": (field("values.coding", 0), "codes is uint8, not float64"),
    "equal codes": (field("values.coding", 4), "codes has"),
    "no warps": (field("pattern.choice.warps", 0), "warps is 0"),
    "many warps": (field("pattern.choice.warps", 17), "warps is 17"),
    "negative segments": (field("pattern.segments", -1), "-1 of"),
    "many segments": (field("pattern.segments", 10**6), "1000000 of"),
    "fewer segments": (field("pattern.segments", 1), "segment_offsets"),
    "fewer positions": (field("pattern.positions", 1), "positions"),
    "more positions": (field("pattern.positions", 10**6), "positions"),
}


@pytest.mark.parametrize("fault", SLICE_FAULTS)
def test_slices_cannot_be_wrong(tmp_path: Path, fault: str) -> None:
    change, words = SLICE_FAULTS[fault]
    plan = sliced_plan()
    arrays = pack_plan(plan)
    head = json.loads(arrays["dasp_plan"].tobytes())
    change(arrays, head["fields"])
    arrays["dasp_plan"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    message = broken(tmp_path, plan, **{name.replace(".", "__"): value for name, value in arrays.items()})
    assert re.search(words, message), message


def test_lanes_without_a_row_hold_pads(tmp_path: Path) -> None:
    plan = plan_of(generate("poisson2d:3"), format="sell", window=0)
    arrays = pack_plan(plan)
    deltas = arrays["pattern.deltas"].copy()
    assert deltas[31] == PAD_8
    deltas[31] = 0
    head = json.loads(arrays["dasp_plan"].tobytes())
    head["fields"]["pattern.entries"] += 1
    text = np.frombuffer(json.dumps(head).encode(), np.uint8)
    assert "a lane without a row" in broken(tmp_path, plan, pattern__deltas=deltas, dasp_plan=text)


def test_unknown_and_mistyped_fields_are_refused(tmp_path: Path) -> None:
    assert "unknown field extra" in broken(tmp_path, extra=np.ones(2))
    head = json.loads(pack_plan(dasp_plan())["dasp_plan"].tobytes())
    for field, value in (
        ("pattern.long.entries", 1),
        ("pattern.long.entries", "many"),
        ("pattern.mma", 1),
        ("pattern.index_dtype", "int16"),
        ("pattern.long.segment", 0),
        ("pattern.medium.count", 1),
        ("pattern.medium.blocks_per_warp", 3),
        ("pattern.medium.regular.rows", 1),
        ("pattern.short.singles", -1),
        ("pattern.short.fours", 0),
    ):
        changed = json.dumps({**head, "fields": {**head["fields"], field: value}}).encode()
        broken(tmp_path, dasp_plan=np.frombuffer(changed, dtype=np.uint8))
    for field, value in (
        ("dtype", "float32"),
        ("dtype", "no type"),
        ("dtype", None),
        ("shape", [300]),
        ("shape", [299, 300]),
        ("shape", [300, -1]),
        ("shape", None),
        ("format", "sell"),
        ("format", "nosuch"),
        ("format", 3),
        ("fields", []),
        ("fields", None),
    ):
        changed = json.dumps({**head, field: value}).encode()
        broken(tmp_path, dasp_plan=np.frombuffer(changed, dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty; .*dasp.save_plan"), (b"hello", "not an .npz .*dasp.save_plan"), (b"PK\x03\x04", "")],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(MatrixFileError, match=rf"p\.npz.*{words}"):
        load_plan(write(tmp_path / "p.npz", content))


def test_other_things_are_no_plans(tmp_path: Path) -> None:
    with pytest.raises(MatrixFileError, match="cannot be read"):
        load_plan(tmp_path / "nosuch.npz")
    with pytest.raises(MatrixFileError, match="folder"):
        load_plan(tmp_path)
    scipy.sparse.save_npz(tmp_path / "m.npz", generate("poisson2d:3"))
    with pytest.raises(MatrixFileError, match="holds no plan"):
        load_plan(tmp_path / "m.npz")
    save_plan(tmp_path / "p.npz", plan_of(generate("poisson2d:3")))
    assert "load_plan" in refusal(tmp_path / "p.npz")
    with zipfile.ZipFile(tmp_path / "p.npz") as archive:
        assert "dasp_plan.npy" in archive.namelist()


def test_a_plan_is_read_only_after_loading() -> None:
    plan = unpack_plan(pack_plan(plan_of(generate("poisson2d:5"))))
    with pytest.raises(ValueError, match="read-only"):
        plan.values.codes[:1] = 0
