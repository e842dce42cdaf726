"""Multiply on the CPU, on the emulated GPU or on a real one, by one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasp import Policy, SpMatrix, formats
from dasp.formats import kernel_cuda as cuda
from dasp.formats.kernel_cuda import ABSENT, new_scratch
from dasp.formats.sell.cuda import columns as several
from dasp.formats.sell.cuda import row_blocks
from dasp.formats.sell.cuda.column_rules import BLOCKS, MOST_ROW, BlockTable, find_strides, read_sectors
from dasp.formats.sell.cuda.primitives import CudaPrimitives
from dasp.runtime.dtypes import find_arithmetic, find_arithmetic_into, real_type
from tests.simt import compile_kernels, poisoned
from tests.support.pack_device import PackingDevice
from tests.support.planned import plan_of

EXECUTORS = ["cpu", "simt", pytest.param("cuda", marks=pytest.mark.cuda)]


def multiply(
    executor: str,
    matrix: Any,
    x: Any,
    *,
    policy: Policy | None = None,
    y: Any = None,
    alpha: complex = 1.0,
    beta: complex = 0.0,
) -> Any:
    """Return alpha A x + beta y as a NumPy array; y starts all NaN if none is given."""
    dtype = find_arithmetic(matrix.dtype, x.dtype).y
    out = np.full(matrix.shape[0], np.nan, dtype) if y is None else y.astype(dtype)
    if executor == "simt":
        return _emulated(matrix, x, policy, out, alpha, beta)
    planned = SpMatrix.from_scipy(matrix, policy=policy, device=executor)
    if executor == "cpu":
        return planned.matvec(x, out=out, alpha=alpha, beta=beta)
    import cupy

    return planned.matvec(cupy.asarray(x), out=cupy.asarray(out), alpha=alpha, beta=beta).get()


def emulate(
    plan: Any,
    x: Any,
    y: Any,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    tickets: bool | None = None,
    **launch: Any,
) -> None:
    """Run the CUDA kernel on a plan in the emulator; it must not read memory that no kernel has written.

    With a `seed`, blocks start in a random order. `tickets` says whether they draw tickets, by default as on
    a GPU.
    """
    kernel = formats.find(plan.format).products["cuda"]().kernel
    kinds = find_arithmetic_into(plan.dtype, x.dtype, y.dtype)
    constants = cuda.define_constants(kernel, plan, kinds)
    if tickets is not None:
        constants["DASP_TICKETS"] = str(int(tickets))
    module = compile_kernels(kernel.SIGNATURE.source, constants)
    scratch = new_scratch(kernel.count_partials(plan), kinds.sum)
    scale = (kinds.sum.type(alpha), kinds.sum.type(beta))
    blocks, threads = cuda.count_blocks(kernel, plan), kernel.count_threads(plan)
    if blocks:
        known = cuda.find_types(kernel, plan, kinds)
        arguments = kernel.SIGNATURE.ordered(known, kernel.list_arguments(plan, scratch), cuda.VARYING)
        arguments[-4:] = [x, y if beta else poisoned(y), *scale]
        module.launch(kernel.SIGNATURE.entry, grid=blocks, block=threads, args=arguments, **launch)
    assert (scratch.partials == ABSENT[real_type(kinds.sum).itemsize]).all(), (
        "a partial sum was left: the next product is wrong"
    )
    assert not scratch.tickets.any(), "tickets were left: the next product is wrong"


def emulate_columns(
    plan: Any,
    x: Any,
    y: Any,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    table: BlockTable = BLOCKS,
    parts: int = 1,
    steps: int = 4,
) -> None:
    """Run the CUDA kernels for several columns on a plan of slices in the emulator.

    x and y are C- or F-ordered, or views of such arrays that begin at their first element. Where no warps
    share a slice, `steps` are loaded before the first is multiplied; a GPU loads as many as the plan has.
    """
    kernels: Any = several.SLICES
    kinds, k = find_arithmetic_into(plan.dtype, x.dtype, y.dtype), x.shape[1]
    x_at, y_at = (find_strides(a.shape, a.strides, a.itemsize, 0) for a in (x, y))
    most = row_blocks.limit_tiles(plan, kinds, k)
    if most >= 1 and row_blocks.serve(plan, kinds, x_at):
        _, found = row_blocks.build(CudaPrimitives(PackingDevice()), plan, most)
        kernels = kernels if found is None else found
    known = several.find_types(plan, kinds)
    partials = poisoned(np.full((plan.pattern.segments, k), np.nan, kinds.sum))
    scale = kinds.sum.type(alpha), kinds.sum.type(beta)
    read, written = ((a if a.base is None else a.base).reshape(-1, order="A") for a in (x, y))
    target = poisoned(written) if beta == 0 else written
    rows = np.int32(x_at.row * x.itemsize), np.int32(y_at.row)
    strides = np.int64(x_at.column), np.int64(y_at.column), *rows

    def launch(signature: Any, block: Any, arguments: Any, blocks: int, varying: Any, *values: Any) -> None:
        module = compile_kernels(signature.source, several.define_constants(plan, kinds, block))
        given = signature.ordered(known, arguments, varying)
        given[-len(varying) :] = values
        if blocks:
            module.launch(signature.entry, grid=blocks, block=block.threads, args=given)

    zeros = np.zeros(MOST_ROW // x.itemsize, x.dtype)
    passes = kernels.choose_launches(table, plan, k, kinds, x_at, y_at, lambda: read_sectors(plan))
    if kernels is several.SLICES:
        alike = (one.block if one.block.share > 1 else one.block._replace(steps=steps) for one in passes)
        passes = [one._replace(block=block) for one, block in zip(passes, alike, strict=True)]
    for first, columns, block in passes:
        values = read, target, partials, *strides, *map(np.int32, (first, first + columns, k)), *scale
        arguments, count = (
            kernels.list_arguments(plan, zeros, parts),
            several.count_blocks(kernels, plan, block, parts),
        )
        launch(kernels.signature, block, arguments, count, several.VARYING, *values)
    if plan.pattern.segments:
        values = target, partials, strides[1], strides[3], np.int32(k), *scale
        arguments, block = several.list_finish_arguments(plan), passes[0].block
        count = several.count_finish_blocks(plan, block, k)
        launch(several.FINISH, block, arguments, count, several.FINISH_VARYING, *values)


def _emulated(matrix: Any, x: Any, policy: Policy | None, y: Any, alpha: complex, beta: complex) -> Any:
    plan = plan_of(matrix, policy)
    emulate(plan, x.astype(find_arithmetic_into(plan.dtype, x.dtype, y.dtype).x), y, alpha, beta)
    return y
