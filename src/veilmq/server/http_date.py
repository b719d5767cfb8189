"""The ``Date`` header of replies (RFC 9110, section 6.6.1), written once a second and only while there are replies."""

import asyncio
from email.utils import formatdate
from time import time


class DateLine:
    """The header line with the present date; raw wall-clock time, as clients compare it with their own."""

    __slots__ = ("_loop", "line")

    def __init__(self) -> None:
        """Start with no line, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.line = b""

    def renew(self) -> bytes:
        """Return the line, and keep it in ``line`` until the second is over."""
        now_s = time()
        self.line = b"Date: %b\r\n" % formatdate(now_s, usegmt=True).encode()
        self._loop.call_later(1 - now_s % 1, self._forget)
        return self.line

    def _forget(self) -> None:
        self.line = b""
