"""Every change that is asked for is in the audit log, whichever page or program of the admin port asked for it.

It stands between them and the queues, so no page can forget it. What a request changes is read off the request: the
actions of SQS that only read are listed, those of our API that only read are its GETs.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from veilmq.console.asking import Answer, Ask, refusal
from veilmq.console.audit import DONE, UNKNOWN, AuditEntry, AuditLog, AuditLogError
from veilmq.wire.smq import is_smq
from veilmq.wire.sqs.callers import Caller
from veilmq.wire.sqs.context import DEFAULT_ACCOUNT, RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import queue_of

EVERYONE = "everyone"
"""Who a caller is where nobody is asked who he is."""

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

_API = b"/v1/"
_SQS = b"AmazonSQS."
_TARGET = b"x-amz-target"
_UNREAD = "unread"
_SHOWN_CHARACTERS_MAX = 1_024
_RECEIPT_CHARACTERS = 16
_ID_BYTES = 8
_MEMBERS_MAX = 200
_DEPTH_MAX = 8
_LINE_BYTES_MAX = 65_536


class Written(NamedTuple):
    """An answer made here."""

    status: int
    headers: bytes
    body: bytes


class Change(NamedTuple):
    """What a request is about: the action, the queue if there is one, and the fields."""

    what: str
    queue: str | None
    fields: Mapping[str, Any]


class Auditing:
    """An ``Ask`` that writes down what changes anything. ``now_ms`` is the store's clock."""

    def __init__(self, ask: Ask, log: AuditLog, *, now_ms: Callable[[], int], account: str = DEFAULT_ACCOUNT) -> None:
        """``ask`` carries it out; ``account`` asks where nobody is asked who he is."""
        self._account = account
        self._ask = ask
        self._log = log
        self._now_ms = now_ms

    async def __call__(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        *,
        caller: Caller | None,
        peer: str | None,
    ) -> Answer:
        """Answer as ``ask`` does; 503, with nothing done, where the log cannot be written."""

        async def ask(method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Answer:
            return await self._ask(method, target, headers, body, caller=caller, peer=peer)

        account = self._account if caller is None else caller.account
        change = change_of(method, target, headers, body, account=account)
        if change is None:
            return await ask(method, target, headers, body)
        entry = AuditEntry(
            at_ms=self._now_ms(),
            id=secrets.token_hex(_ID_BYTES),
            who=EVERYONE if caller is None else caller.arn,
            peer=peer,
            what=change.what,
            queue=change.queue,
            before=await before(change, target, headers, ask),
            after=_told(change.fields),
        )
        try:
            await self._log.write(entry)
            answer = await ask(method, target, headers, body)
        except AuditLogError as error:
            return Written(503, b"", msgspec.json.encode({"code": "AuditLogUnavailable", "message": str(error)}))
        except BaseException:  # who asked does not wait for the answer, or there is none
            await self._end(entry, UNKNOWN)
            raise
        await self._end(entry, _outcome(answer))
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
    failed = _fields(answer.body).get("Failed") if b'"Failed"' in answer.body else None
    return f"{DONE}, but for {len(failed)}" if isinstance(failed, list) and failed else DONE


def change_of(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, *, account: str
) -> Change | None:
    """Return what a request of ``account`` may change; ``None`` for one that is known to only read.

    It is told which request it is as the queues' port tells it: the header counts before the path.
    """
    path = target.partition(b"?")[0]
    named = headers.get(_TARGET)
    if named is None:
        if not path.startswith(_API) or is_smq(target, headers):
            return Change(f"{method.decode('latin-1')} {path.decode('latin-1')}", None, {})
        return None if method == b"GET" else _change_by_api(path, body, account)
    what = named.removeprefix(_SQS).decode("latin-1")
    if what in READING:
        return None
    fields = _fields(body)
    return Change(what, _queue_named(fields, account), fields)


def _change_by_api(path: bytes, body: bytes, account: str) -> Change:
    """The path is ``/v1/{noun}/{account}/{queue}/{verb}``; a body that is no JSON (Arrow) is not shown."""
    noun, _, rest = path.removeprefix(_API).decode("latin-1").partition("/")
    queue, _, verb = rest.rpartition("/")
    own = account + queue[1:] if queue.startswith("-/") else queue
    return Change(f"{noun}/{verb}", own or None, _fields(body))


def _queue_named(fields: Mapping[str, Any], account: str) -> str | None:
    """Return the full name of the queue that an action of SQS is about, as the action finds it."""
    url, name, arn = (fields.get(member) for member in ("QueueUrl", "QueueName", "SourceArn"))
    if isinstance(url, str):
        try:
            return queue_of(url, RequestContext(base_url="", account=account))
        except SqsError:
            return None
    if isinstance(name, str):
        return f"{account}/{name}"[:_SHOWN_CHARACTERS_MAX]
    return "/".join(arn[:_SHOWN_CHARACTERS_MAX].split(":")[-2:]) if isinstance(arn, str) else None


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {_UNREAD: f"{len(body):,} bytes"}


AskHere = Callable[[bytes, bytes, Mapping[bytes, bytes], bytes], Awaitable[Answer]]


async def before(
    change: Change, target: bytes, headers: Mapping[bytes, bytes], ask: AskHere
) -> Mapping[str, Any] | None:
    """Return the values that ``change`` is about to replace, as far as the caller may see them."""
    look = _LOOKS.get(change.what)
    if look is None:
        return None
    path, _, _ = target.partition(b"?")
    method, asked, body = look.request(path, change.fields)
    host = {b"host": headers[b"host"]} if b"host" in headers else {}
    answer = await ask(method, asked, {**host, **look.headers}, body)
    if answer.status >= 400:
        return None
    found = _fields(answer.body).get(look.member, {})
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
        first = islice(value.items(), _MEMBERS_MAX)
        return {_cut(key): shown(each, key, depth=depth + 1) for key, each in first}
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
    return told if size <= _LINE_BYTES_MAX else {_UNREAD: f"{size:,} bytes"}
