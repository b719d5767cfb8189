"""The routes of queues: their settings, their list, and what is in them."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from veilmq.core import commands, limits
from veilmq.core.commands import (
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
from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX, Range
from veilmq.core.messages import decode_properties
from veilmq.core.settings import QueueSettings, SettingValue, refusal_of_itself
from veilmq.wire.exchange import Reply, RequestContext, id_text
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError
from veilmq.wire.sqs.names import account_of, queue_url
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.sqs.queues import read_tags
from veilmq.wire.v1.claims import texts, types
from veilmq.wire.v1.request import (
    DEAD_LETTER_QUEUE_REFUSED,
    INVALID_REQUEST,
    NAMES,
    ApiCall,
    ApiRequest,
    from_json,
    from_query,
    json_reply,
)

_FIFO_SUFFIX = ".fifo"
_OWN_NAME = re.compile(
    rf"[A-Za-z0-9_-]{{1,{limits.SQS_QUEUE_NAME_CHARACTERS_MAX}}}"
    rf"|[A-Za-z0-9][A-Za-z0-9-]{{0,{limits.SMQ_QUEUE_NAME_CHARACTERS_MAX - 1}}}"
)
_NAME = re.compile(NAMES)

Scope = Literal["queue", "group"]


class SettingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings by the names and with the meanings of ``core.settings.QueueSettings``; those left out stay as they are.

    ``None`` means the server's own setting.
    """

    visibility_timeout_s: int | UnsetType = UNSET
    visibility_rules: str | UnsetType = UNSET
    delay_s: int | UnsetType = UNSET
    retention_s: int | UnsetType = UNSET
    receive_wait_s: int | UnsetType = UNSET
    message_bytes_max: int | UnsetType = UNSET
    in_flight_max: int | UnsetType | None = UNSET
    fifo: bool | UnsetType = UNSET
    content_deduplication: bool | UnsetType = UNSET
    deduplication_scope: Scope | UnsetType = UNSET
    throughput_limit: Scope | UnsetType = UNSET
    dead_letter_queue: str | UnsetType = UNSET
    receives_max: int | UnsetType = UNSET
    redrive_permission: Literal["", "all", "none", "listed"] | UnsetType = UNSET
    redrive_sources: list[str] | UnsetType = UNSET
    receives_per_s_max: int | UnsetType = UNSET
    smq_base64: bool | UnsetType = UNSET
    operations_logged: bool | UnsetType = UNSET
    policy: str | UnsetType = UNSET
    event_log: Literal["off", "closed"] | UnsetType | None = UNSET
    managed_encryption: bool | UnsetType = UNSET
    kms_key: str | UnsetType = UNSET
    kms_data_key_reuse_s: int | UnsetType = UNSET


class CreateFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of ``create``."""

    settings: SettingFields = SettingFields()
    tags: dict[str, str] = {}


class CreatedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue that is there now; ``is_new`` unless it was there before."""

    queue: str
    url: str
    is_new: bool


class ShownQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as its owner sees it; other queues by their full names."""

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
"""Which numbers a setting may have."""


def create(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Create a queue, or find it with the same settings: ``{"settings": {...}, "tags": {...}}``."""
    account, _, name = request.queue.partition("/")
    if account_of(account) != account_of(context.account):
        raise SqsError(ACCESS_DENIED, f"Queues are made in the caller's own account, which is {context.account}.")
    fields = from_json(request.body, CreateFields)
    _check_new(name, fifo=fields.settings.fifo is True)
    command = commands.CreateQueue(
        queue=request.queue,
        settings=_changes(fields.settings, request, context),
        tags=read_tags(fields.tags, request.queue),
    )

    def answer(view: QueueView) -> Reply:
        url = queue_url(view.queue, context)
        return json_reply(200, CreatedQueue(queue=view.queue, url=url, is_new=view.is_new))

    return ApiCall(command, answer)


def change(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Change settings of a queue: an object of them; messages in flight keep their deadlines."""
    fields = from_json(request.body, SettingFields)
    return ApiCall(commands.SetQueue(queue=request.queue, settings=_changes(fields, request, context)))


def show(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Tell the settings of a queue, and how many messages are in which state."""

    def answer(view: QueueView) -> Reply:
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
        return json_reply(200, shown)

    return ApiCall(commands.ShowQueue(queue=request.queue, counts=True), answer)


def _changes(fields: SettingFields, request: ApiRequest, context: RequestContext) -> dict[str, SettingValue]:
    given: dict[str, Any] = {
        name: value for name in fields.__struct_fields__ if (value := getattr(fields, name)) is not UNSET
    }
    for name in given.keys() & RANGES.keys():
        if given[name] is not None and not RANGES[name].holds(given[name]):
            raise _unfit(name, f"must be {RANGES[name].minimum} to {RANGES[name].maximum}")
    _check_texts(given)
    account = request.queue.partition("/")[0]
    if given.get("dead_letter_queue"):
        given["dead_letter_queue"] = _full("dead_letter_queue", given["dead_letter_queue"], account)
        if given["dead_letter_queue"] == request.queue:
            raise SqsError(DEAD_LETTER_QUEUE_REFUSED, str(refusal_of_itself(request.queue)))
    if "redrive_sources" in given:
        given["redrive_sources"] = tuple(_full("redrive_sources", each, account) for each in given["redrive_sources"])
    if "policy" in given:
        given |= SETTINGS["Policy"].kind.read("policy", given["policy"], request.queue, context)
    return given


def _check_texts(given: dict[str, Any]) -> None:
    if len(given.get("visibility_rules", "").encode()) > limits.VISIBILITY_RULES_BYTES_MAX:
        raise _unfit("visibility_rules", f"may have {limits.VISIBILITY_RULES_BYTES_MAX:,} bytes")
    key = given.get("kms_key", "")
    if len(key) > limits.SQS_KMS_KEY_CHARACTERS_MAX or not key.isprintable():
        raise _unfit("kms_key", f"may have {limits.SQS_KMS_KEY_CHARACTERS_MAX} printable characters")
    if len(given.get("redrive_sources", ())) > limits.SQS_REDRIVE_SOURCES_MAX:
        raise _unfit("redrive_sources", f"may name {limits.SQS_REDRIVE_SOURCES_MAX} queues")


def _check_new(name: str, *, fifo: bool) -> None:
    """Refuse a name that neither SQS nor SMQ can make; .fifo at its end is for FIFO queues."""
    stem = name.removesuffix(_FIFO_SUFFIX)
    if stem != name and (not fifo or len(name) > limits.SQS_QUEUE_NAME_CHARACTERS_MAX):
        raise SqsError(
            INVALID_REQUEST,
            f"A name that ends in .fifo is for FIFO queues and has up to {limits.SQS_QUEUE_NAME_CHARACTERS_MAX} "
            "characters; set fifo, or choose another name.",
        )
    if not _OWN_NAME.fullmatch(stem):
        raise SqsError(
            INVALID_REQUEST,
            f"A name has up to {limits.SQS_QUEUE_NAME_CHARACTERS_MAX} letters, digits, hyphens and underscores, or up "
            f"to {limits.SMQ_QUEUE_NAME_CHARACTERS_MAX} where it begins with a letter or digit and has no underscore.",
        )


def _full(setting: str, name: str, account: str) -> str:
    plain = name.removeprefix(f"{account}/")
    if not _NAME.fullmatch(plain):
        raise _unfit(setting, f"must be the name of a queue of the account {account}")
    return f"{account}/{plain}"


def _unfit(setting: str, why: str) -> SqsError:
    return SqsError(INVALID_REQUEST, f"{setting}: {why}.")


# The queues of an account, however many: a page of them in any order, with counts and rates.


class ListFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a listing: ``names``, apart by commas, are listed instead of what ``search`` finds."""

    search: Annotated[str, msgspec.Meta(max_length=SMQ_QUEUE_NAME_CHARACTERS_MAX)] = ""
    names: str | None = None
    sort: QueueOrder = QueueOrder.NAME
    descending: bool = False
    first: Annotated[int, msgspec.Meta(ge=0)] = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=limits.BROWSED_QUEUES_MAX)] = 50
    history: bool = True


def list_queues(request: ApiRequest, context: RequestContext) -> ApiCall:
    """List queues of the caller's account, with what is in them and how it moves."""
    fields = from_query(request.query, ListFields)
    return ApiCall(
        BrowseQueues(
            account=request.account,
            search=fields.search,
            names=None if fields.names is None else _named(fields.names),
            order=fields.sort,
            descending=fields.descending,
            first=fields.first,
            count=fields.count,
            history=fields.history,
        )
    )


def _named(names: str) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(name for name in names.split(",") if name))
    if len(named) > limits.BROWSED_QUEUES_MAX:
        raise SqsError(INVALID_REQUEST, f"names: may be {limits.BROWSED_QUEUES_MAX} at once.")
    return named


# The routes that show messages and leases of a queue and change nothing: no lease begins, no receive is counted.
#
# A message has the form of a claimed one (``wire.v1.claims``), with what else is known of it. An answer ends with the
# message that brings it to ``limits.INSPECT_BYTES``; bodies can be cut to show more messages.


AnyMessage = TypeVar("AnyMessage", SeenMessage, PeekedMessage)
State = Literal["visible", "in_flight", "delayed"]

_STATES: dict[State, MessageState] = {
    "visible": MessageState.VISIBLE,
    "in_flight": MessageState.IN_FLIGHT,
    "delayed": MessageState.DELAYED,
}
_POSITION = re.compile("[0-9]{1,19}")
_POSITIONS_END = 1 << 63
_WORDS = {state: word for word, state in _STATES.items()}


def _within(allowed: Range) -> Meta:
    return Meta(ge=allowed.minimum, le=allowed.maximum)


Messages = Annotated[int, _within(limits.INSPECT_MESSAGES)]
Leases = Annotated[int, _within(limits.INSPECT_LEASES)]
Characters = Annotated[int, Meta(ge=0, le=limits.MESSAGE_BYTES.maximum)]


class PeekFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of ``peek``, and some of the list's. Longer bodies are cut to ``body_characters_max``."""

    count: Messages = limits.INSPECT_MESSAGES.default
    body_characters_max: Characters | None = None


class InspectFields(PeekFields, frozen=True, kw_only=True):
    """The parameters of the list; of the messages that the others ask for, ``id`` shows one alone."""

    state: State | None = None
    receipts: bool = False
    id: UUID | None = None


class LeaseFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of leases; ``also`` are positions, apart by commas."""

    count: Leases = limits.INSPECT_LEASES.default
    also: str = ""


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What every inspection shows of a message; ``body_bytes`` is the size of the whole body.

    ``attributes`` and ``system_attributes`` are texts, binary ones in Base64; types other than String are in
    ``attribute_types``, which is null where there are none. Instants are milliseconds since the epoch.
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


class ListedMessage(ShownMessage, frozen=True, kw_only=True):
    """A message with its state; see ``core.commands.SeenMessage``. ``receipt`` is null unless asked for."""

    state: State
    visible_at_ms: int | None
    received_at_ms: int | None
    receipt: str | None


class PeekedRow(ShownMessage, frozen=True, kw_only=True):
    """A visible message; ``source`` is the full name of the queue that a dead letter came from."""

    source: str | None


class ListedMessages(msgspec.Struct, frozen=True):
    """Messages; ``is_cut`` where there are more that would have made the answer too long."""

    messages: list[ListedMessage]
    is_cut: bool


class PeekedMessages(msgspec.Struct, frozen=True):
    """The same of a peek."""

    messages: list[PeekedRow]
    is_cut: bool


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A message in flight, by its lease: ``core.commands.SeenLease``. The position is a text, as it may be long."""

    message_id: str
    position: str
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None
    group: str | None


class ListedLeases(msgspec.Struct, frozen=True):
    """The leases that end first, those first; then those that the request names, as long as they are in the queue."""

    leases: list[Lease]


def list_messages(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Show messages without receiving them: those sent first, or those of one state in the order of its instants."""
    fields = from_query(request.query, InspectFields)
    state = None if fields.state is None else _STATES[fields.state]
    command = InspectQueue(
        queue=request.queue,
        count=fields.count,
        state=state,
        receipts=fields.receipts,
        id=None if fields.id is None else fields.id.bytes,
        bytes_max=limits.INSPECT_READ_BYTES,
    )

    def answer(seen: list[SeenMessage]) -> Reply:
        shown, is_cut = _bounded(seen, fields)
        return json_reply(200, ListedMessages([_listed(*each) for each in shown], is_cut))

    return ApiCall(command, answer)


def peek(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Show what a receive would give now, in that order, without receiving it."""
    fields = from_query(request.query, PeekFields)

    def answer(peeked: Peeked) -> Reply:
        shown, is_cut = _bounded(peeked.messages, fields)
        rows = [PeekedRow(source=each.source, **_fields(each, body)) for each, body in shown]
        return json_reply(200, PeekedMessages(rows, is_cut))

    return ApiCall(Peek(queue=request.queue, count=fields.count, bytes_max=limits.INSPECT_READ_BYTES), answer)


def list_leases(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Show the leases of a queue that end first: what was received and is in flight."""
    fields = from_query(request.query, LeaseFields)
    return ApiCall(InspectLeases(queue=request.queue, count=fields.count, also=_positions(fields.also)), _leases)


def _positions(text: str) -> tuple[int, ...]:
    """Return the positions that ``text`` has; raises ``SqsError``."""
    texts = text.split(",") if text else []
    if len(texts) > limits.INSPECT_ALSO_MAX:
        raise SqsError(INVALID_REQUEST, f"also: may be {limits.INSPECT_ALSO_MAX} positions at once.")
    if not all(_POSITION.fullmatch(each) and int(each) < _POSITIONS_END for each in texts):
        raise SqsError(INVALID_REQUEST, "also: must be positions from a list of leases, apart by commas.")
    return tuple(map(int, texts))


def _leases(seen: list[SeenLease]) -> Reply:
    return json_reply(200, ListedLeases([_lease(each) for each in seen]))


def _lease(seen: SeenLease) -> Lease:
    return Lease(
        message_id=id_text(seen.message_id),
        position=str(seen.position),
        generation=seen.generation,
        received_at_ms=seen.received_at_ms,
        visible_at_ms=seen.visible_at_ms,
        receive_count=seen.receive_count,
        extensions=seen.extensions,
        group=seen.group,
    )


def _bounded(messages: Sequence[AnyMessage], fields: PeekFields) -> tuple[list[tuple[AnyMessage, str]], bool]:
    """Return the messages that an answer holds, with bodies cut as the request wants; and if more may be left
    out, here or by the engine.
    """
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


def _listed(message: SeenMessage, body: str) -> ListedMessage:
    return ListedMessage(
        state=_WORDS[message.state],
        visible_at_ms=message.visible_at_ms,
        received_at_ms=message.received_at_ms,
        receipt=message.receipt,
        **_fields(message, body),
    )


def _fields(message: SeenMessage | PeekedMessage, body: str) -> dict[str, Any]:
    """Return the fields of ``ShownMessage``."""
    carried = decode_properties(message.properties)
    return {
        "id": id_text(message.id),
        "body": body,
        "body_bytes": len(message.body.encode()),
        "attributes": texts(carried.attributes),
        "attribute_types": types(carried.attributes),
        "system_attributes": texts(carried.system),
        "group": carried.group,
        "dedup_id": carried.dedup_id,
        "priority": message.priority,
        "sent_at_ms": message.sent_at_ms,
        "first_received_at_ms": message.first_received_at_ms,
        "receive_count": message.receive_count,
    }
