"""Vectors on a GPU: passes put together as kernels, and whole iterations captured in a graph.

An iteration runs once in Python, with traced scalars, which writes its passes and products down (`trace`).
Each pass becomes one kernel (`passes`: kernels/solve/fused.cu with the pass as its constants) that also
computes the scalars before it; so a dot product, the coefficient made of it and the update that uses it cost
two launches and no reading by the host. Scalars lie in two arrays that iterations read and write by turns
(`loop`).

A device runs the kernels: CuPy's (`dasp.runtime.cuda.device`), or in tests an emulated one.
"""
