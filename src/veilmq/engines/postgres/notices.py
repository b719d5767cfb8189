"""Notices: what nodes tell each other. None is needed for anything but speed, so each of them may be lost.

They travel by NOTIFY, which takes less than 8,000 bytes at once; what is more goes in several.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

BYTES_MAX = 7_500
_BYTES_PER_ENTRY = 24  # beside the name: an instant and what JSON puts around it


class Notice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``node`` says it. Names are full names of queues, instants are the database's."""

    node: str
    due_ms: dict[str, int] = {}
    """Queues that have, or may have, a message, or a place for one, at an instant."""
    awaited: dict[str, bool] = {}
    """Queues that somebody waits for at the node; false: no more."""
    full: list[str] = []
    """Queues where it found no place for another message in flight."""
    changed: list[str] = []
    """Queues that were changed, purged or deleted: what others know of them is old."""
    moves: bool = False
    """A move task was begun or cancelled."""
    hello: bool = False
    """The node has begun to listen, and asks what the others wait for."""
    alive: bool = False
    """It listens still, and has nothing to say."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Notice)


def packed(node: str, told: Iterable[tuple[str, str, Any]]) -> list[str]:
    """Return the texts of as few notices as have room for ``told``: field, queue and value of each entry."""
    return [_encode(Notice(node=node, **fields)).decode() for fields in _parts(told)]


def unpacked(text: str) -> Notice | None:
    """Return the notice of a text; ``None`` where it is not one of ours."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return None


def _parts(told: Iterable[tuple[str, str, Any]]) -> Iterator[dict[str, Any]]:
    fields: dict[str, Any] = {}
    left = BYTES_MAX
    for field, queue, value in told:
        size_bytes = len(_encode(queue)) + _BYTES_PER_ENTRY
        if size_bytes > left:
            yield fields
            fields, left = {}, BYTES_MAX
        left -= size_bytes
        if not queue:
            fields[field] = value
        elif value is None:
            fields.setdefault(field, []).append(queue)
        else:
            fields.setdefault(field, {})[queue] = value
    if fields:
        yield fields
