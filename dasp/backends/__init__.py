"""Modules that execute a plan: `cpu` with numba, `cuda` with CuPy. Neither imports the other."""
