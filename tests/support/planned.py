"""Make plans of test matrices on the CPU, for any machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dasp import Policy, formats
from dasp.formats import Format
from dasp.formats.cost import H200, ZEN4, CostModel
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Plan, arrays_of, with_arrays
from dasp.formats.sell.cpu import primitives
from dasp.matrix import planning
from tests.support.reference import entries_of


class Tuned(Policy):
    """A policy with a format's own options, so that a small matrix reaches every path."""

    def __init__(self, format: str, **choices: Any) -> None:
        super().__init__(format=format)
        object.__setattr__(self, "chosen", formats.find(format).options(**choices))

    def options(self, format: Format) -> Any:
        return self.chosen

    def __repr__(self) -> str:
        return f"Tuned({self.chosen})"


MODELS = {"gpu": H200, "cpu": ZEN4}
"""The cost model of each kind of machine."""


def plan_of(matrix: Any, policy: Policy | None = None, *, machine: str = "gpu") -> Plan:
    """Return the plan of a matrix as it would be made for a machine."""
    csr = entries_of(matrix)
    arrays = Csr(csr.shape, csr.indptr, csr.indices, csr.data)
    return planning.make_plan(arrays, policy or Policy(), MODELS[machine], primitives)


def with_model(plan: Plan, model: CostModel) -> Plan:
    """Return the same plan in SELL, as if another model had chosen it."""
    choice = dataclasses.replace(plan.pattern.choice, model=model)
    return dataclasses.replace(plan, pattern=dataclasses.replace(plan.pattern, choice=choice))


def unpacked(plan: Plan) -> tuple[Any, Any, Any]:
    """Return the matrix of a plan as indptr, indices and data."""
    return formats.find(plan.format).unpack(plan, primitives)


def frozen(plan: Plan) -> Plan:
    """Return the same plan in read-only arrays, as every plan has, so that one compiled form serves all."""

    def read_only(array: Any) -> Any:
        view = array.view()
        view.flags.writeable = False
        return view

    return with_arrays(plan, map(read_only, arrays_of(plan)))


def widened(plan: Plan) -> Plan:
    """Return the same plan with 64-bit numbers wherever a plan of a larger matrix has them."""
    kinds = {
        name: np.dtype(np.int64) for name in ("index_dtype", "offset_dtype") if hasattr(plan.pattern, name)
    }
    pattern = dataclasses.replace(plan.pattern, **kinds)

    def wide(array: Any) -> Any:
        made = array.astype(np.int64) if array.dtype == np.int32 else array
        made.flags.writeable = False  # as in every plan, so that one compiled form serves all
        return made

    return dataclasses.replace(plan, pattern=with_arrays(pattern, map(wide, arrays_of(pattern))))
