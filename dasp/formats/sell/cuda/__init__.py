"""Slices on a GPU: plans of them (`primitives`), and products by a vector and by several columns."""
