"""The kernels of a format on a GPU: their description by the format, and their compilation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from dasp.formats.plan import WARP, Plan
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import Arithmetic, real_type
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import DeviceArray, KernelFunction

VARYING = "x", "y", "alpha", "beta"
"""Arguments that come with each product."""

BETWEEN = "x", "y"
"""Arguments that come with each product of alpha 1 and beta 0."""

SETTLE = Signature("spmv/settle.cu", "dasp_settle", "")
"""An empty kernel that waits for all kernels before it."""

TENSOR_CORES = 80
"""Compute capability from which tensor cores multiply float64."""


ABSENT = {4: np.uint32(0x7FA0DA5F), 8: np.uint64(0x7FF4DA5F00000000)}
"""Bits that mark a partial sum, or a part of one, as not yet there, by its bytes: kernels/spmv/tile.cuh."""


class Scratch(NamedTuple):
    """Scratch of one product at a time: see kernels/spmv/partial.cuh.

    Attributes
    ----------
    partials : array, shape (segments,), or (2 * segments,) for complex sums; uint32 or uint64
        All `ABSENT` before and after each product.
    tickets : array, shape (1,), uint32
        0 before and after each product.
    """

    partials: DeviceArray
    tickets: DeviceArray


class VectorKernel(Protocol):
    """How the kernel of a format's product by a vector is compiled and launched: a module or an object."""

    SIGNATURE: Signature
    """Source, entry point and parameters; the last are those of `VARYING`."""

    def define_constants(self, plan: Plan, arithmetic: Arithmetic, /) -> dict[str, str]:
        """Return the compile-time constants that the format adds, for the types of a product."""

    def find_types(self, plan: Plan, /) -> dict[str, np.dtype[Any]]:
        """Return the types that the source names."""

    def count_warps(self, plan: Plan, /) -> int:
        """Return the number of warps that a product needs."""

    def count_threads(self, plan: Plan, /) -> int:
        """Return the threads of a block."""

    def count_partials(self, plan: Plan, /) -> int:
        """Return the number of partial sums that a product needs."""

    def list_arguments(self, plan: Plan, scratch: Scratch, /) -> dict[str, Any]:
        """Return the kernel's arguments but those that come with each product."""


def cast_scale(total: np.dtype[Any], alpha: complex, beta: complex) -> tuple[Any, ...]:
    """Return alpha and beta in the type of a kernel's sums; for complex sums, as two numbers each.

    A number too large for float32 becomes infinite, as on the CPU.
    """
    pair = total.type(alpha), total.type(beta)
    return tuple(part for z in pair for part in (z.real, z.imag)) if total.kind == "c" else pair


def define_constants(kernel: VectorKernel, plan: Plan, arithmetic: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants of the kernel for a plan and the types of a product."""
    return {
        **kernel.define_constants(plan, arithmetic),
        **arithmetic.defines,
        "DASP_THREADS": str(kernel.count_threads(plan)),
        "DASP_TICKETS": str(int(kernel.count_partials(plan) > 0)),
    }


def find_types(kernel: VectorKernel, plan: Plan, arithmetic: Arithmetic) -> dict[str, np.dtype[Any]]:
    """Return the types that the kernel's source names."""
    bits = np.dtype(f"u{real_type(arithmetic.sum).itemsize}")
    return kernel.find_types(plan) | arithmetic.types | {"Bits": bits}


def count_blocks(kernel: VectorKernel, plan: Plan) -> int:
    """Return the number of blocks of a launch."""
    return int(ceil_div(kernel.count_warps(plan) * WARP, kernel.count_threads(plan)))


def compile_product(
    kernel: VectorKernel,
    plan: Plan,
    arithmetic: Arithmetic,
    signature: Signature | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> KernelFunction:
    """Return a product's kernel for the current GPU, or another of its source, with more constants."""
    signature = signature or kernel.SIGNATURE
    constants = {**define_constants(kernel, plan, arithmetic), **more}
    return signature.load(constants)


def compile_settling() -> KernelFunction:
    """Return the empty kernel that waits for all kernels before it, for the current GPU."""
    return SETTLE.load({})


def new_scratch(segments: int, total: np.dtype[Any], module: ModuleType = np) -> Scratch:
    """Return scratch for sums of a type, in NumPy's memory or, with `module=cupy`, on the current GPU."""
    part = real_type(total).itemsize
    count = segments * (total.itemsize // part)
    host = np.full(count + 1, ABSENT[part])
    host[count] = 0
    block = module.asarray(host)
    return Scratch(block[:count], block[count:].view(np.uint32)[:1])
