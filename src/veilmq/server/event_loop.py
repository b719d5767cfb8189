"""The event loop that the server runs on: uvloop where it exists (not on Windows), which carries twice the requests."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop, ``None`` for Python's own."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop
