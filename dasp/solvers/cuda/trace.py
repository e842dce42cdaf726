"""The record of an iteration: products, passes, and the scalars between them.

A scalar has a stage: the number of the first pass before which all its parts are known. Each thread computes
the scalar for itself at the head of that pass; if later passes need it, the pass also stores it on the GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dasp.runtime.types import Array
from dasp.solvers.operator import DeviceOperator
from dasp.solvers.scalars import Scalar, Traced, TracedComplex, literal
from dasp.solvers.space import Update, Vectors

CODE, COUNT, MOST = range(3)
"""Slots of the scalars on the GPU: why the iteration stopped, the iterations made, and those allowed."""

CARRIED, SLOTS = 64, 256
"""Slots of the scalars that go from one iteration to the next, and all slots; the rest last one iteration."""


class Slots:
    """The slots of the scalars on the GPU by name, in the order of their first use."""

    def __init__(self) -> None:
        self._of = {"code": CODE, "count": COUNT, "most": MOST}

    def __getitem__(self, name: str) -> int:
        slot = self._of.setdefault(name, len(self._of))
        assert slot < CARRIED
        return slot

    def __len__(self) -> int:
        return len(self._of)

    @property
    def names(self) -> list[str]:
        """All names, slot by slot."""
        return list(self._of)


class PartOfDot(NamedTuple):
    """The real or the imaginary part of a dot product; that of real vectors has only a real part."""

    first: str
    second: str
    imaginary: bool = False


@dataclass
class TracedPass:
    """A recorded pass: updates and dot products of vectors, and the coefficients of terms."""

    vectors: Vectors
    updates: tuple[Update, ...]
    dots: tuple[PartOfDot, ...]
    coefficients: dict[str, Scalar]
    inputs: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    sums: int = 0
    """The number of dot products of the pass before."""
    more: tuple[int, Array | None, int] = (0, None, 0)
    """The dot products that a product left since then: their number, their sums, and the sums for each."""
    leave: str = ""
    """A statement after the scalars."""


class Multiplication:
    """A recorded product y = A x; it may leave dot products of y too.

    Attributes
    ----------
    costly : bool
        True if it takes as long as several products with a matrix.
    sums : array or None
        The partial sums of the dot products that it leaves, if any.
    """

    def __init__(self, operator: DeviceOperator, x: Array, y: Array) -> None:
        self._operator, self._x, self._y = operator, x, y
        self.costly = operator.costly
        self._call = operator.prepare(x, y)
        self.sums: Array | None = None

    def __call__(self) -> None:
        """Make the product."""
        self._call()

    def leave(self, given: TracedPass) -> tuple[int, Array, int] | None:
        """Take over the dot products of a pass that needs only w'y, or w'y and y'y, if the operator can.

        Return their number, their partial sums, and the number of these for each; None if it cannot.
        """
        count = len(given.dots)
        if given.updates or not 1 <= count <= 2:
            return None
        pairs = [[given.vectors[name] for name in (dot.first, dot.second)] for dot in given.dots]
        others = [[array for array in pair if array is not self._y] for pair in pairs]
        if len(others[0]) != 1 or any(others[1:]):
            return None
        prepared = self._operator.prepare_with_dot(self._x, self._y, others[0][0], square=count == 2)
        if prepared is None:
            return None
        self._call, self.sums = prepared
        return count, self.sums, len(self.sums) // count


class Trace:
    """The record of a function's passes, products and scalars; see the head of this file.

    Parameters
    ----------
    slots : Slots
    entering : tuple of str
        Carried scalars that are not stored in slots: the sums that the last pass before left stand for them.
    """

    def __init__(self, slots: Slots, entering: tuple[str, ...] = ()) -> None:
        self.slots, self._entering = slots, entering
        self.entries: list[TracedPass | Callable[[], None]] = []
        self.passes: list[TracedPass] = []
        self._left: tuple[int, Array | None, int] = (0, None, 0)
        self._numbers = itertools.count()
        self._declared: set[tuple[int, int]] = set()
        self._kept: dict[int, int] = {}

    def carried(self, name: str) -> Traced:
        """Return the scalar of this name as it is when the function begins."""
        if name in self._entering:
            return Traced(self._numbers, f"sum[{self._entering.index(name)}]")
        return Traced(self._numbers, f"in[{self.slots[name]}]")

    def call(self, function: Callable[[], None]) -> None:
        """Record a call that reads or writes vectors, such as a product."""
        self.entries.append(function)

    def add_pass(self, given: TracedPass) -> tuple[Traced, ...]:
        """Record a pass, unless the product before it takes over its dot products; return these."""
        given.sums = len(self.passes[-1].dots if self.passes else self._entering)
        product = self.entries[-1] if self.entries else None
        left = product.leave(given) if isinstance(product, Multiplication) and not self._left[0] else None
        first = 0
        if left is not None:
            self._left, first = left, given.sums
        else:
            given.more, self._left = self._left, (0, None, 0)
            self.entries.append(given)
            self.passes.append(given)
        dots = range(first, first + len(given.dots))
        return tuple(Traced(self._numbers, f"sum[{k}]", stage=len(self.passes)) for k in dots)

    def finish(
        self,
        state: Mapping[str, Scalar],
        history: tuple[Scalar, Scalar] | None,
        nothing: Vectors,
        leave_if: Scalar | None = None,
    ) -> None:
        """Decide in which pass each scalar is computed and kept.

        Parameters
        ----------
        state : mapping of str to scalar
            The scalars at the end.
        history : pair of scalars, optional
            The number of an iteration and the square of its residual, for the history.
        nothing : vectors
            Vectors of length 0, for a pass that may be needed only for scalars.
        leave_if : scalar, optional
            If this is not 0, the pass that computes it ends as soon as it has stored its scalars.
        """
        final = {name: self.scalar(value) for name, value in state.items()}
        count, square = map(self.scalar, history or (0.0, 0.0))
        last = max(value.stage for value in (*final.values(), count, square))
        if last >= len(self.passes):
            self.add_pass(TracedPass(nothing, (), (), {}))
        for stage, one in enumerate(self.passes):
            for name, value in one.coefficients.items():
                parts = (value.real, value.imag) if isinstance(value, TracedComplex) else (value,)
                numbers = ", ".join(f"Real({self._use(self.scalar(part), stage)})" for part in parts)
                kind = "Real" if len(parts) == 1 else "Scalar"
                one.scalars.append(f"const {kind} c_{name} = {kind}({numbers});")
            one.coefficients = {}  # else they would keep the trace and its vectors
        for name, value in final.items():
            store = f"out[{self.slots[name]}] = {self._use(value, value.stage)};"
            self.passes[value.stage].stores.append(store)
        if history is not None:
            stage = max(count.stage, square.stage)
            place, norm = self._use(count, stage), self._use(square, stage)
            self.passes[stage].stores.append(f"history[(int){place}] = sqrt({norm});")
        if leave_if is not None:
            end = self.scalar(leave_if)
            self.passes[end.stage].leave = f"if ({self._use(end, end.stage)} != 0) return;"

    def scalar(self, value: Scalar) -> Traced:
        """Return a scalar, or a constant, as a traced one."""
        return value if isinstance(value, Traced) else Traced(self._numbers, literal(float(value)))

    def _use(self, value: Traced, stage: int) -> str:
        """Declare a scalar at the head of a pass, and return its name there."""
        if (value.number, stage) in self._declared:
            return value.name
        self._declared.add((value.number, stage))
        one = self.passes[stage]
        is_sum = value.text.startswith("sum")
        if value.stage == stage or (not value.parts and not is_sum):
            text = value.text.format(*(self._use(part, stage) for part in value.parts))
        else:
            text, is_sum = f"out[{self._keep(value)}]", False
        where = one.inputs if text.startswith(("in[", "out[")) else one.scalars
        where.append(f"const double {value.name} = {text};")
        return value.name

    def _keep(self, value: Traced) -> int:
        """Let the pass that computes a scalar store it, and return its slot."""
        if value.number not in self._kept:
            self._kept[value.number] = slot = CARRIED + len(self._kept)
            assert slot < SLOTS
            self.passes[value.stage].stores.append(f"out[{slot}] = {self._use(value, value.stage)};")
        return self._kept[value.number]
