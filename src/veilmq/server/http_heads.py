"""Heads of requests that were read before: who repeats one byte for byte is understood at once.

Many clients send the same head with every request of an action, and parsing it is the dearest part of reading. So the
head of a plain request (one small segment, kept alive, nothing that asks for a closer look) is remembered with what the
parser made of it. The same bytes at the same place of a connection mean the same again; whatever differs in a byte, or
does not fill its segment exactly, goes to the parser. Clients that sign each request never repeat a head: who did not
for ``LESSONS`` requests is not looked up any more.
"""

from typing import NamedTuple

END = b"\r\n\r\n"
LESSONS = 16

_HEADS_MAX = 256
_HEAD_BYTES_MAX = 2_048


class Head(NamedTuple):
    """What a head said; ``headers`` is shared by all requests that have it, so nobody changes it."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body_bytes: int


class KnownHeads(dict[bytes, Head]):
    """The heads that were read lately by any connection of a server, by their bytes (the empty line included)."""

    def learn(self, segment: bytes, head: Head) -> None:
        """Remember ``head`` if ``segment`` is it and its body, whole and nothing else."""
        end = segment.find(END) + len(END)
        if end > _HEAD_BYTES_MAX or len(segment) - end != head.body_bytes:
            return
        if len(self) >= _HEADS_MAX:
            self.clear()
        self[segment[:end]] = head
