"""The product of slices by a vector on a GPU: constants and arguments of kernels/spmv/slices.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.cost import FEW_WARPS, MANY_WARPS, CostModel
from dasp.formats.kernel_cuda import Scratch
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.pattern import Coding
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.sizes import ceil_div, round_up

ARRAYS = """
    const uint4*          headers          [count]
    const Index*          bases            [steps]
    const unsigned char*  deltas
    const Code*           values
    const Value*          table
    const Index*          rows
    """
"""First parameters of every product of slices."""

WIDE = 16
"""Bytes of a value with which a step takes twice the registers of float64."""

WORD = 4
"""Bytes of a register."""

IN_FLIGHT = 8
"""Steps in flight as a rule; they hide latency."""

FEW_STEPS, IN_TURNS = 7.5, 4
"""Slices of up to so many steps on average take turns, with so many steps in flight: twice as many slices
then have registers at once."""

LAST_ALONE = {5: 3, 9: 3}
"""Steps of a slice whose last step would be loaded alone by fours, and the steps in flight that avoid it."""

FEWER_IN_FLIGHT = (16, 4), (0, 6)
"""Least bytes of a value, and the fewer steps in flight with which more slices run at once and a wave is
saved."""

REGISTERS = 65_536
"""Of a multiprocessor."""

MOST_REGISTERS = (1, 8, 48), (2, 8, 56), (8, 8, 80), (8, 4, 64)
"""Words of a number of x and a stored value, steps in flight, and registers of a lane. With fewer registers
the compiler loads x between products; with more, fewer slices run at once. It decides the other cases."""

SLICE_REGISTERS = 24
"""Registers of a lane besides those of its steps in flight."""

SIGNATURE = Signature(
    "spmv/slices.cu",
    "dasp_slices",
    f"""{ARRAYS.rstrip()}
    const Index*          long_rows        [r]
    const Index*          segment_offsets  [r + 1]
    const Index*          segment_rows     [segments]
    Bits*                 partials         [messages]
    unsigned*             tickets          [1]
    long long             count
    long long             segments
    long long             positions
    int                   identity
    const X*              x
    Y*                    y
    Sum                   alpha
    Sum                   beta
    """,
)


def define_constants(plan: Plan, arithmetic: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants that the format adds.

    Registers are bounded where x and y have the matrix's own type.
    """
    steps, kept = choose_in_flight(plan), choose_kept_share(plan)
    registers = _limit_registers(plan, steps) if arithmetic.x == arithmetic.y == plan.dtype else 0
    constants = define_plan_constants(plan) | {"DASP_IN_FLIGHT": str(steps)}
    if kept:
        constants["DASP_KEEP"] = f"{kept}f"
    if registers:
        constants["DASP_REGISTERS"] = str(registers)
    return constants


def define_plan_constants(plan: Plan) -> dict[str, str]:
    """Return the compile-time constants of every product of slices."""
    return {
        "DASP_INDEX": C_NAMES[plan.pattern.index_dtype],
        "DASP_OFFSET": "int",
        "DASP_CODING": str(int(plan.values.coding)),
    }


def find_types(plan: Plan) -> dict[str, np.dtype[Any]]:
    """Return the types that the source names."""
    return {"Index": plan.pattern.index_dtype, "Code": plan.values.codes.dtype}


def count_warps(plan: Plan) -> int:
    """Return the number of warps that a product needs: one for each slice."""
    return len(plan.pattern.headers)


def count_threads(plan: Plan) -> int:
    """Return the threads of a block."""
    return int(WARP * plan.pattern.choice.warps)


def take_turns(plan: Plan) -> bool:
    """Return True if slices are short and more than run at the same time."""
    return _take_turns(plan, FEW_STEPS)


def _take_turns(plan: Plan, few: float) -> bool:
    slices, steps = len(plan.pattern.headers), len(plan.pattern.bases)
    return slices > plan.pattern.choice.model.wave_slices and steps <= few * slices


def choose_in_flight(plan: Plan) -> int:
    """Return the number of steps of a slice that a warp loads before it multiplies the first.

    Fewer steps take fewer registers, so more slices run at once. That pays in two cases: short slices with
    one row to a lane take turns; or all slices then run at once, or in fewer turns if values are wide. A row
    that is cut waits for its segments in any case.
    """
    pattern, width = plan.pattern, plan.values.codes.itemsize
    wide = width >= WIDE
    slices, steps = len(pattern.headers), len(pattern.bases)
    even = slices == ceil_div(pattern.positions, WARP)
    if even and _take_turns(plan, (1 + wide) * FEW_STEPS):
        return LAST_ALONE.get(round(steps / slices), IN_TURNS)
    usual = IN_FLIGHT
    if pattern.segments or not slices:
        return usual
    fewer = next(steps for least, steps in FEWER_IN_FLIGHT if width >= least)
    waves = ceil_div(slices, estimate_slices_at_once(plan, fewer))
    if waves > 1 and not wide:
        return usual

    def turns(in_flight: int) -> int:
        return 1 + ceil_div(steps, slices * in_flight)

    usual_waves = ceil_div(slices, estimate_slices_at_once(plan, usual))
    pays = waves < usual_waves and (wide or waves * turns(fewer) < usual_waves * turns(usual))
    return fewer if pays else usual


def _limit_registers(plan: Plan, in_flight: int) -> int:
    """Return the limit of a lane's registers, or 0 to leave it to the compiler, as for large blocks."""
    values, x = plan.values, plan.dtype.itemsize
    code = 0 if values.coding == Coding.EQUAL else values.codes.itemsize
    words = ceil_div(x, WORD) + ceil_div(x if values.coding == Coding.DICTIONARY else code, WORD)
    if plan.pattern.choice.warps < MANY_WARPS:
        for of_words, steps, most in MOST_REGISTERS:
            if (of_words, steps) == (words, in_flight):
                return most
    return 0


def estimate_slices_at_once(plan: Plan, in_flight: int) -> int:
    """Estimate the slices that run at the same time from the registers of the steps in flight."""
    of_step = 2 + ceil_div(plan.dtype.itemsize, WORD)
    registers = round_up(SLICE_REGISTERS + of_step * in_flight, 8)
    if plan.values.codes.itemsize >= WIDE:  # the compiler uses all registers allowed
        registers = _limit_registers(plan, in_flight) or registers
    blocks = REGISTERS // (registers * count_threads(plan))
    choice = plan.pattern.choice
    return int(choice.model.multiprocessors * max(blocks, 1) * choice.warps)


def choose_kept_share(plan: Plan) -> float:
    """Return the share of a plan to keep in the L2 cache until the next product, in steps of 0.05."""
    model: CostModel = plan.pattern.choice.model
    (least, most), size = model.kept_plans, plan.nbytes
    if not least <= size <= most:
        return 0.0
    room = model.kept_bytes - sum(plan.shape) * plan.dtype.itemsize
    return round(20 * max(min(1.0, room / size), 0.0)) / 20


def count_partials(plan: Plan) -> int:
    """Return the number of partial sums that a product needs."""
    return int(plan.pattern.segments)


def list_arguments(plan: Plan, scratch: Scratch) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each product."""
    return list_plan_arguments(plan) | {"partials": scratch.partials, "tickets": scratch.tickets}


def list_plan_arguments(plan: Plan) -> dict[str, Any]:
    """Return the kernel's arguments that belong to the plan."""
    pattern, values = plan.pattern, plan.values
    return {
        "headers": pattern.headers,
        "bases": pattern.bases,
        "deltas": pattern.deltas,
        "values": values.codes,
        "table": values.table,
        "rows": pattern.rows,
        "long_rows": pattern.long_rows,
        "segment_offsets": pattern.segment_offsets,
        "segment_rows": pattern.segment_rows,
        "count": len(pattern.headers),
        "segments": pattern.segments,
        "positions": pattern.positions,
        "identity": int(len(pattern.rows) == 0),
    }


# ---- with a dot product of y -------------------------------------------------------------------------

DOT_SIGNATURE = SIGNATURE.extended("const X* w\n double* sums\n int run")
"""The signature of a product that also leaves w'y, or w'y and y'y."""

DOT_TYPES = np.dtype(np.float32), np.dtype(np.float64)
"""Types of x and y there."""


def limit_dot_blocks(plan: Plan) -> int:
    """Return the most blocks of such a product, each with a slice to a warp, that run at once.

    Each block leaves a sum, which the caller adds up. Where short slices need more blocks, as many blocks are
    launched as run at the same time, and their warps take slices in turn.
    """
    return int(plan.pattern.choice.model.wave_slices // FEW_WARPS)


def pays_to_dot(plan: Plan, blocks: int) -> bool:
    """Return True if a product of so many blocks should leave the dot product, rather than a pass of its own.

    A block waits for its slowest warp. With slices longer than usual this costs more than the pass: on an
    H200 minres takes 24.2 microseconds an iteration for fem3:30 in slices of 39 steps, and 20.7 with a pass.
    """
    pattern = plan.pattern
    if len(pattern.bases) > pattern.choice.model.most_steps * len(pattern.headers):
        return False
    return blocks <= limit_dot_blocks(plan) or (not pattern.segments and take_turns(plan))


def define_dot_constants(plan: Plan, *, square: bool) -> dict[str, str]:
    """Return the compile-time constants for w'y, or with `square` for w'y and y'y.

    Dot products take registers too, so fewer steps are in flight where slices take turns.
    """
    steps = IN_TURNS if take_turns(plan) else IN_FLIGHT
    return {"DASP_DOT": "2" if square else "1", "DASP_IN_FLIGHT": str(steps)}
