"""The janitor's work on SQLite, a slice a command: what retention, purges and deletions have put out of reach.

Between two slices is a pause, so it never keeps the writer for longer than a slice (a thousand rows: a few
milliseconds, the most that is allowed being 20). Retention is at least a minute, so a look a minute misses no end of
it; nothing is delivered late because of the janitor, since every command looks at retention by itself.
"""

from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, PRIORITY, RETENTION_S, SECOND_MS
from veilmq.store.cold import Sweep
from veilmq.store.events import EXPIRED_KEPT_S, Logged
from veilmq.store.queue_commands import forget_cooldowns
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.totals import delete_below, settle_time
from veilmq.store.sqlite.transaction import SqliteTransaction, end

_ROWS_PER_SWEEP = 1_000
_QUEUES_PER_SWEEP = 200
_LOOK_ROWS = 5  # what looking at a partition takes, in rows
_PAUSE_MS = 10
_LOOK_MS = RETENTION_S.minimum * SECOND_MS


def sweep(session: Session, command: Sweep, now_ms: int) -> int:
    """Do one slice: retired partitions, messages past their retention, what is remembered, pages that hold nothing."""
    session.space.look_again(now_ms)
    left = _ROWS_PER_SWEEP
    while left > 0 and (retired := session.row("retired_part")) is not None:
        left -= _LOOK_ROWS + _sweep_partition(session, retired, left, now_ms)
    looked_at = session.rows("queues_behind", session.swept_to, _QUEUES_PER_SWEEP if left > 0 else 0)
    for number, name, *_ in looked_at:
        queue = session.queue(name)
        messages = queue.messages
        settle_time(session, queue, now_ms)
        left -= messages - queue.messages
        if left <= 0:
            break
        session.swept_to = number
    if len(looked_at) < _QUEUES_PER_SWEEP and left > 0:
        session.swept_to = 0
    session.run("old_attempts", now_ms - ATTEMPT_S * SECOND_MS, _ROWS_PER_SWEEP)
    named_s_max = RETENTION_S.maximum + EXPIRED_KEPT_S  # by the receipt of a late delete
    session.run("old_renumbered", (now_ms - named_s_max * SECOND_MS) << SEQ_SHIFT, _ROWS_PER_SWEEP)
    end(forget_cooldowns(SqliteTransaction(session, now_ms)))
    old = session.rows("old_accepted", _ROWS_PER_SWEEP, now_ms - DEDUPLICATION_S * SECOND_MS)
    if old:
        session.run("delete_accepted", old[-1][0])
        session.accepted.cut()
    session.flush()  # groups have the rows that say whether they have messages
    many_groups = session.group_numbers.sweep(_ROWS_PER_SWEEP // 2)
    many_expired = session.events.sweep(_ROWS_PER_SWEEP // 4, now_ms)
    gave_back = session.space.give_back()
    more = many_groups or many_expired or gave_back or left <= 0 or session.swept_to > 0
    return _PAUSE_MS if more or session.row("retired_part") is not None else _LOOK_MS


def _sweep_partition(session: Session, retired: Row, rows_max: int, now_ms: int) -> int:
    """Delete a slice of a retired partition, and its row with the last one; return how many rows that were."""
    count, (partition, logged_queue, retired_at_ms) = 0, retired
    log = None if logged_queue is None else Logged(logged_queue, 0, retired_at_ms)
    for kind in ("standard", "ordered"):
        lanes = range(PRIORITY.maximum + 1) if kind == "standard" else ()
        count += len(delete_below(session, kind, partition, lanes, NEVER_MS, rows_max - count, log, now_ms))
    if count:
        return count  # an event of a message has its group, whose number goes after the cursor
    before = session.connection.total_changes()
    session.run("delete_cursors_of", partition, rows_max)
    session.run("delete_fair_groups_of", partition, rows_max)
    if not any(session.row(f"any_{kind}_of", partition) for kind in ("cursor", "fair_group")):
        session.run("delete_part", partition)
        session.run("put_progress", now_ms, session.last_seq)
    return session.connection.total_changes() - before
