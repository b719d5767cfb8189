"""The cursors of message groups in FIFO queues: from when on each group gives its next message.

While a message that was received is hidden, its group gives nothing. So a receive looks for groups, not for messages:
each group that has any has a cursor, the row of ``ordered`` before its messages. ``fixed_at`` is the latest deadline of
what the group has received; without such a message, the first instant at which a delay of a message's own ends. A
message without a delay of its own follows the queue's: ``floating_seq`` is the first of them, and the delay is added
when the row is read, so that a change of it costs nothing. Either may come first once the delay changes, so a cursor
has both whatever the delay is; ``own_to`` says how far into the group there may be a message with a delay of its own.

Messages that a group has in flight are counted with it, as they are hidden until one instant, ``fixed_at``; those that
became visible earlier, by a change or a rule, are ``apart``, and so are messages with a delay of their own.

A delayed message does not block its group: it is passed over, up to ``PASSED_OVER_MAX`` of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite.giving import EXPIRED_PASSED_MAX
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL

PASSED_OVER_MAX = 100

_ADMIT = SQL["admit_group"]
_CURSORS = SQL["group_cursors"]
_PUT_CURSOR = SQL["put_group_cursor"]
_OF_GROUP = SQL["ordered_of_group"]
_END_GROUP = SQL["end_group"]
_FIRST_OF_GROUP = SQL["ordered_first_of_group"]

_FIXED, _HEAD, _FLOATING, _RECEIVED_TO, _OWN_TO = range(5)  # and in_flight


def admit(session: Session, queue: Queue, arrivals: list[tuple[int, int, int | None]]) -> None:
    """Bring the cursors of groups up to new messages: group, seq, and the end of a delay of their own."""
    partition = queue.partition
    if all(visible_at_ms is None for _, _, visible_at_ms in arrivals):
        session.executemany(_ADMIT, [(partition, group, seq) for group, seq, _ in arrivals])
        return
    groups = {group for group, _, _ in arrivals}
    cursors: dict[int, list[Any]] = {
        row[0]: list(row[1:]) for row in session.executemany(_CURSORS, [(partition, group) for group in groups])
    }
    changed: set[int] = set()
    for group, seq, visible_at_ms in arrivals:
        cursor = cursors.setdefault(group, [None, seq, None, 0, 0, 0])
        if visible_at_ms is not None:
            cursor[_OWN_TO] = seq
            changed.add(group)
        if cursor[_RECEIVED_TO]:
            continue  # what was received says when the group goes on
        if visible_at_ms is None:
            if cursor[_FLOATING] is None:
                cursor[_FLOATING] = seq
                changed.add(group)
        elif cursor[_FIXED] is None or visible_at_ms < cursor[_FIXED]:
            cursor[_FIXED], cursor[_HEAD] = visible_at_ms, seq
    if changed:
        session.executemany(_PUT_CURSOR, [(partition, group, *cursors[group]) for group in changed])


def ready(session: Session, queue: Queue, count: int, now_ms: int) -> list[int]:
    """Return ``count`` groups that may give a message and some more, in the order in which they became able to.

    While messages past their retention are still to be deleted, groups may have no others.
    """
    partition, delay_ms = queue.partition, queue.delay_ms
    count += PASSED_OVER_MAX if now_ms < queue.expires_at_ms else EXPIRED_PASSED_MAX
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
    partition = queue.partition
    put: list[Row] = []
    apart: list[Row] = []
    for group, received_before, own_to, seq, visible_at_ms in session.executemany(
        _FIRST_OF_GROUP, _not_ended(session, partition, groups)
    ):
        if visible_at_ms is None and seq > received_before and seq > own_to:
            put.append((partition, group, None, seq, seq, 0, 0, 0))
        else:
            put.append((partition, group, *_cursor(session, partition, group, received_before, own_to, apart)))
    session.many("ordered_set_apart", apart)
    session.many("put_group_cursor", put)


def _not_ended(session: Session, partition: int, groups: Iterable[int]) -> list[Row]:
    """Delete the cursors of groups without messages; return the keys of the other groups."""
    changes = session.connection.changes
    left: list[Row] = []

    def asked() -> Iterator[Row]:
        for group in groups:
            key = partition, group
            yield key
            if not changes():  # of the statement that has just run with these values: the group goes on
                left.append(key)

    session.executemany(_END_GROUP, asked())
    return left


def _cursor(session: Session, partition: int, group: int, received_before: int, own_to: int, apart: list[Row]) -> Row:
    """Return what the cursor of a group has to say; ``apart`` gets what its messages have to."""
    block_ms, received_to = -1, 0
    fixed_at: int | None = None
    head = 0
    floating: int | None = None
    waiting = 0
    received: list[tuple[int, int, int]] = []
    found = session.execute(_OF_GROUP, (partition, group))
    for seq, visible_at_ms, receive_count, is_apart in found:
        if receive_count:
            block_ms = max(block_ms, visible_at_ms)
            received_to = seq
            received.append((seq, visible_at_ms, is_apart))
        else:
            waiting += 1
            if visible_at_ms is None:
                floating = floating or seq
            elif fixed_at is None or visible_at_ms < fixed_at:
                fixed_at, head = visible_at_ms, seq
        if seq >= received_before and (waiting > PASSED_OVER_MAX or (floating is not None and seq >= own_to)):
            break
    found.close()
    if not received:
        return fixed_at, head if fixed_at is not None else floating, floating, 0, own_to, 0
    in_flight = 0
    for seq, visible_at_ms, is_apart in received:
        differs = int(visible_at_ms < block_ms)
        in_flight += 1 - differs
        if differs != is_apart:
            apart.append((differs, partition, group, seq))
    return block_ms, received[0][0], None, received_to, own_to, in_flight


def next_message_ms(session: Session, queue: Queue, now_ms: int) -> int:
    """Return when the next group gives a message, whatever the in-flight limit says; ``NEVER_MS``: none does."""
    fixed = session.row("first_fixed", queue.partition)
    floating = session.row("first_floating", queue.partition)
    due_ms = NEVER_MS if fixed is None else int(fixed[0])
    if floating is not None and floating[0] is not None:
        due_ms = min(due_ms, (floating[0] >> SEQ_SHIFT) + queue.delay_ms)
    return max(now_ms, due_ms)


def notify(session: Session, queue: Queue, now_ms: int, times: int) -> None:
    """Tell the watch when the next group gives a message, once for each of ``times`` commands that may free one."""
    if queue.wake is not None:
        due_ms = next_message_ms(session, queue, now_ms)
        if due_ms < NEVER_MS:
            for _ in range(times):
                queue.notify(due_ms)
