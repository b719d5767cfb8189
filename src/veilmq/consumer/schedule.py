"""Which message is handled next: in the order of arrival, and in a FIFO queue one of each group at a time.

The rest of a group waits behind the one in work. When that fails, the rest is handed back to be released at once: the
queue gives nothing of the group until the head returns, so the order holds without anybody waiting for it here.
"""

from collections import deque

from veilmq.consumer.delivery import Delivery


class Schedule:
    """Messages that wait; ``ordered`` keeps groups in order, otherwise groups mean nothing."""

    def __init__(self, *, ordered: bool) -> None:
        """Begin with nothing."""
        self._ordered = ordered
        self._ready: deque[Delivery] = deque()
        self._groups: dict[str, deque[Delivery]] = {}
        self.behind = 0
        """How many wait behind another of their group."""

    def __len__(self) -> int:
        """Return how many messages wait, ready or behind another of their group."""
        return len(self._ready) + self.behind

    @property
    def ready(self) -> int:
        """Return how many messages could begin now."""
        return len(self._ready)

    def add(self, delivery: Delivery) -> None:
        """Put ``delivery`` at the end of its group, or of all."""
        group = delivery.message.group
        if not self._ordered or group is None:
            self._ready.append(delivery)
        elif group in self._groups:
            self._groups[group].append(delivery)
            self.behind += 1
        else:
            self._groups[group] = deque()
            self._ready.append(delivery)

    def next(self) -> Delivery | None:
        """Take the next message that may begin, ``None`` when there is none."""
        return self._ready.popleft() if self._ready else None

    def done(self, delivery: Delivery) -> None:
        """Let the next of the group begin: ``delivery`` is settled for good."""
        waiting = self._waiting(delivery)
        if waiting:
            self.behind -= 1
            self._ready.append(waiting.popleft())
        elif waiting is not None:
            del self._groups[delivery.message.group or ""]

    def failed(self, delivery: Delivery) -> list[Delivery]:
        """Return what waited behind ``delivery``, which comes back later; it waits here no more."""
        waiting = self._waiting(delivery)
        if waiting is None:
            return []
        del self._groups[delivery.message.group or ""]
        self.behind -= len(waiting)
        return list(waiting)

    def remove(self, delivery: Delivery) -> list[Delivery]:
        """Take out ``delivery``, which waits and is ours no more, with what waits behind it: that is returned."""
        if delivery in self._ready:
            self._ready.remove(delivery)
            return self.failed(delivery)
        waiting = self._waiting(delivery)
        if waiting is None or delivery not in waiting:
            return []
        behind = []
        while (last := waiting.pop()) is not delivery:
            behind.append(last)
        self.behind -= len(behind) + 1
        return behind[::-1]

    def drain(self) -> list[Delivery]:
        """Take out everything that waits; groups with a message in work stay closed."""
        drained = list(self._ready)
        self._ready.clear()
        for waiting in self._groups.values():
            drained += waiting
            waiting.clear()
        self.behind = 0
        return drained

    def _waiting(self, delivery: Delivery) -> "deque[Delivery] | None":
        group = delivery.message.group
        return self._groups.get(group) if self._ordered and group is not None else None
