"""The actions on queues and on the account, and queue attributes (reference, sections 4.0 to 4.5, 4.14)."""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import NamedTuple

from veilmq.core import commands, limits
from veilmq.core.commands import ListQueues, QueuePage, QueueView, SetAccount, ShowAccount
from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import Range
from veilmq.core.settings import AccountSettings, QueueSettings, SettingValue, self_reference_error
from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.smq import request as smq
from veilmq.wire.smq.errors import from_core, invalid_argument
from veilmq.wire.smq.request import Element, SmqRequest, body_of, checked_name, element, queue_of
from veilmq.wire.sqs.names import is_fifo
from veilmq.wire.sqs.queue_attributes import Values

Read = Callable[[str, str, RequestContext], Values]
"""(name of an element, its text, context) → the settings; raises ``SmqError`` (InvalidArgument)."""

Write = Callable[[QueueSettings], str]


class Attribute(NamedTuple):
    """One attribute; ``write`` is ``None`` if it is never shown."""

    read: Read
    write: Write | None = None


def _number(field: str, allowed: Range, unit: str = "") -> Attribute:
    def read(name: str, text: str, context: RequestContext) -> Values:
        return {field: smq.whole_number(name, text, allowed, unit)}

    return Attribute(read, lambda settings: str(getattr(settings, field)))


def _message_bytes(name: str, text: str, context: RequestContext) -> Values:
    allowed = replace(limits.SMQ_MESSAGE_BYTES, maximum=context.smq_message_bytes_max)
    return {"message_bytes_max": smq.whole_number(name, text, allowed, smq.BYTES)}


def _queue_type(name: str, text: str, context: RequestContext) -> Values:
    kind = text.strip().lower()
    if kind not in ("normal", "fifo"):
        raise invalid_argument(f"{name}, which is normal or fifo")
    return {"fifo": kind == "fifo"}


def _dead_letter_queue(name: str, text: str, context: RequestContext) -> Values:
    """Read the name of a queue of the same account; an empty text removes the dead-letter queue."""
    target = text.strip()
    if not target:
        return {"dead_letter_queue": "", "receives_max": 0}
    return {"dead_letter_queue": f"{context.account}/{checked_name(target)}"}


ATTRIBUTES: dict[str, Attribute] = {
    "DelaySeconds": _number("delay_s", limits.SMQ_DELAY_S, smq.SECONDS),
    "MaximumMessageSize": Attribute(_message_bytes, lambda settings: str(settings.message_bytes_max)),
    "MessageRetentionPeriod": _number("retention_s", limits.SMQ_RETENTION_S, smq.SECONDS),
    "VisibilityTimeout": _number("visibility_timeout_s", limits.SMQ_VISIBILITY_TIMEOUT_S, smq.SECONDS),
    "PollingWaitSeconds": _number("receive_wait_s", limits.SMQ_RECEIVE_WAIT_S, smq.SECONDS),
    "LoggingEnabled": Attribute(
        lambda name, text, context: {"operations_logged": smq.flag(name, text)},
        lambda settings: str(settings.operations_logged),
    ),
    "QueueType": Attribute(_queue_type),
    "DeadLetterTargetQueue": Attribute(_dead_letter_queue),
    "MaxReceiveCount": Attribute(_number("receives_max", limits.SQS_RECEIVES_MAX).read),
    "MaxReceivesPerSecond": Attribute(_number("receives_per_s_max", limits.RECEIVES_PER_S).read),
}
"""Element → its attribute."""

DEFAULTS: Mapping[str, SettingValue] = {"message_bytes_max": limits.SMQ_MESSAGE_BYTES.default}
"""The defaults of new queues that differ between SMQ and SQS."""


def read_settings(parent: Element, context: RequestContext, names: Container[str] = ATTRIBUTES) -> Values:
    """Return the settings in the children of ``parent`` with ``names``; raises ``SmqError`` (InvalidArgument)."""
    values: Values = {}
    for name, text in smq.texts(parent).items():
        if name in names:
            values |= ATTRIBUTES[name].read(name, text, context)
    return values


def described(view: QueueView) -> str:
    """Return the attributes of a queue as elements, for GetQueueAttributes and listings."""
    counts = view.counts
    assert counts is not None, "the command asks for counts"
    content = {
        "QueueName": view.queue.partition("/")[2],
        "CreateTime": str(view.created_at_ms // limits.SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // limits.SECOND_MS),
        **{name: row.write(view.settings) for name, row in ATTRIBUTES.items() if row.write is not None},
        "ActiveMessages": str(counts.visible),
        "InactiveMessages": str(counts.in_flight),
        "DelayMessages": str(counts.delayed),
    }
    return smq.elements(content)


# CreateQueue, SetQueueAttributes, GetQueueAttributes and DeleteQueue (reference, sections 4.1 to 4.4).


def create(request: SmqRequest, context: RequestContext) -> Plan:
    """CreateQueue: creates the queue (201), or returns it if it has the given attributes (204)."""
    queue = queue_of(request, context, smq.NEW_QUEUE_NAME)
    supplied = read_settings(smq.optional_body_of(request, "Queue"), context)
    if is_fifo(queue) and not supplied.setdefault("fifo", True):
        raise invalid_argument("QueueType, which is fifo where the name ends in .fifo")
    command = commands.CreateQueue(queue=queue, settings=supplied, defaults=DEFAULTS, skip_name_pause=True)
    return Plan(command, smq.creation_response(smq.queue_url(request.path[1], context)))


def set_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetQueueAttributes: changes the given attributes; current leases keep their deadlines."""
    changes = read_settings(body_of(request, "Queue"), context)
    queue = queue_of(request, context)
    if changes.get("dead_letter_queue") == queue:
        raise from_core(self_reference_error(queue))
    return Plan(commands.SetQueue(queue=queue, settings=changes), smq.no_content)


def get_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetQueueAttributes: returns all attributes."""
    command = commands.ShowQueue(queue=queue_of(request, context), counts=True)
    return Plan(command, smq.document_response("Queue", described))


def delete(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteQueue: deletes a queue and its messages; a missing queue is no error."""
    return Plan(commands.DeleteQueue(queue=queue_of(request, context)), smq.deletion_response(QueueNotFound))


def list_page(request: SmqRequest, context: RequestContext) -> Plan:
    """ListQueue: lists the caller's queues by name, in pages (reference, section 4.5).

    ``x-mns-with-meta`` adds the attributes of each queue that the caller may see.
    """
    page, detailed = smq.read_listing(request.headers)

    def entries(page: QueuePage) -> list[tuple[str, str, str]]:
        details = {view.queue.partition("/")[2]: described(view) for view in page.views}
        return [(name, smq.queue_url(name, context), details.get(name, "")) for name in page.names]

    return Plan(ListQueues(account=context.account, views=detailed, **page), smq.listing_response("Queue", entries))


# The attributes of the account, and OpenService, which is a stub (reference, section 4.14).

_BUCKET = "LoggingBucket"


def get_account_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetAccountAttributes: returns the logging bucket, also if it is empty."""
    respond = smq.document_response("Account", lambda settings: element(_BUCKET, settings.logging_bucket))
    return Plan(ShowAccount(account=context.account), respond)


def set_account_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetAccountAttributes: changes the logging bucket, if given."""
    bucket = smq.texts(body_of(request, "Account")).get(_BUCKET)
    if bucket is None:
        return Plan(ShowAccount(account=context.account), smq.no_content)
    bucket = bucket.strip()
    if len(bucket) > limits.SMQ_LOGGING_BUCKET_CHARACTERS_MAX:
        raise invalid_argument(f"{_BUCKET}, which has up to {limits.SMQ_LOGGING_BUCKET_CHARACTERS_MAX} characters")
    return Plan(SetAccount(account=context.account, settings=AccountSettings(logging_bucket=bucket)), smq.no_content)


def open_service(request: SmqRequest, context: RequestContext) -> Plan:
    """OpenService: does nothing, successfully; there are no orders."""
    respond = smq.document_response("OpenService", lambda settings: element("OrderId", "0"))
    return Plan(ShowAccount(account=context.account), respond)
