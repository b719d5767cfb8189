"""The in-memory state of a queue: its settings, totals and throttle.

All of it is a cache of rows, which a store may drop after any batch and reload. Only the last second of the throttle
and the counters since start are then lost; neither is guaranteed. ``in_flight`` and ``delayed`` count the messages that
were hidden at ``counted_at_ms``.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from veilmq.core.commands import Wake
from veilmq.core.errors import ReceivesThrottled
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import Fairness
from veilmq.core.settings import RoutingTable, read_table
from veilmq.store.events import Logged, is_logged
from veilmq.store.transaction import SEQ_SHIFT, Options, read_settings

SEQ_MAX = (1 << 63) - 1


class Throttle:
    """Limit receives per second. Refused ones do not count, so a client that receives too often gets the full rate."""

    __slots__ = ("_admitted", "per_s_max")

    def __init__(self, *, per_s_max: int) -> None:
        self.per_s_max = per_s_max
        self._admitted: deque[int] = deque()  # instants, the oldest first

    def admit(self, now_ms: int) -> None:
        """Count a receive; raises ``ReceivesThrottled`` if it exceeds the limit."""
        admitted = self._admitted
        while admitted and admitted[0] <= now_ms - SECOND_MS:
            admitted.popleft()
        if len(admitted) >= self.per_s_max:
            raise ReceivesThrottled(self.per_s_max)
        admitted.append(now_ms)

    def undo(self) -> None:
        """Uncount the last receive, which a later batch will count again."""
        self._admitted.pop()


class Queue:
    """A queue; ``number`` is never reused, ``partition`` holds the messages since the last purge."""

    __slots__ = (
        "at_limit", "claims", "counted_at_ms", "created_at_ms", "delay_ms", "delayed", "deleted", "expires_at_ms",
        "fairness", "fifo", "floor_seq", "has_groups", "hidden_until_ms", "in_flight", "in_flight_max", "kind",
        "lanes", "log", "messages", "modified_at_ms", "name", "number", "options", "origin", "partition", "received",
        "redelivered", "retention_ms", "rules", "sent", "settings", "throttle", "wake",
    )  # fmt: skip

    def __init__(self, row: Sequence[Any], options: Options, wake: Wake | None) -> None:
        """``row`` has number, name, settings, times, origin, partition, totals, and whether there are claims."""
        self.options, self.wake = options, wake
        self.number, self.name, _, self.created_at_ms, _, self.origin, *_ = row
        self.partition = 0  # none yet
        self.throttle: Throttle | None = None
        # whether the last receive hit the in-flight limit; starts True because older waiters may be blocked
        self.at_limit = True
        self.sent = self.received = self.deleted = self.redelivered = 0
        self.reload(row)

    def reload(self, row: Sequence[Any]) -> None:
        """Apply the row, which has changed. Totals are kept unless the queue was purged."""
        totals: list[int]
        _, _, encoded, _, self.modified_at_ms, _, partition, *totals, has_claims = row
        if partition != self.partition:
            self.partition = partition
            self.messages, self.in_flight, self.delayed, self.counted_at_ms, self.floor_seq = totals
            self.claims = bool(has_claims)  # whether any message may be claimed; ``messages`` excludes claimed ones
            self.lanes: tuple[int, ...] = ()
            # fairness accounts of message groups, by lane; None until needed
            self.fairness: defaultdict[int, Fairness] | None = None
            self.has_groups = False  # whether messages have groups that share receives
            self.hidden_until_ms = 0  # no hidden message becomes visible before; 0: unknown
        self.settings = settings = read_settings(encoded)
        options = self.options
        self.fifo = settings.fifo
        self.kind = "ordered" if settings.fifo else "standard"  # the prefix of statements that both kinds have
        self.delay_ms = settings.delay_s * SECOND_MS
        self.retention_ms = settings.retention_s * SECOND_MS
        self.rules: RoutingTable | None = read_table(settings.visibility_rules) if settings.visibility_rules else None
        per_s_max = settings.receives_per_s_max
        if self.throttle is None or self.throttle.per_s_max != per_s_max:
            self.throttle = Throttle(per_s_max=per_s_max) if per_s_max else None
        in_flight_max = options.fifo_in_flight_max if self.fifo else options.in_flight_max
        self.in_flight_max = in_flight_max if settings.in_flight_max is None else settings.in_flight_max
        self.log = Logged(self.name, self.retention_ms) if is_logged(settings, options.event_log) else None
        self.expires_at_ms = 0

    def floor(self, now_ms: int) -> int:
        """Return the lowest seq within retention, at least 1."""
        return max(1, self.floor_seq, (now_ms - self.retention_ms + 1) << SEQ_SHIFT)

    def add_hidden(self, visible_at_ms: int, *, received: bool) -> None:
        """Add a message that is hidden until ``visible_at_ms`` to the totals, which must be up to date."""
        if visible_at_ms > self.counted_at_ms:
            if received:
                self.in_flight += 1
            else:
                self.delayed += 1
            if visible_at_ms < self.hidden_until_ms:
                self.hidden_until_ms = visible_at_ms

    def remove_hidden(self, visible_at_ms: int, *, received: bool) -> None:
        """Remove a message that is hidden until ``visible_at_ms`` from the totals."""
        if visible_at_ms > self.counted_at_ms:
            if received:
                self.in_flight -= 1
            else:
                self.delayed -= 1

    def notify(self, due_ms: int) -> None:
        """Notify the watch that a message may be available at ``due_ms``."""
        if self.wake is not None:
            self.wake(due_ms)

    def notify_freed(self, now_ms: int) -> None:
        """Notify the watch if a receive hit the in-flight limit. Leases that expire need no notification."""
        if self.at_limit:
            self.at_limit = False
            self.notify(now_ms)
