"""dasp's threads as threadpoolctl sees them, so that `threadpool_limits(1)` holds for products too.

threadpoolctl knows thread pools by the shared libraries that they live in. dasp's live in what llvmlite
compiled, so that library stands for them; `user_api` is "dasp".
"""

from __future__ import annotations

import contextlib

from dasp._version import __version__
from dasp.runtime.cpu import threads as _threads


def register() -> None:
    """Make dasp's threads known to threadpoolctl, if that is installed."""
    with contextlib.suppress(ImportError):
        import threadpoolctl

        class Controller(threadpoolctl.LibController):  # type: ignore[misc]  # threadpoolctl has no types
            """dasp's threads."""

            user_api = internal_api = "dasp"
            filename_prefixes = ("libllvmlite", "llvmlite")

            def get_num_threads(self) -> int:
                """Return how many threads a product uses."""
                return _threads.get_num_threads()

            def set_num_threads(self, num_threads: int) -> None:
                """Set how many threads a product uses; as many as by default stay a default."""
                _threads.set_num_threads(None)
                if num_threads != _threads.get_num_threads():
                    _threads.set_num_threads(num_threads)

            def get_version(self) -> str:
                """Return the version of dasp."""
                return __version__

        threadpoolctl.register(Controller)
