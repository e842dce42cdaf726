"""A stream that is CuPy's current one for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_stream(stream: Any) -> Iterator[Any]:
    """Make a stream the current one of its GPU, and the caller's again afterwards.

    CuPy's own `with stream:` goes back to the stream of the `with` around it and so forgets a stream that the
    caller chose by `stream.use()`: what the caller launches next would run beside the caller's earlier work.

    Parameters
    ----------
    stream : cupy.cuda.Stream
        A stream of the current device.

    Yields
    ------
    cupy.cuda.Stream
        The stream.
    """
    import cupy

    before = cupy.cuda.get_current_stream()
    stream.use()
    try:
        yield stream
    finally:
        before.use()
