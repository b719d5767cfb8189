"""The audit log: who changed what, what it was before and what was asked for, as lines of JSON.

A change leaves two lines of the same id: one before it is made, so that none is made that nobody can be asked about,
and one with how it ended. The file is opened anew for each line, so it may be rotated by renaming it. ``Auditing``
stands between the pages and programs of the admin port and the queues, so no page can forget it.
"""

import asyncio
import logging
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from veilmq.console.asking import Answer, Ask, Asked, refusal
from veilmq.console.changes import UNREAD, Change, change_of, fields_of
from veilmq.wire.exchange import DEFAULT_ACCOUNT, Caller

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


T = TypeVar("T")

EVERYONE = "everyone"
"""Who a caller is where nobody is asked who he is."""

_SHOWN_CHARACTERS_MAX = 1_024
_RECEIPT_CHARACTERS = 16
_ID_BYTES = 8
_MEMBERS_MAX = 200
_DEPTH_MAX = 8
_LINE_BYTES_MAX = 65_536


class Auditing:
    """An ``Ask`` that writes down what changes anything. ``now_ms`` is the present instant as it is shown."""

    def __init__(self, ask: Ask, log: AuditLog, *, now_ms: Callable[[], int], account: str = DEFAULT_ACCOUNT) -> None:
        """``ask`` carries it out; ``account`` asks where nobody is asked who he is."""
        self._account = account
        self._ask = ask
        self._log = log
        self._now_ms = now_ms

    async def __call__(self, asked: Asked) -> Answer:
        """Answer as ``ask`` does; 503, with nothing done, where the log cannot be written."""
        change = change_of(asked, account=self._account if asked.caller is None else asked.caller.account)
        if change is None:
            return await self._ask(asked)
        entry = self._entry(asked.caller, asked.peer, change.what)
        entry = msgspec.structs.replace(
            entry, queue=change.queue, before=await before(change, asked, self._ask), after=_told(change.fields)
        )
        try:
            return await self._noted(entry, lambda: self._ask(asked), _outcome)
        except AuditLogError as error:
            return Answer(503, b"", msgspec.json.encode({"code": "AuditLogUnavailable", "message": str(error)}))

    async def operation(
        self, caller: Caller | None, peer: str | None, what: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what ``work`` returns, a change of the whole server; raises ``AuditLogError`` with nothing done."""
        return await self._noted(self._entry(caller, peer, what), work, lambda _: DONE)

    def _entry(self, caller: Caller | None, peer: str | None, what: str) -> AuditEntry:
        who = EVERYONE if caller is None else caller.arn
        identity = secrets.token_hex(_ID_BYTES)
        return AuditEntry(at_ms=self._now_ms(), id=identity, who=who, peer=peer, what=what, queue=None, after={})

    async def _noted(self, entry: AuditEntry, work: Callable[[], Awaitable[T]], outcome: Callable[[T], str]) -> T:
        try:
            await self._log.write(entry)
            answer = await work()
        except AuditLogError:
            raise
        except BaseException:  # who asked does not wait for the answer, or there is none
            await self._end(entry, UNKNOWN)
            raise
        await self._end(entry, outcome(answer))
        return answer

    async def _end(self, entry: AuditEntry, outcome: str) -> None:
        ended = msgspec.structs.replace(entry, at_ms=self._now_ms(), outcome=outcome)
        try:
            await self._log.write(ended)
        except AuditLogError:  # the change is made, and the line before it says who asked
            return


def _outcome(answer: Answer) -> str:
    """Return how a change ended; of a batch, how many of its entries failed."""
    if answer.status >= 400:
        return refusal(answer).code
    failed = fields_of(answer.body).get("Failed") if b'"Failed"' in answer.body else None
    return f"{DONE}, but for {len(failed)}" if isinstance(failed, list) and failed else DONE


async def before(change: Change, asked: Asked, ask: Ask) -> Mapping[str, Any] | None:
    """Return the values that ``change`` is about to replace, as far as the caller may see them."""
    look = _LOOKS.get(change.what)
    if look is None:
        return None
    method, target, body = look.request(asked.target.partition(b"?")[0], change.fields)
    host = {b"host": asked.headers[b"host"]} if b"host" in asked.headers else {}
    answer = await ask(asked._replace(method=method, target=target, headers={**host, **look.headers}, body=body))
    if answer.status >= 400:
        return None
    found = fields_of(answer.body).get(look.member, {})
    kept = look.kept(change.fields)
    return {name: value for name, value in found.items() if kept is None or name in kept}


Kept = Callable[[Mapping[str, Any]], frozenset[str] | None]
"""Tells of the fields of a change which names matter, ``None`` for all."""


class _Look(NamedTuple):
    """How the values before a change are asked for: the request, and which of the answer's ``member`` matter."""

    request: Callable[[bytes, Mapping[str, Any]], tuple[bytes, bytes, bytes]]
    headers: Mapping[bytes, bytes]
    member: str
    kept: Kept


def _sqs(action: str, member: str, *, kept: Kept, **fields: Any) -> _Look:
    """Return the look by an action of SQS at the queue of a change."""

    def request(path: bytes, asked: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
        return b"POST", b"/", msgspec.json.encode({"QueueUrl": asked.get("QueueUrl"), **fields})

    return _Look(request, {b"x-amz-target": b"AmazonSQS." + action.encode()}, member, kept)


def _show(path: bytes, asked: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
    return b"GET", path.rpartition(b"/")[0] + b"/show", b""


def _all(asked: Mapping[str, Any]) -> None:
    return None


def _attributes(asked: Mapping[str, Any]) -> frozenset[str]:
    attributes = asked.get("Attributes")
    return frozenset(attributes) if isinstance(attributes, Mapping) else frozenset()


_LOOKS: dict[str, _Look] = {
    "SetQueueAttributes": _sqs("GetQueueAttributes", "Attributes", kept=_attributes, AttributeNames=["All"]),
    "DeleteQueue": _sqs("GetQueueAttributes", "Attributes", kept=_all, AttributeNames=["All"]),
    "PurgeQueue": _sqs("GetQueueAttributes", "Attributes", kept=_all, AttributeNames=["All"]),
    "TagQueue": _sqs("ListQueueTags", "Tags", kept=_all),
    "UntagQueue": _sqs("ListQueueTags", "Tags", kept=_all),
    "queues/set": _Look(_show, {}, "settings", frozenset),
}


def shown(value: Any, name: str = "", *, depth: int = 0) -> Any:
    """Return fields as the log has them: bodies by their length, receipts by their beginning, what is long cut."""
    if depth > _DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        inner = "StringValue" if name == "attributes" else ""  # those of a message, by any names, in our own API
        first = islice(value.items(), _MEMBERS_MAX)
        return {_cut(key): shown(each, inner or key, depth=depth + 1) for key, each in first}
    if isinstance(value, list):
        return [shown(each, name, depth=depth + 1) for each in value[:_MEMBERS_MAX]]
    if not isinstance(value, str):
        return value
    if name in {"MessageBody", "body", "StringValue", "BinaryValue"}:
        return f"({len(value):,} characters)"
    return value[:_RECEIPT_CHARACTERS] + "…" if name in {"ReceiptHandle", "receipt"} else _cut(value)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _told(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a line of the log has of ``fields``, which is not for ever so long."""
    told: Mapping[str, Any] = shown(fields)
    size = len(msgspec.json.encode(told))
    return told if size <= _LINE_BYTES_MAX else {UNREAD: f"{size:,} bytes"}
