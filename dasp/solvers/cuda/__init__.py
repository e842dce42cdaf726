"""Vectors on a GPU: passes put together as kernels, and whole iterations captured in a graph.

An iteration runs once in Python with traced scalars, and this run records its passes and products (`trace`).
Each pass becomes one kernel (`passes`: kernels/solve/fused.cu with the pass as its constants) that also
computes the scalars before it. So a dot product, the coefficient made from it and the update that uses it
cost two launches, and the host reads nothing. Scalars lie in two arrays, which iterations read and write in
turn (`loop`).

A device runs the kernels: one of CuPy (`dasp.runtime.cuda.device`), or an emulated one in tests.
"""
