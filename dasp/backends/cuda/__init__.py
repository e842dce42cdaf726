"""The plans on an NVIDIA GPU, by CuPy and the kernels in `kernels/`."""
