"""Classify requests, of pages and programs: which ones may change something, and what.

The reading actions of SQS are listed; those of veilmq's API are its GETs. All others are changes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from veilmq.console.api_client import ApiRequest
from veilmq.wire.exchange import RequestContext
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
