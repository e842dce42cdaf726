"""Words of memory that threads share, as compiled code reads and writes them by their addresses."""

from __future__ import annotations

import os
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype

WORD = 8
"""Bytes of a word."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def load(typing_context, address):
    """Read a word, and after it whatever was written before it."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", WORD)

    return types.int64(types.int64), generate


@intrinsic
def store(typing_context, address, word):
    """Write a word, after whatever was written before it."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _change(operation: str) -> Any:
    """Return an intrinsic that changes a word in one step with all threads, and returns what it was."""

    @intrinsic
    def change(typing_context, address, term):
        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
            return builder.atomic_rmw(operation, pointer, arguments[1], "seq_cst")

        return types.int64(types.int64, types.int64), generate

    return change


add, exchange = _change("add"), _change("xchg")


@intrinsic
def pause(typing_context):
    """Leave the core's resources to its other thread for a moment."""
    machine = llvmlite.binding.get_process_triple().split("-")[0]

    def generate(context, builder, signature, arguments):
        hint = [ir.Constant(_I32, 1)]
        name, given = {"x86_64": ("x86.sse2.pause", []), "aarch64": ("aarch64.hint", hint)}.get(
            machine, ("", [])
        )
        if name:
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(builder.module.declare_intrinsic(f"llvm.{name}", (), kind), given)
        return context.get_dummy_value()

    return types.void(), generate


give_way = types.ExternalFunction("sched_yield", types.int32()) if os.name == "posix" else pause


@intrinsic
def on_stack(typing_context, numbers):
    """Return the address of some numbers of one type, which lasts as long as the caller."""

    def generate(context, builder, signature, arguments):
        values = cgutils.unpack_tuple(builder, arguments[0], numbers.count)
        place = cgutils.alloca_once(builder, values[0].type, size=numbers.count)
        for k, value in enumerate(values):
            builder.store(value, builder.gep(place, [ir.Constant(_I64, k)]))
        return builder.ptrtoint(place, _I64)

    return types.int64(numbers), generate


@intrinsic
def number_of(typing_context, array):
    """Return NumPy's number of a vector's type; -1 if it is not contiguous."""
    plain = array.ndim == 1 and array.layout == "C" and array.aligned
    number = as_dtype(array.dtype).num if plain else -1

    def generate(context, builder, signature, arguments):
        return ir.Constant(_I64, number)

    return types.int64(array), generate


@intrinsic
def is_writable(typing_context, array):
    """Return True if a vector may be written to."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(1), int(array.mutable))

    return types.boolean(array), generate
