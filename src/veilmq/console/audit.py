"""The audit log: who changed what, what it was before and what was asked for, as lines of JSON.

A change leaves two lines of the same id: one before it is made, so that none is made that nobody can be asked about,
and one with how it ended. The file is opened anew for each line, so it may be rotated by renaming it.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

log = logging.getLogger("veilmq.audit")

KEPT_MAX = 1_000
"""How many lines are kept in memory where there is no file."""

READ_BYTES_MAX = 1 << 20
"""How much of the file's end is read to be shown."""

ASKED = "asked"
DONE = "done"
UNKNOWN = "OutcomeUnknown"
"""Who asked did not wait for the answer: it may have been done."""

_OWNER_ONLY = 0o600
_encode = msgspec.json.Encoder().encode


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``who`` is the ARN of the caller, ``everyone`` where nobody is asked who he is.

    ``what`` is the action, ``queue`` its queue if there is one; ``before`` has the values that a change replaces, as
    far as the caller may see them, and ``after`` what was asked for, without bodies of messages. ``outcome`` is
    ``asked``, ``done``, ``UNKNOWN``, or the code of the error.
    """

    at_ms: int
    id: str
    who: str
    peer: str | None
    what: str
    queue: str | None
    after: Mapping[str, Any]
    before: Mapping[str, Any] | None = None
    outcome: str = ASKED


class AuditLogError(Exception):
    """The log cannot be written; ``str()`` says why and what to do."""


class AuditLog:
    """The lines of one server, in the file ``path``, or in memory without one."""

    def __init__(self, path: Path | None) -> None:
        """Open nothing yet."""
        self.path = path
        self._kept: deque[AuditEntry] = deque(maxlen=KEPT_MAX)
        self._writing = asyncio.Lock()

    async def write(self, entry: AuditEntry) -> None:
        """Append a line, and return when it is on the disk; raises ``AuditLogError``."""
        line = _encode(entry) + b"\n"
        log.info("%s", line[:-1].decode())
        if self.path is None:
            self._kept.append(entry)
            return
        async with self._writing:
            try:
                await asyncio.to_thread(_append, self.path, line)
            except OSError as error:
                raise AuditLogError(
                    f"The audit log {self.path} cannot be written ({error.strerror}), so nothing was changed; "
                    "make room or let the server write there."
                ) from error

    async def last(self, count: int) -> list[AuditEntry]:
        """Return how the last ``count`` changes stand, the newest first: of the two lines of a change the later."""
        lines = list(self._kept) if self.path is None else await asyncio.to_thread(_tail, self.path)
        newest = {line.id: line for line in lines}
        return list(newest.values())[::-1][:count]


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "ab", closefd=False) as file:
            file.write(line if _ends_whole(descriptor) else b"\n" + line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_whole(descriptor: int) -> bool:
    """Tell whether the last line has its end: half of one may be there from when the disk was full."""
    size_bytes = os.fstat(descriptor).st_size
    return not size_bytes or os.pread(descriptor, 1, size_bytes - 1) == b"\n"


def _tail(path: Path) -> Sequence[AuditEntry]:
    """Return the whole lines at the end of the file; what is no line of ours is passed over."""
    try:
        with path.open("rb") as file:
            start = max(file.seek(0, os.SEEK_END) - READ_BYTES_MAX, 0)
            file.seek(start)
            lines = file.read().split(b"\n")[1 if start else 0 :]
    except FileNotFoundError:
        return []
    return [entry for line in lines if (entry := _entry(line)) is not None]


def _entry(line: bytes) -> AuditEntry | None:
    try:
        return msgspec.json.decode(line, type=AuditEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
