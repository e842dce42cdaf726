"""Vectors of LLVM, as what is emitted for the CPU writes them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

INT = ir.IntType(32)


def data_of(context: Any, builder: ir.IRBuilder, kind: Any, array: Any) -> Any:
    """Return a pointer to the first number of an array of Numba's type."""
    return context.make_array(kind)(context, builder, array).data


def place_of(context: Any, builder: ir.IRBuilder, kind: Any, array: Any, first: Any, vector: Any) -> Any:
    """Return a pointer to a vector of an array's numbers from one of them on."""
    start = builder.gep(data_of(context, builder, kind, array), [first])
    return builder.bitcast(start, vector.as_pointer())


def splat(builder: ir.IRBuilder, number: Any, lanes: int) -> Any:
    """Return a vector of one number in every lane."""
    none = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    single = builder.insert_element(none, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(single, none, ir.Constant(ir.VectorType(INT, lanes), None))


def first_lanes(builder: ir.IRBuilder, count: Any, lanes: int, before: int = 0) -> Any:
    """Return a vector that says which lanes are among the first ones, of so many, and of those before."""
    numbers = ir.Constant(ir.VectorType(count.type, lanes), list(range(before, before + lanes)))
    return builder.icmp_unsigned("<", numbers, splat(builder, count, lanes))


def load(builder: ir.IRBuilder, place: Any) -> Any:
    """Load a vector from where its numbers stand."""
    return builder.load(place, align=place.type.pointee.element.width // 8)


def store(builder: ir.IRBuilder, numbers: Any, place: Any) -> None:
    """Store a vector where its numbers stand."""
    builder.store(numbers, place, align=numbers.type.element.width // 8)


def resized(builder: ir.IRBuilder, numbers: Any, word: ir.IntType) -> Any:
    """Return a vector of unsigned integers in a type: its lower bits where that is narrower."""
    vector = ir.VectorType(word, numbers.type.count)
    if word.width == numbers.type.element.width:
        return numbers
    change = builder.trunc if word.width < numbers.type.element.width else builder.zext
    return change(numbers, vector)


def reduced(builder: ir.IRBuilder, operation: str, vector: Any) -> Any:
    """Return one number of all those of a vector, by an operation of `llvm.vector.reduce`."""
    kind = ir.FunctionType(vector.type.element, [vector.type])
    name = f"llvm.vector.reduce.{operation}.{_name(vector.type)}"
    return builder.call(builder.module.declare_intrinsic(name, (), kind), [vector])


def _name(vector: ir.VectorType) -> str:
    return f"v{vector.count}i{vector.element.width}"
