"""Attack on files of matrices and plans: bad text, damaged archives, lies, bombs, killed savers; seeded.

    python -m tests.attack.files --seconds 600 --seed 7

The seed and a case's number determine the case, so that `--case` reproduces one that failed. Cases run in
child processes, which may neither crash nor take much memory. A reader in plain Python that shares no code
with dasp decides what a matrix file means: dasp must read the same numbers, or refuse in one line what that
reader refuses. A damaged plan must be refused, or be a plan whose product is that of its own entries. The
attack prints counts of the cases and ends with status 1 if anything was wrong; it keeps the folder of a case
that failed.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dasp import Policy, SpMatrix
from dasp.io import MatrixFileError, load_matrix, load_plan, save_plan
from tests.attack._cases import attack_by_command
from tests.support.planned import Tuned

MOST_SECONDS = 60
MOST_BYTES = 300 << 20
"""CPU time that a process may take, and memory that it may take beyond its memory at the start."""

TOO_WIDE, MOST_WIDE_BYTES = "matrix archives read, too wide to compare", 4 << 30
"""The name of cases where a damaged shape is a sound one of very many rows, and the memory those may take."""

BATCH = 25
"""Cases of a process: starting one takes longer than most cases."""

Dense = list[list[Any]]
NUMBER = re.compile(
    rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eEdD][+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.I
)
WHOLE = re.compile(rb"[+-]?[0-9]+")
INDEX = re.compile(rb"[0-9]+")


class UnsoundError(Exception):
    """dasp treated a case wrongly; the message says how."""


# ---- a second reader of Matrix Market -----------------------------------------------------------------


def parse(text: bytes) -> Dense | None:
    """Read a matrix as rows of Python numbers, or None if it is no Matrix Market file of this format."""
    lines = text.split(b"\n")
    words = [word.decode("latin-1") for word in _words(lines[0].lower())]
    if not lines[0].startswith(b"%%") or words[:2] != ["%%matrixmarket", "matrix"] or len(words) < 5:
        return None
    layout, field, symmetry = words[2:5]
    if layout not in ("coordinate", "array") or symmetry not in SYMMETRIES or field not in FIELDS:
        return None
    at = 1
    while at < len(lines) and (lines[at].startswith(b"%") or not _words(lines[at])):
        at += 1
    sizes = _words(lines[at]) if at < len(lines) else []
    if len(sizes) != (3 if layout == "coordinate" else 2) or not all(INDEX.fullmatch(size) for size in sizes):
        return None
    m, n, *rest = map(int, sizes)
    if (symmetry != "general" and m != n) or (layout, field) == ("array", "pattern"):
        return None
    if max(m, n, m * n) > 10**5:
        raise OverflowError
    body = [line.removesuffix(b"\r") for line in lines[at + 1 :]]
    found = _entries([line for line in body if line.strip(b" \t")], layout, field, symmetry, m, n)
    return (
        None
        if found is None or len(found) != (rest or [_places(symmetry, m, n)])[0]
        else _fill(found, field, symmetry, m, n)
    )


def _words(line: bytes) -> list[bytes]:
    return re.findall(rb"[^ \t]+", line.rstrip(b"\r"))


FIELDS = ("real", "double", "integer", "unsigned-integer", "pattern", "complex")
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


def _places(symmetry: str, m: int, n: int) -> int:
    return len(list(_array_places(symmetry, m, n)))


def _array_places(symmetry: str, m: int, n: int) -> list[tuple[int, int]]:
    first = {"general": lambda j: 0, "skew-symmetric": lambda j: j + 1}.get(symmetry, lambda j: j)
    return [(i, j) for j in range(n) for i in range(first(j), m)]


def _entries(
    lines: list[bytes], layout: str, field: str, symmetry: str, m: int, n: int
) -> list[tuple[int, int, Any]] | None:
    places = _array_places(symmetry, m, n) if layout == "array" else []
    entries: list[tuple[int, int, Any]] = []
    for line in lines:
        words = [word for word in re.split(rb"[ \t]+", line) if word]
        if layout == "array":
            if len(entries) == len(places):
                return None
            place = places[len(entries)]
        else:
            if len(words) < 2 or not INDEX.fullmatch(words[0]) or not INDEX.fullmatch(words[1]):
                return None
            place = int(words[0]) - 1, int(words[1]) - 1
            if not (0 <= place[0] < m and 0 <= place[1] < n):
                return None
            words = words[2:]
        value = 1.0 if field == "pattern" and not words else _value(words, field)
        if value is None:
            return None
        entries.append((*place, value))
    return entries


def _value(words: list[bytes], field: str) -> Any:
    if field == "complex":
        parts = [_value([word], "real") for word in words]
        return complex(*parts) if len(parts) == 2 and None not in parts else None
    if len(words) != 1 or field == "pattern":
        return None
    if field in ("real", "double"):
        if not NUMBER.fullmatch(words[0]):
            return None
        text = words[0].decode().lower()
        value = float(text.replace("d", "e") if "n" not in text else text)
        return None if math.isinf(value) and "n" not in text else value
    if not WHOLE.fullmatch(words[0]) or (field.startswith("u") and words[0].startswith(b"-")):
        return None
    return _fits(int(words[0]), field)


def _fits(value: int, field: str) -> int | None:
    low, high = (0, 2**64) if field.startswith("u") else (-(2**63), 2**63)
    return value if low <= value < high else None


def _fill(entries: list[tuple[int, int, Any]], field: str, symmetry: str, m: int, n: int) -> Dense | None:
    sides = [{(i, j) for i, j, _ in entries if (i > j) == below and i != j} for below in (True, False)]
    if symmetry != "general" and sides[0] & {(j, i) for i, j in sides[1]}:
        return None
    if symmetry == "skew-symmetric" and (
        field.startswith("u") or any(i == j and value != 0 for i, j, value in entries)
    ):
        return None
    if symmetry == "hermitian" and any(i == j and value.imag != 0 for i, j, value in entries):
        return None
    other_side = {"skew-symmetric": lambda value: -value, "hermitian": lambda value: value.conjugate()}
    sums: dict[tuple[int, int], list[Any]] = {}
    for i, j, value in entries:
        sums.setdefault((i, j), []).append(value)
        if symmetry != "general" and i != j:
            sums.setdefault((j, i), []).append(other_side.get(symmetry, lambda value: value)(value))
    dense: Dense = [[0] * n for _ in range(m)]
    for (i, j), values in sums.items():
        total = sum(values[1:], values[0])
        if isinstance(total, int):  # SciPy adds and negates integers in their type
            total = total % 2**64 - (2**64 if not field.startswith("u") and total % 2**64 >= 2**63 else 0)
        dense[i][j] = total if isinstance(total, int) else values
    return dense


def agrees(got: np.ndarray, want: Dense) -> bool:
    """Return True if a matrix equals the one read; duplicate floats may be added in any order."""
    if got.shape[0] != len(want):
        return False
    for row, expected in zip(got.tolist(), want, strict=True):
        for value, terms in zip(row, expected, strict=True):
            if not isinstance(terms, list):
                if value != terms:
                    return False
            elif not all(
                _is_sum(getattr(value, part), [getattr(term, part) for term in terms])
                for part in ("real", "imag")
            ):
                return False
    return True


def _is_sum(value: float, terms: list[float]) -> bool:
    if len(terms) == 1 or any(math.isnan(t) or math.isinf(t) for t in terms):
        total = sum(terms)
        return value == total or (math.isnan(value) and math.isnan(total))
    bound = len(terms) * 2.0**-53 * math.fsum(map(abs, terms)) * 1.01
    return math.isinf(value) or abs(value - math.fsum(terms)) <= bound


# ---- matrix files -------------------------------------------------------------------------------------

ODD_WORDS = [
    *[
        "1e3",
        "1.5",
        "1d5",
        "1D-3",
        "-1.5d+300",
        "1,5",
        "0x10",
        "1_000",
        "1e-",
        "1e",
        "1e999",
        "-1e999",
        "1e-999",
    ],
    *[
        "nan",
        "inf",
        "-Infinity",
        "infinit",
        "NAN(1)",
        "+1",
        "-0",
        "007",
        "1.",
        ".5",
        ".",
        "-",
        "1.2.3",
        "--1",
    ],
    *["1f", "7x", "%", "%x", "0", "-1", "99", "1e5.5", "1+5", "4.9e-324", "1.7976931348623157e308", "1e308"],
    *["9007199254740993", "2.2250738585072014e-308", "9223372036854775807", "9223372036854775808"],
    *["18446744073709551615", "18446744073709551616", "-9223372036854775808", "", "1\x001", "\u0661"],
    *["0." + 30 * "123456789", 40 * "9", 400 * "9", "1" + 300 * "0" + "e-300", 50 * "0" + "1"],
]


def draw_number(rng: random.Random, field: str) -> str:
    if field == "pattern":
        return ""
    if "integer" in field:
        low = 0 if field.startswith("u") else -9
        return str(rng.choice([rng.randint(low, 9), rng.randint(low << 59 if low else 0, 9 << 59)]))
    if field == "complex":
        return f"{draw_number(rng, 'real')} {rng.choice(['0', draw_number(rng, 'real')])}"
    value = rng.choice(
        [rng.uniform(-9, 9), rng.uniform(-1, 1) * 10.0 ** rng.randint(-320, 307), float(rng.randint(-9, 9))]
    )
    return rng.choice([repr, "{:.17g}".format, "{:.25e}".format, "{:.3f}".format])(value)


def draw_text(rng: random.Random) -> list[str]:
    """Draw the lines of a sound file, or of nearly one."""
    layout, field = rng.choice(["coordinate", "coordinate", "array"]), rng.choice(FIELDS)
    symmetry = rng.choice(SYMMETRIES)
    m, n = rng.randint(0, 6), rng.randint(0, 6)
    if symmetry != "general":
        n = m
    lines = [f"%%MatrixMarket matrix {layout} {field} {symmetry}", *["% a remark"] * rng.randint(0, 2)]
    if layout == "array":
        body = [draw_number(rng, field) for _ in _array_places(symmetry, m, n)]
        return [*lines, f"{m} {n}", *body]
    places = _array_places(symmetry, m, n)
    body = []
    for _ in range(rng.randint(0, 12) if places else 0):
        i, j = rng.choice(places)
        body.append(f"{i + 1} {j + 1} {draw_number(rng, field)}".rstrip())
    return [*lines, f"{m} {n} {len(body)}", *body]


def damage_lines(rng: random.Random, lines: list[str]) -> list[str]:
    """Change a line, a word of one, or their order."""
    lines = list(lines)
    at = rng.randrange(len(lines))
    words = lines[at].split(" ")
    kind = rng.randrange(8)
    if kind == 0:
        words[rng.randrange(len(words))] = rng.choice(ODD_WORDS)
    elif kind == 1:
        words.insert(rng.randint(0, len(words)), rng.choice(ODD_WORDS))
    elif kind == 2:
        del words[rng.randrange(len(words))]
    elif kind == 3:
        del lines[at]
        return lines or [""]
    elif kind == 4:
        lines.insert(at, rng.choice([lines[at], "", "  \t", "% late", "1 1 1", "1"]))
        return lines
    elif kind == 5:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
        return lines
    elif kind == 6:
        words = [rng.choice(["", " ", "\t", "\v", "\r"]) + word for word in words]
    else:
        words[-1] += rng.choice([" ", "\t ", ";", "!", " 1", ".", "\r", "e"])
    lines[at] = " ".join(words)
    return lines


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, zero, cut, insert or repeat some bytes."""
    if not content:
        return content
    damaged = bytearray(content)
    at = rng.randrange(len(damaged))
    kind = rng.randrange(6)
    if kind == 0:
        damaged[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        damaged[at] = rng.randrange(256)
    elif kind == 2:
        del damaged[at:]
    elif kind == 3:
        del damaged[at : at + rng.randint(1, 9)]
    elif kind == 4:
        damaged[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 5)))
    else:
        length = rng.randint(1, 600)
        damaged[at : at + length] = bytes(min(length, len(damaged) - at))
    return bytes(damaged)


def malformed_text(rng: random.Random, room: Path) -> str:
    """Read Matrix Market text, damaged or not, plain or packed."""
    lines = draw_text(rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        lines = damage_lines(rng, lines)
    end = rng.choice(["\n", "\n", "\r\n"])
    text = (end.join(lines) + rng.choice([end, end, ""])).encode()
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        text = damage_bytes(rng, text)
    path = room / "a.mtx"
    content = text
    if rng.random() < 0.2:
        path = room / "a.mtx.gz"
        content = gzip.compress(text, mtime=0)
        if rng.random() < 0.6:
            content = damage_bytes(rng, content)
        try:
            text = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            text = b""
    path.write_bytes(content)
    try:
        want = None if b"\0" in text else parse(text)
    except OverflowError:  # too large for this reader: dasp may take it or not
        want = []
    got = read(load_matrix, path)
    if got is None:
        if want:
            raise UnsoundError("a sound file was refused")
        return "matrix files refused"
    if want is None:
        raise UnsoundError(f"a malformed file was read: {text[:200]!r}")
    if want and not agrees(got.toarray(), want):
        raise UnsoundError("other numbers were read")
    return "matrix files read"


def read(load: Callable[[Path], Any], path: Path) -> Any:
    """Return what a file holds, or None if it was refused properly, by one line that names it."""
    try:
        return load(path)
    except MatrixFileError as error:
        message = str(error)
        if "\n" in message or path.name not in message or len(message) > 1500:
            raise UnsoundError(f"refused by {message[:300]!r}") from error
        return None


# ---- archives -----------------------------------------------------------------------------------------


def rezip(members: list[tuple[str, bytes]], rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def twist(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Change an array so that its file is still a sound file of an array."""
    array = array.copy()
    kind = rng.randrange(9)
    if kind == 0 and array.size and array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        odd = [limits.min, limits.max, -1, 0, 1, 7, 63, 64, 10**6, int(array.max()) + 1]
        array.flat[rng.randrange(array.size)] = rng.choice([v for v in odd if limits.min <= v <= limits.max])
    elif kind == 1 and array.size and array.dtype.kind in "iu":
        at, other = rng.randrange(array.size), rng.randrange(array.size)
        array.flat[at], array.flat[other] = array.flat[other], array.flat[at]
    elif kind == 2 and array.size and array.dtype.kind in "iu":
        with np.errstate(over="ignore"):
            array.flat[rng.randrange(array.size)] += array.dtype.type(1)
    elif kind == 3 and array.ndim == 1:
        array = array[: rng.randint(0, len(array))]
    elif kind == 4 and array.ndim == 1:
        array = np.concatenate([array, array[: rng.randint(0, len(array))]])
    elif kind == 5 and array.ndim:
        array = array[::-1]
    elif kind == 6 and array.dtype.kind != "S":
        array = array.astype(
            rng.choice(["i2", "i4", "i8", "u8", "f4", "f8", ">i4", ">f8", "?"]), casting="unsafe"
        )
    elif kind == 7:
        array = array.reshape((1, *array.shape))
    elif array.size:
        array.flat[rng.randrange(array.size)] = array.flat[0]
    return np.ascontiguousarray(array)


def damaged_members(rng: random.Random, arrays: dict[str, np.ndarray]) -> bytes:
    """Return an archive whose arrays are changed, missing, double or strange, or whose bytes are damaged."""
    members = [(f"{name}.npy", npy(array)) for name, array in arrays.items()]
    at = rng.randrange(len(members))
    name, content = members[at]
    kind = rng.randrange(10)
    if kind < 5:
        with np.errstate(all="ignore"):
            members[at] = name, npy(twist(rng, arrays[name.removesuffix(".npy")]))
    elif kind == 5:
        members.append((name, members[rng.randrange(len(members))][1]))
    elif kind == 6:
        del members[at]
    elif kind == 7:
        members.append((rng.choice(["more.npy", "README", "../x.npy", name.upper()]), content))
    elif kind == 8:
        members[at] = name, damage_bytes(rng, content)
    packed = rezip(members, rng)
    return damage_bytes(rng, packed) if kind == 9 or rng.random() < 0.1 else packed


def small_matrix(rng: random.Random) -> scipy.sparse.coo_array:
    """Draw a matrix of small integers, so that every product with it is exact."""
    m, n = rng.randint(1, 40), rng.randint(1, 40)
    count = rng.randint(0, 200)
    numpy = np.random.default_rng(rng.randrange(2**32))
    rows, columns = numpy.integers(0, m, count), numpy.integers(0, n, count)
    if rng.random() < 0.3:
        rows[: count // 2] = rng.randrange(m)
    values = numpy.choice([1.0, -2.0, 3.0, 100.0], count)
    return scipy.sparse.coo_array((values, (rows, columns)), shape=(m, n))


def damaged_matrix_archive(rng: random.Random, room: Path) -> str:
    """Read a damaged file of `scipy.sparse.save_npz`."""
    form = rng.choice(["csr", "csc", "coo", "bsr", "dia"])
    path = room / "a.npz"
    scipy.sparse.save_npz(path, small_matrix(rng).asformat(form))
    with np.load(path) as archive:
        arrays = dict(archive.items())
    path.write_bytes(damaged_members(rng, arrays))
    got = read(load_matrix, path)
    if got is None:
        return "matrix archives refused"
    if math.prod(got.shape) > 10**6:
        return TOO_WIDE
    with np.errstate(all="ignore"):
        want = densify(path)
    if want is None or got.shape != want.shape or not np.array_equal(got.toarray(), want, equal_nan=True):
        raise UnsoundError("other numbers were read from an archive")
    return "matrix archives read"


def densify(path: Path) -> np.ndarray | None:
    """Return the dense matrix of an archive, entry by entry, or None if an entry lies outside."""
    with zipfile.ZipFile(path) as archive:  # zipfile allows bytes before the archive, NumPy does not
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(archive.open(name))
            for name in archive.namelist()
        }
    form, data = arrays["format"].item().decode(), arrays["data"]
    dense = np.zeros([int(size) for size in arrays["shape"]], data.dtype)
    if form == "dia" and len(arrays["offsets"]) != len(data):
        return None
    entries: list[tuple[int, int, Any]] = []
    if form in ("csr", "csc", "bsr"):
        height, width = data.shape[1:] if form == "bsr" else (1, 1)
        for line, (first, last) in enumerate(zip(arrays["indptr"][:-1], arrays["indptr"][1:], strict=True)):
            for e in range(first, last):
                place = int(arrays["indices"][e])
                block = data[e].reshape(height, width)
                for i in range(height):
                    for j in range(width):
                        row, column = (
                            (place, line) if form == "csc" else (line * height + i, place * width + j)
                        )
                        entries.append((row, column, block[i, j]))
    elif form == "coo":
        entries = list(zip(arrays["row"].tolist(), arrays["col"].tolist(), data, strict=True))
    else:
        for offset, diagonal in zip(arrays["offsets"].tolist(), data, strict=True):
            entries += [(j - offset, j, diagonal[j]) for j in range(min(len(diagonal), dense.shape[1]))]
        entries = [entry for entry in entries if 0 <= entry[0] < dense.shape[0]]
    for row, column, value in entries:
        if not (0 <= row < dense.shape[0] and 0 <= column < dense.shape[1]):
            return None
        if data.dtype == bool:
            dense[row, column] |= value
        else:
            dense[row, column] += value
    return dense


POLICIES = (
    Policy(),
    Policy(format="dasp"),
    Tuned("dasp", long_row=8),
    Tuned("sell", steps=1),
)


def damaged_plan(rng: random.Random, room: Path) -> str:
    """Load a damaged plan, which must be refused or multiply as its own entries do."""
    path = room / "p.npz"
    matrix = small_matrix(rng)
    save_plan(path, SpMatrix.from_scipy(matrix, policy=rng.choice(POLICIES), device="cpu").plan)
    with np.load(path) as archive:
        arrays = dict(archive.items())
    if rng.random() < 0.2:
        arrays["dasp_plan"] = damaged_head(rng, arrays["dasp_plan"])
    path.write_bytes(
        damage_bytes(rng, path.read_bytes()) if rng.random() < 0.3 else damaged_members(rng, arrays)
    )
    plan = read(load_plan, path)
    if plan is None:
        return "plans refused"
    planned = SpMatrix(plan, "cpu")
    if max(planned.shape) > 10**6:
        return "plans read, too large to compare"
    x = np.random.default_rng(0).integers(-9, 10, planned.shape[1]).astype(planned.dtype)
    # If a product reads beside x, it reads large numbers.
    room_for_x = np.full(len(x) + 64, 1e30, planned.dtype)
    room_for_x[32 : 32 + len(x)] = x
    out = np.full(planned.shape[0], np.nan, planned.dtype)
    y = planned.matvec(room_for_x[32 : 32 + len(x)], out=out)
    entries = planned.to_scipy().tocoo()
    row, column = entries.coords
    terms = entries.data.astype(np.longdouble) * x[column]
    want, size = np.zeros((2, len(y)), np.longdouble)
    np.add.at(want, row, terms)
    np.add.at(size, row, np.abs(terms))
    counts = np.bincount(row, minlength=len(y))
    bound = (counts + 2) * np.finfo(planned.dtype).eps * size
    # A damaged value may be huge; where a sum overflows or holds NaN, the result is not finite either.
    wild = ~(size < np.finfo(planned.dtype).max)
    if not ((np.abs(y - want) <= bound) | wild).all():
        raise UnsoundError("a plan was read whose product is not that of its entries")
    return "plans read"


def damaged_head(rng: random.Random, head: np.ndarray) -> np.ndarray:
    """Change a number among the fields of a plan."""
    content = json.loads(head.tobytes())
    fields = content["fields"]
    name = rng.choice(sorted(fields))
    fields[name] = rng.choice([0, 1, -1, 7, 63, 10**6, 2**40, "PLAIN", None, [1], True, 1.5, fields[name]])
    if isinstance(fields[name], int) and rng.random() < 0.5:
        fields[name] += 1
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


# ---- files that would fill the memory -----------------------------------------------------------------


def bomb(rng: random.Random, room: Path) -> str:
    """Read a small file that stands for gigabytes."""
    count = 10 ** rng.randint(10, 13)
    kind = rng.randrange(6)
    header = b"%%MatrixMarket matrix coordinate real general\n"
    path = room / ("a.npz" if kind >= 4 else "a.mtx.gz")
    if kind < 4:
        start, repeated = (
            (b"1 1 1\n1 1 ", b"1"),
            (b"%", b"-"),
            (b"%d 1 1\n" % count, b"1 1 1\n"),
            (b"1 1 1\n", b"1 1 1\n"),
        )[kind]
        with gzip.open(path, "wb", 1) as file:
            file.write(header + start)
            for _ in range(1 << 9):
                file.write(repeated * ((1 << 20) // len(repeated)))
    elif kind == 4:
        coo = {"format": b"coo", "shape": [count, 3], "data": np.ones(1), "row": [0], "col": [0]}
        np.savez(path, **{name: np.asarray(value) for name, value in coo.items()})
    else:
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("more.npy", "w") as member,
        ):
            for _ in range(1 << 9):
                member.write(bytes(1 << 20))
    load = rng.choice([load_matrix, load_plan]) if kind == 5 else load_matrix
    if read(load, path) is not None:
        raise UnsoundError(f"a bomb of kind {kind} was read")
    return "bombs refused"


# ---- savers -------------------------------------------------------------------------------------------


def killed_saver(rng: random.Random, room: Path) -> str:
    """Kill one of two processes that save plans to one path; the file must stay whole."""
    path = room / "p.npz"
    plans = [
        SpMatrix.from_scipy(scipy.sparse.eye_array(size, format="csr"), device="cpu").plan
        for size in (300, 3000)
    ]
    save_plan(path, plans[0])
    children = []
    for plan in plans:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                while True:
                    save_plan(path, plan)
            os._exit(1)
        children.append(child)
    try:
        for _ in range(rng.randint(1, 5)):
            time.sleep(rng.random() * 0.02)
            shape = load_plan(path).shape
            if shape not in ((300, 300), (3000, 3000)):
                raise UnsoundError(f"a plan of shape {shape}")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if load_plan(path).shape not in ((300, 300), (3000, 3000)):
        raise UnsoundError("another plan")
    return "savers killed"


# ---- the attack ---------------------------------------------------------------------------------------

CASES: tuple[tuple[Callable[[random.Random, Path], str], float], ...] = (
    (malformed_text, 50),
    (damaged_matrix_archive, 20),
    (damaged_plan, 40),
    (killed_saver, 1),
    (bomb, 0.2),
)


def run_cases(seed: int, numbers: range, kinds: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Run cases in a child process, one after the other.

    Returns
    -------
    dict
        By number, what was tried and, if it was wrong, why. If the child crashed, or took too much time or
        memory, the last case that it began is wrong.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with os.fdopen(writer, "w", buffering=1) as file:
                for number in numbers:
                    file.write(json.dumps([number, "", "it crashed"]) + "\n")
                    file.write(json.dumps([number, *run_case(seed, number, kinds)]) + "\n")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        results = {number: (what, why) for number, what, why in map(json.loads, file)}
    _, status, usage = os.wait4(child, 0)
    last = max(results)
    if status:
        results[last] = results[last][0], f"the process ended with {os.waitstatus_to_exitcode(status)}"
    grown = (usage.ru_maxrss << 10) - before
    wide = any(what == TOO_WIDE for what, _ in results.values())
    if grown > (MOST_WIDE_BYTES if wide else MOST_BYTES):
        results[last] = (
            results[last][0],
            f"this or one of the {len(results) - 1} before it took {grown >> 20} MiB",
        )
    return results


def run_case(seed: int, number: int, kinds: Sequence[str]) -> tuple[str, str]:
    """Run one case. Return what was tried and, if it was wrong, why."""
    cases = [row for row in CASES if not kinds or row[0].__name__ in kinds]
    rng = random.Random(f"{seed}-{number}")
    (case,) = rng.choices([c for c, _ in cases], [weight for _, weight in cases])
    room = Path(tempfile.mkdtemp(prefix="dasp-attack-"))
    try:
        what = case(rng, room)
    except Exception as error:
        traceback.print_exc()
        return case.__name__, f"{type(error).__name__}: {str(error).strip()[:300]}; kept in {room}"
    shutil.rmtree(room)
    return what, ""


def warm_up() -> None:
    """Compile everything once, or load it from disk, so that no case has to."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.npz"
        for policy in POLICIES:
            for count in range(20):
                matrix = small_matrix(rng).astype(np.float32 if count % 4 == 0 else np.float64)
                save_plan(path, SpMatrix.from_scipy(matrix, policy=policy, device="cpu").plan)
                loaded = SpMatrix(load_plan(path), "cpu")
                loaded.matvec(np.ones(matrix.shape[1], loaded.dtype))
                loaded.to_scipy()
        for _ in range(50):
            malformed_text(rng, Path(folder))


def attack(
    seed: int, seconds: float, only: int | None = None, kinds: Sequence[str] = ()
) -> tuple[collections.Counter[str], list[str]]:
    """Try cases until the time is over, or only one. Return counts of what was tried, and the failures."""
    counts: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    warm_up()
    end = time.monotonic() + seconds
    first = only or 0
    while time.monotonic() < end:
        numbers = range(first, first + (BATCH if only is None else 1))
        for number, (what, why) in run_cases(seed, numbers, kinds).items():
            counts["cases"] += 1
            counts[what] += not why
            if why:
                failures.append(f"seed {seed}, case {number} ({what}): {why}")
                print(failures[-1], flush=True)
            first = number + 1
        if only is not None:
            break
    return counts, failures


if __name__ == "__main__":
    sys.exit(attack_by_command("files", __doc__, attack))
