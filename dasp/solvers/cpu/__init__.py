"""Vectors on the CPU: passes made block by block on the threads that make the products.

The sums of the blocks are kept and added in one order afterwards: equal bits for any number of threads.

Complex vectors are rows of twice as many real numbers, too: a pass with real coefficients, and with real
parts of dot products, is one over those.
"""
