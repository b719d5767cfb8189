"""A queue's settings in the words of veilmq itself, with the widest ranges: what no protocol of others can all say.

SQS tells a FIFO queue by its name and SMQ's requests cannot speak of dead letters or kinds of queues at all; here a
queue of any name that one of them can make has any setting. Other queues are named by their names, and are of the same
account.
"""

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from veilmq.core import commands, limits, redrive
from veilmq.core.limits import Range
from veilmq.core.results import QueueView
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError
from veilmq.wire.sqs.names import account_of, queue_url
from veilmq.wire.sqs.permissions import PolicyDocument
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.sqs.tags import read_tags
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import DEAD_LETTER_QUEUE_REFUSED, INVALID_REQUEST, json_reply
from veilmq.wire.v1.request import NAMES, ApiRequest, from_json

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
        assert counts is not None, "asked with counts"
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
            raise SqsError(DEAD_LETTER_QUEUE_REFUSED, str(redrive.itself(request.queue)))
    if "redrive_sources" in given:
        given["redrive_sources"] = tuple(_full("redrive_sources", each, account) for each in given["redrive_sources"])
    if "policy" in given:
        given |= PolicyDocument().read("policy", given["policy"], request.queue, context)
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
