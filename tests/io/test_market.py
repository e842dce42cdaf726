"""Matrix Market files: round trips, and one clear line for whatever can be wrong with one."""

from __future__ import annotations

import gzip
import io
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from dasp.io import MatrixFileError, load_matrix, market
from tests.support.files import FILE, GOOD, HEADER, matrices, refusal, same, write


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
        ("COORDINATE Real General", "1 1 1\r\n1 1 2.5e-3", [[2.5e-3]], np.float64),
        ("coordinate real general", "1 2 2\n1 1 nan\n1 2 -inf", [[np.nan, -np.inf]], np.float64),
    ],
)
def test_every_field_and_symmetry_is_read(
    tmp_path: Path, header: str, body: str, want: object, dtype: type
) -> None:
    for end in (
        "\n",
        "",
        " ",
        "\t\r",
        "\n\n ",
    ):  # a space that ends the file ends SciPy's reader, and the process
        path = write(tmp_path / "a.mtx", f"%%MatrixMarket matrix {header}\n{body}{end}")
        matrix = load_matrix(path)
        assert matrix.dtype == dtype
        np.testing.assert_array_equal(matrix.toarray(), want)


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
    loaded = load_matrix(path)
    np.testing.assert_array_equal(loaded.toarray(), want.toarray().astype(loaded.dtype))
    assert loaded.nnz == want.nnz


NUMBERS = """
0 -0 +1.5 1. .5 -.5e1 1e5 1E+05 007 1e-5 0e999 1e-999 0.0000e-400 1d5 1D+5 -2.5d-3 1.5D05 nan -NaN
inf -Infinity INF 1.7976931348623157e308 4.9e-324 2.4703282292062328e-324 2.2250738585072011e-308
9007199254740993 9007199254740993.0000000000000000000000001 9007199254740992.99999999999999999999
123456789012345678901234567890 0.1 0.3 0.10000000000000000555111512312578270211815834045410156250001
8.5e22 1e23 6e-26
"""
"""Ways to write a number, ties and near ties between two floats among them."""


def test_numbers_are_rounded_to_the_nearest(tmp_path: Path) -> None:
    # Beside them the exact decimals half way between neighbours, and one digit to either side of them.
    texts = [*NUMBERS.split(), f"0.{400 * '0'}1e401", f"1{400 * '0'}e-400", f"{900 * '7'}e-800"]
    for q in range(-330, 308):
        below = float(f"{q % 9 + 1}.7e{q}")
        half = (Fraction(below) + Fraction(math.nextafter(below, math.inf))) / 2
        scale = 10 ** max(0, half.denominator.bit_length())
        exact = half * scale
        assert exact.denominator == 1
        texts += [f"{exact.numerator * 10 + off}e-{len(str(scale))}" for off in (-1, 0, 1)]
    body = "".join(f"1 {column} {text}\n" for column, text in enumerate(texts, 1))
    path = write(tmp_path / "a.mtx", f"{HEADER}1 {len(texts)} {len(texts)}\n{body}")
    got = load_matrix(path).data
    want = np.array([float(text.lower().replace("d", "e")) for text in texts])
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got[numbers].view(np.uint64), want[numbers].view(np.uint64))
    assert np.isnan(got[~numbers]).all()


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
    assert f"Line {len(lines) + 2}:" in refusal(write(tmp_path / "b.mtx", more))
    fewer = b"\r\n".join(lines[:-1])
    assert "Expected another 1 lines" in refusal(write(tmp_path / "b.mtx", fewer))


REAL, INTEGER = "coordinate real general", "coordinate integer general"


WRONG_REALS = """
1,5 0x10 1_000 1e- 1e 1e+ 1d junk 1.5.2 --1 +-1 - . e5 1f 1e999 -1d400 nan(1) infinit 1+5 1e5.5 1;
1e9999999999999999999999 '1' 1/2 (1,0)
"""
WRONG_INTEGERS = "1e3 1.5 1. 7x 0x7 - 1,000 9223372036854775808 99999999999999999999"
MALFORMED = {
    **{
        f"real {value!r}": (REAL, f"1 1 1\n1 1 {value}", 3)
        for value in [
            *WRONG_REALS.split(),
            *["1 junk", "1 2", "\u0661", "1\v", "1e 5", 400 * "9", "1" + 5000 * "0"],
        ]
    },
    **{f"integer {value!r}": (INTEGER, f"1 1 1\n1 1 {value}", 3) for value in ["", *WRONG_INTEGERS.split()]},
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
    assert f"line {line}" in message.lower() or "beyond the largest" in message


@pytest.mark.parametrize(
    ("header", "body", "words"),
    [
        *[
            (f"array real {symmetry}", "3 3\n" + "1\n" * count, "size line promises")
            for symmetry, count in (
                *[("symmetric", count) for count in (0, 1, 4, 5)],
                *[("hermitian", 5), ("skew-symmetric", 2)],
            )
        ],
        ("array real general", "3 3\n" + "1\n" * 8, "Truncated"),
        ("coordinate pattern general", "2 2 1\n1 1 1\n", "a line has a row and a column, and nothing else"),
        ("array real skew-symmetric", "3 3\n1\n2\n3\n4\n", "promises 3"),
        ("array pattern general", "2 2\n", "pattern"),
        ("coordinate real skew-symmetric", "2 2 1\n2 2 3\n", "3.0 on its diagonal"),
        ("coordinate pattern skew-symmetric", "2 2 1\n2 2\n", "1.0 on its diagonal"),
        ("array unsigned-integer skew-symmetric", "2 2\n1\n", "unsigned"),
        ("coordinate unsigned-integer skew-symmetric", "2 2 1\n2 1 1\n", "unsigned"),
        ("coordinate real symmetric", "3 3 3\n2 1 3\n3 3 1\n1 2 3\n", "both entries (2, 1) and (1, 2)"),
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
        ("coordinate complex skew-symmetric", "2 2 1\n2 1 inf 0\n", [[0, -np.inf], [np.inf, 0]]),
        ("coordinate real symmetric", "3 3 2\n1 2 3\n3 2 4\n", [[0, 3, 0], [3, 0, 4], [0, 4, 0]]),
        ("coordinate integer general", f"1 1 2\n1 1 {2**63 - 1}\n1 1 -5\n", [[2**63 - 6]]),
    ):
        matrix = load_matrix(write(tmp_path / "a.mtx", f"%%MatrixMarket matrix {header}\n{body}"))
        np.testing.assert_array_equal(matrix.toarray(), want)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.mtx", "", ["starts with ''", "%%MatrixMarket"]),
        ("page.mtx", "<!DOCTYPE html>\n<html><body>404</body></html>\n", ["starts with '<!DOCTYPE html>'"]),
        ("zip.mtx", b"PK\x03\x04rest", ["starts with 'PK", "%%MatrixMarket"]),
        ("a.tar.gz", gzip.compress(b"x"), ["packed", "tar xf"]),
        ("a.mtx.bz2", b"BZh91AY", ["packed", ".mtx.gz", "bunzip2"]),
        ("vector.mtx", "%%MatrixMarket vector coordinate real general\n1 1 1\n", ["starts with", "vector"]),
        ("field.mtx", "%%MatrixMarket matrix coordinate quaternion general\n", ["starts with", "complex"]),
        ("half.mtx", "%%MatrixMarket matrix\n", ["starts with"]),
        (
            "hermitian.mtx",
            "%%MatrixMarket matrix coordinate complex hermitian\n3 3 2\n1 1 1 0\n3 3 2 1\n",
            ["hermitian and has (2+1j) on its diagonal"],
        ),
        (
            "hermitian_array.mtx",
            "%%MatrixMarket matrix array complex hermitian\n2 2\n1 0\n2 1\n3 1\n",
            ["hermitian and has (3+1j) on its diagonal"],
        ),
        (
            "skew.mtx",
            "%%MatrixMarket matrix coordinate complex skew-symmetric\n2 2 1\n2 2 0 1\n",
            ["skew-symmetric and has 1j on its diagonal"],
        ),
        (
            "large.mtx",
            "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 1e999\n",
            ["largest float64"],
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
        ("short.mtx", HEADER + "3 3 3\n1 1 1\n2 2 2\n", ["Truncated"]),
        ("cutline.mtx", HEADER + "3 3 2\n1 1 1\n2 ", ["line 4"]),
        ("long.mtx", HEADER + "3 3 1\n1 1 1\n2 2 2\n", ["Line 4"]),
        ("high.mtx", HEADER + "3 3 2\n1 1 1\n4 2 2\n", ["Line 4", "out of bounds"]),
        ("wide.mtx", HEADER + "% a remark\n3 3 1\n1 9 1\n", ["Line 4", "out of bounds"]),
        ("zero.mtx", HEADER + "3 3 1\n0 1 1\n", ["out of bounds"]),
        ("zeros.mtx", HEADER + "3 3 2\n1 1 1\n" + 8 * "\0", ["line 4"]),
        ("zeros4.mtx", HEADER[:-1] + " a\0\n3 3 1\n1 1 1.5\n", ["zero bytes in line 1"]),
        ("zeros3.mtx", HEADER + "% a\0\n3 3 1\n1 1 1.5\n", ["zero bytes in line 2"]),
        ("array.npy", b"\x93NUMPY\1\0v\0", ["starts with '\\x93NUMPY", "give a file of that format"]),
        ("zeros.mtx.gz", gzip.compress((HEADER + "3 3 1\n1 1 1.5\0\n").encode()), ["line 3"]),
        ("promise.mtx", HEADER + "9 9 999999999999999\n1 1 1\n", ["half of this machine's memory"]),
        ("rows.mtx", HEADER + "99999999999999 1 1\n1 1 1\n", ["half of this machine's memory"]),
        ("huge.mtx", HEADER + f"{10**29} 1 1\n1 1 1\n", ["half of this machine's memory"]),
        ("array.mtx", "%%MatrixMarket matrix array real general\n99999999 99999999\n1\n", ["memory"]),
        ("cut.mtx.gz", gzip.compress(GOOD.encode() * 50)[:-20], ["cut short"]),
        ("start.mtx.gz", gzip.compress(GOOD.encode())[:14], ["cut short"]),
        ("empty.mtx.gz", gzip.compress(b""), ["starts with ''"]),
        ("empty.npz", b"", ["not a zip file"]),
        ("text.npz", GOOD, ["not a zip file"]),
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
