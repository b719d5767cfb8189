"""Every change that is asked for is in the audit log, whichever page or program of the admin port asked for it.

It stands between them and the queues, so no page can forget it.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from veilmq.console.asking import Answer, Ask, Asked, refusal
from veilmq.console.audit import DONE, UNKNOWN, AuditEntry, AuditLog, AuditLogError
from veilmq.console.changes import UNREAD, Change, change_of, fields_of
from veilmq.wire.exchange import DEFAULT_ACCOUNT, Caller

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
