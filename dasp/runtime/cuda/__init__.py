"""A GPU: memory, launches, the sources of kernels, timing."""
