"""What a request may change, read off the request itself, whichever page or program sends it.

The actions of SQS that only read are listed, those of our API that only read are its GETs; all others are changes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from veilmq.console.asking import Asked
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
"""The name under which the length stands of what was not read, or is too long to be told."""

_API = b"/v1/"
_SQS = b"AmazonSQS."
_TARGET = b"x-amz-target"
_NAME_CHARACTERS_MAX = 1_024


class Change(NamedTuple):
    """What a request is about: the action, the queue if there is one, and the fields."""

    what: str
    queue: str | None
    fields: Mapping[str, Any]


def change_of(asked: Asked, *, account: str) -> Change | None:
    """Return what a request of ``account`` may change; ``None`` for one that is known to only read.

    It is told which request it is as the queues' port tells it: the header counts before the path.
    """
    path = asked.target.partition(b"?")[0]
    named = asked.headers.get(_TARGET)
    if named is None:
        if not path.startswith(_API) or is_smq(asked.target, asked.headers):
            return Change(f"{asked.method.decode('latin-1')} {path.decode('latin-1')}", None, {})
        return None if asked.method == b"GET" else _change_by_api(path, asked.body, account)
    what = named.removeprefix(_SQS).decode("latin-1")
    if what in READING:
        return None
    fields = fields_of(asked.body)
    return Change(what, _queue_named(fields, account), fields)


def _change_by_api(path: bytes, body: bytes, account: str) -> Change:
    """The path is ``/v1/{noun}/{account}/{queue}/{verb}``; a body that is no JSON (Arrow) is not shown."""
    noun, _, rest = path.removeprefix(_API).decode("latin-1").partition("/")
    queue, _, verb = rest.rpartition("/")
    own = account + queue[1:] if queue.startswith("-/") else queue
    return Change(f"{noun}/{verb}", own or None, fields_of(body))


def _queue_named(fields: Mapping[str, Any], account: str) -> str | None:
    """Return the full name of the queue that an action of SQS is about, as the action finds it."""
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
    """Return the members of a JSON object; of a body that is none, its length alone."""
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {UNREAD: f"{len(body):,} bytes"}
