"""Idempotency: records of finished and unfinished work, which prevent that work is done twice.

The record of a piece of work, identified by ``key``, is either begun by an ``owner``, until the lease ends, or done,
until its time to live ends::

    none --begin--> begun --finish--> done --expiry--> none
                    begun --forget or expiry--> none

A record is begun before the handler starts, expires with the lease, and is extended with each renewal. It is finished
before the message is deleted, and forgotten before the message is made visible again.
"""

import asyncio
import inspect
import logging
import math
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.clock import Clock, Span, SystemClock, Threads, span_s, wall_s
from veilmq.consumer.context import DONE, Backoff, Cause, Context, Ending, EndingKind, ending_of
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.metrics import Counters


class Standing(Enum):
    """The state of a record at ``begin``."""

    OURS = "ours"
    """There was none; it is begun now."""
    BUSY = "busy"
    """Another owner has begun it."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Begun:
    """The result of ``begin``; ``left_s`` is the time until a BUSY or DONE record expires."""

    standing: Standing
    left_s: float = 0.0


class RecordStore(Protocol):
    """Stores records. ``owner`` is unique to each attempt."""

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        """Begin ``key`` for ``owner`` and ``for_s`` seconds, unless it is begun or done. Atomic."""

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        """Let the record expire ``for_s`` from now. Return ``False`` without a change if it is not ``owner``'s."""

    def finish(self, key: str, *, for_s: float) -> None:
        """Mark ``key`` as done, whatever its owner, for ``for_s``."""

    def forget(self, key: str, *, owner: str) -> None:
        """Delete the record if it is ``owner``'s: the work was not done, and any owner may begin it."""


BUSY_S_MAX = 10.0  # how long a write waits for other processes

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, owner TEXT, expires_at_s REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS record_by_end ON record (expires_at_s);
"""
_FIND = "SELECT owner, expires_at_s FROM record WHERE key = ? AND expires_at_s > ?"
_PUT = "INSERT OR REPLACE INTO record (key, owner, expires_at_s) VALUES (?, ?, ?)"  # a done record has no owner
_EXTEND = "UPDATE record SET expires_at_s = ? WHERE key = ? AND owner = ? AND expires_at_s > ?"
_FORGET = "DELETE FROM record WHERE key = ? AND owner = ?"
# Each `begin` also deletes a few expired records.
_DELETE_EXPIRED = "DELETE FROM record WHERE key IN (SELECT key FROM record WHERE expires_at_s <= ? LIMIT 10)"


class InFile(RecordStore):
    """A ``RecordStore`` in an SQLite file, shared by the processes of one machine; records survive crashes.

    Each write is on disk when it returns. Times are of the wall clock, which processes share and which continues over a
    reboot; if it steps, the expiry of records moves by as much. The time that a write waits for other processes is part
    of ``for_s``, so that a record does not outlive its lease. The folder must exist; call ``close`` when no handler
    runs.
    """

    def __init__(self, path: str | Path, *, wall_s: Callable[[], float] = wall_s) -> None:
        """Open or create the file at ``path``. Raises ``sqlite3.Error`` if it is not a database."""
        self._now_s = wall_s
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        called_s = self._now_s()
        with self._transaction() as connection:
            now_s = self._now_s()
            found = connection.execute(_FIND, (key, now_s)).fetchone()
            if found is not None:
                return Begun(Standing.DONE if found[0] is None else Standing.BUSY, found[1] - now_s)
            connection.execute(_DELETE_EXPIRED, (now_s,))
            connection.execute(_PUT, (key, owner, called_s + for_s))
            return Begun(Standing.OURS)

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        called_s = self._now_s()
        with self._transaction() as connection:
            return connection.execute(_EXTEND, (called_s + for_s, key, owner, self._now_s())).rowcount == 1

    def finish(self, key: str, *, for_s: float) -> None:
        with self._transaction() as connection:
            connection.execute(_PUT, (key, None, self._now_s() + for_s))

    def forget(self, key: str, *, owner: str) -> None:
        with self._transaction() as connection:
            connection.execute(_FORGET, (key, owner))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection:  # commits or rolls back
            self._connection.execute("BEGIN IMMEDIATE")  # takes the write lock first, so that no statement fails later
            yield self._connection


class InMemory(InFile):
    """A ``RecordStore`` in memory; handlers and consumers of one process may share it."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(":memory:", wall_s=(clock or SystemClock()).now_s)

    def __del__(self) -> None:
        self.close()


def refuse_async(what: str, function: object) -> None:
    """Raise ``TypeError`` if ``function`` is async, because its callers do not await it."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{what} must be a plain function, not {function!r}, which is async")


TTL = "1d"


class ByKey:
    """Messages with the same key request the same work; all but the first are deleted without a call."""

    def __init__(self, store: RecordStore, key: Callable[[ReceivedMessage], str], ttl: Span = TTL) -> None:
        """``key`` always gets the ``ReceivedMessage``; ``ttl`` is how long repetitions are recognised."""
        refuse_async("key", key)
        self.store = store
        self.key = key
        self.ttl_s = span_s(ttl)
        if not self.ttl_s:
            raise ValueError("ttl is 0: nothing would be remembered; give a span like 1d")


class ByMessageId(ByKey):
    """Each message is its own work; deliveries after a finished one are deleted without a call.

    ``ttl`` should be longer than a message may take to be delivered again, which is at most its retention.
    """

    def __init__(self, store: RecordStore, ttl: Span = TTL) -> None:
        super().__init__(store, attrgetter("id"), ttl)


STORE_CALLS_MAX = 4

_FINISHED = (EndingKind.DONE, EndingKind.DROPPED)


class _Record(NamedTuple):
    key: str
    owner: str
    delivery: Context
    loop: asyncio.AbstractEventLoop


class Keeper:
    """Keeps the records of one handler. Used in the event loop; calls the store in its own threads."""

    def __init__(self, idempotency: ByKey, *, queue: str, retry: Backoff, counts: Counters) -> None:
        """Keys are prefixed with ``queue``: the same key on another queue is other work."""
        self._idempotency = idempotency
        self._prefix = queue.rpartition("/")[2]
        self._retry = retry
        self._counts = counts
        self._threads = Threads(f"veilmq-records-{self._prefix}", STORE_CALLS_MAX)
        self._records: dict[Lease, _Record] = {}

    @property
    def at_work(self) -> int:
        """The number of busy threads."""
        return self._threads.at_work

    async def begin(self, deliveries: Sequence[Context]) -> None:
        """Begin a record for each delivery. Set the ending of those whose handler must not run."""
        endings = await asyncio.gather(*map(self._begin, deliveries))
        for delivery, ending in zip(deliveries, endings, strict=True):
            delivery.ending = ending
        self._counts.events["recognised"] += sum(ending is DONE for ending in endings)

    async def end(self, delivery: Context, ending: Ending) -> None:
        """Finish or forget the record, before ``ending`` is applied to the message."""
        record = self._records.pop(delivery.lease, None)
        if record is None:
            return
        store, ttl_s = self._idempotency.store, self._idempotency.ttl_s
        try:
            if ending.kind in _FINISHED:
                await self._threads.run(store.finish, record.key, for_s=ttl_s)
            else:
                await self._threads.run(store.forget, record.key, owner=record.owner)
        except Exception:  # noqa: BLE001 - from the user's store; the record expires with the lease
            delivery.lease.log(logging.ERROR, "message %s: its record could not be written", exc_info=True)

    def renewed(self, lease: Lease) -> None:
        """Extend the record of ``lease``, if any. Called in the renewer's thread, so it must not block."""
        if (record := self._records.get(lease)) is not None:
            self._threads.submit(partial(self._extend, record))

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def _begin(self, delivery: Context) -> Ending | None:
        try:
            if (key := self._idempotency.key(delivery.message)) is None:  # such as a group, which may be absent
                raise TypeError("the key of ByKey is None, as if all such messages were one piece of work")
        except Exception as error:  # noqa: BLE001 - from the user's function
            return ending_of(error)
        lease, renewals = delivery.lease, delivery.lease.renewals
        record = _Record(f"{self._prefix}:{key}", uuid.uuid4().hex, delivery, asyncio.get_running_loop())
        try:
            begun = await self._threads.run(self._begin_record, record)
        except Exception as error:  # noqa: BLE001 - from the user's store
            delivery.lease.log(logging.ERROR, "message %s: its record could not be created", exc_info=True)
            return self._retry_after(delivery, f"The store of records failed: {error}", 0.0)
        if begun.standing is Standing.DONE:
            return DONE
        if begun.standing is Standing.BUSY:
            return self._retry_after(delivery, "Another worker is processing this message.", begun.left_s)
        self._records[lease] = record
        if lease.renewals != renewals:  # the lease was renewed meanwhile
            self.renewed(lease)
        if lease.state is not LeaseState.HELD:
            return Ending(kind=EndingKind.LEFT, reason="The lease ended while its record was created.")
        return None

    def _begin_record(self, record: _Record) -> Begun:
        for_s = max(0.0, record.delivery.lease.remaining)
        return self._idempotency.store.begin(record.key, owner=record.owner, for_s=for_s)

    def _retry_after(self, delivery: Context, reason: str, after_s: float) -> Ending:
        """Return a retry with an explicit delay: it is not a failed attempt, and never becomes a rejection."""
        after_s = max(math.ceil(after_s), self._retry.after_s(delivery.attempt), 1)
        return Ending(kind=EndingKind.RETRY, after_s=after_s, reason=reason)

    def _extend(self, record: _Record) -> None:
        """Extend the record with the lease. If it has expired, begin it again unless another owner has.

        If ``end`` ran before that begin, the record is removed again. Another thread may begin it for this owner, too.
        """
        store, lease = self._idempotency.store, record.delivery.lease
        try:
            ours = store.extend(record.key, owner=record.owner, for_s=max(0.0, lease.remaining))
            if not ours and lease in self._records:
                begun = self._begin_record(record).standing is Standing.OURS
                ours = begun or store.extend(record.key, owner=record.owner, for_s=max(0.0, lease.remaining))
                if begun and lease not in self._records:
                    store.forget(record.key, owner=record.owner)
        except Exception:  # noqa: BLE001 - from the user's store; the next renewal tries again
            lease.log(logging.ERROR, "message %s: its record could not be extended", exc_info=True)
            return
        if not ours:
            record.loop.call_soon_threadsafe(self._lost, record.delivery)

    def _lost(self, delivery: Context) -> None:
        """Stop the handler, because another worker has begun or finished its work."""
        if delivery.lease in self._records:
            delivery.lease.log(logging.WARNING, "message %s: its record belongs to another worker now")
            delivery.cancel(Cause.LOST)
