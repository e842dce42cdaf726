"""How much memory a piece of work takes at its peak, on the host and on a GPU."""

from __future__ import annotations

import ctypes
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory(Protocol):
    """Watches a piece of work."""

    bytes: float
    """Bytes above what was held before, at the peak; NaN where the system does not say. Set at the end."""

    def __enter__(self) -> PeakMemory:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End, and set `bytes`."""


class HostMemory:
    """The resident memory of this process above what it was, from Linux' own high-water mark."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.bytes = math.nan
        self._before = math.nan

    def __enter__(self) -> HostMemory:
        """Give back what was freed before, and set the mark to what is resident then."""
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps freed memory, and would hand it out again
        try:
            RESET.write_text("5")
            self._before = _status("VmRSS")
        except OSError:
            self._before = math.nan
        return self

    def __exit__(self, *_: object) -> None:
        """Read the mark."""
        if not math.isnan(self._before):
            self.bytes = max(_status("VmHWM") - self._before, 0.0)


def _status(name: str) -> float:
    """Return a line of /proc/self/status in bytes; NaN where there is none."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), flags=re.MULTILINE)
    return 1024.0 * int(found[1]) if found else math.nan


class CudaMemory:
    """What CuPy's pool hands out above what is in use, counted by a hook of its own."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.bytes = math.nan
        self._hook: Any = None

    def __enter__(self) -> CudaMemory:
        """Listen to every allocation."""
        import cupy

        class Counter(cupy.cuda.memory_hook.MemoryHook):  # type: ignore[misc]
            """The bytes that are held, and the most that were."""

            name = "benchmarks.bench"
            held = most = 0

            def malloc_postprocess(self, **given: Any) -> None:
                self.held += given["mem_size"]
                self.most = max(self.most, self.held)

            def free_postprocess(self, **given: Any) -> None:
                self.held -= given["mem_size"]

        self._hook = Counter()
        self._hook.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening; memory that was held before and freed meanwhile only makes the peak smaller."""
        self._hook.__exit__(None, None, None)
        self.bytes = float(self._hook.most)
