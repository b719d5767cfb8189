"""A sieve: tells of most keys, without reading, that they were not seen in the last five minutes.

Nearly all messages of FIFO queues are no duplicates, and finding that out in the table costs more than all else about
deduplication. Two Bloom filters of fixed size, each for five minutes, let through what may be there: everything that
is, and little else. A sieve begins with what the table has. Where that is too much to read within one command, it holds
nothing back until it has seen five minutes by itself.
"""

from struct import Struct

from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.engines.embedded.journal import Journal

_SPAN_MS = DEDUPLICATION_S * SECOND_MS
_BYTES = 4 * 1_048_576  # of 1,500,000 new keys in five minutes it lets some 10,000 through
_BITS_MASK = _BYTES * 8 - 1
_READ_MAX = 4_000  # some five milliseconds
_two = Struct("<QQ").unpack


class Sieve:
    """The keys (of 16 bytes) of one table in the last five minutes, and perhaps a few that are not."""

    __slots__ = ("_complete_at_ms", "_earlier", "_now", "_turn_at_ms")

    def __init__(self, *, journal: Journal, now_ms: int) -> None:
        """Begin with the keys of ``journal``'s deduplication table."""
        self._now = bytearray(_BYTES)
        self._earlier = self._now
        self._turn_at_ms = now_ms + _SPAN_MS
        keys = journal.rows("deduplication_keys", _READ_MAX + 1)
        self._complete_at_ms = now_ms if len(keys) <= _READ_MAX else self._turn_at_ms
        for (key,) in keys:
            self.add(key, now_ms)

    def add(self, key: bytes, now_ms: int) -> None:
        """Take note of the key."""
        if now_ms >= self._turn_at_ms:
            self._earlier = self._now
            self._now = bytearray(_BYTES)
            self._turn_at_ms = now_ms + _SPAN_MS
        one, other = _two(key)
        bits = self._now
        bits[(one & _BITS_MASK) >> 3] |= 1 << (one & 7)
        bits[(other & _BITS_MASK) >> 3] |= 1 << (other & 7)

    def may_have(self, key: bytes, now_ms: int) -> bool:
        """Tell whether the key may have been seen; false only when it was not."""
        if now_ms < self._complete_at_ms:
            return True
        one, other = _two(key)
        for bits in (self._now, self._earlier):
            if bits[(one & _BITS_MASK) >> 3] >> (one & 7) & bits[(other & _BITS_MASK) >> 3] >> (other & 7) & 1:
                return True
        return False
