"""A plan of slices on an NVIDIA GPU: vectors, several columns, diagonals, dot products, new values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from dasp.formats import product_cuda
from dasp.formats.kernel_cuda import TENSOR_CORES, cast_scale, compile_product, find_types
from dasp.formats.plan import WARP, Plan, diagonal_rows
from dasp.formats.sell.cuda import columns, row_blocks, vector
from dasp.formats.sell.cuda.primitives import find_primitives
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.dtypes import Arithmetic, find_arithmetic_into
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import DeviceArray, KernelFunction

PROCESSORS = 16
"""cudaDevAttrMultiProcessorCount."""


class SellCudaProduct(product_cuda.CudaProduct):
    """A plan of slices, ready to be multiplied on one GPU."""

    kernel = vector

    def _begin(self) -> None:
        """Reset the product to one that has launched nothing yet."""
        super()._begin()
        self.__dict__.pop("_diagonal", None)
        self._dotted: dict[tuple[Arithmetic, bool], tuple[KernelFunction, int]] = {}
        has_cores = self._capability >= TENSOR_CORES
        self._row_blocks = row_blocks.LazyRowBlocks(self.plan) if has_cores else None
        find_others = self._row_blocks.find_kernels if self._row_blocks else None
        self._columns = columns.Columns(self.plan, self._overlaps, find_others)

    def _is_like(self, plan: Plan) -> bool:
        """Return True if this product's compiled kernel can multiply another plan of the same pattern."""
        return super()._is_like(plan) and bool(plan.values.coding == self.plan.values.coding)

    def write_if_plain(self, data: Any, slots: Any) -> bool:
        """Overwrite the plan's values if `data` needs no conversion and its coding holds them.

        Short, like `multiply_if_plain`: it is timed in microseconds.
        """
        if (
            slots is None
            or type(data) is not self._ndarray
            or data.dtype is not self._dtype
            or data.size != self.plan.nnz
            or data.strides != self._strides  # so it has one dimension
            or data.data.ptr & self._misaligned
            or data.data.device_id != self._number
            or self._current_device() != self._number
        ):
            return False
        written = find_primitives(self._number).recode_values(data, slots, self.plan.values)
        if written:
            self.refresh()
        return written

    def _multiply_columns(self, x: DeviceArray, y: DeviceArray, alpha: complex, beta: complex) -> None:
        """Multiply by several columns at once."""
        if x.shape[1] == 1:
            super()._multiply_columns(x, y, alpha, beta)
        elif self._blocks and x.shape[1]:
            arithmetic = find_arithmetic_into(self.plan.dtype, x.dtype, y.dtype)
            with self._device:
                self._columns.multiply(x, y, arithmetic, cast_scale(arithmetic.sum, alpha, beta), beta != 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that products keep beside the plan."""
        return 0 if self._row_blocks is None else self._row_blocks.nbytes

    def refresh(self) -> None:
        """Take over values that were written into the plan, on CuPy's current stream."""
        with self._here():
            stream = self._current_stream().ptr
            captured = self._is_capturing(stream)
            if self._row_blocks is not None and (captured or self._row_blocks.nbytes):
                # Memory that is allocated and freed inside a capture belongs to the graph alone.
                cuda = self._cupy.cuda
                with cuda.using_allocator(cuda.malloc_async) if captured else nullcontext():
                    self._row_blocks.refresh(captured)
            self._settle(stream)

    @cached_property
    def _diagonal(self) -> Launch:
        """The launch that finds a diagonal."""
        plan, arithmetic = self.plan, self._arithmetic
        return Launch(
            compile_diagonal(plan, arithmetic),
            DIAGONAL,
            columns.find_types(plan, arithmetic),
            list_diagonal_arguments(plan),
            ("claims", "further", "first_row", "length", "y"),
            blocks=count_diagonal_blocks(plan),
            threads=DIAGONAL_THREADS,
        )

    def diagonal(self, k: int) -> DeviceArray | None:
        """Return the k-th diagonal in the type of sums, on CuPy's current stream of the matrix's device.

        None if two segments of a row have an entry there; the host reads that only if rows are cut.
        """
        cupy, total, stream = self._cupy, self._arithmetic.sum, self._current_stream().ptr
        first, count = diagonal_rows(self.plan.shape, k)
        if not count or not self._blocks:
            return cupy.zeros(count, total)
        if not self._segments:
            y = self._ndarray(count, total)
            self._diagonal(stream, 0, k, first, count, y.data.ptr)
            return y
        cut = len(self.plan.pattern.long_rows)
        y, claims = cupy.zeros(count, total), cupy.zeros(cut + 1, np.uint64)
        self._diagonal(stream, claims.data.ptr, k, first, count, y.data.ptr)
        return None if columns.on_host(claims)[cut] else y

    def prepare_with_dot(
        self, x: DeviceArray, y: DeviceArray, w: DeviceArray, *, square: bool = False, run: int = 0
    ) -> tuple[Callable[[], None], DeviceArray] | None:
        """Return a call that sets y = A x and leaves partial sums of w'y, or None if a pass is faster.

        Parameters
        ----------
        x, y, w : cupy.ndarray, float32 or float64, contiguous
            The call keeps them; y overlaps neither x nor w.
        square : bool
            True to leave partial sums of y'y too.
        run : int
            If not 0, the slices that a warp takes one after the other. The launch then has many short
            blocks, so that other kernels find room, and leaves many sums.

        Returns
        -------
        call : callable
            Launches on CuPy's current stream; may be captured.
        sums : cupy.ndarray of float64
            Partial sums of w'y, then as many of y'y.
        """
        plan, given = self.plan, (x, y, w)
        if x.dtype not in vector.DOT_TYPES:
            return None
        if square and not run:
            return None  # to add up so many sums in each block is no faster than a pass
        if not self._blocks or not (not self._segments if run else vector.pays_to_dot(plan, self._blocks)):
            return None
        if any(one.dtype != x.dtype or not one.flags.c_contiguous for one in given):
            return None
        arithmetic = find_arithmetic_into(plan.dtype, x.dtype, y.dtype)
        if (arithmetic.x, arithmetic.y) != (x.dtype, x.dtype):
            return None
        with self._device:
            kernel, at_once = self._with_dot(arithmetic, square)
            blocks = self._blocks
            if run:
                blocks = ceil_div(blocks, run)
            elif blocks > vector.limit_dot_blocks(plan):
                blocks = min(blocks, at_once)
            sums = self._cupy.zeros((1 + square) * blocks, np.float64)
            arguments = vector.list_arguments(plan, self._allocate_scratch(arithmetic))
            arguments |= {"x": x, "y": y, "alpha": arithmetic.sum.type(1), "beta": arithmetic.sum.type(0)}
            arguments |= {"w": w, "sums": sums, "run": run}
            launch = Launch(
                kernel,
                vector.DOT_SIGNATURE,
                find_types(vector, plan, arithmetic),
                arguments,
                blocks=blocks,
                threads=self._threads,
                overlaps=self._overlaps,
            )
        current = self._current_stream
        return lambda: launch(current().ptr), sums

    def _with_dot(self, arithmetic: Arithmetic, square: bool) -> tuple[KernelFunction, int]:
        """Return the kernel that also leaves dot products, and the blocks of it that run at the same time."""
        if (arithmetic, square) not in self._dotted:
            more = vector.define_dot_constants(self.plan, square=square)
            kernel = compile_product(vector, self.plan, arithmetic, vector.DOT_SIGNATURE, more)
            processors = self._cupy.cuda.runtime.deviceGetAttribute(PROCESSORS, self._number)
            count_blocks = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            at_once = processors * count_blocks(kernel.ptr, self._threads, 0)
            self._dotted[arithmetic, square] = kernel, max(1, at_once)
        return self._dotted[arithmetic, square]


# ---- a diagonal, in one launch -------------------------------------------------------------------------

DIAGONAL_THREADS = 256
"""Threads of a block of the kernel that finds a diagonal."""

DIAGONAL = Signature(
    "spmv/diagonal.cu",
    "dasp_diagonal",
    f"""{vector.ARRAYS.rstrip()}
    const Index*          long_rows     [cut]
    const Index*          segment_rows  [segments]
    long long             count
    long long             segments
    long long             positions
    long long             cut
    int                   identity
    unsigned long long*   claims
    long long             further
    long long             first_row
    long long             length
    Sum*                  y
    """,
)


def count_diagonal_blocks(plan: Plan) -> int:
    """Return the blocks of the launch."""
    return ceil_div(len(plan.pattern.headers), DIAGONAL_THREADS // WARP)


def define_diagonal(plan: Plan, arithmetic: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants; `arithmetic` are the types of a product by the plan's own."""
    return vector.define_plan_constants(plan) | arithmetic.defines | {"DASP_THREADS": str(DIAGONAL_THREADS)}


def list_diagonal_arguments(plan: Plan) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each diagonal."""
    given = vector.list_plan_arguments(plan)
    del given["segment_offsets"]
    return given | {"cut": len(plan.pattern.long_rows)}


def compile_diagonal(plan: Plan, arithmetic: Arithmetic) -> KernelFunction:
    """Return the kernel for the current GPU."""
    return DIAGONAL.load(define_diagonal(plan, arithmetic))
