"""Fairness among message groups of standard queues: quiet groups first (``core.messages`` defines noisy groups).

Messages with groups are in lanes of their own: ``GROUPED`` plus their priority. Groups do not block, and their messages
are delivered in order of visibility like all others. ``fair_group`` has the first message of each group, so a receive
skips the whole backlog of a noisy group at once. Only if nothing else is visible, it delivers messages of noisy groups,
those with the fewest in flight first.

The accounts of groups are in memory only. After a restart, the first receive, peek or receipt counts the messages in
flight again, only the last to expire if they are very many; processing times are measured anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from veilmq.core.limits import PRIORITY
from veilmq.core.messages import Fairness, Lease, group_hash
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.queues import Queue
from veilmq.store.sqlite.session import GROUP, LANE, SEQ, VISIBLE_AT, Row, Session

GROUPED = PRIORITY.maximum  # added to the priority to get the lane of grouped messages

_LEASES_READ_MAX = 3_000  # about 10 ms

Group = tuple[int, int]  # lane and number


def priorities(queue: Queue) -> list[int]:
    """Return the priorities of the queue's messages, in receive order."""
    return sorted({lane if lane <= GROUPED else lane - GROUPED for lane in queue.lanes})


def accounts_of(session: Session, queue: Queue) -> defaultdict[int, Fairness]:
    """Return the current accounts by lane; they must exist before a receipt changes the messages in flight."""
    if queue.fairness is None:
        queue.fairness = defaultdict(Fairness)
        now_ms = queue.counted_at_ms
        for lane in [lane for lane in queue.lanes if lane > GROUPED]:
            rows = session.rows("fair_leases", queue.partition, lane, now_ms, _LEASES_READ_MAX)
            for seq, visible_at_ms, group, received_at_ms in rows:
                queue.fairness[lane].begin_lease(seq, Lease(visible_at_ms, group, received_at_ms), now_ms)
    for account in queue.fairness.values():
        account.expire_leases(session.now_ms)
    return queue.fairness


def sent(session: Session, queue: Queue, name: str, priority: int) -> tuple[int, int]:
    """Count a new message of the group ``name``; return its lane and the group's number."""
    queue.has_groups = True
    lane, group = GROUPED + priority, group_hash(name, session.group_numbers.key)
    if queue.fairness is not None:
        queue.fairness[lane].record_send(group, session.now_ms)
    return lane, group


def in_order(session: Session, queue: Queue, sql: Mapping[str, str], *, mark_noisy: bool) -> Iterator[Row]:
    """Yield visible messages in receive order.

    With ``mark_noisy``, a group that takes too much becomes noisy; otherwise it counts as noisy for this order only.
    """
    accounts, now_ms, partition, execute = accounts_of(session, queue), session.now_ms, queue.partition, session.execute
    others = max(0, queue.in_flight - sum([len(account.leases) for account in accounts.values()]))
    for priority in priorities(queue):
        lane = GROUPED + priority
        account = accounts[lane]
        account.other_in_flight = others
        noisy: list[int] = []
        heads: list[tuple[int, int, Row, Iterator[Row]]] = []  # the next message of each source, by visibility
        groups = execute(SQL["fair_groups"], (partition, lane, now_ms))
        _push(heads, execute(sql["standard_take"], (partition, priority, now_ms, -1)))
        _push(heads, execute(sql["ready_take"], (queue.floor(now_ms), partition, priority, -1, -1)))
        group_head = next(groups, None)
        while heads or group_head is not None:
            if group_head is None or (heads and heads[0][:2] <= group_head[:2]):
                _, _, row, source = heappop(heads)
                yield row
                _push(heads, source)
                continue
            group = group_head[2]
            if (account.is_noisy if mark_noisy else account.would_be_noisy)(group, now_ms):
                noisy.append(group)
            else:
                _push(heads, execute(sql["fair_of_group"], (partition, lane, group, now_ms)))
            group_head = next(groups, None)
        for _, group in sorted([(account.in_flight(group), group) for group in noisy]):
            yield from execute(sql["fair_of_group"], (partition, lane, group, now_ms))


def _push(heads: list[tuple[int, int, Row, Iterator[Row]]], source: Iterator[Row]) -> None:
    row = next(source, None)
    if row is not None:
        heappush(heads, (row[VISIBLE_AT], row[SEQ], row, source))


def received(session: Session, queue: Queue, delivered: list[tuple[Row, int]]) -> None:
    """Count delivered messages, with their deadlines."""
    accounts, now_ms = accounts_of(session, queue), session.now_ms
    for row, end_ms in delivered:
        if row[GROUP] is not None:
            accounts[row[LANE]].begin_lease(row[SEQ], Lease(end_ms, row[GROUP], now_ms), now_ms)
    update_heads(session, queue, {(row[LANE], row[GROUP]) for row, _ in delivered if row[GROUP] is not None})


def update_heads(session: Session, queue: Queue, groups: Iterable[Group]) -> None:
    """Update the first message of each group; a group with no more to deliver becomes quiet."""
    accounts = queue.fairness
    for lane, group in groups:
        row = session.row("put_fair_group", queue.partition, lane, group)
        if row is None:
            session.run("delete_fair_group", queue.partition, lane, group)
        if accounts is not None and (row is None or row[0] > session.now_ms or row[1] in accounts[lane].leases):
            accounts[lane].mark_drained(group)  # a visible message with a lease was just delivered for 0 s


def ended(session: Session, queue: Queue, rows: list[tuple[int, int, int | None]]) -> None:
    """Count out deleted messages: seq, lane and group of each."""
    if queue.fairness is not None:
        accounts = accounts_of(session, queue)
        for seq, lane, group in rows:
            if group is not None:
                accounts[lane].end_lease(seq, session.now_ms)
    update_heads(session, queue, {(lane, group) for _, lane, group in rows if group is not None})


def changed(session: Session, queue: Queue, rows: Iterable[Any]) -> None:
    """Apply new deadlines, given rows that start like those of ``standard_find``."""
    accounts, now_ms = accounts_of(session, queue), session.now_ms
    groups: set[Group] = set()
    for seq, visible_at_ms, receive_count, _, _, _, group, lane, *_ in rows:
        if group is None:
            continue
        groups.add((lane, group))
        if receive_count and not accounts[lane].change_lease(seq, visible_at_ms):
            accounts[lane].begin_lease(seq, Lease(visible_at_ms, group, now_ms), now_ms)
    accounts_of(session, queue)  # expires leases that ended at once
    update_heads(session, queue, groups)
