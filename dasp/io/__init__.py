"""Load matrices from files, names and models; save and load plans."""

from dasp.io.files import MatrixFileError
from dasp.io.matrices import load_matrix
from dasp.io.plans import load_plan, save_plan

__all__ = ["MatrixFileError", "load_matrix", "load_plan", "save_plan"]
