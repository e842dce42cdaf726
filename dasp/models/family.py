"""The families of model matrices, and the functions by which their builders assemble CSR."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dasp.runtime.sizes import refuse_oversize

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Number = int | float

# Builders hold columns, values, masks and often unmerged pairs at once; measured peaks are below this.
_BYTES_PER_ENTRY = 64
_BYTES_PER_ROW = 64
_LARGEST_INTEGER = 2**62


@dataclass(frozen=True)
class SizeParameter:
    """One number of a specification: its name, its kind and the values it may take.

    A parameter with a default may be left out, together with all that follow it.
    """

    name: str
    minimum: Number
    default: Number | None = None
    maximum: Number = _LARGEST_INTEGER
    real: bool = False

    def read(self, text: str, family: Family) -> Number:
        """Return the value in a text; ValueError if it is unreadable or out of range."""
        kind = "number" if self.real else "whole number"
        try:
            value: Number = float(text) if self.real else int(text)
        except ValueError:
            value = math.nan
        if self.minimum <= value <= self.maximum:
            return value
        if self.maximum == _LARGEST_INTEGER and not value > self.maximum:
            limits = f"of at least {self.minimum}"
        else:
            limits = f"from {self.minimum} to {self.maximum}"
        shown = text if len(text) <= 30 else text[:27] + "..."
        raise ValueError(
            f"{self.name} of model {family.name} is {shown!r}; it must be a {kind} {limits}; "
            f"write {family.usage}, for example {family.example}"
        )


@dataclass(frozen=True)
class Family:
    """A family of model matrices.

    Attributes
    ----------
    name : str
        The word before the first colon of a specification.
    parameters : tuple of SizeParameter
        The parameters that follow it, in order.
    summary : str
        One line: what the matrix is and which real matrices it stands for.
    example : str
        A specification of a small member, which builds in well under a second.
    size : callable
        Takes the parameters; returns estimates of (rows, entries), not far below the truth.
    build : callable
        Takes a NumPy generator and the parameters; returns the matrix.
    """

    name: str
    parameters: tuple[SizeParameter, ...]
    summary: str
    example: str
    size: Callable[..., tuple[float, float]]
    build: Callable[..., csr_array]

    @property
    def usage(self) -> str:
        """The form of a specification: ``rmat:scale[:edges]``."""
        needed = [f":{parameter.name}" for parameter in self.parameters if parameter.default is None]
        optional = [f"[:{parameter.name}" for parameter in self.parameters if parameter.default is not None]
        return self.name + "".join(needed + optional) + "]" * len(optional)

    def read(self, texts: list[str]) -> list[Number]:
        """Return the values of all parameters of a specification, with defaults filled in.

        Raises
        ------
        ValueError
            If one is missing, unreadable or out of range, or if there are too many.
        """
        needed = sum(parameter.default is None for parameter in self.parameters)
        if not needed <= len(texts) <= len(self.parameters):
            raise ValueError(
                f"model {self.name} was given {len(texts)} parameters; it takes "
                f"{self.usage}; for example {self.example}"
            )
        values = [parameter.read(text, self) for parameter, text in zip(self.parameters, texts, strict=False)]
        for parameter in self.parameters[len(texts) :]:
            assert parameter.default is not None
            values.append(parameter.default)
        return values

    def generate(self, texts: list[str], seed: int) -> csr_array:
        """Build a matrix from the texts of its parameters; ValueError if one is wrong or it is too large."""
        values = self.read(texts)
        try:
            rows, entries = self.size(*values)
        except OverflowError:
            rows = entries = math.inf
        refuse_oversize(
            f"the model matrix {':'.join([self.name, *texts])!s:.60} with about {entries:.3g} entries",
            _BYTES_PER_ENTRY * entries + _BYTES_PER_ROW * rows,
            "choose smaller parameters",
        )
        generator = np.random.default_rng(seed)
        return self.build(generator, *values)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


# ---- assembly: CSR from neighbours, from pairs, from sums ------------------------------------------------


def index_type(rows: float, columns: float, entries: float) -> type[np.signedinteger]:
    """Return the narrowest index type SciPy uses for a matrix of this size."""
    return np.int32 if max(rows, columns, entries) < 2**31 else np.int64


def csr_from_slots(columns: NDArray, stored: NDArray[np.bool_], values: NDArray, width: int) -> csr_array:
    """Build a matrix whose rows have equally many slots, some of which are stored.

    Parameters
    ----------
    columns : integer array, shape (rows, slots)
        Column of each slot, ascending among the stored slots of a row.
    stored : bool array, shape (rows, slots)
        True for the slots that become entries.
    values : float64 array, broadcastable to (rows, slots)
        Value of each slot.
    width : int
        Number of columns of the matrix.

    Returns
    -------
    csr_array
        Shape (rows, width), indices sorted, no duplicates.
    """
    from scipy.sparse import csr_array

    rows = columns.shape[0]
    kind = index_type(rows, width, columns.size)
    indptr = np.zeros(rows + 1, dtype=kind)
    np.cumsum(np.count_nonzero(stored, axis=1), out=indptr[1:])
    indices = columns[stored].astype(kind, copy=False)
    data = np.broadcast_to(values, columns.shape)[stored]
    return csr_array((data, indices, indptr), shape=(rows, width))


def csr_from_pairs(
    generator: np.random.Generator, rows: NDArray, columns: NDArray, shape: tuple[int, int]
) -> csr_array:
    """Build a matrix with a standard normal value at each distinct (row, column); indices are sorted."""
    from scipy.sparse import coo_array, csr_array

    kind = index_type(*shape, len(rows))
    ones = np.ones(len(rows), dtype=np.int8)
    matrix = coo_array((ones, (rows.astype(kind), columns.astype(kind))), shape=shape).tocsr()
    return csr_array(
        (generator.standard_normal(matrix.nnz), matrix.indices, matrix.indptr), shape=shape, copy=False
    )


def csr_from_sums(values: Floats, rows: NDArray, columns: NDArray, shape: tuple[int, int]) -> csr_array:
    """Build a matrix that sums all values given for the same (row, column); indices are sorted."""
    from scipy.sparse import coo_array

    kind = index_type(*shape, len(rows))
    return coo_array((values, (rows.astype(kind), columns.astype(kind))), shape=shape).tocsr()


def laplacian(weights: Floats, left: NDArray, right: NDArray, ground: Floats) -> csr_array:
    """Return the matrix of a resistor network: symmetric, positive definite where every `ground` is positive.

    Parameters
    ----------
    weights : float64 array, shape (edges,)
        Conductance of each edge, positive.
    left, right : integer arrays, shape (edges,)
        The nodes that the edge joins; an edge from a node to itself adds nothing.
    ground : float64 array, shape (nodes,)
        Conductance from each node to the ground.
    """
    from scipy.sparse import diags_array

    nodes = len(ground)
    joined = left != right
    low, high = np.minimum(left, right)[joined], np.maximum(left, right)[joined]
    # Mirror after summing: parallel edges summed in two orders would differ in the last bit.
    upper = csr_from_sums(weights[joined], low, high, (nodes, nodes))
    degree = ground + upper.sum(axis=0) + upper.sum(axis=1)
    return (diags_array(degree, format="csr") - (upper + upper.T)).tocsr()
