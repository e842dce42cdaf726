"""Every CUDA source compiles for every architecture we name, and becomes the code that it is meant to be.

NVRTC and the disassembler need no GPU. A new .cu file needs an entry in SOURCES below.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasp.dense.gemm import rungs_cuda as dense
from dasp.formats.cost import H200
from dasp.formats.sell.cuda import column_rules, row_blocks
from dasp.formats.sell.cuda import columns as several
from dasp.formats.sell.cuda.column_rules import BLOCKS, Gathering, choose_column_blocks, find_strides
from dasp.formats.sell.pattern import Coding
from dasp.runtime.cuda import source as _source
from dasp.runtime.dtypes import C_NAMES, TABLE, Arithmetic, find_arithmetic, find_arithmetic_into
from dasp.solvers import persistent as one_launch
from dasp.solvers.bicgstab import BiconjugateGradientsStabilized
from dasp.solvers.cg import ConjugateGradients, HermitianConjugateGradients, PipelinedConjugateGradients
from dasp.solvers.minres import MinimalResiduals
from dasp.solvers.system import Method, System
from tests.simt import sass
from tests.support.nvrtc import compile_text
from tests.support.simt_device import EmulatedDevice, emulate

pytestmark = pytest.mark.slow

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

Defines = dict[str, str]


COMPLEX = find_arithmetic(np.dtype("complex128"), np.dtype("complex128"))
SINGLES = find_arithmetic(np.dtype("float32"), np.dtype("float32"))
HALVES = find_arithmetic(np.dtype("float16"), np.dtype("float16"))


def type_names(kinds: Arithmetic) -> Defines:
    return {f"DASP_{name.upper()}": C_NAMES[kind] for name, kind in kinds._asdict().items()}


DASP_TYPES = [("bfloat16", "complex128"), ("complex64", "float32"), ("complex128", "complex128")]
"""Types of a matrix and of x, beside real ones, that the format of the paper is compiled for here."""


def spmv() -> Iterator[Defines]:
    """Every set of number types and every two widths of integers, with tickets or tensor cores or neither."""
    single, mixed, double = ("float", "float"), ("float", "double"), ("double", "double")
    for (value, scalar), mma, tickets, index, offset in (
        (double, "1", "0", "int", "int"),
        (double, "0", "1", "long long", "long long"),
        (mixed, "1", "0", "long long", "int"),
        (mixed, "0", "0", "int", "int"),
        (single, "0", "1", "int", "long long"),
    ):
        yield {
            "DASP_VALUE": value,
            "DASP_X": scalar,
            "DASP_SUM": scalar,
            "DASP_Y": scalar,
            "DASP_TICKETS": tickets,
            "DASP_MMA": mma,
            "DASP_INDEX": index,
            "DASP_OFFSET": offset,
            "DASP_THREADS": "128",
        }
    for value, x in DASP_TYPES:
        known = type_names(find_arithmetic(np.dtype(value), np.dtype(x)))
        integers = {"DASP_INDEX": "int", "DASP_OFFSET": "int"}
        yield known | integers | {"DASP_TICKETS": "1", "DASP_THREADS": "128"}


USUAL_SLICES = {
    **type_names(find_arithmetic(np.dtype("float64"), np.dtype("float64"))),
    "DASP_TICKETS": "0",
    "DASP_INDEX": "int",
    "DASP_OFFSET": "int",
    "DASP_THREADS": "128",
    "DASP_CODING": "0",
    "DASP_IN_FLIGHT": "8",
}


def coded(coding: Coding, **constants: str) -> Defines:
    """A coding and other constants, without the DASP_ of their names."""
    return {"DASP_CODING": str(int(coding)), **{f"DASP_{name}": value for name, value in constants.items()}}


def asked() -> Iterator[Defines]:
    """Constants of slices with which every load of x of a full turn is to be under way at once."""
    singles, halves = type_names(SINGLES), type_names(HALVES)
    for coding in Coding:
        yield {**USUAL_SLICES, **coded(coding)}
    for changes in (
        coded(Coding.PLAIN, IN_FLIGHT="2"),
        coded(Coding.PLAIN, IN_FLIGHT="3"),
        coded(Coding.PLAIN, IN_FLIGHT="6"),
        singles | coded(Coding.BYTE, REGISTERS="56"),
        singles | coded(Coding.EQUAL, REGISTERS="48"),
        halves | coded(Coding.PLAIN, REGISTERS="56"),
        halves | coded(Coding.DICTIONARY),
    ):
        yield {**USUAL_SLICES, **changes}


ASKED = list(asked())


def slices() -> Iterator[Defines]:
    """Every coding, every type of x and of values, and every other constant, each with what asks most of
    registers. Of types that meet in pairs, the widest sums of each size of values."""
    changed: list[tuple[str, str, Defines]] = [
        ("complex128", "complex128", coded(Coding.PLAIN, REGISTERS="80", THREADS="256")),
        ("bfloat16", "bfloat16", coded(Coding.PLAIN, TICKETS="1")),
        ("float16", "complex64", coded(Coding.PLAIN)),
        ("float64", "float64", coded(Coding.PLAIN, DOT="2", THREADS="512")),
        ("complex128", "complex128", coded(Coding.PLAIN, KEEP="1.0f", IN_FLIGHT="4", REGISTERS="64")),
        ("complex128", "complex128", coded(Coding.SINGLE, KEEP="0.35f", TICKETS="1")),
        (
            *("float64", "float64"),
            coded(Coding.EQUAL, DOT="1", IN_FLIGHT="3", THREADS="256", INDEX="long long", OFFSET="long long"),
        ),
    ]
    others = [
        {**USUAL_SLICES, **type_names(find_arithmetic(np.dtype(value), np.dtype(x))), **constants}
        for value, x, constants in changed
    ]
    yield from others[: len(ARCHITECTURES)]
    yield from ASKED  # for sm_90
    yield from others[len(ARCHITECTURES) :]


def diagonals() -> Iterator[Defines]:
    """Every coding, and every type of values."""
    usual = {"DASP_INDEX": "int", "DASP_OFFSET": "int", "DASP_THREADS": "256"}
    usual |= {"DASP_CODING": str(int(Coding.PLAIN))}
    double = find_arithmetic_into(*3 * [np.dtype(np.float64)])
    for row in TABLE.values():
        yield {**usual, **find_arithmetic_into(*3 * [row.dtype]).defines}
    for coding in Coding:
        yield {**usual, **double.defines, "DASP_CODING": str(int(coding))}
    for coding in (Coding.SINGLE, Coding.DICTIONARY):
        types = find_arithmetic_into(*3 * [np.dtype(np.complex128)])
        yield {**usual, **types.defines, "DASP_CODING": str(int(coding))}
    yield {**usual, **double.defines, "DASP_INDEX": "long long"}


OTHER_TYPES = [
    ("float16", "float16"),
    ("bfloat16", "float64"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
    ("complex128", "float64"),
]
"""Types of a matrix and of x, beside real ones, that several columns are multiplied in here."""


def columns() -> Iterator[Defines]:
    """One of the column blocks of each type, width and number of registers that a choice can give; the
    widest with every coding; other types."""
    usual = {"DASP_INDEX": "int", "DASP_OFFSET": "int"}

    def blocks(kinds: Arithmetic, k: int, order: str, even: bool = False, **plan: Any) -> Iterator[Defines]:
        wide = several.round_row(k, kinds.x.itemsize) if even else k
        x, y = np.empty((9, wide), kinds.x, order), np.empty((9, k), kinds.y, order)
        x_at, y_at = (find_strides(a.shape, a.strides, a.itemsize, 0) for a in (x, y))
        for one in choose_column_blocks(BLOCKS, k, kinds, x_at, y_at, Gathering(**plan), H200):
            yield {**usual, **one.block.define_constants(), **type_names(kinds), "DASP_CODING": "0"}

    single, double = (find_arithmetic(np.dtype(name), np.dtype(name)) for name in ("float32", "float64"))
    seen: list[Defines] = []
    for kinds, k, order in product((single, double), (2, 5, 8, 16, 31, 32), "CF"):
        for alike in (True, False):
            seen += blocks(kinds, k, order, alike=alike)
    for kinds, k, slices in product((single, double), (24, 48, 100, 128), (100, 10_000)):
        seen += blocks(kinds, k, "C", slices=slices)
    for kinds, k in product((single, double), (3, 7, 99)):
        for even, sectors in ((True, 1.0), (False, 0.3)):
            seen += blocks(kinds, k, "C", even=even, sectors=sectors)
    yield from {
        (constants["DASP_X"], constants["DASP_COLUMNS"], constants["DASP_REGISTERS"]): constants
        for constants in seen
    }.values()
    for value, x in OTHER_TYPES:
        yield from blocks(find_arithmetic(np.dtype(value), np.dtype(x)), 32, "C")
    (widest,), (widest_complex,) = blocks(double, 32, "C"), blocks(COMPLEX, 32, "C")
    yield {**widest_complex, **coded(Coding.SINGLE)}
    yield {**widest, **coded(Coding.BYTE, INDEX="long long", OFFSET="long long")}
    yield {**widest, **coded(Coding.DICTIONARY)}
    yield {**widest, **coded(Coding.EQUAL, VALUE="float")}


def eights() -> Iterator[Defines]:
    """Column blocks of every width of both types for row blocks, full and not, with rows of X that may be
    read 16 bytes at once and not; the widest with every coding; other types."""
    usual = {"DASP_INDEX": "int", "DASP_OFFSET": "int", "DASP_CODING": "0"}

    def blocks(kinds: Arithmetic, k: int, pack: int) -> Iterator[Defines]:
        at = column_rules.Strides(k, 1, pack)
        for one in row_blocks.choose_launches(BLOCKS, k, kinds, at, at):
            yield {**usual, **one.block.define_constants(), **type_names(kinds)}

    single, double = (find_arithmetic(np.dtype(name), np.dtype(name)) for name in ("float32", "float64"))
    for kinds, k, pack in (
        *((single, 8, 1), (single, 16, 2), (single, 20, 2), (single, 32, 4)),
        *((double, 8, 1), (double, 16, 2), (double, 20, 1)),
    ):
        yield from blocks(kinds, k, pack)
    (widest,) = blocks(double, 32, 2)
    for coding in Coding:
        yield {**widest, **coded(coding)}
    yield {**widest, **coded(Coding.DICTIONARY, VALUE="float", INDEX="long long", OFFSET="long long")}


def fills() -> Iterator[Defines]:
    """Both types of indices, and codes of every size."""
    for index, size in (("int", "1"), ("long long", "2"), ("int", "4"), ("int", "8"), ("long long", "8")):
        yield {"DASP_INDEX": index, "DASP_CODE_BYTES": size}


def schedule(rows: int, depth: int, step: int) -> Defines:
    """The constants of a Reed-Solomon code: any coefficients, few of which are 0."""
    coefficients = [str((29 * i * i + 71 * i + 3) % 256) for i in range(rows * depth)]
    return {
        "DASP_ROWS": str(rows),
        "DASP_DEPTH": str(depth),
        "DASP_STEP": str(step),
        "DASP_COEFFICIENTS": ",".join(coefficients),
    }


def gemm() -> Iterator[tuple[str, Defines]]:
    """Each rung of the dense ladder as it is launched: usual tiles, every dtype, several memory orders; the
    smaller ones of them in one order."""
    for rung, dtype in ((row, dtype) for row in dense.RUNGS for dtype in row.dtypes):
        orders = [(True, False, True)] if dtype == "bfloat16" else [(True, False, True), (True, False, False)]
        if rung.in_parts and dtype != "bfloat16":
            orders.append((False, True, True))
        for order in orders:
            layout = dense.OperandLayout(*[1024] * 7, *order)
            for step in dense.launches(rung, dtype, layout, replace(rung.default(dtype), parts=2), 1.0, 0.0):
                yield step.source, dict(step.defines)
        for setting in rung.usual[rung.dtypes.index(dtype)][:-1]:
            for step in dense.launches(rung, dtype, dense.OperandLayout(*[1024] * 7), setting, 1.0, 0.0):
                yield step.source, dict(step.defines)


def passes() -> Iterator[Defines]:
    """The two longest passes of some methods: with the most vectors, in float32, with a preconditioner, and
    complex ones."""
    seen: list[Defines] = []

    class Recorder(EmulatedDevice):
        def prepare_launch(
            self, signature, defines, arguments, blocks, threads, types=None, varying=(), **how
        ):
            signature.ordered(types or {}, arguments, varying)
            if signature.source == "solve/fused.cu" and defines not in seen:
                seen.append(dict(defines))
            return lambda *values: None

    methods: tuple[tuple[type[Method], str, Any], ...] = (
        (PipelinedConjugateGradients, "f8", None),
        (ConjugateGradients, "f4", None),
        (MinimalResiduals, "f8", np.eye(2)),
        (HermitianConjugateGradients, "c8", None),
        (BiconjugateGradientsStabilized, "c16", None),
    )
    for method, dtype, preconditioner in methods:
        with pytest.MonkeyPatch.context() as patch:
            emulate(patch, Recorder())
            System(np.eye(2), preconditioner, np.dtype(dtype), "cpu", method)
        yield from sorted(seen, key=lambda defines: len(str(defines)))[-2:]
        seen.clear()


def persistent() -> Iterator[Defines]:
    """Conjugate gradients in one launch: several codings and types, with a preconditioner and without."""
    usual = {"DASP_INDEX": "int", "DASP_OFFSET": "int", "DASP_CODING": "0"}
    usual |= {"DASP_THREADS": str(one_launch.THREADS), "DASP_JACOBI": "0"}
    usual |= {"DASP_MAILBOX": str(one_launch.MAILBOX)}
    mixed, double = (find_arithmetic(np.dtype(name), np.dtype(float)) for name in ("float32", "float64"))
    yield {**usual, **type_names(double)}
    yield {**usual, **type_names(double), "DASP_CODING": str(int(Coding.BYTE)), "DASP_JACOBI": "1"}
    yield {
        **usual,
        **type_names(double),
        "DASP_CODING": str(int(Coding.DICTIONARY)),
        "DASP_INDEX": "long long",
    }
    yield {**usual, **type_names(mixed), "DASP_CODING": str(int(Coding.EQUAL)), "DASP_JACOBI": "1"}


def csr() -> Iterator[tuple[str, Defines]]:
    """Each source that computes with a matrix, for 32-bit and 64-bit integers."""
    integers = "DASP_START", "DASP_COLUMN", "DASP_PLACE", "DASP_KEY"
    for kind in ("int", "long long"):
        for name in ("sort", "sort_columns", "scan"):
            yield f"csr/{name}.cu", dict.fromkeys(integers, kind)


def pack() -> Iterator[tuple[str, Defines]]:
    """Each source that packs, for 32-bit and 64-bit integers; those of values for every size and coding, with
    the one or the other."""
    integers = "DASP_START", "DASP_COLUMN", "DASP_INDEX", "DASP_PLACE", "DASP_SLOT"
    narrow, wide = (dict.fromkeys(integers, kind) for kind in ("int", "long long"))
    for name in ("survey", "windows", "cut", "sectors", "segments"):
        yield from ((f"pack/{name}.cu", known) for known in (narrow, wide))
    yield from (("pack/windows.cu", known | {"DASP_KEY": "long long"}) for known in (narrow, wide))
    for known, size in ((narrow, 2), (wide, 4), (narrow, 8), (wide, 16)):
        real = {"DASP_VALUE_BYTES": str(size), "DASP_COMPLEX": str(int(size == 16))}
        plain, dictionary, equal = (
            known | real | {"DASP_CODING": str(int(coding))}
            for coding in (Coding.PLAIN, Coding.DICTIONARY, Coding.EQUAL)
        )
        for name in ("values", "scatter", "store", "refill", "unpack"):
            yield f"pack/{name}.cu", plain
        for name in ("store", "refill", "unpack"):
            yield f"pack/{name}.cu", dictionary
        for name in ("store", "values", "unpack"):
            yield f"pack/{name}.cu", equal
    for coding, size in ((Coding.BYTE, 4), (Coding.BYTE, 8), (Coding.SINGLE, 8), (Coding.SINGLE, 16)):
        real = {"DASP_VALUE_BYTES": str(size), "DASP_COMPLEX": str(int(size == 16))}
        for name in ("store", "refill", "values", "unpack"):
            yield f"pack/{name}.cu", narrow | real | {"DASP_CODING": str(int(coding))}
    plain = {"DASP_CODING": str(int(Coding.PLAIN))}
    yield "pack/values.cu", narrow | plain | {"DASP_VALUE_BYTES": "8", "DASP_COMPLEX": "1"}
    brain = {"DASP_VALUE_BYTES": "2", "DASP_COMPLEX": "0", "DASP_BFLOAT16": "1"}
    yield "pack/values.cu", narrow | brain | plain
    yield "pack/unpack.cu", narrow | brain | {"DASP_CODING": str(int(Coding.BYTE))}


# For each source, every set of constants that the project compiles it with; of passes of solvers, many.
SOURCES: dict[str, list[Defines]] = {
    "spmv/dasp.cu": list(spmv()),
    "spmv/slices.cu": list(slices()),
    "spmv/diagonal.cu": list(diagonals()),
    "distributed/halo.cu": [
        {"DASP_THREADS": "256"},
        *({"DASP_THREADS": "256", "DASP_SCALAR": row.c} for row in TABLE.values()),
        *(
            {"DASP_THREADS": "256", "DASP_SCALAR": one, "DASP_DOT": dots}
            for one in ("float", "double")
            for dots in "12"
        ),
    ],
    "distributed/peers.cu": [
        {"DASP_THREADS": "256"},
        *({"DASP_THREADS": "256", "DASP_SCALAR": row.c} for row in TABLE.values()),
    ],
    "spmv/slices_columns.cu": list(columns()),
    "spmv/row_blocks.cu": [
        dict(defines) for defines in dict.fromkeys(tuple(one.items()) for one in eights())
    ],
    "spmv/row_blocks_fill.cu": list(fills()),
    "spmv/transpose.cu": [
        {"DASP_BYTES": str(size), "DASP_COLUMNS": str(columns), "DASP_TO_ROWS": way}
        for size, way in product((2, 4, 8, 16), "01")
        for columns in (2, 32)
    ],
    "solve/allow.cu": [{}],
    "solve/basis.cu": [
        {"DASP_SCALAR": scalar, "DASP_MOST": most, "DASP_THREADS": "512"}
        | {"DASP_COMPLEX": str(int("Complex" in scalar))}
        for scalar, most in (
            *(("float", "31"), ("double", "1500")),
            *(("Complex<float>", "31"), ("Complex<double>", "750")),
        )
    ],
    "solve/fused.cu": list(passes()),
    "solve/persistent.cu": list(persistent()),
    "solve/triangular.cu": [
        {"DASP_SCALAR": scalar, "DASP_COMPLEX": complex, "DASP_THREADS": "256"}
        for scalar, complex in (
            ("float", "0"),
            ("double", "0"),
            ("Complex<float>", "1"),
            ("Complex<double>", "1"),
        )
    ],
    "loop.cu": [{}],
    "spmv/settle.cu": [{}],
    "dense/gf256_byte_permute.cu": [{}],
    "dense/gf256_bytes.cu": [{}],
    "dense/gf256_packed.cu": [{"DASP_BYTES": n} for n in ("4", "8", "16")],
    "dense/gf256_schedule.cu": [schedule(2, 4, 3), schedule(4, 10, 10)],
}
for _name, _defines in chain(gemm(), csr(), pack()):
    if _defines not in SOURCES.setdefault(_name, []):
        SOURCES[_name].append(_defines)

STACKS = {
    # Division of integers of 64 bits is a call.
    "distributed/peers.cu": 8,
    # Division and roots in float64: the rare cases of these are a call.
    "solve/basis.cu": 32,
    "solve/fused.cu": 32,
    "solve/persistent.cu": 32,
    # What is put aside once, before the loop over slices, by large blocks that leave two dot products.
    "spmv/slices.cu": 8,
    # What the loop over column blocks needs is put aside while the loops inside it have all registers.
    "spmv/slices_columns.cu": 112,
    "spmv/row_blocks.cu": 112,
    # Division of numbers of 64 bits is a call on some processors.
    "spmv/row_blocks_fill.cu": 16,
    # Sums on some processors.
    "pack/cut.cu": 8,
    "pack/sectors.cu": 16,
    # A slice has few hits, one after the other.
    "spmv/diagonal.cu": 40,
}
"""Bytes of stack that a kernel may have, where that is not 0."""

# For some of them, which instruction must be in the code, and when; without that it must not be.
INSTRUCTIONS: dict[str, tuple[str, Callable[[Defines], bool]]] = {
    "spmv/dasp.cu": ("DMMA", lambda defines: defines.get("DASP_MMA") == "1"),
    "spmv/row_blocks.cu": ("DMMA", lambda defines: True),
    "dense/gemm_tensor_f64.cu": ("DMMA", lambda defines: True),
    "dense/gemm_tensor_half.cu": ("HMMA", lambda defines: True),
}


def label(name: str, defines: Defines, arch: str) -> str:
    values = (value if len(value) < 20 else "..." for value in defines.values())
    return f"{name}-{arch}-{','.join(values)}".replace(" ", "_")


def cover(sets: list[Defines], kept: Sequence[Defines] = ()) -> list[Defines]:
    """Return few of the sets that have, beside those that are kept anyway, every value of each constant, and
    no value if some lack it."""
    names = {name for one in sets for name in one}

    def values(one: Defines) -> set[tuple[str, str | None]]:
        return {(name, one.get(name)) for name in names}

    missing = {value for one in sets for value in values(one)}.difference(*map(values, kept))
    found = []
    while missing:
        found.append(max(sets, key=lambda one: len(missing & values(one))))
        missing -= values(found[-1])
    return found


def cases() -> Iterator[Any]:
    """Sets of constants of each source that have every value of each constant, of which the first three, or
    the first again, are compiled for different architectures and others for sm_90."""
    for name, every in SOURCES.items():
        kept = ASKED if name == "spmv/slices.cu" else []
        sets = cover(every, kept) or every[:1]
        for number in range(max(len(sets), len(ARCHITECTURES))):
            defines = sets[number] if number < len(sets) else sets[0]
            arch = ARCHITECTURES[number] if number < len(ARCHITECTURES) else "sm_90"
            yield pytest.param(name, defines, arch, id=label(name, defines, arch))
        for defines in kept:
            yield pytest.param(name, defines, "sm_90", id=label(name, defines, "sm_90"))


CASES = list(cases())


def test_every_source_has_an_entry():
    folder = _source.find()
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.cu")}
    assert there == set(SOURCES), (
        f"without an entry: {sorted(there - set(SOURCES))}; without a file: {sorted(set(SOURCES) - there)}; "
        f"add or remove them in SOURCES of tests/{Path(__file__).name}, with the constants they get"
    )


def turns(code: list[sass.Timed], steps: int) -> list[list[sass.Timed]]:
    """From where x may be read on, the instructions of each full turn of a slice up to its last load."""
    found = []
    for start, instruction in enumerate(code):
        if not instruction.name.startswith("ACQBULK"):
            continue
        ends = (k for k in range(start, len(code)) if code[k].name.split(".")[0] in ("BRA", "EXIT", "BSYNC"))
        turn = code[start : next(ends)]
        loads = [k for k, each in enumerate(turn) if each.name.startswith("LDG")]
        if len(loads) == steps:
            found.append(turn[: loads[-1] + 1])
    return found


def wait_for_each_other(turn: list[sass.Timed]) -> bool:
    """Whether some instruction between the loads of x waits for an earlier one of them."""
    asked: set[int | None] = set()
    for instruction in turn:
        if instruction.waits & asked:
            return True
        if instruction.name.startswith("LDG"):
            asked.add(instruction.sets)
    return False


def all_of_x_is_asked_for_at_once(cubin: bytes, defines: Defines) -> bool:
    """Whether no load of a full turn waits for another one, for any of the four widths of deltas."""
    (code,) = sass.timed(cubin).values()
    loads = 2 if defines["DASP_CODING"] == str(int(Coding.DICTIONARY)) else 1  # of x, and of a table
    found = turns(code, loads * int(defines["DASP_IN_FLIGHT"]))
    return len(found) == 4 and not any(map(wait_for_each_other, found))


@pytest.mark.parametrize(("name", "defines", "arch"), CASES)
def test_a_source_compiles_to_registers_alone(name, defines, arch):
    """No warning; nothing in local memory, no stack frame, no spill; tensor cores and loads where asked."""
    cubin, log, usage = compile_text(_source.read(name), defines, arch, title=name)
    assert log == ""
    assert usage
    for kernel, used in usage.items():
        assert kernel.startswith("dasp_")
        may_keep = name != "spmv/slices.cu" or defines.get("DASP_DOT") == "2"
        assert used.stack <= may_keep * STACKS.get(name, 0), f"{kernel} keeps {used} in memory"
    if name == "spmv/slices.cu" and defines in ASKED:
        assert arch == "sm_90"
        assert all_of_x_is_asked_for_at_once(cubin, defines)
    wanted, when = INSTRUCTIONS.get(name, ("", lambda defines: False))
    decoded = int(defines.get("DASP_CODING", "0")) in (Coding.BYTE, Coding.DICTIONARY, Coding.EQUAL)
    if wanted and not decoded and (when(defines) or defines["DASP_SUM"] == "double"):
        families = sum(map(sass.by_family, sass.instructions(cubin).values()), Counter())
        assert (families[wanted] > 0) == when(defines)
        if defines.get("DASP_SUM") == "double":
            assert "FMUL" not in families, "to widen a float by way of a product by 1 flushes subnormals"


def test_x_is_not_read_through_the_read_only_cache():
    """The kernel before, whose end a product may overlap, may write it. A header is 16 bytes, too."""
    kinds = find_arithmetic(np.dtype(float), np.dtype(float))
    at = column_rules.Strides(32, 1, column_rules.WIDEST_LOAD // kinds.x.itemsize)
    name, usual = "spmv/slices_columns.cu", {"DASP_INDEX": "int", "DASP_OFFSET": "int"}
    (one,) = choose_column_blocks(BLOCKS, 32, kinds, at, at, Gathering(), H200)
    defines = {**usual, **one.block.define_constants(), **type_names(kinds), "DASP_CODING": "0"}
    cubin = compile_text(_source.read(name), defines, "sm_90", title=name).cubin
    found = sass.listing(cubin)["dasp_slices_columns"]
    assert found.count("LDG.E.128") > 0
    assert found.count("LDG.E.128.CONSTANT") == 1


# ---- what the checks above would find ----------------------------------------------------------------

TILE_PRODUCT = """
#include "mma.cuh"
extern "C" __global__ void dasp_tile(const double* a, const double* b, double* c)
{
    double sums[2] = {0, 0};
    mma_m8n8k4(sums, a[threadIdx.x], b[threadIdx.x]);
    c[2 * threadIdx.x] = sums[0];
    c[2 * threadIdx.x + 1] = sums[1];
}
"""
LOCAL_ARRAY = """
extern "C" __global__ void dasp_local(const int* a, int* b)
{
    int memory[64] = {};
    for (int i = 0; i < 999; ++i)
        memory[a[i] & 63] += i;
    b[0] = memory[a[999] & 63];
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_wrapper_is_one_instruction(arch):
    cubin, _, usage = compile_text(TILE_PRODUCT, {}, arch, title="tile.cu")
    counts = sass.instructions(cubin)["dasp_tile"]
    families = sass.by_family(counts)
    assert families["DMMA"] == 1
    assert families["DFMA"] == families["SHFL"] == 0
    assert families["LDG 64"] == 2
    assert usage["dasp_tile"].stack == 0


def test_local_memory_is_seen():
    assert compile_text(LOCAL_ARRAY, {}, "sm_90", title="local.cu").usage["dasp_local"].stack >= 256


def test_a_warning_is_seen():
    text = 'extern "C" __global__ void dasp_warn(int* a) { int unused; a[0] = 1; }'
    assert "unused" in compile_text(text, {}, "sm_90", title="w.cu").log
