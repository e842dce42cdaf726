"""LLVM instructions for code on a CPU: vectors, half precision, complex numbers, loops, and prefetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype

from dasp.runtime.cpu.compile import find_features, jit

LINE = 64
"""Bytes of a cache line."""

FIRST_LEVEL, SECOND_LEVEL = 3, 2
"""LLVM's numbers of the caches into which `prefetch_run` brings memory."""

I32, I64 = ir.IntType(32), ir.IntType(64)


def _widens_halves() -> bool:
    """Return True if code is compiled for this very processor, which has an instruction to widen float16."""
    own = config.CPU_NAME is None and config.CPU_FEATURES is None
    return own and not find_features().isdisjoint({"f16c", "fp-armv8"})


HALVES = types.uint16, types.int16
"""Numba's types that stand for the bits of float16 and of bfloat16."""


def as_floats(builder: ir.IRBuilder, coded: types.Type, bits: ir.Value) -> ir.Value:
    """Return a vector of half-precision numbers, given by their bits, as floats."""
    return (_from_float16 if coded == types.uint16 else _from_bfloat16)(builder, bits)


def _from_bfloat16(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return floats whose upper halves are these bits."""
    count = bits.type.count
    words = ir.VectorType(I32, count)
    wide = builder.shl(builder.zext(bits, words), ir.Constant(words, [16] * count))
    return builder.bitcast(wide, ir.VectorType(ir.FloatType(), count))


def _from_float16(builder: ir.IRBuilder, stored: ir.Value) -> ir.Value:
    """Return float16 numbers, given by their bits, as floats.

    On a processor without an instruction for this, LLVM would call a function that need not exist. There the
    exponent is shifted into place, and a factor of 2^112 corrects its bias.
    """
    count = stored.type.count
    words, floats = ir.VectorType(I32, count), ir.VectorType(ir.FloatType(), count)
    if _widens_halves():
        return builder.fpext(builder.bitcast(stored, ir.VectorType(ir.HalfType(), count)), floats)

    def each(number: int) -> ir.Constant:
        return ir.Constant(words, [number] * count)

    bits = builder.zext(stored, words)
    size = builder.shl(builder.and_(bits, each(0x7FFF)), each(13))
    scaled = builder.fmul(builder.bitcast(size, floats), ir.Constant(floats, [2.0**112] * count))
    special = builder.icmp_unsigned(">=", size, each(0x7C00 << 13))
    whole = builder.or_(builder.bitcast(scaled, words), builder.select(special, each(0x7F800000), each(0)))
    sign = builder.shl(builder.and_(bits, each(0x8000)), each(16))
    return builder.bitcast(builder.or_(whole, sign), floats)


def emit_loop(
    builder: ir.IRBuilder,
    start: ir.Value,
    limit: ir.Value,
    step: int,
    initial: list[ir.Value],
    emit_body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Emit a loop from `start` on while its index is below `limit`; return the carried values after it.

    `emit_body` takes the index and the carried values of a turn, and returns those of the next one.
    """
    before = builder.block
    head, body, after = (builder.append_basic_block(f"loop.{name}") for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index, *carried = phis = [builder.phi(value.type) for value in (start, *initial)]
    for phi, value in zip(phis, (start, *initial), strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, limit), body, after)
    builder.position_at_end(body)
    following = emit_body(index, carried)
    for phi, value in zip(phis, (builder.add(index, index.type(step)), *following), strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def multiply_add(
    builder: ir.IRBuilder, fma: ir.Function, a: list[ir.Value], b: list[ir.Value], sums: list[ir.Value]
) -> list[ir.Value]:
    """Return sums + a * b; each is a list of parts: one for real numbers, two for complex ones."""

    def added(*terms: ir.Value) -> ir.Value:
        return builder.call(fma, terms)

    if len(a) == len(b) == 2:
        real, imaginary = added(builder.fneg(a[1]), b[1], sums[0]), added(a[1], b[0], sums[1])
        return [added(a[0], b[0], real), added(a[0], b[1], imaginary)]
    if len(b) == 2:
        return [added(a[0], part, total) for part, total in zip(b, sums, strict=True)]
    return [added(part, b[0], total) for part, total in zip(a, sums, strict=True)]


def prefetch_run(
    builder: ir.IRBuilder, address: ir.Value, start: int, count: int, level: int, writes: bool = False
) -> None:
    """Prefetch `count` bytes, `start` bytes after an address, into a cache, for reading or writing."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
    address = builder.bitcast(address, byte)
    for line in range(start, start + count, LINE):
        ahead = builder.gep(address, [ir.Constant(I64, line)])
        builder.call(function, [ahead, *(ir.Constant(I32, flag) for flag in (int(writes), level, 1))])


def bytes_of(kind: types.Type) -> int:
    """Return the size in bytes of a number of a Numba type."""
    return int(as_dtype(kind).itemsize)


def data_of(context: BaseContext, builder: ir.IRBuilder, kind: types.Type, array: ir.Value) -> ir.Value:
    """Return a pointer to the first number of an array; a pointer is returned unchanged."""
    if isinstance(kind, types.CPointer):
        return array
    return context.make_array(kind)(context, builder, array).data


def place_of(
    context: BaseContext,
    builder: ir.IRBuilder,
    kind: types.Type,
    array: ir.Value,
    first: ir.Value,
    vector: ir.VectorType,
) -> ir.Value:
    """Return a pointer to the vector of an array's numbers that begins at index `first`."""
    start = builder.gep(data_of(context, builder, kind, array), [first])
    return builder.bitcast(start, vector.as_pointer())


def splat(builder: ir.IRBuilder, number: ir.Value, lanes: int) -> ir.Value:
    """Return a vector of one number in every lane."""
    none = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    single = builder.insert_element(none, number, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, none, ir.Constant(ir.VectorType(I32, lanes), None))


def first_lanes(builder: ir.IRBuilder, count: ir.Value, lanes: int, before: int = 0) -> ir.Value:
    """Return a mask of the lanes whose numbers, which begin at `before`, are less than `count`."""
    numbers = ir.Constant(ir.VectorType(count.type, lanes), list(range(before, before + lanes)))
    return builder.icmp_unsigned("<", numbers, splat(builder, count, lanes))


def load(builder: ir.IRBuilder, place: ir.Value) -> ir.Value:
    """Load a vector that is aligned as its numbers are."""
    return builder.load(place, align=place.type.pointee.element.width // 8)


def store(builder: ir.IRBuilder, numbers: ir.Value, place: ir.Value) -> None:
    """Store a vector at a place that is aligned as its numbers are."""
    builder.store(numbers, place, align=numbers.type.element.width // 8)


def resize_lanes(builder: ir.IRBuilder, numbers: ir.Value, word: ir.IntType) -> ir.Value:
    """Return a vector of unsigned integers in another type: the lower bits if that is narrower."""
    vector = ir.VectorType(word, numbers.type.count)
    if word.width == numbers.type.element.width:
        return numbers
    change = builder.trunc if word.width < numbers.type.element.width else builder.zext
    return change(numbers, vector)


def reduce_lanes(builder: ir.IRBuilder, operation: str, vector: ir.Value) -> ir.Value:
    """Reduce a vector of integers to one number, by an operation of `llvm.vector.reduce`."""
    kind = ir.FunctionType(vector.type.element, [vector.type])
    name = f"llvm.vector.reduce.{operation}.v{vector.type.count}i{vector.type.element.width}"
    return builder.call(builder.module.declare_intrinsic(name, (), kind), [vector])


@intrinsic
def scale_number(typing_context, factor, number):
    """Return the product of two numbers of one type.

    A complex factor with imaginary part 0 multiplies as a real one does, so that 1 times an infinite number
    is that number and not NaN.
    """
    is_complex = isinstance(number, types.Complex)

    def generate(context, builder, signature, arguments):
        if not is_complex:
            return builder.fmul(*arguments)
        a, b = (cgutils.unpack_tuple(builder, argument, 2) for argument in arguments)
        return cgutils.pack_struct(builder, scale_parts(builder, a, b, lambda part: part))

    return number(number, number), generate


def scale_parts(
    builder: ir.IRBuilder,
    factor: Sequence[ir.Value],
    parts: Sequence[ir.Value],
    spread: Callable[[ir.Value], ir.Value],
) -> list[ir.Value]:
    """Return the parts of a complex factor times numbers; `spread` widens the factor's parts to vectors."""
    real, imaginary = map(spread, factor)
    plain = [builder.fmul(real, part) for part in parts]
    none = builder.fcmp_ordered("==", factor[1], ir.Constant(factor[1].type, 0.0))
    whole = [
        builder.fsub(plain[0], builder.fmul(imaginary, parts[1])),
        builder.fadd(plain[1], builder.fmul(imaginary, parts[0])),
    ]
    return [builder.select(none, *both) for both in zip(plain, whole, strict=True)]


@jit(nogil=True)
def store_long(rows, segment_offsets, partials, done, y, alpha, beta):
    """Set the rows of Y whose sums come in segments, from column `done` on."""
    for r in range(len(rows)):
        for j in range(done, y.shape[1]):
            total = partials[segment_offsets[r], j]
            for s in range(segment_offsets[r] + 1, segment_offsets[r + 1]):
                total += partials[s, j]
            total = scale_number(alpha, total)
            y[rows[r], j] = total if beta == 0 else total + scale_number(beta, y[rows[r], j])


@intrinsic
def at(typing_context, array, place):
    """Return a pointer to an item of a contiguous array or of a pointer.

    This compiles faster than a slice, which has a length and allows negative indices.
    """

    def generate(context, builder, signature, arguments):
        array, place = arguments
        return builder.gep(data_of(context, builder, signature.args[0], array), [place])

    return types.CPointer(array.dtype)(array, types.int64), generate


@intrinsic
def is_null(typing_context, pointer):
    """Return True if a pointer is null."""

    def generate(context, builder, signature, arguments):
        return cgutils.is_null(builder, arguments[0])

    return types.boolean(pointer), generate
