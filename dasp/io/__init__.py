"""Matrices in from files, names and models; plans saved and loaded."""

from dasp.io.matrices import MatrixFileError, load_matrix, load_plan, save_plan

__all__ = ["MatrixFileError", "load_matrix", "load_plan", "save_plan"]
