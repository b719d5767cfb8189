"""The cursors of message groups in FIFO queues: from when on each group gives its next message.

While a message that was received is hidden, its group gives nothing. So a receive looks for groups, not for messages:
``group_cursor`` has a row for each group that has any. ``fixed_at`` is the latest deadline of what the group has
received; without such a message, the first instant at which a delay of a message's own ends. A message without a delay
of its own follows the queue's: ``floating_seq`` is the first of them, and the delay is added when the row is read, so
that a change of it costs nothing.

A delayed message does not block its group: it is passed over, up to ``PASSED_OVER_MAX`` of them.
"""

from collections.abc import Iterable
from typing import Any

from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite.session import SQL, Row, Session

PASSED_OVER_MAX = 100

_CURSORS = SQL["group_cursors"]
_PUT_CURSOR = SQL["put_group_cursor"]
_OF_GROUP = SQL["ordered_of_group"]

_FIXED, _HEAD, _FLOATING, _RECEIVED_TO = range(4)


def admit(session: Session, queue: Queue, arrivals: list[tuple[int, int, int | None]]) -> None:
    """Bring the cursors of groups up to new messages: group, seq, and the end of a delay of their own."""
    partition = queue.partition
    groups = {group for group, _, _ in arrivals}
    cursors: dict[int, list[Any]] = {
        row[0]: list(row[1:]) for row in session.executemany(_CURSORS, [(partition, group) for group in groups])
    }
    changed: set[int] = set()
    for group, seq, visible_at_ms in arrivals:
        cursor = cursors.get(group)
        if cursor is None:
            floating = seq if visible_at_ms is None else None
            cursors[group] = [visible_at_ms, seq, floating, 0]
            changed.add(group)
        elif cursor[_RECEIVED_TO]:
            continue  # what was received says when the group goes on
        elif visible_at_ms is None:
            if cursor[_FLOATING] is None:
                cursor[_FLOATING] = seq
                changed.add(group)
        elif cursor[_FIXED] is None or visible_at_ms < cursor[_FIXED]:
            cursor[_FIXED], cursor[_HEAD] = visible_at_ms, seq
            changed.add(group)
    if changed:
        session.executemany(_PUT_CURSOR, [(partition, group, *cursors[group]) for group in changed])


def ready(session: Session, queue: Queue, count: int, now_ms: int) -> list[int]:
    """Return up to ``count`` groups that may give a message, in the order in which they became able to."""
    partition, delay_ms = queue.partition, queue.delay_ms
    count += PASSED_OVER_MAX
    fixed = session.rows("groups_fixed", partition, now_ms, count)
    floating = session.rows("groups_floating", partition, (now_ms - delay_ms + 1) << SEQ_SHIFT, count)
    if not fixed:
        return [group for _, group in floating]
    ready = [*fixed, *(((seq >> SEQ_SHIFT) + delay_ms, seq, group) for seq, group in floating)]
    ready.sort()
    return list(dict.fromkeys([group for _, _, group in ready]))


def refile(session: Session, queue: Queue, groups: Iterable[int]) -> None:
    """Find anew from when each of ``groups`` gives its next message; a group without messages loses its cursor."""
    session.flush()
    partition, delay_ms = queue.partition, queue.delay_ms
    put: list[Row] = []
    ended: list[Row] = []
    for group in groups:
        block_ms, blocked_by, received_to = -1, 0, 0
        fixed_at: int | None = None
        head = 0
        floating: int | None = None
        waiting = 0
        is_empty = True
        found = session.execute(_OF_GROUP, (partition, group))
        for seq, visible_at_ms, receive_count, received_before in found:
            if seq is None:
                break
            is_empty = False
            if receive_count:
                block_ms = max(block_ms, visible_at_ms)
                blocked_by = blocked_by or seq
                received_to = seq
            else:
                waiting += 1
                if visible_at_ms is None:
                    if floating is None:
                        floating = seq
                elif fixed_at is None or visible_at_ms < fixed_at:
                    fixed_at, head = visible_at_ms, seq
            if seq >= received_before and (waiting > PASSED_OVER_MAX or (floating is not None and not delay_ms)):
                break
        found.close()
        if is_empty:
            ended.append((partition, group))
        elif received_to:
            put.append((partition, group, block_ms, blocked_by, None, received_to))
        else:
            put.append((partition, group, fixed_at, head if floating is None else floating, floating, 0))
    session.many("put_group_cursor", put)
    session.many("delete_group_cursor", ended)


def next_due(session: Session, queue: Queue, now_ms: int) -> int | None:
    """Return the instant from which a group gives a message; ``None`` when nothing is coming by itself."""
    if queue.at_limit and queue.in_flight >= queue.in_flight_max:
        due_ms = session.next_place_ms(queue, now_ms)
    else:
        due_ms = next_message_ms(session, queue, now_ms)
    return None if due_ms >= NEVER_MS else due_ms


def next_message_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next group gives a message, whatever the in-flight limit says; ``NEVER_MS``: none does."""
    fixed = session.row("first_fixed", queue.partition)
    floating = session.row("first_floating", queue.partition)
    due_ms = NEVER_MS if fixed is None else int(fixed[0])
    if floating is not None:
        due_ms = min(due_ms, (floating[0] >> SEQ_SHIFT) + queue.delay_ms)
    return max(now_ms, due_ms)


def notify(session: Session, queue: Queue, now_ms: int, times: int) -> None:
    """Tell the watch when the next group gives a message, once for each of ``times`` commands that may free one."""
    if queue.wake is not None:
        due_ms = next_message_ms(session, queue, now_ms)
        if due_ms < NEVER_MS:
            for _ in range(times):
                queue.notify(due_ms)
