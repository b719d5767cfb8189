"""Idempotency: records of what was done, and of what is being done, that keep work from being done twice.

A record says of one piece of work, named by a ``key``, that its ``owner`` is doing it, until the lease ends, or that it
was done, until its time to live ends::

    nothing --begin--> begun --finish--> done --time--> nothing
                       begun --forget, or time--> nothing

A record begins before the handler does, ends when the lease ends, and is extended with each renewal of the lease. It is
DONE before the message is deleted, and forgotten before the message returns.
"""

import asyncio
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
    """What ``begin`` has found."""

    OURS = "ours"
    """Neither done nor begun by another; it is begun now."""
    BUSY = "busy"
    """Another owner does it."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Begun:
    """The result of ``begin``; ``left_s`` is how long a record that is BUSY or DONE lasts yet."""

    standing: Standing
    left_s: float = 0.0


class RecordStore(Protocol):
    """Keeps records. ``owner`` is a text that is new for each attempt."""

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        """Record that ``owner`` begins ``key``, for ``for_s`` seconds, unless it is done or being done. Atomic."""

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        """Have the record last for ``for_s`` from now on; ``False``, and nothing changed, if it is not ``owner``'s."""

    def finish(self, key: str, *, for_s: float) -> None:
        """Record that ``key`` is done, by any owner, and keep that for ``for_s``."""

    def forget(self, key: str, *, owner: str) -> None:
        """Remove the record if it is ``owner``'s: the work was not done, and any owner may begin it."""


BUSY_S_MAX = 10.0
"""How long a write waits for those of other processes."""

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, owner TEXT, expires_at_s REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS record_by_end ON record (expires_at_s);
"""
_FIND = "SELECT owner, expires_at_s FROM record WHERE key = ? AND expires_at_s > ?"
_PUT = "INSERT OR REPLACE INTO record (key, owner, expires_at_s) VALUES (?, ?, ?)"  # without owner: it is done
_EXTEND = "UPDATE record SET expires_at_s = ? WHERE key = ? AND owner = ? AND expires_at_s > ?"
_FORGET = "DELETE FROM record WHERE key = ? AND owner = ?"
_DROP_ENDED = "DELETE FROM record WHERE key IN (SELECT key FROM record WHERE expires_at_s <= ? LIMIT 10)"
_COUNT = "SELECT count(*) FROM record WHERE expires_at_s > ?"


class InFile(RecordStore):
    """A ``RecordStore`` in a file of SQLite, for the processes of one machine: records outlive a crash of each.

    Every write is a transaction that is on disk when it returns. Instants are the wall clock's, which processes share
    and which goes on over a restart of the machine; a step of it moves the ends of records by as much. The time that a
    write waits for others is part of the time that it gives: no record outlives its lease by that. The folder must
    exist; ``close`` it when no handler runs any more.
    """

    def __init__(self, path: str | Path, *, wall_s: Callable[[], float] = wall_s) -> None:
        """Open the file at ``path``, or make it. Raises ``sqlite3.Error`` for a file that is none of SQLite's."""
        self._now_s = wall_s
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)

    def __len__(self) -> int:
        with self._lock:
            count: int = self._connection.execute(_COUNT, (self._now_s(),)).fetchone()[0]
            return count

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        """Record that ``owner`` begins ``key``, unless it is done or being done; drops a few records that ended."""
        called_s = self._now_s()
        with self._writing() as connection:
            now_s = self._now_s()
            found = connection.execute(_FIND, (key, now_s)).fetchone()
            if found is not None:
                return Begun(Standing.DONE if found[0] is None else Standing.BUSY, found[1] - now_s)
            connection.execute(_DROP_ENDED, (now_s,))
            connection.execute(_PUT, (key, owner, called_s + for_s))
            return Begun(Standing.OURS)

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        called_s = self._now_s()
        with self._writing() as connection:
            return connection.execute(_EXTEND, (called_s + for_s, key, owner, self._now_s())).rowcount == 1

    def finish(self, key: str, *, for_s: float) -> None:
        with self._writing() as connection:
            connection.execute(_PUT, (key, None, self._now_s() + for_s))

    def forget(self, key: str, *, owner: str) -> None:
        with self._writing() as connection:
            connection.execute(_FORGET, (key, owner))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the file for one transaction; the lock is taken at its begin, so that none fails halfway."""
        with self._lock, self._connection:  # which commits, or rolls back
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


class InMemory(InFile):
    """The same in memory: several handlers, and several consumers of a process, may share it."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(":memory:", wall_s=(clock or SystemClock()).now_s)

    def __del__(self) -> None:
        self.close()


TTL = "1d"


class ByKey:
    """Messages with the same key request the same work: it is done for the first, the others are deleted."""

    def __init__(self, store: RecordStore, key: Callable[[ReceivedMessage], str], ttl: Span = TTL) -> None:
        """``key`` takes the message, whatever the handler takes; ``ttl`` is for how long a repetition is one."""
        self.store = store
        self.key = key
        self.ttl_s = span_s(ttl)
        if not self.ttl_s:
            raise ValueError("ttl is 0: nothing would be remembered; give a span like 1d")


class ByMessageId(ByKey):
    """One piece of work is one message: deliveries of it after the first that was done are deleted.

    ``ttl`` should be longer than a message may take to return; its retention at the most.
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
    """Used in the event loop; the store is called in threads of its own."""

    def __init__(self, idempotency: ByKey, *, queue: str, retry: Backoff, counts: Counters) -> None:
        """Keys are of ``queue``: another queue's handler does other work."""
        self._idempotency = idempotency
        self._prefix = queue.rpartition("/")[2]
        self._retry = retry
        self._counts = counts
        self._threads = Threads(f"veilmq-records-{self._prefix}", STORE_CALLS_MAX)
        self._records: dict[Lease, _Record] = {}

    @property
    def at_work(self) -> int:
        """Return how many threads have a call of the store in work."""
        return self._threads.at_work

    async def begin(self, deliveries: Sequence[Context]) -> None:
        """Begin a record for each; those whose handler is not to run have an ending then."""
        endings = await asyncio.gather(*map(self._begin, deliveries))
        for delivery, ending in zip(deliveries, endings, strict=True):
            delivery.ending = ending
        self._counts.events["recognised"] += sum(ending is DONE for ending in endings)

    async def end(self, delivery: Context, ending: Ending) -> None:
        """Bring the record to what ``ending`` says, before that is carried out; without a record do nothing."""
        record = self._records.pop(delivery.lease, None)
        if record is None:
            return
        store, ttl_s = self._idempotency.store, self._idempotency.ttl_s
        try:
            if ending.kind in _FINISHED:
                await self._threads.run(store.finish, record.key, for_s=ttl_s)
            else:
                await self._threads.run(store.forget, record.key, owner=record.owner)
        except Exception:  # noqa: BLE001 - a store may raise anything; the record ends with the lease
            delivery.lease.log(logging.ERROR, "message %s: its record could not be written", exc_info=True)

    def renewed(self, lease: Lease) -> None:
        """Extend the record of ``lease``, if it has one; in the renewer's thread, which must not wait."""
        if (record := self._records.get(lease)) is not None:
            self._threads.submit(partial(self._extend, record))

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    async def _begin(self, delivery: Context) -> Ending | None:
        try:
            key = self._idempotency.key(delivery.message)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            return ending_of(error)
        lease = delivery.lease
        record = _Record(f"{self._prefix}:{key}", uuid.uuid4().hex, delivery, asyncio.get_running_loop())
        renewals = lease.renewals
        try:
            begun = await self._threads.run(self._begin_record, record)
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            delivery.lease.log(logging.ERROR, "message %s: its record could not be created", exc_info=True)
            return self._later(delivery, f"The store of records failed: {error}", 0.0)
        if begun.standing is Standing.DONE:
            return DONE
        if begun.standing is Standing.BUSY:
            return self._later(delivery, "Another worker is processing this message.", begun.left_s)
        self._records[lease] = record
        if lease.renewals != renewals:  # since it was begun
            self.renewed(lease)
        if lease.state is not LeaseState.HELD:
            return Ending(kind=EndingKind.LEFT, reason="The lease ended while its record was created.")
        return None

    def _begin_record(self, record: _Record) -> Begun:
        for_s = max(0.0, record.delivery.lease.remaining)
        return self._idempotency.store.begin(record.key, owner=record.owner, for_s=for_s)

    def _later(self, delivery: Context, reason: str, after_s: float) -> Ending:
        """Return it later, at a named time: it is not an attempt that failed, and no number of them rejects."""
        after_s = max(math.ceil(after_s), self._retry.after_s(delivery.attempt), 1)
        return Ending(kind=EndingKind.RETRY, after_s=after_s, reason=reason)

    def _extend(self, record: _Record) -> None:
        """Extend the record as the lease was; begin one anew that ended before, unless another owner has begun it.

        If the handler ends meanwhile, its end may have come before this begin, and then nothing is left of it.
        """
        store, lease = self._idempotency.store, record.delivery.lease
        try:
            ours = store.extend(record.key, owner=record.owner, for_s=max(0.0, lease.remaining))
            if not ours and lease in self._records:
                ours = self._begin_record(record).standing is Standing.OURS
                if ours and lease not in self._records:
                    store.forget(record.key, owner=record.owner)
        except Exception:  # noqa: BLE001 - a store may raise anything; the next renewal tries again
            lease.log(logging.ERROR, "message %s: its record could not be extended", exc_info=True)
            return
        if not ours:
            record.loop.call_soon_threadsafe(self._taken, record.delivery)

    def _taken(self, delivery: Context) -> None:
        """Stop the handler: another worker has begun, or done, its work."""
        if delivery.lease in self._records:
            delivery.lease.log(logging.WARNING, "message %s: its record belongs to another worker now")
            delivery.cancel(Cause.LOST)
