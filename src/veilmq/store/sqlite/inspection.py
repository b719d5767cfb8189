"""Inspection of queues: messages are found by seq, and read without their bodies; nothing changes.

What is found are rows of seq and lane: a message of the ready list has no row of its own that has the lane. What claims
have comes behind what else is in flight, past its retention too.
"""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter

from veilmq.core.looks import LOOKED_AT_MAX, MessageState
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import groups, ready, standard
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import BARE, SQL
from veilmq.store.transaction import StoredMessage


def find(
    session: Session, queue: Queue, state: MessageState | None, count: int, passed_max: int, now_ms: int
) -> list[Row]:
    """Return the first ``count`` messages, or those in ``state``, as ``Transaction.inspect`` has them."""
    found = _unclaimed(session, queue, state, count, passed_max, now_ms)
    if queue.claims and state in (None, MessageState.IN_FLIGHT):
        found += session.rows("claimed_from", queue.partition, count)
        if state is None:
            found.sort(key=itemgetter(0))
    return found[:count]


def _unclaimed(
    session: Session, queue: Queue, state: MessageState | None, count: int, passed_max: int, now_ms: int
) -> list[Row]:
    floor, first = queue.floor(now_ms), passed_max + count
    if state is None:
        if queue.fifo:
            return _in_order(session, queue, floor, NEVER_MS, count, count)
        waiting = [ready.waiting_in(session, queue, lane, count, now_ms, BARE) for lane in queue.lanes]
        returned = session.rows("standard_from", queue.partition, floor, count)
        return _first(merge(returned, *waiting, key=itemgetter(0)), floor, count, count)
    if state is MessageState.VISIBLE:
        if queue.fifo:
            return _in_order(session, queue, floor, now_ms, first, count)
        lanes = [ready.visible(session, queue, lane, first, now_ms, BARE) for lane in queue.lanes]
        return _first(merge(*lanes, key=ready.by_visibility), floor, count, first)
    terms = now_ms, first, state is MessageState.IN_FLIGHT, floor, count
    hidden = _hidden_in_groups if queue.fifo else _hidden_in_lanes
    return [row[1:] for row in sorted(hidden(session, queue, *terms))[:count]]


def offered(session: Session, queue: Queue, count: int, now_ms: int) -> list[Row]:
    """Return what a receive of ``count`` would take, in its order."""
    if queue.fifo:
        rows = _of_groups(session, queue, count, now_ms)
    else:
        rows = standard.in_order(session, queue, now_ms, BARE, judges=False)
    return _first(rows, queue.floor(now_ms), count, LOOKED_AT_MAX)


def stored(session: Session, queue: Queue, found: Iterable[Row], now_ms: int) -> list[StoredMessage]:
    """Return those of the messages that are there."""
    query = SQL["ordered_stored" if queue.fifo else "standard_stored"]
    asked = [(queue.partition, seq, queue.delay_ms if queue.fifo else lane) for seq, lane in found]
    return [StoredMessage._make((*row, now_ms)) for row in session.executemany(query, asked)]


def _in_order(
    session: Session, queue: Queue, floor: int, until_ms: int, first: int, count: int, *, floating: bool = False
) -> list[Row]:
    """Return messages of a FIFO queue in the order of sending: of the ``first`` ones those visible at ``until_ms``."""
    terms = queue.partition, floor, queue.delay_ms, until_ms, first, floating, count
    return session.rows("ordered_from", *terms)


def _hidden_in_lanes(
    session: Session, queue: Queue, now_ms: int, first: int, is_received: bool, floor: int, count: int
) -> list[Row]:
    terms = now_ms, first, is_received, floor, count
    return [row for lane in queue.lanes for row in session.rows("standard_hidden", queue.partition, lane, *terms)]


def _hidden_in_groups(
    session: Session, queue: Queue, now_ms: int, first: int, is_received: bool, floor: int, count: int
) -> list[Row]:
    if is_received:
        found = session.rows("ordered_in_flight", queue.partition, now_ms, first, floor, count)
    else:
        unended = (now_ms - queue.delay_ms + 1) << SEQ_SHIFT
        waiting = _in_order(session, queue, max(floor, unended), NEVER_MS, first, count, floating=True)
        found = [((row[0] >> SEQ_SHIFT) + queue.delay_ms, *row) for row in waiting]
    until_ms = found[-1][0] if len(found) == count else NEVER_MS  # what is behind is not looked for
    terms = now_ms, until_ms, first, is_received, floor, count
    return found + session.rows("ordered_hidden_apart", queue.partition, *terms)


def _of_groups(session: Session, queue: Queue, count: int, now_ms: int) -> Iterator[Row]:
    """Yield what groups have that are able to give, one after the other."""
    left, floor = count, queue.floor(now_ms)
    for group in groups.ready(session, queue, count, now_ms):
        terms = queue.partition, group, floor, left + groups.PASSED_OVER_MAX, queue.delay_ms, now_ms, left
        for row in session.execute(BARE["ordered_take"], terms):
            yield row
            left -= 1


def _first(rows: Iterable[Row], floor: int, count: int, first: int) -> list[Row]:
    """Return up to ``count`` messages that are within their retention, of the ``first`` ones."""
    return list(islice((row[:2] for row in islice(rows, first) if row[0] >= floor), count))
