"""Sparse matrix-vector products planned once and run many times, on NVIDIA GPUs and CPUs."""

__version__ = "0.1.0"
