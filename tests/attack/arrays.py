"""Attack with odd arrays and matrices: every type, byte order, stride, subclass and damage; seeded.

    python -m tests.attack.arrays --seconds 600 --seed 7

Numbers are small multiples of a quarter, so that every product is exact in every type and must equal NumPy's
dense product in float64 bit for bit. Valid and plain input must be taken, damaged input refused, and odd
input may be either. A refusal is a TypeError, a ValueError or an OverflowError in one line, and leaves `out`
and the memory around it as they were.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import scipy.sparse as sp

import dasp
from dasp.dense import gemm, gf256
from tests.attack._cases import Counts, attack_by_command, attack_with

Array = Any
REFUSALS = TypeError, ValueError, OverflowError
PLAIN = ("f8", "f4")
ODD = ("f2", "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "g", "c8", "c16", "G", ">f8", ">f4", ">c16",
       ">i4", ">f2", "bfloat16")  # fmt: skip
ALIEN = ("O", "S4", "U4", "M8[s]", "m8[s]", "V8")
FORMATS = "csr", "csc", "coo", "bsr", "dia", "dok", "lil"


class Given(NamedTuple):
    """An operand as it is passed, its dense values (None if it has none), and whether it must be taken."""

    array: Any
    dense: Any
    plain: bool


def numbers(rng: random.Random, shape: tuple[int, ...]) -> Array:
    """Return multiples of a quarter between -2 and 2, many of them 0."""
    draw = np.random.default_rng(rng.getrandbits(32))
    return draw.integers(-8, 9, shape) * (draw.random(shape) < 0.6) / 4


def of_type(values: Array, name: str, rng: random.Random) -> Array:
    """Return numbers in a type, after changing those that it cannot hold."""
    if name == "bfloat16":
        return values.astype(ml_dtypes.bfloat16)
    dtype = np.dtype(name)
    if dtype.kind in "?ub":
        values = abs(values) >= 1 if dtype.kind == "b" else abs(np.trunc(values))
    elif dtype.kind == "i":
        values = np.trunc(values)
    elif dtype.kind == "c":
        values = values + 1j * rng.choice((0.0, 0.5)) * values
    return values.astype(dtype)


def wide(array: Array) -> Array:
    """Return the same numbers in float64 or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def laid_out(array: Array, rng: random.Random) -> tuple[Array, str]:
    """Return equal numbers in a random memory layout, and the layout's name."""
    if array.ndim == 0:
        return array, "C"
    way = rng.choice(("C", "F", "steps", "backwards", "packed", "read-only", "unaligned", "turned"))
    if way == "F":
        return np.asfortranarray(array), way
    if way == "steps":
        room = np.zeros([3 * size + 1 for size in array.shape], array.dtype)
        view = room[tuple(slice(1, None, 3) for _ in array.shape)]
        view = view[tuple(slice(size) for size in array.shape)]
        view[...] = array
        return view, way
    if way == "backwards":
        flip = tuple(slice(None, None, -1) for _ in array.shape)
        return np.ascontiguousarray(array[flip])[flip], way
    if way == "packed":
        records = np.zeros(array.shape, np.dtype([("tag", "u1"), ("value", array.dtype)]))
        records["value"] = array
        return records["value"], way
    if way == "unaligned":
        room = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        room[...] = array
        return room, way
    copy = array.copy() if way != "turned" else array.T.copy().T
    copy.flags.writeable = way != "read-only"
    return copy, way


def draw_array(rng: random.Random, shape: tuple[int, ...]) -> Given:
    """Draw an array of numbers that is plain or odd, or something that is no such array."""
    values = numbers(rng, shape)
    kind = rng.choices(
        ("plain", "odd", "alien", "list", "matrix", "masked", "object"), (8, 6, 1, 1, 1, 1, 1)
    )[0]
    if kind == "alien":
        return Given(np.zeros(shape, rng.choice(ALIEN)), None, False)
    if kind == "masked":
        return Given(np.ma.masked_array(values, abs(values) > 1), None, False)
    if kind == "list":
        return Given(values.tolist(), values, False)
    array = of_type(values, rng.choice(ODD if kind == "odd" else PLAIN), rng)
    if kind == "matrix" and array.ndim == 2:
        return Given(np.asmatrix(array), wide(array), False)
    if kind == "object":
        return Given(array.astype(object), wide(array), False)
    dense = wide(array)
    array, _ = laid_out(array, rng)
    return Given(array, dense, kind == "plain" and array.dtype.isnative)


# ---- matrices -----------------------------------------------------------------------------------------


def _spread(A: Any, rng: random.Random) -> Any:
    """Return an equal CSR or CSC matrix with duplicates, explicit zeros and unsorted indices."""
    starts, indices, data = [0], [], []
    for line in range(len(A.indptr) - 1):
        span = range(A.indptr[line], A.indptr[line + 1])
        entries = [(A.indices[k], A.data[k]) for k in span]
        for place, value in list(entries):
            if rng.random() < 0.3 and A.data.dtype.kind in "fc":
                entries += [(place, value), (place, -value)]
            if rng.random() < 0.2:
                entries.append((place, A.data.dtype.type(0)))
        rng.shuffle(entries)
        indices += [place for place, _ in entries]
        data += [value for _, value in entries]
        starts.append(len(indices))
    arrays = (
        np.array(data, A.data.dtype),
        np.array(indices, A.indices.dtype),
        np.array(starts, A.indptr.dtype),
    )
    return type(A)(arrays, shape=A.shape)


def _other_indices(A: Any, rng: random.Random) -> None:
    kind = rng.choice(("i8", "u4", "u8", ">i4", "i2", "f8"))
    for name in ("indices", "indptr"):
        if rng.random() < 0.7:
            setattr(A, name, getattr(A, name).astype(kind))


def _damage(A: Any, rng: random.Random) -> None:
    """Damage the indices of a CSR or CSC matrix."""
    nnz, across = len(A.indices), A.shape[1 if A.format == "csr" else 0]
    ways = ["starts late", "ends late", "short", "long"]
    ways += ["below", "beyond", "far beyond"] if nnz else []
    ways += ["falls"] if nnz and len(A.indptr) > 2 else []
    way = rng.choice(ways)
    place = rng.randrange(nnz) if nnz else 0
    if way == "starts late":
        A.indptr[0] = rng.choice((1, -1, 2**30))
    elif way == "ends late":
        A.indptr[-1] = nnz + rng.choice((1, 7, 2**30))
    elif way in ("short", "long"):
        A.indptr = A.indptr[:-1] if way == "short" else np.append(A.indptr, A.indptr[-1])
    elif way == "falls":
        A.indptr[rng.randrange(1, len(A.indptr) - 1)] = rng.choice((-1, nnz + 1, -(2**31)))
    else:
        A.indices[place] = {"below": -1, "beyond": across, "far beyond": 2**31 - 1}[way]


def draw_matrix(rng: random.Random) -> tuple[Given, str]:
    """Draw a matrix in one of SciPy's formats, sound or damaged, and return it with a description."""
    shape = rng.choice((0, 1, 2, 5, 33)), rng.choice((0, 1, 3, 8, 40))
    form, odd = rng.choice(FORMATS), rng.random() < 0.4
    array = of_type(numbers(rng, shape), rng.choice(ODD if odd else PLAIN), rng)
    dense, kept = wide(array), array.dtype.isnative and array.dtype.itemsize != 2
    if not kept:
        form = "csr"  # SciPy's other formats lose such a type sooner or later
    make = getattr(sp, f"{form}_{rng.choice(('array', 'matrix'))}")
    A = make(array if kept else dense)
    if not kept:
        A.data = A.data.astype(array.dtype)
    plain, kind = not odd, "as made"
    if A.format in ("csr", "csc"):
        kind = rng.choice(("as made", "spread", "other indices", "damaged", "damaged"))
        if (
            kind == "spread"
            and array.dtype.itemsize > 1
            and array.dtype.isnative
            and array.dtype.kind in "fc"
        ):
            A = _spread(A, rng)
        elif kind == "other indices":
            _other_indices(A, rng)
            plain = False
        elif kind == "damaged":
            _damage(A, rng)
            return Given(A, None, False), f"{form}, damaged"
    return Given(A, dense, plain), f"{form}, {kind}"


# ---- cases --------------------------------------------------------------------------------------------


def attempt(call: Callable[[], Any], *, refused: bool, taken: bool) -> Any:
    """Return a call's result, or None if it refuses in one line; hold that it may do so."""
    try:
        result = call()
    except REFUSALS as error:
        words = str(error)
        assert words.strip(), "a refusal without words"
        assert "\n" not in words, f"not one line: {words!r}"
        assert not taken, f"refused though valid: {words}"
        return None
    assert not refused, "taken though damaged"
    return result


def judge(got: Any, want: Array) -> None:
    """Hold a result to equal the exact one."""
    got = np.asarray(got)
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
    wrong = np.argwhere(wide(got) != want)
    assert not len(wrong), f"at {tuple(wrong[0])}: {got[tuple(wrong[0])]!r}, not {want[tuple(wrong[0])]!r}"


def planned(rng: random.Random, counts: Counts) -> None:
    """Plan any matrix in any way, and multiply it by a plain vector."""
    given, name = draw_matrix(rng)
    make = rng.choice((dasp.SpMatrix, dasp.SpMatrix.from_scipy))
    A = attempt(lambda: make(given.array, device="cpu"), refused=given.dense is None, taken=given.plain)
    counts[f"matrices {'refused' if A is None else 'planned'}: {name}"] += 1
    if A is None:
        return
    x = numbers(rng, given.dense.shape[1:])
    judge(A @ x, given.dense @ x)
    judge(A.toarray(), given.dense)
    if rng.random() < 0.3:
        m = given.dense.shape[0]
        z = numbers(rng, rng.choice(((m,), (3, m), (m, m))))
        judge(z @ A, z @ given.dense)


def _guarded(dtype: Any, shape: tuple[int, ...], rng: random.Random) -> tuple[Array, Array]:
    """Return an `out` full of NaN, and the memory around it."""
    room = np.full([2 * size + 4 for size in shape], np.nan, dtype)
    step = rng.choice((1, 1, 2))
    view = room[tuple(slice(2, 2 + step * size, step) for size in shape)]
    return view, room


def multiplied(rng: random.Random, counts: Counts) -> None:
    """Multiply a plain matrix by any operand, into any `out`."""
    dense = numbers(rng, (rng.choice((1, 2, 9, 40)), rng.choice((1, 3, 17, 40))))
    dtype = rng.choice(("f8", "f4", "f2", "c8", "c16"))
    A = dasp.SpMatrix.from_dense(dense.astype(dtype), device="cpu")
    m, n = dense.shape
    shape = rng.choice(((n,), (n,), (n, 1), (n, 2), (n, 5), (n, 16), (n + 1,), (n, 2, 2), ()))
    given = draw_array(rng, shape)
    fits = len(shape) in (1, 2) and shape[0] == n
    alpha, beta = rng.choice(((1.0, 0.0), (1, 0), (-2.0, 0.0), (np.float32(0.5), 0.0), (True, False)))
    out = room = None
    fine = True
    if fits and rng.random() < 0.5 and given.dense is not None:
        kind = np.result_type(A.dtype, np.asarray(given.array).dtype) if given.plain else A.dtype
        out, room = _guarded(kind, (m, *shape[1:]), rng)
        if rng.random() < 0.2:
            out.flags.writeable = fine = False
    before = None if room is None else room.copy()
    call = lambda: A.matvec(given.array, out=out, alpha=alpha, beta=beta)  # noqa: E731
    valid = fits and given.dense is not None and fine
    got = attempt(call, refused=not valid, taken=valid and given.plain)
    counts[f"products {'refused' if got is None else 'made'}"] += 1
    if got is None:
        assert before is None or before.tobytes() == room.tobytes(), "refused, and out was written"
        return
    judge(got, float(alpha) * (dense @ given.dense))
    if out is not None:
        assert got is out, "the result is not out"
        rest = np.ones(room.shape, bool)
        view = tuple(
            slice(2, None, step // width) for step, width in zip(out.strides, room.strides, strict=True)
        )
        inside = rest[view]
        inside[tuple(slice(size) for size in out.shape)] = False
        assert np.isnan(room[rest]).all(), "written beside out"


def overlapping(rng: random.Random, counts: Counts) -> None:
    """Multiply into memory that x shares, which must be refused and change nothing."""
    n = rng.choice((1, 2, 9, 40))
    A = dasp.SpMatrix.from_dense(numbers(rng, (n, n)), device="cpu")
    room = numbers(rng, (3 * n + 2,))
    start, step = rng.randrange(n + 1), rng.choice((1, 2))
    x, out = room[:n], room[start : start + step * n : step]
    shared, before = np.shares_memory(x, out), room.copy()
    got = attempt(lambda: A.matvec(x, out=out), refused=shared, taken=not shared and len(out) == n)
    counts["overlapping refused" if got is None else "beside each other"] += 1
    assert got is not None or room.tobytes() == before.tobytes()


def dense_product(rng: random.Random, counts: Counts) -> None:
    """Multiply dense matrices of any kind."""
    m, k, n = (rng.choice((0, 1, 3, 8, 33, 70)) for _ in range(3))
    a, b = draw_array(rng, (m, k)), draw_array(rng, (k + rng.choice((0, 0, 0, 0, 1)), n))
    if a.dense is not None and b.dense is not None and rng.random() < 0.7:
        array = np.asarray(a.array if a.plain else a.dense)
        right = numbers(rng, (k, n)) if array.dtype.kind in "fc" else np.ones((k, n))
        b = Given(laid_out(right.astype(array.dtype), rng)[0], right, True)
    fits = len(b.array) == k if hasattr(b.array, "__len__") else False
    known = a.dense is not None and b.dense is not None
    same = known and np.asarray(a.array).dtype == np.asarray(b.array).dtype
    valid = fits and known
    got = attempt(
        lambda: gemm(a.array, b.array), refused=not valid, taken=valid and a.plain and b.plain and same
    )
    counts[f"gemm {'refused' if got is None else 'made'}"] += 1
    if got is not None:
        judge(got, a.dense @ b.dense)


def _field() -> Array:
    """Return the products of all pairs over GF(2^8), by shifts and the polynomial 0x11d."""
    a, b = (np.arange(256, dtype=np.uint16)[:, None], np.arange(256, dtype=np.uint16)[None])
    products, shifted = np.zeros((256, 256), np.uint16), np.broadcast_to(a, (256, 256)).copy()
    for bit in range(8):
        products ^= np.where(b >> bit & 1, shifted, 0)
        shifted = np.where(shifted & 0x80, shifted << 1 ^ 0x11D, shifted << 1)
    return products.astype(np.uint8)


FIELD = _field()


def field_product(rng: random.Random, counts: Counts) -> None:
    """Multiply matrices of bytes over GF(2^8), into themselves too."""
    m, k, n = rng.choice((1, 2, 4, 9)), rng.choice((1, 3, 9)), rng.choice((0, 1, 7, 64, 1000))
    draw = np.random.default_rng(rng.getrandbits(32))
    a, b = (draw.integers(0, 256, shape).astype(np.uint8) for shape in ((m, k), (k, n)))
    want = np.bitwise_xor.reduce(FIELD[a[:, :, None], b[None]], axis=1)
    (left, _), (right, _) = laid_out(a, rng), laid_out(b, rng)
    out = None
    if m == k and rng.random() < 0.3 and right.flags.writeable:
        out = right
    got = attempt(lambda: gf256.matmul(left, right, out=out, kernel="auto"), refused=False, taken=True)
    np.testing.assert_array_equal(got, want)
    counts["products over GF(2^8)"] += 1


CASES = (planned, 4.0), (multiplied, 4.0), (overlapping, 0.5), (dense_product, 1.5), (field_product, 1.0)

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # NumPy and SciPy warn of odd input
    sys.exit(attack_by_command("arrays", __doc__, attack_with(CASES)))
