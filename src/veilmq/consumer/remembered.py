"""Ids of messages whose work is done: should one come back, it is deleted and not handled again.

A delete may be lost, refused, or answered 200 and do nothing; the message then returns. This process knows better.
"""

from collections import OrderedDict

REMEMBERED_MAX = 10_000


class Remembered:
    """The latest ids, up to ``most`` of them; an id that was asked for counts as new."""

    __slots__ = ("_ids", "_most")

    def __init__(self, most: int = REMEMBERED_MAX) -> None:
        """Remember nothing yet."""
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        """Return how many ids are known."""
        return len(self._ids)

    def add(self, message_id: str) -> None:
        """Remember ``message_id``; the one that was not touched for longest is forgotten when there are too many."""
        self._ids[message_id] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def __contains__(self, message_id: str) -> bool:
        """Tell whether ``message_id`` is known."""
        if message_id not in self._ids:
            return False
        self._ids.move_to_end(message_id)
        return True
