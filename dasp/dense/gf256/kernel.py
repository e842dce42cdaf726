"""A rung of a ladder of products over GF(2^8)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Kernel:
    """One rung of a ladder.

    Attributes
    ----------
    name : str
        The word that `matmul(..., kernel=name)` takes.
    summary : str
        The work of the rung, in one sentence.
    needs : str
        The machine that it needs, in words.
    available : bool
        False if this processor is no such machine; every GPU can run the rungs of a GPU.
    """

    name: str
    summary: str
    needs: str
    available: bool = field(default=True, kw_only=True)
