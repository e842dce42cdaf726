"""The field GF(2^8): its tables, its small matrices, the coefficients of kernels, and the class of a rung.

A byte stands for a polynomial over GF(2) of degree below 8, bit i being the coefficient of x^i. Sums are
exclusive ors; products are taken modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D), of which x (the byte 2) is a
primitive root, so that every byte but 0 is a power of 2. It is the field of most storage codes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

POLYNOMIAL = 0x11D


def _make_powers_and_logs() -> tuple[Bytes, Bytes]:
    """Return the powers 2^0 .. 2^509 (so that no sum of two logs needs `% 255`), and the logs of 1 .. 255."""
    powers = np.zeros(510, np.uint8)
    logs = np.zeros(256, np.uint8)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logs[value] = exponent
        value <<= 1
        if value & 0x100:
            value ^= POLYNOMIAL
    return powers, logs


def _make_products() -> Bytes:
    """Return the 256 x 256 table of all products (64 KiB)."""
    table: Bytes = EXP[LOG[:, None].astype(np.intp) + LOG[None, :]]
    table[0, :] = 0
    table[:, 0] = 0
    return table


EXP, LOG = _make_powers_and_logs()
"""uint8, shape (510,): 2^i. uint8, shape (256,): the i with 2^i = value; `LOG[0]` is 0 and means nothing."""

PRODUCT = _make_products()
"""uint8, shape (256, 256): `PRODUCT[a, b]` is a times b."""

for _table in (EXP, LOG, PRODUCT):
    _table.setflags(write=False)


def inverse(value: int) -> int:
    """Return the byte whose product with `value` is 1.

    Raises
    ------
    ZeroDivisionError
        If `value` is 0.

    Examples
    --------
    >>> inverse(2), int(PRODUCT[2, 142])
    (142, 1)
    """
    if value == 0:
        raise ZeroDivisionError("0 has no inverse in GF(2^8); give a byte from 1 to 255")
    return int(EXP[255 - int(LOG[value])])


def multiply(a: Bytes, b: Bytes) -> Bytes:
    """Return the matrix product of two small matrices, by table and without threads."""
    product = np.zeros((a.shape[0], b.shape[1]), np.uint8)
    for p in range(a.shape[1]):
        product ^= PRODUCT[a[:, p, None], b[None, p, :]]
    return product


def invert(matrix: Bytes) -> Bytes:
    """Return the inverse of a square matrix by Gauss-Jordan elimination.

    Raises
    ------
    ValueError
        If the matrix is singular.
    """
    size = matrix.shape[0]
    work = np.hstack([matrix, np.eye(size, dtype=np.uint8)])
    for column in range(size):
        pivots = np.flatnonzero(work[column:, column])
        if not pivots.size:
            raise ValueError(f"a singular {size} x {size} matrix over GF(2^8) was given; it has no inverse")
        pivot = column + int(pivots[0])
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = PRODUCT[inverse(int(work[column, column])), work[column]]
        others = np.arange(size) != column
        work[others] ^= PRODUCT[work[others, column, None], work[column]]
    return work[:, size:].copy()


def cauchy(rows: int, columns: int) -> Bytes:
    """Return a rows x columns matrix of which every square sub-matrix is invertible.

    Entry (i, j) of a Cauchy matrix is 1 / (x_i + y_j) with all x and y distinct. Here y_j = j and x_i =
    columns + i; then columns and rows are scaled until the first row and the first column are ones, which
    keeps the property and makes the first parity a plain exclusive or.

    Raises
    ------
    ValueError
        If `rows + columns` exceeds 256, the number of distinct bytes.

    Notes
    -----
    Bloemer et al., "An XOR-based erasure-resilient coding scheme", ICSI TR-95-048, 1995.

    Examples
    --------
    >>> cauchy(2, 3)[0].tolist()
    [1, 1, 1]
    """
    if rows + columns > 256:
        raise ValueError(f"{columns} + {rows} shards were asked for; GF(2^8) has room for 256")
    reciprocal = np.zeros(256, np.uint8)
    reciprocal[1:] = EXP[255 - LOG[1:].astype(np.intp)]
    x = np.arange(columns, columns + rows, dtype=np.uint8)
    y = np.arange(columns, dtype=np.uint8)
    matrix: Bytes = reciprocal[x[:, None] ^ y[None, :]]
    if rows:
        matrix = PRODUCT[matrix, reciprocal[matrix[0]][None, :]]
    if columns:
        matrix = PRODUCT[matrix, reciprocal[matrix[:, 0]][:, None]]
    return matrix


def nibble_tables(a: Bytes) -> Bytes:
    """Return, for each coefficient, its products with 0 .. 15 and with 0, 16 .. 240.

    Parameters
    ----------
    a : uint8, shape (m, k)

    Returns
    -------
    uint8, shape (m, k, 2, 16)
        `[i, p, 0, v]` is `a[i, p] * v` and `[i, p, 1, v]` is `a[i, p] * 16 v`: a byte's product is the
        exclusive or of the entries that its two nibbles select.
    """
    nibbles = np.arange(16, dtype=np.uint8)
    return np.stack([PRODUCT[a][..., nibbles], PRODUCT[a][..., nibbles << 4]], axis=-2)


def bit_matrices(a: Bytes) -> npt.NDArray[np.uint64]:
    """Return, for each coefficient, the 8 x 8 matrix of bits that multiplies by it in `gf2p8affineqb`.

    Returns
    -------
    uint64, shape (m, k)
        Byte 7 - i of an element is the row that makes bit i of the product: bit j is set where `a * x^j` has
        bit i (Intel SDM, GF2P8AFFINEQB, whose qword holds the row of result bit 0 in its highest byte).
    """
    columns = PRODUCT[a][..., np.uint8(1) << np.arange(8, dtype=np.uint8)]
    rows = (columns[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    packed = np.packbits(rows, axis=-1, bitorder="little")[..., 0]
    shifts = np.uint64(8) * np.arange(7, -1, -1, dtype=np.uint64)
    matrices: npt.NDArray[np.uint64] = np.bitwise_or.reduce(packed.astype(np.uint64) << shifts, axis=-1)
    return matrices


# ---- a rung of a ladder ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kernel:
    """One rung of a ladder.

    Attributes
    ----------
    name : str
        The word that `matmul(..., kernel=name)` takes.
    summary : str
        The work of the rung, in one sentence.
    needs : str
        The machine that it needs, in words.
    available : bool
        False if this processor cannot run the rung; every GPU can run the rungs of a GPU.
    """

    name: str
    summary: str
    needs: str
    available: bool = field(default=True, kw_only=True)
