"""Heads of requests that were read before: who repeats one byte for byte is understood at once.

Many clients send the same head with every request of an action, and parsing it is the dearest part of reading. So the
head of a plain request (one small segment, kept alive, nothing that asks for a closer look) is remembered with what the
parser made of it, when it comes a second time. The same bytes at the same place of a connection mean the same again;
whatever differs in a byte, or does not fill its segment exactly, goes to the parser. Clients that sign each request
never repeat a head: who did not for ``LESSONS`` requests is not looked up any more.
"""

from typing import NamedTuple

END = b"\r\n\r\n"
LESSONS = 16

_HEADS_MAX = 256
_SEEN_MAX = 4_096
_HEAD_BYTES_MAX = 2_048


class Head(NamedTuple):
    """What a head said; ``headers`` is shared by all requests that have it, so nobody changes it."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body_bytes: int


class KnownHeads:
    """The heads that any connection of a server read lately, by their bytes (the empty line included)."""

    __slots__ = ("_seen", "by_bytes")

    def __init__(self) -> None:
        """Know none."""
        self.by_bytes: dict[bytes, Head] = {}
        self._seen: set[int] = set()  # hashes of heads that came once

    def learn(self, segment: bytes, head: Head) -> None:
        """Remember ``head`` if ``segment`` is it and its body, whole and nothing else, and it came before."""
        end = segment.find(END) + len(END)
        if end > _HEAD_BYTES_MAX or len(segment) - end != head.body_bytes:
            return
        text = segment[:end]
        if hash(text) in self._seen:
            _put(self.by_bytes, text, head)
        else:
            self._note(hash(text))

    def _note(self, seen: int) -> None:
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(seen)


def _put(heads: dict[bytes, Head], text: bytes, head: Head) -> None:
    if len(heads) >= _HEADS_MAX:
        heads.clear()
    heads[text] = head
