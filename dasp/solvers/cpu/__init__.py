"""Vectors on the CPU: passes made block by block on the threads that make the products.

The sums of the blocks are stored and then added in a fixed order: any number of threads gives equal bits.

Complex vectors are also rows of twice as many real numbers: a pass with real coefficients that needs only the
real parts of dot products is made over these.
"""
