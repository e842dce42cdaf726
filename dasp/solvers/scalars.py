"""Scalars of an iteration: NumPy's on the host, or expressions that a GPU evaluates between two passes.

An iteration is written once. On the CPU it runs, and its scalars are `numpy.float64`. For a GPU it runs once,
with `Traced` scalars that record the operations on them; this text becomes part of the kernel that needs it.
Complex ones are `numpy.complex128`, or `TracedComplex`: two traced scalars. All have `real` and `imag`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

RUNNING, CLAIMED, LIMIT, NOT_FINITE, NOTHING = range(5)
"""Why an iteration stopped: it did not; the residual that it updates is small enough; the allowed iterations
were made; a number is NaN or infinite; a first square is 0 or lost. A method's own codes start at `OWN`."""

OWN = 8

FINITE = 1e308
"""A square of a norm is finite if it is below this."""

Scalar = Any
"""numpy.float64 or Traced, numpy.complex128 or TracedComplex."""

IMAGINARY = ".imag"
"""The suffix of an imaginary part's name, where a complex scalar is kept as two real ones."""


class Traced:
    """A number that exists on the GPU only: an expression in C, and the scalars in it.

    Parameters
    ----------
    numbers : iterator of int
        The source of numbers for the scalars of a trace.
    text : str
        The expression in C, with `{0}`, `{1}` for the names of `parts`.
    parts : tuple of Traced
        The scalars in the expression.
    stage : int
        Passes that must be made before the number is known, if its parts do not need more.
    """

    def __init__(
        self, numbers: Iterator[int], text: str, parts: tuple[Traced, ...] = (), stage: int = 0
    ) -> None:
        self._numbers, self.text, self.parts = numbers, text, parts
        self.stage: int = max((stage, *(part.stage for part in parts)))
        self.number = next(numbers)

    @property
    def name(self) -> str:
        """The name of the scalar in a kernel."""
        return f"t{self.number}"

    @property
    def real(self) -> Traced:
        """The scalar itself, which is real."""
        return self

    @property
    def imag(self) -> float:
        """Zero."""
        return 0.0

    def _of(self, text: str, *others: Scalar) -> Traced:
        parts: list[Traced] = [self]
        names = ["{0}"]
        for other in others:
            if isinstance(other, Traced):
                names.append(f"{{{len(parts)}}}")
                parts.append(other)
            else:
                names.append(literal(float(other)))
        return Traced(self._numbers, text.format(*names), tuple(parts))

    def __add__(self, other: Scalar) -> Traced:
        return self._of("{0} + {1}", other)

    def __sub__(self, other: Scalar) -> Traced:
        return self._of("{0} - {1}", other)

    def __mul__(self, other: Scalar) -> Traced:
        return self._of("{0} * {1}", other)

    def __truediv__(self, other: Scalar) -> Traced:
        return self._of("{0} / {1}", other)

    def __radd__(self, other: Scalar) -> Traced:
        return self._of("{1} + {0}", other)

    def __rsub__(self, other: Scalar) -> Traced:
        return self._of("{1} - {0}", other)

    def __rmul__(self, other: Scalar) -> Traced:
        return self._of("{1} * {0}", other)

    def __rtruediv__(self, other: Scalar) -> Traced:
        return self._of("{1} / {0}", other)

    def __neg__(self) -> Traced:
        return self._of("-{0}")

    def __abs__(self) -> Traced:
        return self._of("fabs({0})")

    def __lt__(self, other: Scalar) -> Traced:
        return self._of("double({0} < {1})", other)

    def __le__(self, other: Scalar) -> Traced:
        return self._of("double({0} <= {1})", other)

    def __gt__(self, other: Scalar) -> Traced:
        return self._of("double({0} > {1})", other)

    def __ge__(self, other: Scalar) -> Traced:
        return self._of("double({0} >= {1})", other)

    def __bool__(self) -> bool:
        raise TypeError("a traced scalar has no value on the host; use where(condition, this, that)")

    def sqrt(self) -> Traced:
        """Return the square root."""
        return self._of("sqrt({0})")

    def where(self, this: Scalar, that: Scalar) -> Scalar:
        """Return `this` where the number is not 0, else `that`."""
        if isinstance(this, TracedComplex) or isinstance(that, TracedComplex):
            return TracedComplex(self.where(this.real, that.real), self.where(this.imag, that.imag))
        return self._of("{0} != 0 ? {1} : {2}", this, that)


class TracedComplex:
    """A complex number that exists on the GPU only, as its parts.

    Parameters
    ----------
    real, imag : Traced or float
    """

    def __init__(self, real: Scalar, imag: Scalar) -> None:
        self.real, self.imag = real, imag

    def __mul__(self, other: TracedComplex) -> TracedComplex:
        a, b, c, d = self.real, self.imag, other.real, other.imag
        return TracedComplex(a * c - b * d, a * d + b * c)

    def __truediv__(self, other: Scalar) -> TracedComplex:
        if not isinstance(other, TracedComplex):
            return TracedComplex(self.real / other, self.imag / other)
        # Divide by the larger part first: the square of the divisor's absolute value may overflow.
        wide, high = abs(other.real), abs(other.imag)
        larger = where(wide > high, wide, high)
        a, b = self.real / larger, self.imag / larger
        c, d = other.real / larger, other.imag / larger
        size = c * c + d * d
        return TracedComplex((a * c + b * d) / size, (b * c - a * d) / size)


def split(state: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the scalars, each traced complex one as two real ones."""
    parts: dict[str, Scalar] = {}
    for name, value in state.items():
        parts[name] = value.real if isinstance(value, TracedComplex) else value
        if isinstance(value, TracedComplex):
            parts[name + IMAGINARY] = value.imag
    return parts


def join(parts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the scalars that `split` took apart."""
    return {
        name: TracedComplex(value, parts[name + IMAGINARY]) if name + IMAGINARY in parts else value
        for name, value in parts.items()
        if not name.endswith(IMAGINARY)
    }


def literal(value: float) -> str:
    """Return a number as C writes it, bit for bit."""
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"an iteration holds the constant {value}; a finite one is needed")
    return f"({value!r})"


def sqrt(value: Scalar) -> Scalar:
    """Return the square root; NaN of a negative number."""
    return value.sqrt() if isinstance(value, Traced) else np.sqrt(value)


def where(condition: Scalar, this: Scalar, that: Scalar) -> Scalar:
    """Return `this` where the condition holds, else `that`; a comparison with NaN does not hold."""
    if isinstance(condition, Traced):
        return condition.where(this, that)
    value = this if condition else that
    return np.float64(value) if type(value) is float else value


def square(value: Scalar) -> Scalar:
    """Return the square of the absolute value."""
    if isinstance(value, (complex, TracedComplex)):
        return value.real * value.real + value.imag * value.imag
    return value * value


def hypot(a: Scalar, b: Scalar) -> Scalar:
    """Return sqrt(a^2 + b^2)."""
    return sqrt(a * a + b * b)


def verdict(
    squared: Scalar, limit_squared: Scalar, count: Scalar, most: Scalar, code: Scalar
) -> tuple[Scalar, Scalar]:
    """Return why the iterations stop (`RUNNING` if they go on), and their number with this one.

    Parameters
    ----------
    squared, limit_squared : scalar
        The square of the residual's norm, as the recurrence gives it, and the square that it must fall to.
    count, most : scalar
        The iterations before this one, and the iterations allowed.
    code : scalar
        The method's own reason to stop, or `RUNNING`.
    """
    count = count + 1.0
    late = where(count >= most, float(LIMIT), float(RUNNING))
    own = where(code > float(RUNNING), code, late)
    claimed = where(squared <= limit_squared, float(CLAIMED), own)
    return where(squared < FINITE, claimed, float(NOT_FINITE)), count


def first_verdict(squared: Scalar, limit_squared: Scalar, code: Scalar) -> Scalar:
    """Return why there is nothing to iterate, or `RUNNING`; see `verdict`."""
    claimed = where(squared <= limit_squared, float(CLAIMED), code)
    stop = where(code > float(RUNNING), code, claimed)
    return where(squared < FINITE, stop, float(NOT_FINITE))
