"""What a node waits for before it acknowledges, and what that is worth on the server that it found.

Every connection says how its commits are made durable when it is opened, so that no statement has to. A durable one
takes what the operator has set, which may be more than the usual (``remote_apply``) or his own bargain with his
standbys (``remote_write``), and raises what would wait for less than the disk of the server and its synchronous
standbys (``off``, ``local``). A relaxed one waits for nothing: what it changes is in the log of the server within
about half a second. A durable commit makes everything durable that was committed before it, so a relaxed one can be
undone by itself, never what it was built on.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from veilmq.engines.named_sql import load

SQL = load("veilmq.store.postgres", "durability.sql")

RELAXED = {"synchronous_commit": "off"}
"""The settings of relaxed connections, beside those that all have."""


class Durability(StrEnum):
    """What a crash of the database may undo; acknowledged sends never are.

    ``STRICT``: nothing that was acknowledged. ``STANDARD``: receives, changes of visibility and deletes of the last
    moment on standard queues; everything else waits as under ``STRICT``.
    """

    STRICT = "strict"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is waited for on one server: ``waits`` and ``set_to`` are levels of ``synchronous_commit``.

    ``waits`` is that of durable connections, ``set_to`` what the operator has set; ``standbys`` are the synchronous
    ones as he named them, empty for none.
    """

    mode: Durability
    waits: str
    set_to: str
    standbys: str
    fsync: bool
    full_page_writes: bool

    @classmethod
    async def of(cls, connection: Any, mode: Durability) -> Self:
        """Ask the server of ``connection``, a durable one."""
        return cls(mode=mode, **await connection.fetchrow(SQL["promise"]))

    def __str__(self) -> str:
        """Name the mode, and what it means here."""
        where = f"here and on standbys ({self.standbys})" if self.standbys else "here; no standby is waited for"
        text = f"{self.mode}: commits are durable {where} (synchronous_commit {self.waits})"
        if self.mode is Durability.STRICT:
            return text
        return f"{text}; receives, changes and deletes of standard queues may be undone by a crash of the database"

    @property
    def doubts(self) -> list[str]:
        """Return what the server is set to that the promise cannot be kept with, each with what to do."""
        doubts = []
        if not self.fsync:
            doubts.append(
                "fsync is off: a crash of the server's machine may lose everything; ALTER SYSTEM SET fsync = on"
            )
        if not self.full_page_writes:
            doubts.append(
                "full_page_writes is off: a crash of the server's machine may ruin pages; "
                "ALTER SYSTEM SET full_page_writes = on"
            )
        if self.set_to != self.waits:
            doubts.append(
                f"synchronous_commit is {self.set_to} for this database or role: veilmq commits with {self.waits} "
                f"nevertheless; set it to {self.waits}, or run with the durability {Durability.STANDARD}"
            )
        return doubts
