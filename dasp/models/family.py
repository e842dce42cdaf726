"""A family of model matrices: its name, parameters, largest size, and builder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dasp.runtime.sizes import refuse_oversize

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Number = int | float

# Builders hold columns, values, masks and often unmerged pairs at once; measured peaks stay below these.
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
        """Read the parameter from its text; ValueError says which one is wrong and what it must be."""
        kind = "number" if self.real else "whole number"
        try:
            value: Number = float(text) if self.real else int(text)
        except ValueError:
            value = math.nan
        if self.minimum <= value <= self.maximum:
            return value
        if self.maximum == _LARGEST_INTEGER:
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
        Parameters to (rows, entries), as an estimate that is not far below the truth.
    build : callable
        (generator, parameters...) to the matrix.
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
        """Read all parameters of a specification, filling in defaults.

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
        """Build a member from the texts of its parameters; ValueError if one is wrong or too large."""
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
