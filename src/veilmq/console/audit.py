"""The audit log: the caller of each change, its parameters and the values that it replaced, as lines of JSON.

A change writes two lines with the same id: one before it is made, so that there is no change without a record, and one
with its outcome. The file is opened for each line, so it may be rotated by renaming it. All changes of the admin port
pass through ``Auditing``, so no page can omit the record.

Requests are classified first, those of pages and of programs: which ones may change something, and what. The reading
actions of SQS are listed; those of veilmq's API are its GETs. All others are changes.
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

from veilmq.console.api_client import ApiError, ApiReply, ApiRequest, SendRequest, error_in
from veilmq.wire.exchange import DEFAULT_ACCOUNT, Caller, RequestContext
from veilmq.wire.smq.request import is_smq
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import queue_of

READING = frozenset(
    {
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
    }
)
"""The actions of SQS that change nothing."""

UNREAD = "unread"
"""Key for the length of content that is not JSON or too long."""

_API = b"/v1/"
_SQS = b"AmazonSQS."
_TARGET = b"x-amz-target"
_NAME_CHARACTERS_MAX = 1_024


class Change(NamedTuple):
    """A change: the action, the queue if any, and the fields."""

    what: str
    queue: str | None
    fields: Mapping[str, Any]


def change_of(request: ApiRequest, *, account: str) -> Change | None:
    """Return what a request of ``account`` may change; ``None`` if it only reads.

    Protocols are distinguished as on the queue port: the header takes precedence over the path.
    """
    path = request.target.partition(b"?")[0]
    named = request.headers.get(_TARGET)
    if named is None:
        if not path.startswith(_API) or is_smq(request.target, request.headers):
            return Change(f"{request.method.decode('latin-1')} {path.decode('latin-1')}", None, {})
        return None if request.method == b"GET" else _change_by_api(path, request.body, account)
    what = named.removeprefix(_SQS).decode("latin-1")
    if what in READING:
        return None
    fields = fields_of(request.body)
    return Change(what, _queue_named(fields, account), fields)


def _change_by_api(path: bytes, body: bytes, account: str) -> Change:
    """Read ``/v1/{noun}/{account}/{queue}/{verb}``; a body that is not JSON (Arrow) is not shown."""
    noun, _, rest = path.removeprefix(_API).decode("latin-1").partition("/")
    queue, _, verb = rest.rpartition("/")
    own = account + queue[1:] if queue.startswith("-/") else queue
    return Change(f"{noun}/{verb}", own or None, fields_of(body))


def _queue_named(fields: Mapping[str, Any], account: str) -> str | None:
    """Return the full name of the queue of an action of SQS, found as the action does."""
    url, name, arn = (fields.get(member) for member in ("QueueUrl", "QueueName", "SourceArn"))
    if isinstance(url, str):
        try:
            return queue_of(url, RequestContext(base_url="", account=account))
        except SqsError:
            return None
    if isinstance(name, str):
        return f"{account}/{name}"[:_NAME_CHARACTERS_MAX]
    return "/".join(arn[:_NAME_CHARACTERS_MAX].split(":")[-2:]) if isinstance(arn, str) else None


def fields_of(body: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON object; of any other body only its length."""
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {UNREAD: f"{len(body):,} bytes"}


log = logging.getLogger("veilmq.audit")

MEMORY_ENTRIES_MAX = 1_000  # lines kept in memory if there is no file
READ_BYTES_MAX = 1 << 20  # of the end of the file, for display

ASKED = "asked"
DONE = "done"
UNKNOWN = "OutcomeUnknown"  # the request was cancelled or failed: the change may have been made

_OWNER_ONLY = 0o600
_UNAVAILABLE = "AuditLogUnavailable"
_encode = msgspec.json.Encoder().encode


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``who`` is the caller's ARN, ``everyone`` without authentication.

    ``what`` is the action and ``queue`` its queue, if any; ``before`` has the replaced values that the caller may see,
    ``after`` the request's fields without message bodies. ``outcome`` is ``asked``, ``done``, ``UNKNOWN``, or the
    error's code.
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
    """The lines of one server, in the file ``path``, or in memory if that is ``None``."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._entries: deque[AuditEntry] = deque(maxlen=MEMORY_ENTRIES_MAX)
        self._writing = asyncio.Lock()

    async def write(self, entry: AuditEntry) -> None:
        """Append a line and sync it to disk; raises ``AuditLogError``."""
        line = _encode(entry) + b"\n"
        log.info("%s", line[:-1].decode())
        if self.path is None:
            self._entries.append(entry)
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
        """Return the last line of each of the last ``count`` changes, newest first."""
        lines = list(self._entries) if self.path is None else await asyncio.to_thread(_tail, self.path)
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
    """Return whether the last line is complete: a full disk may have cut it."""
    size_bytes = os.fstat(descriptor).st_size
    return not size_bytes or os.pread(descriptor, 1, size_bytes - 1) == b"\n"


def _tail(path: Path) -> Sequence[AuditEntry]:
    """Return the complete lines at the end of the file; invalid ones are skipped. Raises ``ApiError``."""
    try:
        with path.open("rb") as file:
            start = max(file.seek(0, os.SEEK_END) - READ_BYTES_MAX, 0)
            file.seek(start)
            lines = file.read().split(b"\n")[1 if start else 0 :]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ApiError(_UNAVAILABLE, f"The audit log {path} cannot be read: {error.strerror}.", 503) from None
    return [entry for line in lines if (entry := _entry(line)) is not None]


def _entry(line: bytes) -> AuditEntry | None:
    try:
        return msgspec.json.decode(line, type=AuditEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


T = TypeVar("T")

EVERYONE = "everyone"

_SHOWN_CHARACTERS_MAX = 1_024
_RECEIPT_CHARACTERS = 16
_ID_BYTES = 8
_MEMBERS_MAX = 200
_DEPTH_MAX = 8
_LINE_BYTES_MAX = 65_536


class Auditing:
    """Runs requests, and logs those that change anything. ``now_ms`` is shown time."""

    def __init__(
        self, send_request: SendRequest, log: AuditLog, *, now_ms: Callable[[], int], account: str = DEFAULT_ACCOUNT
    ) -> None:
        """``account`` is the account without authentication."""
        self._account = account
        self._send_request = send_request
        self._log = log
        self._now_ms = now_ms

    async def __call__(self, request: ApiRequest) -> ApiReply:
        """Return the reply; 503, and no change, if the log cannot be written."""
        change = change_of(request, account=self._account if request.caller is None else request.caller.account)
        if change is None:
            return await self._send_request(request)
        entry = self._entry(request.caller, request.peer, change.what)
        entry = msgspec.structs.replace(
            entry,
            queue=change.queue,
            before=await prior_values(change, request, self._send_request),
            after=_logged(change.fields),
        )
        try:
            return await self._audited(entry, lambda: self._send_request(request), _outcome)
        except AuditLogError as error:
            return ApiReply(503, b"", msgspec.json.encode({"code": _UNAVAILABLE, "message": str(error)}))

    async def operation(
        self, caller: Caller | None, peer: str | None, what: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the result of ``work``, a change of the server; raises ``AuditLogError`` if it was not started."""
        return await self._audited(self._entry(caller, peer, what), work, lambda _: DONE)

    def _entry(self, caller: Caller | None, peer: str | None, what: str) -> AuditEntry:
        who = EVERYONE if caller is None else caller.arn
        identity = secrets.token_hex(_ID_BYTES)
        return AuditEntry(at_ms=self._now_ms(), id=identity, who=who, peer=peer, what=what, queue=None, after={})

    async def _audited(self, entry: AuditEntry, work: Callable[[], Awaitable[T]], outcome: Callable[[T], str]) -> T:
        try:
            await self._log.write(entry)
            reply = await work()
        except AuditLogError:
            raise
        except BaseException:  # cancelled or failed
            await self._end(entry, UNKNOWN)
            raise
        await self._end(entry, outcome(reply))
        return reply

    async def _end(self, entry: AuditEntry, outcome: str) -> None:
        ended = msgspec.structs.replace(entry, at_ms=self._now_ms(), outcome=outcome)
        try:
            await self._log.write(ended)
        except AuditLogError:  # the change is made; its first line says "asked"
            return


def _outcome(reply: ApiReply) -> str:
    """Return the outcome of a change; of a batch, with the number of failed entries."""
    if reply.status >= 400:
        return error_in(reply).code
    failed = fields_of(reply.body).get("Failed") if b'"Failed"' in reply.body else None
    return f"{DONE}, but for {len(failed)}" if isinstance(failed, list) and failed else DONE


async def prior_values(change: Change, request: ApiRequest, send_request: SendRequest) -> Mapping[str, Any] | None:
    """Return the values that ``change`` will replace, if the caller may see them."""
    prior = _PRIOR_VALUES.get(change.what)
    if prior is None:
        return None
    method, target, body = prior.request(request.target.partition(b"?")[0], change.fields)
    host = {b"host": request.headers[b"host"]} if b"host" in request.headers else {}
    headers = {**host, **prior.headers}
    reply = await send_request(request._replace(method=method, target=target, headers=headers, body=body))
    if reply.status >= 400:
        return None
    values = fields_of(reply.body).get(prior.member, {})
    names = prior.names(change.fields)
    return {name: value for name, value in values.items() if names is None or name in names}


ReplacedNames = Callable[[Mapping[str, Any]], frozenset[str] | None]
"""From the fields of a change to the names of the values that it replaces; ``None`` for all."""


class _PriorValues(NamedTuple):
    """How to query the values before a change: the request, and the field of its reply that has them."""

    request: Callable[[bytes, Mapping[str, Any]], tuple[bytes, bytes, bytes]]
    headers: Mapping[bytes, bytes]
    member: str
    names: ReplacedNames


def _sqs(action: str, member: str, *, names: ReplacedNames, **fields: Any) -> _PriorValues:
    def request(path: bytes, change: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
        return b"POST", b"/", msgspec.json.encode({"QueueUrl": change.get("QueueUrl"), **fields})

    return _PriorValues(request, {b"x-amz-target": b"AmazonSQS." + action.encode()}, member, names)


def _show(path: bytes, change: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
    return b"GET", path.rpartition(b"/")[0] + b"/show", b""


def _all(change: Mapping[str, Any]) -> None:
    return None


def _attributes(change: Mapping[str, Any]) -> frozenset[str]:
    attributes = change.get("Attributes")
    return frozenset(attributes) if isinstance(attributes, Mapping) else frozenset()


_PRIOR_VALUES: dict[str, _PriorValues] = {
    "SetQueueAttributes": _sqs("GetQueueAttributes", "Attributes", names=_attributes, AttributeNames=["All"]),
    "DeleteQueue": _sqs("GetQueueAttributes", "Attributes", names=_all, AttributeNames=["All"]),
    "PurgeQueue": _sqs("GetQueueAttributes", "Attributes", names=_all, AttributeNames=["All"]),
    "TagQueue": _sqs("ListQueueTags", "Tags", names=_all),
    "UntagQueue": _sqs("ListQueueTags", "Tags", names=_all),
    "queues/set": _PriorValues(_show, {}, "settings", frozenset),
}


def abbreviated(value: Any, name: str = "", *, depth: int = 0) -> Any:
    """Abbreviate fields for the log: the length of bodies, the beginning of receipts and of long values."""
    if depth > _DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        inner = "StringValue" if name == "attributes" else ""  # message attributes of the /v1 API have any names
        first = islice(value.items(), _MEMBERS_MAX)
        return {_cut(key): abbreviated(each, inner or key, depth=depth + 1) for key, each in first}
    if isinstance(value, list):
        return [abbreviated(each, name, depth=depth + 1) for each in value[:_MEMBERS_MAX]]
    if not isinstance(value, str):
        return value
    if name in {"MessageBody", "body", "StringValue", "BinaryValue"}:
        return f"({len(value):,} characters)"
    return value[:_RECEIPT_CHARACTERS] + "…" if name in {"ReceiptHandle", "receipt"} else _cut(value)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _logged(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``fields`` abbreviated; only their size if they are still too long."""
    logged: Mapping[str, Any] = abbreviated(fields)
    size = len(msgspec.json.encode(logged))
    return logged if size <= _LINE_BYTES_MAX else {UNREAD: f"{size:,} bytes"}
