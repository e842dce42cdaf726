"""The plans on a CPU, compiled by Numba, shared by a team of threads."""
