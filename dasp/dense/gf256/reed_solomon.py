"""Reed-Solomon erasure codes over arrays: encode, verify and reconstruct shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dasp.dense.gf256.field import Bytes, cauchy, invert, multiply
from dasp.dense.gf256.product import matmul, read_matrix
from dasp.runtime import arrays as _arrays
from dasp.runtime.types import Array

STACK_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
"""Bytes of shards that are gathered into one matrix at a time: on the CPU as many as the caches hold."""


class ReedSolomon:
    """A systematic code: `data` shards of equal length and `parity` more, of which any `parity` may be lost.

    The data shards are stored as they are. Parity is a Cauchy matrix times them, over GF(2^8) (0x11D),
    scaled so that the first parity shard is their exclusive or. The code keeps no other state and may be
    used by several threads at once.

    Parameters
    ----------
    data : int
        Shards that carry the data, at least 1.
    parity : int
        Shards added, at least 0; `data + parity` is at most 256.

    Attributes
    ----------
    data, parity : int
    matrix : uint8, shape (parity, data), read-only
        Parity shards are `matrix` times the data shards.

    Raises
    ------
    TypeError
        If a count is not an int.
    ValueError
        If a count is too small, or there are more than 256 shards.

    Notes
    -----
    Any `data` rows of the identity stacked on a Cauchy matrix are invertible, so that every pattern
    of at most `parity` losses can be repaired. Bloemer et al., ICSI TR-95-048, 1995; Plank and Xu,
    "Optimizing Cauchy Reed-Solomon codes", NCA 2006.

    Examples
    --------
    >>> import numpy as np
    >>> code = ReedSolomon(3, 2)
    >>> d = np.arange(12, dtype=np.uint8).reshape(3, 4)
    >>> shards = [*d, *code.encode(d)]
    >>> shards[0] = shards[3] = None
    >>> code.reconstruct(shards)[0]
    array([0, 1, 2, 3], dtype=uint8)
    """

    def __init__(self, data: int, parity: int) -> None:
        for name, count, least in (("data", data, 1), ("parity", parity, 0)):
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
                raise TypeError(f"{name} is {count!r}; a number of shards is an int")
            if count < least:
                raise ValueError(f"{name} is {count}; at least {least} is needed")
        self.data = int(data)
        self.parity = int(parity)
        if self.shards > 256:
            raise ValueError(f"data + parity is {self.shards}; GF(2^8) has room for 256 shards")
        self.matrix = cauchy(self.parity, self.data)
        self.matrix.setflags(write=False)

    def __repr__(self) -> str:
        return f"ReedSolomon(data={self.data}, parity={self.parity})"

    @property
    def shards(self) -> int:
        """Data and parity shards together."""
        return self.data + self.parity

    def encode(self, d: Array, *, out: Array | None = None, kernel: str = "auto") -> Array:
        """Return the parity shards of the data shards `d`.

        Parameters
        ----------
        d : uint8, shape (data, n), NumPy or CuPy
        out : uint8, shape (parity, n), on the device of `d`, optional
        kernel : str
            As in `matmul`. On the GPU "auto" is a kernel compiled for this code's coefficients when `d` is
            large.

        Returns
        -------
        uint8, shape (parity, n)

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As for `matmul`; ValueError if `d` does not have `data` rows.
        """
        d = read_matrix("d", d)
        if d.shape[0] != self.data:
            raise ValueError(f"d has shape {d.shape}; this code takes {self.data} data shards, one per row")
        if kernel == "auto" and _arrays.is_cupy(d):
            from dasp.dense.gf256 import cuda

            kernel = cuda.best_for_many(self.matrix, d)
        return matmul(self.matrix, d, out=out, kernel=kernel)

    def verify(self, shards: Sequence[Any]) -> bool:
        """Return True if the parity shards are those of the data shards.

        Parameters
        ----------
        shards : sequence of data + parity arrays, uint8, shape (n,), or one array of shape (data + parity, n)

        Returns
        -------
        bool
            On the GPU this waits for the device.

        Raises
        ------
        TypeError, ValueError
            If a shard is missing, or they are not arrays of bytes of one length on one device.
        """
        present = self._check_shards(shards)
        if len(present) < self.shards:
            lost = [i for i in range(self.shards) if i not in present]
            raise ValueError(
                f"shards {lost} are None; verify needs every shard (reconstruct finds lost ones)"
            )
        wanted = range(self.data, self.shards)
        return not self._find_disagreeing(present, list(range(self.data)), list(wanted))

    def reconstruct(self, shards: Sequence[Any], *, kernel: str = "auto") -> list[Any]:
        """Return all shards, given at least `data` of them.

        Parameters
        ----------
        shards : sequence of data + parity arrays, uint8, shape (n,), with None for each lost one
        kernel : str
            As in `matmul`.

        Returns
        -------
        list of data + parity arrays, uint8, shape (n,)
            Shards that were given are returned as they are, not copied; lost ones are new arrays on the same
            device.

        Raises
        ------
        TypeError, ValueError
            If more than `parity` shards are lost, if shards are not arrays of bytes of one length on one
            device, or if more than `data` are given and they do not agree, so that one of them is corrupted.
        """
        present = self._check_shards(shards)
        lost = [i for i in range(self.shards) if i not in present]
        if len(lost) > self.parity:
            raise ValueError(
                f"{len(lost)} of {self.shards} shards are lost ({lost}); with {self.parity} parity shards "
                f"at most {self.parity} may be"
            )
        basis, spare = sorted(present)[: self.data], sorted(present)[self.data :]
        wrong = self._find_disagreeing(present, basis, spare)
        if wrong:
            raise ValueError(
                f"shard {wrong[0]} does not follow from shards {basis}, so a shard is corrupted; "
                "pass None for those in doubt"
            )
        result = [present.get(i) for i in range(self.shards)]
        if lost:
            matrix = self._make_matrix(basis, lost)
            first = present[basis[0]]
            found = _arrays.namespace(first).empty((len(lost), first.shape[0]), np.uint8)
            for columns, stack in _stack_columns([present[i] for i in basis]):
                matmul(matrix, stack, out=found[:, columns], kernel=kernel)
            for row, i in zip(found, lost, strict=True):
                result[i] = row
        return result

    def _make_matrix(self, basis: list[int], wanted: list[int]) -> Bytes:
        """Return the matrix that makes the shards `wanted` from the `data` shards `basis`."""
        rows = np.vstack([np.eye(self.data, dtype=np.uint8), self.matrix])
        return multiply(rows[wanted], invert(rows[basis]))

    def _find_disagreeing(self, present: dict[int, Any], basis: list[int], spare: list[int]) -> list[int]:
        """Return a list with the first shard of `spare` that is not what `basis` implies, or an empty one."""
        if not spare:
            return []
        matrix = self._make_matrix(basis, spare)
        for columns, stack in _stack_columns([present[i] for i in basis]):
            for row, i in zip(matmul(matrix, stack), spare, strict=True):
                if not bool((row == present[i][columns]).all()):
                    return [i]
        return []

    def _check_shards(self, shards: Sequence[Any]) -> dict[int, Any]:
        """Check the shards, and return those that are present, by number."""
        if len(shards) != self.shards:
            raise ValueError(
                f"{len(shards)} shards were given; this code has {self.data} + {self.parity}; "
                "pass None for a lost one"
            )
        present = {i: shard for i, shard in enumerate(shards) if shard is not None}
        for i, shard in present.items():
            _arrays.operand(f"shard {i}", shard)
            if shard.dtype != np.uint8:
                raise TypeError(f"shard {i} has dtype {shard.dtype}; shards are uint8")
            if shard.ndim != 1:
                raise ValueError(f"shard {i} has shape {shard.shape}; one dimension is needed")
        for i, shard in present.items():
            first = next(iter(present))
            if shard.shape != present[first].shape:
                raise ValueError(
                    f"shard {i} has {shard.shape[0]} bytes and shard {first} has {present[first].shape[0]}; "
                    "all must have one length"
                )
            if _arrays.is_cupy(shard) != _arrays.is_cupy(present[first]):
                raise TypeError(f"shard {i} and shard {first} are on two devices; all must be on one")
        return present


def _stack_columns(rows: list[Any]) -> Any:
    """Yield the matrix with these rows, some columns at a time: (slice, array (len(rows), count))."""
    device = "cuda" if _arrays.is_cupy(rows[0]) else "cpu"
    columns = rows[0].shape[0]
    count = max(4096, STACK_BYTES[device] // len(rows) // 4096 * 4096)
    for start in range(0, columns, count):
        part = slice(start, min(columns, start + count))
        yield part, _arrays.namespace(rows[0]).stack([row[part] for row in rows])
