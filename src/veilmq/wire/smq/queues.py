"""The actions on queues and on the account, and queue attributes (reference, sections 4.0 to 4.5, 4.14)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from veilmq.core import commands
from veilmq.core.commands import ListQueues, QueuePage, QueueView, SetAccount, ShowAccount
from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import (
    RECEIVES_PER_S,
    SECOND_MS,
    SMQ_DELAY_S,
    SMQ_LOGGING_BUCKET_CHARACTERS_MAX,
    SMQ_MESSAGE_BYTES,
    SMQ_RECEIVE_WAIT_S,
    SMQ_RETENTION_S,
    SMQ_VISIBILITY_TIMEOUT_S,
    SQS_RECEIVES_MAX,
    Range,
)
from veilmq.core.settings import AccountSettings, QueueSettings, SettingValue, refusal_of_itself
from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.smq.errors import invalid_argument
from veilmq.wire.smq.request import (
    BYTES,
    NO_CONTENT,
    SECONDS,
    Answer,
    Element,
    SmqRequest,
    answered,
    body_of,
    checked_name,
    container,
    document,
    element,
    flag,
    new_queue,
    next_marker,
    nothing,
    optional_body_of,
    queue_of,
    queue_url,
    read_listing,
    says_fifo,
    texts,
    whole_number,
)

Values = dict[str, SettingValue]
"""Values by field of ``QueueSettings``."""

Read = Callable[[str, str, RequestContext], Values]
"""Name and text of an element → what it sets; raises ``SmqError`` (InvalidArgument)."""

Write = Callable[[QueueSettings], str]


class Attribute(NamedTuple):
    """One attribute; ``write`` is ``None`` where it is never shown."""

    read: Read
    write: Write | None = None


def _number(field: str, allowed: Range, unit: str = "") -> Attribute:
    def read(name: str, text: str, context: RequestContext) -> Values:
        return {field: whole_number(name, text, allowed, unit)}

    return Attribute(read, lambda settings: str(getattr(settings, field)))


def _message_bytes(name: str, text: str, context: RequestContext) -> Values:
    allowed = Range(
        minimum=SMQ_MESSAGE_BYTES.minimum, maximum=context.smq_message_bytes_max, default=SMQ_MESSAGE_BYTES.default
    )
    return {"message_bytes_max": whole_number(name, text, allowed, BYTES)}


_KINDS = {"normal": False, "fifo": True}


def _kind(name: str, text: str, context: RequestContext) -> Values:
    fifo = _KINDS.get(text.strip().lower())
    if fifo is None:
        raise invalid_argument(f"{name}, which is {' or '.join(_KINDS)}")
    return {"fifo": fifo}


def _dead_letter_queue(name: str, text: str, context: RequestContext) -> Values:
    """Name a queue of the same account; no text ends the policy."""
    target = text.strip()
    if not target:
        return {"dead_letter_queue": "", "receives_max": 0}
    return {"dead_letter_queue": f"{context.account}/{checked_name(target)}"}


ATTRIBUTES: dict[str, Attribute] = {
    "DelaySeconds": _number("delay_s", SMQ_DELAY_S, SECONDS),
    "MaximumMessageSize": Attribute(_message_bytes, lambda settings: str(settings.message_bytes_max)),
    "MessageRetentionPeriod": _number("retention_s", SMQ_RETENTION_S, SECONDS),
    "VisibilityTimeout": _number("visibility_timeout_s", SMQ_VISIBILITY_TIMEOUT_S, SECONDS),
    "PollingWaitSeconds": _number("receive_wait_s", SMQ_RECEIVE_WAIT_S, SECONDS),
    "LoggingEnabled": Attribute(
        lambda name, text, context: {"operations_logged": flag(name, text)},
        lambda settings: str(settings.operations_logged),
    ),
    "QueueType": Attribute(_kind),
    "DeadLetterTargetQueue": Attribute(_dead_letter_queue),
    "MaxReceiveCount": Attribute(_number("receives_max", SQS_RECEIVES_MAX).read),
    "MaxReceivesPerSecond": Attribute(_number("receives_per_s_max", RECEIVES_PER_S).read),
}
"""Element → how it is read and written."""

DEFAULTS: Mapping[str, SettingValue] = {"message_bytes_max": SMQ_MESSAGE_BYTES.default}
"""The settings of a queue made through SMQ that have other defaults over SQS, unless the request names them."""


def read_settings(queue: Element, context: RequestContext) -> Values:
    """Return what the children of ``queue`` set; raises ``SmqError`` (InvalidArgument) for a value that cannot be."""
    values: Values = {}
    for name, text in texts(queue).items():
        attribute = ATTRIBUTES.get(name)
        if attribute is not None:
            values |= attribute.read(name, text, context)
    return values


def described(view: QueueView) -> str:
    """Return the elements of a queue, as GetQueueAttributes and a listing with them have them."""
    counts = view.counts
    assert counts is not None, "the command asks for counts"
    content = {
        "QueueName": view.queue.partition("/")[2],
        "CreateTime": str(view.created_at_ms // SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // SECOND_MS),
        **{name: row.write(view.settings) for name, row in ATTRIBUTES.items() if row.write is not None},
        "ActiveMessages": str(counts.visible),
        "InactiveMessages": str(counts.in_flight),
        "DelayMessages": str(counts.delayed),
    }
    return "".join(element(name, text) for name, text in content.items())


# CreateQueue, SetQueueAttributes, GetQueueAttributes and DeleteQueue (reference, sections 4.1 to 4.4).


def create_queue(request: SmqRequest, context: RequestContext) -> Plan:
    """CreateQueue: makes the queue (201), or finds it when every attribute given has the value that it has (204)."""
    queue = new_queue(request, context)
    supplied = read_settings(optional_body_of(request, "Queue"), context)
    if says_fifo(queue) and not supplied.setdefault("fifo", True):
        raise invalid_argument("QueueType, which is fifo where the name ends in .fifo")
    location = queue_url(request.path[1], context)

    def respond(result: Any) -> Answer:
        view: QueueView = answered(result)
        return Answer(201 if view.is_new else 204, location=location)

    return Plan(commands.CreateQueue(queue=queue, settings=supplied, defaults=DEFAULTS, at_once=True), respond)


def set_queue_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetQueueAttributes: those given; the others, and leases in flight, stay as they are."""
    changes = read_settings(body_of(request, "Queue"), context)
    queue = queue_of(request, context)
    if changes.get("dead_letter_queue") == queue:
        answered(refusal_of_itself(queue))
    return Plan(commands.SetQueue(queue=queue, settings=changes), nothing)


def get_queue_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetQueueAttributes: all of them."""

    def respond(result: Any) -> Answer:
        return Answer(200, document("Queue", described(answered(result))))

    return Plan(commands.ShowQueue(queue=queue_of(request, context), counts=True), respond)


def delete_queue(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteQueue: with all its messages; a queue that is not there is as good as deleted."""

    def respond(result: Any) -> Answer:
        return NO_CONTENT if isinstance(result, QueueNotFound) else nothing(result)

    return Plan(commands.DeleteQueue(queue=queue_of(request, context)), respond)


# ListQueue: the caller's queues by name, a page at a time (reference, section 4.5).


def list_queue(request: SmqRequest, context: RequestContext) -> Plan:
    """ListQueue: their URLs, and with ``x-mns-with-meta`` the attributes of each queue that the caller may see."""
    listing = read_listing(request.headers)

    def respond(result: Any) -> Answer:
        page: QueuePage = answered(result)
        details = {view.queue.partition("/")[2]: described(view) for view in page.views}
        queues = "".join(
            container("Queue", element("QueueURL", queue_url(name, context)) + details.get(name, ""))
            for name in page.names
        )
        last = page.names[-1] if page.names else ""
        return Answer(200, document("Queues", queues + next_marker(last, more=page.more)))

    command = ListQueues(
        account=context.account, prefix=listing.prefix, after=listing.after, count=listing.count, views=listing.detailed
    )
    return Plan(command, respond)


# The account's own attributes, and the stub of opening the service (reference, section 4.14).


_BUCKET = "LoggingBucket"


def get_account_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetAccountAttributes: the bucket, which is there also when it is empty."""

    def respond(result: Any) -> Answer:
        settings: AccountSettings = answered(result)
        return Answer(200, document("Account", element(_BUCKET, settings.logging_bucket)))

    return Plan(ShowAccount(account=context.account), respond)


def set_account_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetAccountAttributes: the bucket; a body that does not name one changes nothing."""
    bucket = texts(body_of(request, "Account")).get(_BUCKET)
    if bucket is None:
        return Plan(ShowAccount(account=context.account), nothing)
    bucket = bucket.strip()
    if len(bucket) > SMQ_LOGGING_BUCKET_CHARACTERS_MAX:
        raise invalid_argument(f"{_BUCKET}, which has up to {SMQ_LOGGING_BUCKET_CHARACTERS_MAX} characters")
    return Plan(SetAccount(account=context.account, settings=AccountSettings(logging_bucket=bucket)), nothing)


def open_service(request: SmqRequest, context: RequestContext) -> Plan:
    """OpenService: there is nothing to open and no order; an account that may ask is served."""

    def respond(result: Any) -> Answer:
        answered(result)
        return Answer(200, document("OpenService", element("OrderId", "0")))

    return Plan(ShowAccount(account=context.account), respond)
