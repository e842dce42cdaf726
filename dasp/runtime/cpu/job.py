"""Work that threads share: a compiled function of a range, with the arguments that all its calls have.

A job is cut into chunks, the same number for each part. It is laid out in memory for compiled code.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import from_dtype, types
from numba.extending import intrinsic

from dasp.runtime.arrays import address
from dasp.runtime.cpu.compile import c_function
from dasp.runtime.types import Vector

CHUNKS = 4
"""Chunks of a part: few, because no prefetcher foresees where one begins."""

FIXED = 8
"""Arguments of a shared function that belong to the job."""

OPERANDS = 4
"""Arguments that belong to a call: the addresses of partials, x, y and (alpha, beta)."""

JOB = np.dtype(
    [
        ("function", np.int64),  # its address
        ("end", np.int64),  # of its range, which begins at 0
        ("cuts", np.int64),  # address of the rising cuts of the range: CHUNKS for each part, and one more
        ("fixed", np.int64, FIXED),  # the arguments that belong to the job: addresses and integers
    ]
)
"""A job as it lies in memory: written by `Job`, read by the compiled functions."""


Kind = Any
"""The kind of an argument: a dtype for a pointer to numbers, `int` for int64, None for a null pointer."""


def offsets_of(layout: np.dtype[Any]) -> Any:
    """Return the offset of each field, in bytes, as constants for compiled code."""
    fields: Mapping[str, Any] = layout.fields or {}
    return namedtuple("Offsets", fields)(*(field[1] for field in fields.values()))


JOB_AT = offsets_of(JOB)
_I64 = ir.IntType(64)


@intrinsic
def call(typing_context, job, operands, first, last):
    """Call the job's function for `first` to `last`, with its arguments and the operands at an address."""

    def generate(context, builder, signature, arguments):
        job, operands, first, last = arguments

        def words(address: ir.Value, offset: int, count: int) -> list[ir.Value]:
            start = builder.add(address, ir.Constant(_I64, offset))
            place = builder.inttoptr(start, _I64.as_pointer())
            return [builder.load(builder.gep(place, [ir.Constant(_I64, k)])) for k in range(count)]

        (function,) = words(job, JOB_AT.function, 1)
        others = words(job, JOB_AT.fixed, FIXED) + words(operands, 0, OPERANDS)
        kind = ir.FunctionType(ir.VoidType(), [_I64] * (2 + len(others)))
        builder.call(builder.inttoptr(function, kind.as_pointer()), [first, last, *others])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


class SharedFunction:
    """A C function that works on a range of items, so that threads can share its work.

    Parameters
    ----------
    function : callable
        The function to compile. It takes the range, `first` and `last`; then `arguments`, by these names;
        then pointers to the operands of a call: partials, x, y and (alpha, beta).
    arguments : mapping of str to Kind
        The kind of each of the `FIXED` arguments, by name.
    total : dtype
        The type of partials, y, alpha and beta.
    x : dtype, optional
        The type of x, if it is another one.
    **options
        Numba's options.

    Raises
    ------
    TypeError
        If the function takes other arguments, or takes them in another order.
    """

    def __init__(
        self,
        function: Callable[..., None],
        arguments: Mapping[str, Kind],
        total: npt.DTypeLike,
        x: npt.DTypeLike | None = None,
        **options: Any,
    ) -> None:
        self.name, self.arguments = function.__name__, dict(arguments)
        self.x = np.dtype(x or total)
        *names, _, _, _, _ = inspect.signature(function).parameters
        if names != ["first", "last", *arguments] or len(arguments) != FIXED:
            raise TypeError(
                f"{self.name} takes {', '.join(names)} before its operands; "
                f"first, last, {', '.join(arguments)} are needed, {FIXED} behind the range"
            )
        operands = [types.CPointer(from_dtype(np.dtype(kind))) for kind in (total, self.x, total, total)]
        kinds = [_numba_type(kind) for kind in arguments.values()]
        signature = types.void(types.int64, types.int64, *kinds, *operands)
        self._compiled = c_function(signature, function, **options)
        self.address = int(self._compiled.address)


def _numba_type(kind: Kind) -> types.Type:
    if kind is int:
        return types.int64
    return types.voidptr if kind is None else types.CPointer(from_dtype(np.dtype(kind)))


class Job:
    """A shared function with its range and its fixed arguments.

    Parameters
    ----------
    function : SharedFunction
    cuts : int64, shape (CHUNKS * parts + 1,)
        The ends of the chunks: they rise from 0 to the end of the range.
    seconds : float
        About how long one thread needs.
    **arguments
        The function's arguments by name: arrays, which are kept alive, or ints.

    Raises
    ------
    TypeError
        If an argument is missing, unknown, of another type or not contiguous.
    ValueError
        If the cuts do not rise from 0, or their number is wrong.
    """

    def __init__(
        self, function: SharedFunction, cuts: Vector, seconds: float, **arguments: Vector | int | None
    ) -> None:
        if set(arguments) != set(function.arguments):
            wrong = ", ".join(sorted(set(arguments) ^ set(function.arguments)))
            raise TypeError(f"{wrong} given or not; {function.name} takes {', '.join(function.arguments)}")
        if cuts[0] != 0 or np.any(cuts[1:] < cuts[:-1]) or len(cuts) % CHUNKS != 1:
            raise ValueError(f"cuts are {cuts}; they must rise from 0, {CHUNKS} for each part and one more")
        self.parts, self.seconds = len(cuts) // CHUNKS, seconds
        memory = np.zeros(1, JOB)
        record = memory[0]
        record["function"], record["end"] = function.address, cuts[-1]
        record["cuts"] = _word("cuts", np.int64, cuts)
        record["fixed"] = [_word(name, kind, arguments[name]) for name, kind in function.arguments.items()]
        self.address = address(memory.view(np.uint8))
        self._kept = memory, function, cuts, arguments


def _word(name: str, kind: Kind, value: Any) -> int:
    """Return an argument as a word: an int, or the address of an array, which must be as declared."""
    if kind is int:
        return int(value)
    if kind is None or (isinstance(value, np.ndarray) and value.size == 0):
        return 0
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != kind
        or not (value.flags.c_contiguous and value.flags.aligned)
    ):
        given = f"{value.dtype}, strides {value.strides}" if isinstance(value, np.ndarray) else type(value)
        raise TypeError(f"{name} is {given}; a contiguous array of {np.dtype(kind)} is needed")
    return address(value)
