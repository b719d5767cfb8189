"""Message ids: random 128-bit UUIDs (RFC 9562, version 4), drawn from the system's source by the page.

One call of ``os.urandom`` serves 256 ids, and their fixed bits are set in one number of the length of the page: each id
alone was measured at several microseconds. A generator's ``__next__`` is called without a frame of its own.
"""

import os
from collections.abc import Callable, Iterator

_ID_BYTES = 16
_IDS_PER_PAGE = 256

# Bytes 6 and 8 of each id carry the version and the variant of RFC 9562.
_RANDOM_BITS = int.from_bytes(bytes.fromhex("ffffffffffff0fff3fffffffffffffff") * _IDS_PER_PAGE)
_FIXED_BITS = int.from_bytes(bytes.fromhex("00000000000040008000000000000000") * _IDS_PER_PAGE)


class IdSource:
    """An endless supply: ``next`` returns a new id of 16 bytes."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        """Start with an empty page."""
        self.next: Callable[[], bytes] = _ids().__next__


def _ids() -> Iterator[bytes]:
    while True:
        bits = int.from_bytes(os.urandom(_ID_BYTES * _IDS_PER_PAGE)) & _RANDOM_BITS | _FIXED_BITS
        page = bits.to_bytes(_ID_BYTES * _IDS_PER_PAGE)
        for start in range(0, len(page), _ID_BYTES):
            yield page[start : start + _ID_BYTES]
