"""A queue as a store has it in memory: its settings, its totals, and what it needs to answer quickly.

All of it is a cache of rows: a store may drop it after any batch and read it again. Only the throttle's last second and
the counters since start are lost with it, which nothing promises.
``in_flight`` and ``delayed`` count the messages hidden at ``counted_at_ms``.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from veilmq.core.commands import SendOptions, Wake
from veilmq.core.errors import MessageTooLong, ReceivesThrottled, VeilmqError
from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.core.messages import Fairness, NewMessage, check_dedup_id, checked_group
from veilmq.core.settings import QueueSettings, RoutingTable, read_table
from veilmq.store.events import Logged, is_logged
from veilmq.store.transaction import Options, read_settings

NEVER_MS = (1 << 62) - 1
"""An instant that never comes."""

SEQ_SHIFT = 20
"""A seq is the millisecond of sending, and so many bits for the messages of one millisecond."""

FIFO_PRIORITY = PRIORITY.default
"""All messages of a FIFO queue have one priority: a group has one order."""


def checked(
    messages: Sequence[NewMessage], options: SendOptions | None, settings: QueueSettings
) -> list[NewMessage | VeilmqError]:
    """Return what is to be stored of each message, or its error in its place; raises it where all go together."""
    decode = options.decode if options is not None and settings.smq_base64 else None
    found: list[NewMessage | VeilmqError] = []
    for new in messages:
        try:
            if settings.fifo:
                checked_group(new, settings)
                if options is None or not options.dedup_id_optional:
                    check_dedup_id(new, settings)
            elif new.size_bytes > settings.message_bytes_max:
                raise MessageTooLong(settings.message_bytes_max)
            found.append(new if decode is None else decode(new))
        except VeilmqError as error:
            if options is not None and options.all_or_nothing:
                raise
            found.append(error)
    return found


class Throttle:
    """Lets no more than so many receives pass in any second.

    What is refused does not count: a client that receives too often gets as many as the queue allows, and not none.
    """

    __slots__ = ("_admitted", "per_s_max")

    def __init__(self, *, per_s_max: int) -> None:
        self.per_s_max = per_s_max
        self._admitted: deque[int] = deque()  # instants, the oldest first

    def admit(self, now_ms: int) -> None:
        """Count a receive; raises ``ReceivesThrottled`` when it is one too many."""
        admitted = self._admitted
        while admitted and admitted[0] <= now_ms - SECOND_MS:
            admitted.popleft()
        if len(admitted) >= self.per_s_max:
            raise ReceivesThrottled(self.per_s_max)
        admitted.append(now_ms)

    def take_back(self) -> None:
        """Forget the receive that was counted last: it is left to a later batch, which counts it."""
        self._admitted.pop()


class Queue:
    """One queue; ``number`` is never given twice, ``partition`` holds its messages since the last purge."""

    __slots__ = (
        "at_limit", "claims", "counted_at_ms", "created_at_ms", "delay_ms", "delayed", "deleted",
        "expires_at_ms", "fair", "fifo", "floor_seq", "hidden_until_ms", "in_flight", "in_flight_max", "lanes",
        "log", "messages", "modified_at_ms", "name", "number", "options", "origin", "partition", "received",
        "redelivered", "retention_ms", "rules", "sent", "settings", "shares", "throttle", "touched", "wake",
    )  # fmt: skip

    def __init__(self, row: Sequence[Any], options: Options, wake: Wake | None) -> None:
        """``row`` has number, name, settings, its times, origin, partition, totals, and whether there are claims."""
        self.number, self.name, settings, self.created_at_ms, self.modified_at_ms, self.origin = row[:6]
        totals: Sequence[int] = row[6:]
        self.partition, self.messages, self.in_flight, self.delayed, self.counted_at_ms, self.floor_seq, claims = totals
        self.claims = bool(claims)
        """Whether any message may be claimed; what is claimed is not among ``messages``."""
        self.options, self.wake = options, wake
        self.throttle: Throttle | None = None
        self.lanes: tuple[int, ...] = ()
        self.fair: defaultdict[int, Fairness] | None = None
        """The accounts of its groups by lane, where they are needed."""
        self.shares = False
        """Whether messages have groups, among which receives are shared."""
        self.touched = False
        self.hidden_until_ms = 0
        """Nothing hidden becomes visible before this instant; 0 when that is not known."""
        self.expires_at_ms = 0
        """No message is past its retention before this instant; 0 when that is not known."""
        self.at_limit = True
        """Whether the last receive hit the in-flight limit; true at first, as older waiters may be blocked."""
        self.sent = self.received = self.deleted = self.redelivered = 0
        self._follow(settings)

    def reload(self, row: Sequence[Any], now_ms: int) -> None:
        """Follow the row, which was changed; what is in a partition is as it was."""
        _, _, settings, _, self.modified_at_ms, _, partition, *_ = row
        if partition != self.partition:
            self.partition = partition
            self.messages = self.in_flight = self.delayed = self.floor_seq = 0
            self.counted_at_ms = now_ms
            self.hidden_until_ms = NEVER_MS
            self.lanes = ()
            self.fair = None
            self.shares = self.claims = False
        self._follow(settings)

    def _follow(self, encoded: bytes) -> None:
        """Take new settings; what they leave open is as the options say."""
        self.settings = settings = read_settings(encoded)
        options = self.options
        self.fifo = settings.fifo
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
        """Return the lowest seq within its retention; none is below 1."""
        return max(1, self.floor_seq, (now_ms - self.retention_ms + 1) << SEQ_SHIFT)

    def hide(self, visible_at_ms: int, *, received: bool) -> None:
        """Count a message that is hidden until ``visible_at_ms``; the totals are of the present instant."""
        if visible_at_ms > self.counted_at_ms:
            if received:
                self.in_flight += 1
            else:
                self.delayed += 1
            if visible_at_ms < self.hidden_until_ms:
                self.hidden_until_ms = visible_at_ms

    def unhide(self, visible_at_ms: int, *, received: bool) -> None:
        """Count a message out that was hidden until ``visible_at_ms``."""
        if visible_at_ms > self.counted_at_ms:
            if received:
                self.in_flight -= 1
            else:
                self.delayed -= 1

    def notify(self, due_ms: int) -> None:
        """Notify the watch of a message that may be there at ``due_ms``."""
        if self.wake is not None:
            self.wake(due_ms)

    def free_place(self, now_ms: int) -> None:
        """Notify the watch of a place that became free otherwise than by the end of a lease."""
        if self.at_limit:
            self.at_limit = False
            self.notify(now_ms)
