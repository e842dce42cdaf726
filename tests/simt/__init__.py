"""The CUDA kernels compiled by g++ and run on the CPU, lane by lane, with every access checked.

    module = compile_kernels("spmv/product.cu", {"DASP_VALUE": "double"})
    module.launch("dasp_spmv", grid=4, block=128, args=[values, x, poisoned(y), np.int32(n)])

What is checked, and what counts as ordered, stands at the head of `runtime.cpp`; CUDA's vocabulary is
`simt.h`.
"""

from .build import compile_kernels, compile_text
from .launch import Module, SimtError, poisoned

__all__ = ["Module", "SimtError", "compile_kernels", "compile_text", "poisoned"]
