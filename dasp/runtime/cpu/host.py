"""The processor that code is compiled for."""

from __future__ import annotations

import functools

import llvmlite.binding
from numba import config


@functools.cache
def find_features() -> frozenset[str]:
    """Return the instruction set extensions that Numba compiles for, in LLVM's words: `avx2`, `gfni`, ...

    They are the processor's own, unless NUMBA_CPU_FEATURES names others (Numba takes none of them for
    NUMBA_CPU_NAME=generic). Empty where LLVM cannot tell.
    """
    if config.CPU_FEATURES is not None:
        return frozenset(name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+"))
    try:
        found = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    usable = (name for name, present in found.items() if present)
    return frozenset(name for name in usable if config.ENABLE_AVX or not name.startswith("avx"))


@functools.cache
def name_processor() -> str:
    """Return the name of the processor's design in LLVM's words, such as `znver4`."""
    return str(config.CPU_NAME or llvmlite.binding.get_host_cpu_name())
