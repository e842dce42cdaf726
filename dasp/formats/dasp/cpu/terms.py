"""The term that an entry of the format of the paper adds to a sum on a CPU, whatever the types of both."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.emitter import HALVES, I32, as_floats, data_of, multiply_add


def parts_at(builder: ir.IRBuilder, kind: types.Type, place: ir.Value, real: ir.Type) -> list[ir.Value]:
    """Return the parts of the number at a pointer: one, or two of a complex one, as numbers of type `real`.

    Parameters
    ----------
    builder : LLVM's
    kind : numba type
        Of the number; uint16 and int16 stand for the bits of float16 and bfloat16.
    place : LLVM pointer
    real : LLVM type
        Float or double, at least as wide as the parts.
    """
    if kind in HALVES:
        bits = builder.load(builder.bitcast(place, ir.VectorType(ir.IntType(16), 1).as_pointer()), align=2)
        parts = [builder.extract_element(as_floats(builder, kind, bits), ir.Constant(I32, 0))]
    elif isinstance(place.type.pointee, ir.BaseStructType):
        parts = [
            builder.load(builder.gep(place, [ir.Constant(I32, 0), ir.Constant(I32, part)])) for part in (0, 1)
        ]
    else:
        parts = [builder.load(place)]
    return [part if part.type == real else builder.fpext(part, real) for part in parts]


@intrinsic
def add_product(typing_context, values, slot, x, column, total):
    """Return a sum with the product of a value and a number of x added, each part of that fused.

    Parameters
    ----------
    values, x : vectors
        Of any types that that of the sum holds; uint16 and int16 stand for the bits of float16 and bfloat16.
    slot, column : int64 or uint64
        The positions.
    total : float or complex
    """

    def generate(context, builder, signature, arguments):
        values_array, slot, x_array, column, total = arguments
        is_complex = isinstance(signature.return_type, types.Complex)
        sums = [builder.extract_value(total, part) for part in (0, 1)] if is_complex else [total]
        real = sums[0].type
        size = 64 if real == ir.DoubleType() else 32
        fma = builder.module.declare_intrinsic(f"llvm.fmuladd.f{size}", (), ir.FunctionType(real, [real] * 3))
        factors, numbers = (
            parts_at(builder, kind.dtype, builder.gep(data_of(context, builder, kind, array), [place]), real)
            for kind, array, place in ((values, values_array, slot), (x, x_array, column))
        )
        parts = multiply_add(builder, fma, factors, numbers, sums)
        if not is_complex:
            return parts[0]
        for part, number in enumerate(parts):
            total = builder.insert_value(total, number, part)
        return total

    return total(values, slot, x, column, total), generate
