"""Message ids: random 128-bit UUIDs (RFC 9562, version 4), drawn from the system's source by the page.

One call of ``os.urandom`` serves 256 ids: asking for each alone was measured at several microseconds.
"""

import os

_ID_BYTES = 16
_IDS_PER_PAGE = 256


class IdSource:
    """An endless supply of ids of 16 bytes each."""

    __slots__ = ("_left", "_page")

    def __init__(self) -> None:
        """Start with an empty page."""
        self._page = b""
        self._left = 0

    def next(self) -> bytes:
        """Return a new id."""
        if self._left == 0:
            self._page = _random_ids()
            self._left = len(self._page)
        end = self._left
        self._left = end - _ID_BYTES
        return self._page[end - _ID_BYTES : end]


def _random_ids() -> bytes:
    page = bytearray(os.urandom(_ID_BYTES * _IDS_PER_PAGE))
    for start in range(0, len(page), _ID_BYTES):
        page[start + 6] = page[start + 6] & 0x0F | 0x40  # version 4
        page[start + 8] = page[start + 8] & 0x3F | 0x80  # the variant of RFC 9562
    return bytes(page)
