"""Devices without matrices: types, arrays, checks, and what runs code on a CPU or a GPU."""
