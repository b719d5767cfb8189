"""The ready list of a standard queue: messages that were never received have no row beside their own, but in runs.

Messages that are sent together have seqs that follow each other. Those that are visible at once and have no group are
one row of ``ready``, from ``first_seq`` to ``last_seq``, and are taken from the front. A message gets its row in
``visibility`` with its first receive. So a send writes one table, and what waits is as cheap as it can be.
"""

from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import chain
from operator import itemgetter

from veilmq.store.queues import Queue
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL

_CUT = SQL["cut_ready"]
_CUT_FIRST = SQL["cut_first_ready"]

by_visibility = itemgetter(12, 0)  # of rows: visible_at and seq


def visible(
    session: Session, queue: Queue, lane: int, count: int, now_ms: int, sql: Mapping[str, str] = SQL
) -> Iterator[Row]:
    """Yield the visible messages of a lane in the order of visibility, ``count`` of them or more; -1 for all.

    Mostly the ready list has some and no message has returned, which one statement finds out.
    """
    alone = session.execute(sql["ready_take_alone"], (queue.floor(now_ms), queue.partition, lane, now_ms, count))
    first = next(alone, None)
    if first is not None:
        return chain((first,), alone)
    returned = session.execute(sql["standard_take"], (queue.partition, lane, now_ms, count))
    first = next(returned, None)
    if first is None:
        return returned
    waiting = waiting_in(session, queue, lane, count, now_ms, sql)
    return merge(chain((first,), returned), waiting, key=by_visibility)


def waiting_in(
    session: Session, queue: Queue, lane: int, count: int, now_ms: int, sql: Mapping[str, str] = SQL
) -> Iterator[Row]:
    """Yield the messages of the ready list alone, without what has passed its retention."""
    return session.execute(sql["ready_take"], (queue.floor(now_ms), queue.partition, lane, count))


def cut(session: Session, queue: Queue, rows: list[tuple[int, int]], now_ms: int) -> None:
    """Take messages (lane and seq), which are the first of their lanes, from the ready list."""
    partition = queue.partition
    spans: dict[int, list[int]] = {}
    for lane, seq in rows:
        span = spans.get(lane)
        if span is None:
            spans[lane] = [seq, seq]
        elif seq > span[1]:
            span[1] = seq
        elif seq < span[0]:
            span[0] = seq
    if now_ms >= queue.expires_at_ms:  # before the first one there may be some that are past their retention
        session.many("split_ready", [(partition, lane, first) for lane, (first, _) in spans.items()])
    session.stage(_CUT, [(partition, lane, first, last) for lane, (first, last) in spans.items()])
    session.stage(_CUT_FIRST, [(partition, lane, last) for lane, (_, last) in spans.items()])


def take(session: Session, queue: Queue, rows: list[tuple[int, int]]) -> None:
    """Take messages (lane and seq) from the ready list, wherever they are."""
    spans: list[list[int]] = []
    for lane, seq in sorted(rows):
        if spans and spans[-1][::2] == [lane, seq - 1]:
            spans[-1][2] = seq
        else:
            spans.append([lane, seq, seq])
    for lane, first, last in spans:
        session.run("split_ready", queue.partition, lane, first)
        session.run("cut_ready", queue.partition, lane, first, last)
        session.run("cut_first_ready", queue.partition, lane, last)
