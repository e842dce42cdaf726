"""Devices and no matrices: types, arrays, checks, and the execution of code on CPUs and GPUs."""
