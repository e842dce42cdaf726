"""The CUDA kernels compiled by g++ and run on the CPU, lane by lane, with every access checked.

    module = compile_kernels("spmv/dasp.cu", {"DASP_VALUE": "double"})
    module.launch("dasp_spmv", grid=4, block=128, args=[values, x, poisoned(y), np.int32(n)])

The head of `runtime.cpp` says what is checked and what counts as ordered; `simt.h` defines CUDA's vocabulary.
"""

from .build import compile_kernels, compile_text
from .launch import Module, SimtError, poisoned

__all__ = ["Module", "SimtError", "compile_kernels", "compile_text", "poisoned"]
