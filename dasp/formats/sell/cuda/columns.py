"""The product by a matrix of several columns on a GPU: a launch for each width of column block.

column_rules.py chooses the blocks. With X in C order, lanes that share an entry read a row of X together.
With X in F order each lane reads for its own entry, column by column, as in the product by a vector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda import vector
from dasp.formats.sell.cuda.column_rules import (
    BLOCKS,
    MOST_ROW,
    SECTOR_BYTES,
    BlockTable,
    ColumnBlock,
    ColumnLaunch,
    Strides,
    choose_column_blocks,
    choose_parts,
    find_gathering,
    find_strides,
    pays_to_transpose,
    read_sectors,
)
from dasp.runtime.cuda.driver import find_capture, in_pool, keep
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.dtypes import Arithmetic
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import DeviceArray, KernelFunction

_HERE = nullcontext()

STRIDES = "x_column", "y_column", "x_row", "y_row"
VARYING = ("x", "y", "partials", *STRIDES, "first", "last", "columns", "alpha", "beta")
FINISH_VARYING = "y", "partials", "y_column", "y_row", "columns", "alpha", "beta"
"""Arguments that come with each product, and with each end of one."""

OF_BLOCK = """
    int                   parts
    const X*              x
    Y*                    y
    Sum*                  partials
    long long             x_column
    long long             y_column
    int                   x_row
    int                   y_row
    int                   first
    int                   last
    int                   columns
    Sum                   alpha
    Sum                   beta
    """
"""Last parameters of every product by a column block."""

SIGNATURE = Signature(
    "spmv/slices_columns.cu",
    "dasp_slices_columns",
    f"""{vector.ARRAYS.rstrip()}
    const X*              zeros
    long long             count
    long long             segments
    long long             positions
    int                   identity
    {OF_BLOCK.strip()}
    """,
)

FINISH = Signature(
    SIGNATURE.source,
    "dasp_segments_columns",
    """
    const Index*          long_rows        [count]
    const Index*          segment_offsets  [count + 1]
    long long             count
    Y*                    y
    const Sum*            partials
    long long             y_column
    int                   y_row
    int                   columns
    Sum                   alpha
    Sum                   beta
    """,
)
"""Adds the segments of long rows."""

TRANSPOSE = Signature(
    "spmv/transpose.cu",
    "dasp_transpose",
    """
    Word*      columns_of
    Word*      rows_of
    long long  count
    long long  row
    long long  column
    int        columns
    int        wide
    int        pieces
    """,
)
TRANSPOSE_THREADS, TILE_BYTES, TILE_COLUMNS = 256, 8 << 10, 32
"""Threads of a block of that kernel, and the bytes and, at most, the columns of its tile."""

SHORT_ROW = 64
"""Rows of a copy up to so many bytes are padded to a power of two."""

MOST_WRITTEN = 8, 4
"""Most columns of a Y in F order that is written directly while X is transposed: with rows in the matrix's
order, and with rows in another order."""


class ColumnKernels(Protocol):
    """A way to multiply a plan by several columns: in slices, or in row blocks."""

    signature: ClassVar[Signature]

    def choose_launches(
        self,
        table: BlockTable,
        plan: Plan,
        columns: int,
        arithmetic: Arithmetic,
        x: Strides,
        y: Strides,
        sectors: Callable[[], float],
    ) -> tuple[ColumnLaunch, ...]:
        """Return the launches for `columns` columns; sectors() is that of `read_sectors`."""

    def count_warps(self, plan: Plan, block: ColumnBlock) -> int:
        """Return the warps that a column block needs."""

    def list_arguments(self, plan: Plan, zeros: DeviceArray, parts: int) -> dict[str, Any]:
        """Return the kernel's arguments but those that come with each product."""


class SliceKernels:
    """The kernels that multiply slices; see `ColumnKernels`."""

    signature: ClassVar[Signature] = SIGNATURE

    def choose_launches(
        self,
        table: BlockTable,
        plan: Plan,
        columns: int,
        arithmetic: Arithmetic,
        x: Strides,
        y: Strides,
        sectors: Callable[[], float],
    ) -> tuple[ColumnLaunch, ...]:
        """See `ColumnKernels`."""
        by = find_gathering(plan, sectors())
        return choose_column_blocks(table, columns, arithmetic, x, y, by, plan.pattern.choice.model)

    def count_warps(self, plan: Plan, block: ColumnBlock) -> int:
        """See `ColumnKernels`."""
        return vector.count_warps(plan) * block.share

    def list_arguments(self, plan: Plan, zeros: DeviceArray, parts: int) -> dict[str, Any]:
        """See `ColumnKernels`."""
        taken = vector.list_plan_arguments(plan)
        others = "long_rows", "segment_offsets", "segment_rows"
        own = {"zeros": zeros, "parts": parts}
        return {name: taken[name] for name in taken if name not in others} | own


SLICES = SliceKernels()


def count_blocks(kernels: ColumnKernels, plan: Plan, block: ColumnBlock, parts: int) -> int:
    """Return the blocks of threads of a launch."""
    return int(ceil_div(kernels.count_warps(plan, block) * WARP, block.threads) * parts)


def round_row(columns: int, item: int) -> int:
    """Round the columns of a copy's row up so that loads of a row are aligned."""
    size = columns * item
    whole = SECTOR_BYTES if size > SHORT_ROW else 1 << (size - 1).bit_length()
    return ceil_div(size, whole) * whole // item


def define_constants(plan: Plan, arithmetic: Arithmetic, block: ColumnBlock) -> dict[str, str]:
    """Return the compile-time constants of the kernels for a plan, the types of a product and a block."""
    return block.define_constants() | vector.define_plan_constants(plan) | arithmetic.defines


def find_types(plan: Plan, arithmetic: Arithmetic) -> dict[str, np.dtype[Any]]:
    """Return the types that the source names."""
    return vector.find_types(plan) | arithmetic.types


def count_finish_blocks(plan: Plan, block: ColumnBlock, columns: int) -> int:
    """Return the blocks of the launch that adds the segments of long rows."""
    return int(ceil_div(len(plan.pattern.long_rows) * columns * WARP, block.threads))


def list_finish_arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments of that launch but those that come with each product."""
    pattern = plan.pattern
    return {
        "long_rows": pattern.long_rows,
        "segment_offsets": pattern.segment_offsets,
        "count": len(pattern.long_rows),
    }


FindOthers = Callable[[Arithmetic, int, Strides], ColumnKernels | None]

Prepared = tuple[list[tuple[ColumnLaunch, Launch]], Launch | None]
"""The launches of a product, and the one that adds the segments of long rows, if there are any."""


class Columns:
    """A plan on a GPU, ready to be multiplied by matrices of several columns.

    Parameters
    ----------
    plan : Plan
        With CuPy's arrays on the current device.
    overlaps : bool
        True if a launch may begin before the previous one has ended.
    find_others : callable, optional
        (arithmetic, columns, x) -> other kernels that are faster for such a product, or None.
    """

    def __init__(self, plan: Plan, overlaps: bool, find_others: FindOthers | None = None) -> None:
        import cupy

        self._cupy, self._plan, self._overlaps, self._find_others = cupy, plan, overlaps, find_others
        self._segments = vector.count_partials(plan)
        self._read: float | None = None
        self._most_written = MOST_WRITTEN[len(plan.pattern.rows) > 0]
        self._lock = threading.Lock()
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._transposing: dict[tuple[int, int, bool], Launch] = {}

    def multiply(
        self, x: DeviceArray, y: DeviceArray, arithmetic: Arithmetic, scale: tuple[Any, ...], adds: bool
    ) -> None:
        """Set Y = alpha A X + beta Y on CuPy's current stream; Y is not read if beta is 0.

        Parameters
        ----------
        x : cupy.ndarray, shape (n, k)
            Any type that Y's type holds, any strides.
        y : cupy.ndarray, shape (m, k), any strides
            Not overlapping X; on the matrix's device, which must be the current one.
        arithmetic : Arithmetic
            Of a product of this plan, of X's type and into Y's.
        scale : tuple
            alpha and beta as the kernels take them.
        adds : bool
            True if beta is not 0.

        Notes
        -----
        X and Y in F order are copied to C order where that is faster.
        """
        stream = self._cupy.cuda.get_current_stream().ptr
        captured = self._cupy.cuda.runtime.streamIsCapturing(stream)
        with in_pool(self._cupy) if captured else _HERE:
            taken, x_strides = self._make_readable(x, arithmetic.x)
            if self._must_transpose(taken, x_strides):
                columns, column_strides = taken, x_strides
                taken, x_strides = self._allocate_rows(columns)
                self._transpose(columns, column_strides, taken, True)
            result, y_strides = self._make_readable(y, arithmetic.y)
            written, written_strides = result, y_strides
            if not adds and y.shape[1] > self._most_written and self._must_transpose(taken, y_strides):
                written, written_strides = self._allocate_rows(result)
            k = x.shape[1]
            partials = self._cupy.empty((self._segments, k), arithmetic.sum) if self._segments else None
            self._launch(stream, taken, x_strides, written, written_strides, partials, k, arithmetic, scale)
            if written is not result:
                self._transpose(result, y_strides, written, False)
            if result is not y:
                self._cupy.copyto(y, result)
        made = [array for array in (taken, result, written, partials) if array is not x and array is not y]
        if captured and any(array is not None for array in made):
            keep(made, find_capture(stream)[1])

    def _must_transpose(self, x: DeviceArray, strides: Strides) -> bool:
        """Return True if X or Y with these strides is transposed to C order for the product."""
        return strides.column != 1 and pays_to_transpose(
            self._plan, self._count_sectors(), x.shape[1] * x.itemsize
        )

    def _count_sectors(self) -> float:
        """Return `read_sectors` of the plan, counted once."""
        if self._read is None:
            with on_stream(self._cupy.cuda.Stream(non_blocking=True)):  # the caller's may be captured
                self._read = read_sectors(self._plan, on_host)
        return self._read

    def _make_readable(self, array: DeviceArray, dtype: np.dtype[Any]) -> tuple[DeviceArray, Strides]:
        """Return an array that the kernels can read, itself or a copy in C order, and its strides."""
        strides = _strides(array)
        if strides is None or array.dtype != dtype:
            plain = self._cupy.ascontiguousarray(array, dtype)
            array = plain.copy() if plain.data.ptr % dtype.itemsize else plain
            strides = cast(Strides, _strides(array))
        return array, strides

    def _allocate_rows(self, like: DeviceArray) -> tuple[DeviceArray, Strides]:
        """Return a new array in C order with padded rows, shaped like another one, and its strides."""
        count, k = like.shape
        array = self._cupy.empty((count, round_row(k, like.itemsize)), like.dtype)
        return array, cast(Strides, _strides(array))

    def _transpose(self, columns: DeviceArray, strides: Strides, rows: DeviceArray, to_rows: bool) -> None:
        """Copy an array in F order to one in C order, or back."""
        item, (count, wide), k = rows.itemsize, rows.shape, columns.shape[1]
        width = min(TILE_COLUMNS, 1 << (wide - 1).bit_length())
        launch = self._transposing.get((item, width, to_rows))
        if launch is None:
            kernel = compile_transpose(item, width, to_rows)
            launch = Launch(kernel, TRANSPOSE, {"Word": word(item)}, {}, TRANSPOSE.names)
            self._transposing[item, width, to_rows] = launch
        pieces = ceil_div(wide, width)
        blocks = ceil_div(count, TILE_BYTES // (item * width)) * pieces
        if blocks:
            arguments = {
                "columns_of": columns.data.ptr,
                "rows_of": rows.data.ptr,
                "count": count,
                "row": strides.row,
                "column": strides.column,
                "columns": k,
                "wide": wide,
                "pieces": pieces,
            }
            stream = self._cupy.cuda.get_current_stream().ptr
            numbers = (arguments[name] for name in TRANSPOSE.names)
            launch(stream, blocks, 1, TRANSPOSE_THREADS, 0, *numbers)

    def _launch(
        self,
        stream: int,
        x: DeviceArray,
        x_strides: Strides,
        y: DeviceArray,
        y_strides: Strides,
        partials: DeviceArray | None,
        k: int,
        arithmetic: Arithmetic,
        scale: tuple[Any, ...],
    ) -> None:
        key = arithmetic, k, x_strides.column == 1, x_strides.pack, y_strides.column == 1, y_strides.pack
        launches, finish = self._prepared.get(key) or self._prepare(key, arithmetic, k, x_strides, y_strides)
        room = 0 if partials is None else partials.data.ptr
        strides = x_strides.column, y_strides.column, x_strides.row * x.itemsize, y_strides.row
        for (first, columns, _), launch in launches:
            end = first + columns
            launch(stream, x.data.ptr, y.data.ptr, room, *strides, first, end, k, *scale)
        if finish is not None:
            finish(stream, y.data.ptr, room, y_strides.column, y_strides.row, k, *scale)

    def _prepare(
        self, key: tuple[Any, ...], arithmetic: Arithmetic, k: int, x: Strides, y: Strides
    ) -> Prepared:
        """Compile and keep the launches for k columns and these strides."""
        plan = self._plan
        with self._lock:
            if key in self._prepared:
                return self._prepared[key]
            kernels = (self._find_others and self._find_others(arithmetic, k, x)) or SLICES
            known = find_types(plan, arithmetic)
            launches: list[tuple[ColumnLaunch, Launch]] = []
            finish: Launch | None = None
            row = zero_row(self._cupy.cuda.Device().id)
            zeros = self._cupy.ndarray(MOST_ROW // arithmetic.x.itemsize, arithmetic.x, row.data)
            for one in kernels.choose_launches(BLOCKS, plan, k, arithmetic, x, y, self._count_sectors):
                count = ceil_div(one.columns, one.block.columns)
                parts = choose_parts(plan.pattern.choice.model, kernels.count_warps(plan, one.block), count)
                kernel = compile_block(kernels.signature, plan, arithmetic, one.block)
                launch = Launch(
                    kernel,
                    kernels.signature,
                    known,
                    kernels.list_arguments(plan, zeros, parts),
                    VARYING,
                    blocks=count_blocks(kernels, plan, one.block, parts),
                    threads=one.block.threads,
                    overlaps=self._overlaps,
                )
                launches.append((one, launch))
            if self._segments:
                block = launches[0][0].block
                finish = Launch(
                    compile_block(FINISH, plan, arithmetic, block),
                    FINISH,
                    known,
                    list_finish_arguments(plan),
                    FINISH_VARYING,
                    blocks=count_finish_blocks(plan, block, k),
                    threads=block.threads,
                    overlaps=self._overlaps,
                )
            self._prepared[key] = launches, finish
            return launches, finish


@cache
def zero_row(number: int) -> DeviceArray:
    """Return the bytes of a row of zeros on a GPU, the current one.

    It is never freed: CuPy would give its memory to the next array on the same stream, which would not wait
    for products on other streams that still read the row.
    """
    import cupy

    with on_stream(cupy.cuda.Stream(non_blocking=True)) as stream:  # the caller's may be captured
        row = cupy.zeros(MOST_ROW, np.uint8)
        stream.synchronize()
    return row


def compile_block(
    signature: Signature, plan: Plan, arithmetic: Arithmetic, block: ColumnBlock
) -> KernelFunction:
    """Return a kernel for a column block, compiled for the current device."""
    constants = define_constants(plan, arithmetic, block)
    return signature.load(constants)


def on_host(array: DeviceArray) -> np.ndarray[Any, Any]:
    """Return a copy of an array of CuPy."""
    return cast("np.ndarray[Any, Any]", array.get())


def word(item: int) -> np.dtype[Any]:
    """Return a type of so many bytes, 2, 4, 8 or 16, whatever they mean."""
    return np.dtype(f"u{item}" if item <= 8 else f"V{item}")


def compile_transpose(item: int, width: int, to_rows: bool) -> KernelFunction:
    """Return the kernel that transposes numbers of so many bytes, compiled for the current device."""
    constants = {"DASP_BYTES": str(item), "DASP_COLUMNS": str(width), "DASP_TO_ROWS": str(int(to_rows))}
    return TRANSPOSE.load(constants)


def _strides(array: DeviceArray) -> Strides | None:
    return find_strides(array.shape, array.strides, array.itemsize, array.data.ptr)
