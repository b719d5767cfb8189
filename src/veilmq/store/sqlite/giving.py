"""What receives of both kinds of queues do with the messages that were chosen for them: leases, answers and totals."""

from collections.abc import Callable
from random import getrandbits
from typing import Any, NamedTuple

from veilmq.core import commands
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.core.results import Received, ReceivedMessage
from veilmq.core.routing import RoutingTable
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import ready
from veilmq.store.sqlite.event_log import Lease
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL

_LEASE = SQL["standard_lease"]
_LOGGED = {
    SQL[name]: SQL[name].replace("SET log = 0", "SET log = ?").replace("VALUES (0", "VALUES (?")
    for name in ("standard_lease", "standard_mark", "ordered_mark")
}
"""The statements of leases by what they are where nothing is logged."""
_GENERATION_BITS = 32
EXPIRED_PASSED_MAX = 1_000
"""How many expired messages, or groups of them, a receive passes over that are not deleted yet."""
UNBOUND = 1 << 63
"""A seq that no message has."""


class Taker(NamedTuple):
    """A receive of a batch: where its answer goes, and the first seq that it must not see."""

    slot: int
    command: commands.Receive
    bound: int = UNBOUND


Answers = list[Any]
LATER = object()
"""The answer of a command that the batch has no room for: the next one takes it."""


def rounds(queue: Queue, takers: list[Taker], now_ms: int, answers: Answers) -> list[list[Taker]]:
    """Return which receives are made together; answer those that come too often.

    A receive with a timeout of 0 leaves its messages visible, for the next one too: it ends a round. One with an
    attempt id, which may repeat an earlier answer, is a round of its own in a FIFO queue.
    """
    own_timeout_s, throttle = queue.settings.visibility_timeout_s, queue.throttle
    found: list[list[Taker]] = []
    goes_on = False
    for taker in takers:
        command = taker.command
        if throttle is not None and command.requested_at_ms is None:
            try:
                throttle.admit(now_ms)
            except VeilmqError as error:
                answers[taker.slot] = error
                continue
        is_alone = command.attempt_id is not None and queue.fifo
        if goes_on and not is_alone:
            found[-1].append(taker)
        else:
            found.append([taker])
        goes_on = bool(own_timeout_s if command.timeout_s is None else command.timeout_s) and not is_alone
    return found


def next_due(
    session: Session, queue: Queue, now_ms: int, next_message_ms: Callable[[Session, Queue, int], int]
) -> int | None:
    """Return the instant from which there is a message to receive; ``None`` when nothing is coming by itself.

    ``next_message_ms`` says it whatever the in-flight limit is. While messages past their retention are still to be
    deleted, that is now: they may take places, or block groups.
    """
    if now_ms >= queue.expires_at_ms:
        return now_ms
    if queue.at_limit and queue.in_flight >= queue.in_flight_max:
        due_ms = _next_place_ms(session, queue, now_ms)
    else:
        due_ms = next_message_ms(session, queue, now_ms)
    return None if due_ms >= NEVER_MS else due_ms


def _next_place_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next lease ends, or an instant before that at which to look again."""
    asks: list[tuple[str, tuple[int, ...]]] = [("standard_ends_after", (lane,)) for lane in queue.lanes]
    if queue.fifo:
        asks = [("ordered_ends_after", ()), ("group_ends_after", ())]
    first_ms = NEVER_MS
    for query, lane in asks:
        ends = session.rows(query, queue.partition, *lane, now_ms)
        leases = (end_ms for end_ms, receive_count in ends if receive_count)
        first_ms = min(first_ms, next(leases, ends[-1][0] if ends else NEVER_MS))
    return first_ms


class Giving:
    """The messages that the receives of a round give: leases, answers and totals; used by both kinds of queues.

    ``places`` is how many more messages may be in flight, when the round begins.
    """

    __slots__ = (
        "_given",
        "_issue",
        "_leases",
        "_left",
        "_logged",
        "_marks",
        "_now_ms",
        "_own_timeout_s",
        "_queue",
        "_session",
        "places",
    )

    def __init__(self, session: Session, queue: Queue, now_ms: int) -> None:
        """Begin a round."""
        self._session = session
        self._queue = queue
        self._now_ms = now_ms
        self.places = self._left = queue.in_flight_max - queue.in_flight
        self._issue = session.book.issue
        self._own_timeout_s = queue.settings.visibility_timeout_s
        self._given: list[tuple[int, list[ReceivedMessage], bool]] = []
        self._marks: list[Row] = []
        self._logged: dict[int, Lease] = {}
        self._leases: list[Row] = []  # of what is received for the first time from the ready list

    def give(self, taker: Taker, rows: list[Row]) -> list[int]:
        """Lease the messages of ``rows`` to ``taker``; return their deadlines."""
        queue, now_ms = self._queue, self._now_ms
        slot, command, _ = taker
        at_limit = self._left <= 0
        if not rows:
            self._given.append((slot, [], at_limit))
            return []
        visible_at_ms, requested_at_ms, rules = self._terms(command)
        if queue.log is not None:
            self._logged |= self._session.events.received(queue, rows, requested_at_ms, now_ms)
        issue, number, partition, marks, fifo = self._issue, queue.number, queue.partition, self._marks, queue.fifo
        messages: list[ReceivedMessage] = []
        leases = self._leases
        for row in rows:
            seq, lane, receive_count, epoch, first_ms, message_id, body, properties, source, before, first, group, _ = (
                row
            )
            if rules is not None:
                deadline_ms = now_ms + rules.timeout_s(properties, receive_count) * SECOND_MS
                visible_at_ms = _bounded_ms(command, requested_at_ms, deadline_ms)
            generation = getrandbits(_GENERATION_BITS) or 1  # 0 is that of what was never received
            if fifo:
                marks.append((visible_at_ms, generation, requested_at_ms, now_ms, partition, group, seq))
            elif epoch is None:
                epoch = 0
                leases.append((partition, seq, lane, visible_at_ms, generation, requested_at_ms, now_ms))
            else:
                marks.append((visible_at_ms, generation, requested_at_ms, now_ms, partition, seq))
            if receive_count:
                queue.redelivered += 1
            messages.append(
                ReceivedMessage(
                    id=message_id,
                    receipt=issue(number, seq, generation, epoch + 1, visible_at_ms),
                    body=body,
                    properties=properties,
                    sent_at_ms=seq >> SEQ_SHIFT,
                    first_received_at_ms=(first_ms or now_ms) if first is None else first,
                    receive_count=receive_count + 1 if before is None else receive_count + 1 + before,
                    visible_at_ms=visible_at_ms,
                    priority=lane if lane <= PRIORITY.maximum else lane - PRIORITY.maximum,
                    sequence=seq if fifo else None,
                    source=source,
                )
            )
            if visible_at_ms > now_ms:
                queue.in_flight += 1
                if visible_at_ms < queue.hidden_until_ms:
                    queue.hidden_until_ms = visible_at_ms
        self._left -= len(messages)
        self._given.append((slot, messages, at_limit))
        return [message.visible_at_ms for message in messages]

    def _terms(self, command: commands.Receive) -> tuple[int, int, RoutingTable | None]:
        """Return until when a receive hides, when it was asked for, and the rules that say it for each message."""
        timeout_s, rules, now_ms = command.timeout_s, None, self._now_ms
        if timeout_s is None:
            timeout_s, rules = self._own_timeout_s, self._queue.rules
        visible_at_ms = now_ms + timeout_s * SECOND_MS
        requested_at_ms, bound_s = command.requested_at_ms, command.lease_s_max
        if requested_at_ms is None:
            requested_at_ms = now_ms
        if bound_s is not None and (requested_at_ms < now_ms or timeout_s > bound_s):
            visible_at_ms = _bounded_ms(command, requested_at_ms, visible_at_ms)
        return visible_at_ms, requested_at_ms, rules

    def mark(self, query: str) -> None:
        """Write the leases."""
        session, queue, marks, leases = self._session, self._queue, self._marks, self._leases
        lease = _LEASE
        if leases:
            ready.cut(session, queue, [(row[2], row[1]) for row in leases], self._now_ms)
        if queue.log is not None:
            query, lease, logged, remember = _LOGGED[query], _LOGGED[lease], self._logged, session.events.remember
            marks = [(remember(logged[row[-1]], row[0], row[1]), *row) for row in marks]
            leases = [(remember(logged[row[1]], row[3], row[4]), *row) for row in leases]
        if marks:
            session.stage(query, marks)
        if leases:
            session.stage(lease, leases)
        if marks or leases:
            queue.received += len(marks) + len(leases)
            if not queue.touched:
                session.touch(queue)

    def answer(self, answers: Answers, next_message_ms: Callable[[Session, Queue, int], int]) -> None:
        """Put the answers into their places; ``next_message_ms`` is that of ``next_due``."""
        queue, settings, now_ms = self._queue, self._queue.settings, self._now_ms
        watched = queue.wake is not None
        if self._given:
            queue.at_limit = self._given[-1][2]
        next_due_ms: int | None = None
        is_known = False
        for slot, messages, at_limit in self._given:
            if messages and not watched:
                due_ms: int | None = now_ms
            else:
                if not is_known:
                    next_due_ms, is_known = next_due(self._session, queue, now_ms, next_message_ms), True
                due_ms = next_due_ms
            answers[slot] = Received(
                messages=messages,
                next_due_ms=due_ms,
                receive_wait_s=settings.receive_wait_s,
                over_limit=at_limit and not messages and not queue.fifo,
                smq_base64=settings.smq_base64,
            )


def _bounded_ms(command: commands.Receive, requested_at_ms: int, deadline_ms: int) -> int:
    """Return a deadline, or the end of the longest lease that a receive may give."""
    bound_s = command.lease_s_max
    return deadline_ms if bound_s is None else min(deadline_ms, requested_at_ms + bound_s * SECOND_MS)
