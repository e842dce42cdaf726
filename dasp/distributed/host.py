"""What engines have in common whose own links are those of the host's memory."""

from __future__ import annotations

from typing import Any


class HostEngine:
    """Says where links for a device are; the engines of mpi4py and torch.distributed do the rest.

    Attributes
    ----------
    rank, size, timeout
        See `dasp.distributed.engine.Engine`.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._links: dict[str, Any] = {}

    def wait(self, event: Any = None) -> None:
        """Do nothing: what the host does is done."""

    def let_go(self) -> None:
        """Do nothing: this process ends by itself."""

    def close(self) -> None:
        """Let go of what GPUs hold of each other's: the communicator is gone, nothing is sent any more."""
        for links in self._links.values():
            links.close()
        self._links.clear()

    def links(self, device: str) -> Any:
        """Return the engine itself for the host; for a GPU what `device_links` finds."""
        own: Any = self
        if device == "cpu":
            return own
        if device not in self._links:
            from dasp.distributed.peers import device_links

            self._links[device] = device_links(own, device)
        return self._links[device]
