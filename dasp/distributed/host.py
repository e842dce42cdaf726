"""What engines have in common whose own links are those of the host's memory."""

from __future__ import annotations

from typing import Any

from dasp.distributed.engine import Links


class HostEngine:
    """Says where links for a device are; the engines of mpi4py and torch.distributed do the rest.

    Attributes
    ----------
    rank, size, timeout
        See `dasp.distributed.engine.Engine`.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._links: dict[str, Links] = {}

    def wait(self, event: Any = None) -> None:
        """Do nothing: what the host does is done."""

    def links(self, device: str) -> Links:
        """Return the engine itself for the host, NCCL's for a GPU."""
        own: Any = self
        if device == "cpu":
            return own  # type: ignore[no-any-return]
        if device not in self._links:
            from dasp.distributed.nccl import NcclLinks

            self._links[device] = NcclLinks(own, device)
        return self._links[device]
