"""The operations on matrices on the CPU; `dasp.formats.csr.matrix.Operations` says what each returns."""

from __future__ import annotations

from dasp.formats.csr.cpu.sort import scan as scan
from dasp.formats.csr.cpu.sort import sort_columns as sort_columns
from dasp.formats.csr.cpu.transpose import transpose as transpose
