"""The routes of queues: settings, lists, and inspection of messages and leases."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from veilmq.core import Value, commands, errors, limits
from veilmq.core.commands import (
    BrowsedQueues,
    BrowseQueues,
    InspectLeases,
    InspectQueue,
    MessageState,
    Peek,
    Peeked,
    PeekedMessage,
    QueueOrder,
    QueueView,
    SeenLease,
    SeenMessage,
)
from veilmq.core.limits import BROWSED_QUEUES_MAX, Range
from veilmq.core.messages import decode_properties
from veilmq.core.settings import QueueSettings, SettingValue, self_reference_error
from veilmq.wire.exchange import Reply, RequestContext, id_text
from veilmq.wire.sqs.errors import ACCESS_DENIED, INVALID_ATTRIBUTE_VALUE, INVALID_PARAMETER_VALUE, SqsError
from veilmq.wire.sqs.names import FIFO_SUFFIX, account_of, queue_url
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.sqs.queues import read_tags
from veilmq.wire.v1 import request as api
from veilmq.wire.v1.claims import texts, types
from veilmq.wire.v1.request import INVALID_REQUEST, ApiCall, ApiRequest, Route, as_json, fields_type

_OWN_NAME = re.compile(
    rf"[A-Za-z0-9_-]{{1,{limits.SQS_QUEUE_NAME_CHARACTERS_MAX}}}"
    rf"|[A-Za-z0-9][A-Za-z0-9-]{{0,{limits.SMQ_QUEUE_NAME_CHARACTERS_MAX - 1}}}"
)
_NAME = re.compile(api.NAMES)

Scope = Literal["queue", "group"]


_TYPES: dict[str, Any] = {
    "deduplication_scope": Scope,
    "throughput_limit": Scope,
    "redrive_permission": Literal["", "all", "none", "listed"],
    "redrive_sources": list[str],
    "event_log": Literal["off", "closed"] | None,
}
"""The settings whose types differ from those in ``QueueSettings``."""

SettingFields = fields_type(
    "SettingFields",
    [
        (field.name, _TYPES.get(field.name, field.type) | UnsetType, UNSET)
        for field in msgspec.structs.fields(QueueSettings)
        if field.name not in ("tags", "purges")
    ],
)
"""The fields of ``core.settings.QueueSettings``; absent ones do not change, ``None`` is the server's setting."""

CreateFields = fields_type(
    "CreateFields",
    [("settings", SettingFields, SettingFields()), ("tags", dict[str, str], {})],
)
"""The fields of ``create``."""


class CreatedQueue(Value):
    """A queue; ``is_new`` if the request created it."""

    queue: str
    url: str
    is_new: bool


class ShownQueue(Value):
    """A queue; its settings name other queues by their full names."""

    queue: str
    url: str
    settings: QueueSettings
    visible: int
    in_flight: int
    delayed: int
    created_at_ms: int
    modified_at_ms: int


RANGES: dict[str, Range] = {
    "visibility_timeout_s": limits.VISIBILITY_TIMEOUT_S,
    "delay_s": limits.DELAY_S,
    "retention_s": limits.RETENTION_S,
    "receive_wait_s": limits.RECEIVE_WAIT_S,
    "message_bytes_max": limits.MESSAGE_BYTES,
    "in_flight_max": limits.IN_FLIGHT,
    "receives_max": Range(minimum=0, maximum=limits.SQS_RECEIVES_MAX.maximum, default=0),
    "receives_per_s_max": limits.RECEIVES_PER_S,
    "kms_data_key_reuse_s": limits.SQS_KMS_DATA_KEY_REUSE_S,
}
"""Setting → its range."""


def _create(request: ApiRequest, fields: Any, context: RequestContext) -> ApiCall:
    account, _, name = request.queue.partition("/")
    if account_of(account) != account_of(context.account):
        raise SqsError(ACCESS_DENIED, f"Queues are created only in the caller's account, which is {context.account}.")
    check_new(name, fifo=fields.settings.fifo is True)
    settings, tags = read_settings(fields.settings, request.queue, context), read_tags(fields.tags, request.queue)

    def respond(view: QueueView) -> Reply:
        return as_json(CreatedQueue(queue=view.queue, url=queue_url(view.queue, context), is_new=view.is_new))

    return ApiCall(commands.CreateQueue(queue=request.queue, settings=settings, tags=tags), respond)


def _show(request: ApiRequest, fields: None, context: RequestContext) -> ApiCall:
    def respond(view: QueueView) -> Reply:
        counts = view.counts
        assert counts is not None, "the command asks for counts"
        shown = ShownQueue(
            queue=view.queue,
            url=queue_url(view.queue, context),
            settings=view.settings,
            visible=counts.visible,
            in_flight=counts.in_flight,
            delayed=counts.delayed,
            created_at_ms=view.created_at_ms,
            modified_at_ms=view.modified_at_ms,
        )
        return as_json(shown)

    return ApiCall(commands.ShowQueue(queue=request.queue, counts=True), respond)


def read_settings(fields: Any, queue: str, context: RequestContext) -> dict[str, SettingValue]:
    """Return the ``SettingFields`` of ``queue`` as changes of ``QueueSettings``; raises ``SqsError``."""
    values: dict[str, Any] = {
        name: value for name in fields.__struct_fields__ if (value := getattr(fields, name)) is not UNSET
    }
    for name in values.keys() & RANGES.keys():
        if values[name] is not None and not RANGES[name].holds(values[name]):
            raise _invalid_setting(name, f"must be {RANGES[name].minimum} to {RANGES[name].maximum}")
    if len(values.get("visibility_rules", "").encode()) > limits.VISIBILITY_RULES_BYTES_MAX:
        raise _invalid_setting("visibility_rules", f"may have {limits.VISIBILITY_RULES_BYTES_MAX:,} bytes")
    key = values.get("kms_key", "")
    if len(key) > limits.SQS_KMS_KEY_CHARACTERS_MAX or not key.isprintable():
        raise _invalid_setting("kms_key", f"may have {limits.SQS_KMS_KEY_CHARACTERS_MAX} printable characters")
    sources = values.get("redrive_sources", ())
    if len(sources) > limits.SQS_REDRIVE_SOURCES_MAX:
        raise _invalid_setting("redrive_sources", f"may name {limits.SQS_REDRIVE_SOURCES_MAX} queues")
    account = queue.partition("/")[0]
    if values.get("dead_letter_queue"):
        values["dead_letter_queue"] = _full_name("dead_letter_queue", values["dead_letter_queue"], account)
        if values["dead_letter_queue"] == queue:
            raise SqsError(api.DEAD_LETTER_QUEUE_REFUSED, str(self_reference_error(queue)))
    if "redrive_sources" in values:
        values["redrive_sources"] = tuple(_full_name("redrive_sources", source, account) for source in sources)
    if "policy" in values:
        values |= SETTINGS["Policy"].read("policy", values["policy"], queue, context)
    return values


def check_new(name: str, *, fifo: bool) -> None:
    """Raise ``SqsError`` for a name that is invalid in SQS and in SMQ; only FIFO queues may end in .fifo."""
    base_name = name.removesuffix(FIFO_SUFFIX)
    if base_name != name and (not fifo or len(name) > limits.SQS_QUEUE_NAME_CHARACTERS_MAX):
        raise SqsError(
            INVALID_REQUEST,
            f"A name that ends in .fifo is for FIFO queues and has up to {limits.SQS_QUEUE_NAME_CHARACTERS_MAX} "
            "characters; set fifo, or choose another name.",
        )
    if not _OWN_NAME.fullmatch(base_name):
        raise SqsError(
            INVALID_REQUEST,
            f"A name has up to {limits.SQS_QUEUE_NAME_CHARACTERS_MAX} letters, digits, hyphens and underscores, or up "
            f"to {limits.SMQ_QUEUE_NAME_CHARACTERS_MAX} where it begins with a letter or digit and has no underscore.",
        )


def _full_name(setting: str, name: str, account: str) -> str:
    bare_name = name.removeprefix(f"{account}/")
    if not _NAME.fullmatch(bare_name):
        raise _invalid_setting(setting, "must be the name of a queue of the account that has this one")
    return f"{account}/{bare_name}"


def _invalid_setting(setting: str, why: str) -> SqsError:
    return SqsError(INVALID_REQUEST, f"{setting}: {why}.")


class ListFields(Value, forbid_unknown_fields=True):
    """The parameters of a list of queues; ``names``, separated by commas, selects queues instead of ``search``."""

    search: Annotated[str, Meta(max_length=limits.SMQ_QUEUE_NAME_CHARACTERS_MAX)] = ""
    names: str | None = None
    sort: QueueOrder = QueueOrder.NAME
    descending: bool = False
    first: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=BROWSED_QUEUES_MAX)] = 50
    history: bool = True


def _list_queues(request: ApiRequest, fields: ListFields, context: RequestContext) -> ApiCall:
    options = asdict(fields)
    order, names = options.pop("sort"), options.pop("names")
    if names is not None:
        names = tuple(dict.fromkeys(name for name in names.split(",") if _NAME.fullmatch(name)))
        if len(names) > BROWSED_QUEUES_MAX:
            raise SqsError(INVALID_REQUEST, f"names: must be at most {BROWSED_QUEUES_MAX} names.")
    return ApiCall(BrowseQueues(account=request.account, names=names, order=order, **options))


# Inspection of messages and leases is read-only: it begins no lease and counts no receive. Messages have the fields of
# claimed ones (``wire.v1.claims``) and more. A reply ends with the message that reaches ``limits.INSPECT_BYTES``;
# truncated bodies leave room for more messages.

AnyMessage = TypeVar("AnyMessage", SeenMessage, PeekedMessage)
State = Literal["visible", "in_flight", "delayed"]

Messages = Annotated[int, limits.INSPECT_MESSAGES.constraint]
Leases = Annotated[int, limits.INSPECT_LEASES.constraint]
Characters = Annotated[int, Meta(ge=0, le=limits.MESSAGE_BYTES.maximum)]


class PeekFields(Value, forbid_unknown_fields=True):
    """The parameters of ``peek``; longer bodies are truncated to ``body_characters_max``."""

    count: Messages = limits.INSPECT_MESSAGES.default
    body_characters_max: Characters | None = None


class InspectFields(PeekFields):
    """The parameters of a list of messages; ``id`` selects one message among those of the other parameters."""

    state: State | None = None
    receipts: bool = False
    id: UUID | None = None


class LeaseFields(Value, forbid_unknown_fields=True):
    """The parameters of a list of leases; ``also`` has positions, separated by commas."""

    count: Leases = limits.INSPECT_LEASES.default
    also: str = ""


class ShownMessage(Value):
    """An inspected message; ``body_bytes`` is the size of the untruncated body.

    ``attributes`` and ``system_attributes`` are texts, binary ones in Base64; ``attribute_types`` has the types other
    than String, or is null. Instants are milliseconds since the epoch.
    """

    id: str
    body: str
    body_bytes: int
    attributes: dict[str, str]
    attribute_types: dict[str, str] | None
    system_attributes: dict[str, str]
    group: str | None
    dedup_id: str | None
    priority: int
    sent_at_ms: int
    first_received_at_ms: int | None
    receive_count: int


class ListedMessage(ShownMessage):
    """A message with its state; see ``core.commands.SeenMessage``. ``receipt`` is null unless requested."""

    state: State
    visible_at_ms: int | None
    received_at_ms: int | None
    receipt: str | None


class PeekedRow(ShownMessage):
    """A visible message; ``source`` is the full name of a dead letter's original queue."""

    source: str | None


class ListedMessages(msgspec.Struct, frozen=True):
    """Messages; ``is_cut`` if the size of the reply excluded more."""

    messages: list[ListedMessage]
    is_cut: bool


class PeekedMessages(msgspec.Struct, frozen=True):
    """Messages of a peek; ``is_cut`` if the size of the reply excluded more."""

    messages: list[PeekedRow]
    is_cut: bool


class Lease(Value):
    """A lease; see ``core.commands.SeenLease``. The position is a text, because it may exceed 53 bits."""

    message_id: str
    position: str
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None
    group: str | None


class ListedLeases(msgspec.Struct, frozen=True):
    """The leases that end first, in this order; then those of ``also`` whose messages are in the queue."""

    leases: list[Lease]


def _list_messages(request: ApiRequest, fields: InspectFields, context: RequestContext) -> ApiCall:
    command = InspectQueue(
        queue=request.queue,
        count=fields.count,
        state=None if fields.state is None else MessageState[fields.state.upper()],
        receipts=fields.receipts,
        id=None if fields.id is None else fields.id.bytes,
        bytes_max=limits.INSPECT_READ_BYTES,
    )

    def respond(seen: list[SeenMessage]) -> Reply:
        shown, is_cut = _limit_size(seen, fields)
        rows = [ListedMessage(**_fields(each, body) | {"state": each.state.name.lower()}) for each, body in shown]
        return as_json(ListedMessages(rows, is_cut))

    return ApiCall(command, respond)


def _peek(request: ApiRequest, fields: PeekFields, context: RequestContext) -> ApiCall:
    def respond(peeked: Peeked) -> Reply:
        shown, is_cut = _limit_size(peeked.messages, fields)
        rows = [PeekedRow(**_fields(each, body)) for each, body in shown]
        return as_json(PeekedMessages(rows, is_cut))

    return ApiCall(Peek(queue=request.queue, count=fields.count, bytes_max=limits.INSPECT_READ_BYTES), respond)


def _list_leases(request: ApiRequest, fields: LeaseFields, context: RequestContext) -> ApiCall:
    texts = fields.also.split(",") if fields.also else []
    if len(texts) > limits.INSPECT_ALSO_MAX:
        raise SqsError(INVALID_REQUEST, f"also: must be at most {limits.INSPECT_ALSO_MAX} positions.")
    if not all(re.fullmatch("[0-9]{1,19}", text) and int(text) < 1 << 63 for text in texts):
        raise SqsError(INVALID_REQUEST, "also: must be positions from a list of leases, separated by commas.")
    command = InspectLeases(queue=request.queue, count=fields.count, also=tuple(map(int, texts)))
    return ApiCall(command, lambda seen: as_json(ListedLeases([_lease(lease) for lease in seen])))


def _lease(seen: SeenLease) -> Lease:
    values = asdict(seen)
    return Lease(message_id=id_text(values.pop("message_id")), position=str(values.pop("position")), **values)


def _limit_size(messages: Sequence[AnyMessage], fields: PeekFields) -> tuple[list[tuple[AnyMessage, str]], bool]:
    """Return the messages that fit into a reply, with truncated bodies, and whether more may be missing."""
    shown: list[tuple[AnyMessage, str]] = []
    size_bytes = read_bytes = 0
    for message in messages:
        if size_bytes >= limits.INSPECT_BYTES:
            return shown, True
        body = message.body[: fields.body_characters_max]
        shown.append((message, body))
        size_bytes += len(body.encode()) + len(message.properties)
        read_bytes += len(message.body.encode())
    return shown, read_bytes >= limits.INSPECT_READ_BYTES


def _fields(message: SeenMessage | PeekedMessage, body: str) -> dict[str, Any]:
    """Return the fields of ``message`` with its properties decoded."""
    fields = asdict(message)
    properties = decode_properties(fields.pop("properties"))
    return fields | {
        "id": id_text(message.id),
        "body": body,
        "body_bytes": len(message.body.encode()),
        "attributes": texts(properties.attributes),
        "attribute_types": types(properties.attributes),
        "system_attributes": texts(properties.system),
        "group": properties.group,
        "dedup_id": properties.dedup_id,
    }


_SETTINGS = (errors.SettingsConflict, errors.DeadLetterQueueRefused)
_OF_CREATION = (errors.QueueExists, errors.QueueDeletedRecently, *_SETTINGS)
_get = partial(Route, b"GET")

# fmt: off
ROUTES = (
    _get(b"leases", b"", "ReceiveMessage",
         "List the leases of messages in flight, those that end first.",
         _list_leases, query=LeaseFields, result=ListedLeases),
    _get(b"messages", b"", "ReceiveMessage",  # with receipts also PurgeQueue
         "Show messages without receiving them: those sent first, or those of one state by visible_at_ms.",
         _list_messages, query=InspectFields, result=ListedMessages),
    _get(b"messages", b"peek", "ReceiveMessage",
         "Show what a receive would return now, in that order, without receiving it.",
         _peek, query=PeekFields, result=PeekedMessages),
    _get(b"queues", b"", "ListQueues", "List queues of the caller's account, with their counts and rates.",
         _list_queues, query=ListFields, result=BrowsedQueues, of_account=True),
    _get(b"queues", b"show", "GetQueueAttributes",
         "Return the settings of a queue, and its number of messages in each state.", _show, result=ShownQueue),
    Route(b"POST", b"queues", b"create", "CreateQueue",
          'Create a queue, or find it with the same settings: ``{"settings": {...}, "tags": {...}}``.',
          _create, body=CreateFields, result=CreatedQueue, errors=_OF_CREATION,
          codes=(INVALID_ATTRIBUTE_VALUE, INVALID_PARAMETER_VALUE)),
    Route(b"POST", b"queues", b"set", "SetQueueAttributes",
          "Change settings of a queue: an object of them; messages in flight keep their deadlines.",
          lambda request, fields, context: ApiCall(
              commands.SetQueue(queue=request.queue, settings=read_settings(fields, request.queue, context))
          ), body=SettingFields, errors=_SETTINGS, codes=(INVALID_ATTRIBUTE_VALUE,)),
)
# fmt: on
