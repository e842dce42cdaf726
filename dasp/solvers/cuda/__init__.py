"""Vectors on a GPU: passes put together as kernels, and whole iterations captured in a graph.

An iteration runs once in Python, with traced scalars, and what it asks for is written on a tape (`tape`).
Each pass of the tape becomes one kernel (`passes`: kernels/solve/fused.cu with the pass as its constants)
that also computes the scalars before it; so a dot product, the coefficient made of it and the update that
uses it cost two launches and no reading by the host. Scalars lie in two banks that iterations read and write
by turns (`loop`).

What runs the kernels is a device (`protocols`): CuPy's (`device`), or in tests an emulated one.
"""
