"""Queue attributes: the table ``SETTINGS`` maps them to fields of ``QueueSettings``, ``READ_ONLY`` to a ``QueueView``.

Standard queues do not have the attributes of FIFO queues. Attributes that SQS does not have begin with ``Veilmq``.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec

from veilmq.core import limits
from veilmq.core.commands import QueueCounts, QueueView
from veilmq.core.errors import DeadLetterQueueRefused, SettingsConflict
from veilmq.core.limits import Range
from veilmq.core.settings import QueueSettings, SettingValue, read_table
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import Code, SqsError, truncated
from veilmq.wire.sqs.members import unwrap
from veilmq.wire.sqs.names import is_fifo, queue_arn, queue_of_arn
from veilmq.wire.sqs.policies import read_policy

Values = dict[str, SettingValue]
"""Settings by field of ``QueueSettings``."""

_WHOLE_NUMBER = re.compile("[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An attribute that can be set, stored in ``fields`` of ``QueueSettings``.

    ``read(attribute name, text, queue, context)`` returns settings or raises ``SqsError``. ``write`` returns the text
    that GetQueueAttributes shows, if any. ``allowed`` and ``default`` are for the reference page; ``default`` is empty
    if GetQueueAttributes does not show the default. ``fifo``: only FIFO queues have the attribute. It is shown only if
    the field ``only_with``, if given, is set.
    """

    fields: tuple[str, ...]
    read: Callable[[str, str, str, RequestContext], Values]
    write: Callable[[QueueSettings, RequestContext], str | None]
    allowed: str
    default: str = ""
    is_number: bool = False
    fifo: bool = False
    only_with: str = ""


def number(field: str, allowed: Range) -> Setting:
    """Return the setting of a whole number in the range ``allowed``, with its default."""

    def read(name: str, value: str, queue: str, context: RequestContext) -> Values:
        if not _WHOLE_NUMBER.fullmatch(value) or not allowed.holds(int(value)):
            raise invalid_attribute(name, f"Must be a whole number between {allowed.minimum} and {allowed.maximum}.")
        return {field: int(value)}

    return Setting(
        fields=(field,),
        read=read,
        write=lambda settings, context: str(getattr(settings, field)),
        allowed=f"{allowed.minimum} to {allowed.maximum}",
        default=str(allowed.default),
        is_number=True,
    )


def choice(field: str, words: Mapping[str, SettingValue], *, any_case: bool = False) -> Setting:
    """Return the setting of one of several ``words``, each with its value; the first is the default.

    With ``any_case`` the words are lower-case, but may be given in any case.
    """
    word_of = {value: word for word, value in words.items()}

    def read(name: str, value: str, queue: str, context: RequestContext) -> Values:
        word = value.lower() if any_case else value
        if word not in words:
            raise invalid_attribute(name, f"Must be {' or '.join(words)}.")
        return {field: words[word]}

    return Setting(
        fields=(field,),
        read=read,
        write=lambda settings, context: word_of[getattr(settings, field)],
        allowed=" or ".join(f"`{word}`" for word in words),
        default=next(iter(words)),
    )


def flag(field: str, *, default: bool = False) -> Setting:
    """Return the setting of a boolean, ``true`` or ``false`` in any case."""
    return choice(field, {str(value).lower(): value for value in (default, not default)}, any_case=True)


def override(base: Setting) -> Setting:
    """Return ``base`` as an optional setting that overrides one of the server; an empty text removes it."""
    (field,) = base.fields
    return Setting(
        fields=base.fields,
        read=lambda name, value, *where: base.read(name, value, *where) if value else {field: None},
        write=lambda settings, *where: None if getattr(settings, field) is None else base.write(settings, *where),
        allowed=f"{base.allowed}; empty for the server's setting",
    )


def _unless_default(base: Setting) -> Setting:
    """Return ``base``, not shown if it is 0 or false."""
    return replace(base, only_with=base.fields[0])


def text(field: str, allowed: str, check: Callable[[str, str, RequestContext], object]) -> Setting:
    """Return the setting of a text that is stored unchanged and not shown if empty.

    ``check(text, queue, context)`` raises ``ValueError`` for an invalid text.
    """

    def read(name: str, value: str, queue: str, context: RequestContext) -> Values:
        try:
            if value:
                check(value, queue, context)
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise invalid_attribute(name, f"{reason[:1].upper()}{reason[1:]}.") from None
        return {field: value}

    return Setting(
        fields=(field,),
        read=read,
        write=lambda settings, context: getattr(settings, field) or None,
        allowed=f"{allowed}; empty to remove",
    )


def _check_rules(value: str, queue: str, context: RequestContext) -> None:
    if len(value.encode()) > limits.VISIBILITY_RULES_BYTES_MAX:
        raise ValueError(f"Must have at most {limits.VISIBILITY_RULES_BYTES_MAX:,} bytes")
    read_table(value)


def _check_key(value: str, queue: str, context: RequestContext) -> None:
    if len(value) > limits.SQS_KMS_KEY_CHARACTERS_MAX or not value.isprintable():
        raise ValueError(f"Must be at most {limits.SQS_KMS_KEY_CHARACTERS_MAX} printable characters")


def invalid_attribute(name: str, reason: str) -> SqsError:
    return SqsError(errors.INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {reason}")


# RedrivePolicy (the dead-letter queue) and RedriveAllowPolicy (the queues that may use this one as dead-letter queue)
# are JSON; an empty text removes them. Invalid JSON is InvalidAttributeValue, as for other attributes; an invalid
# policy is InvalidParameterValue, with the policy and the text of AWS.

_REDRIVE_CHARACTERS_MAX = limits.SQS_POLICY_BYTES_MAX  # a longer policy is cut, and so is not valid JSON
_OTHER_ARN = re.compile("arn:[^:]*:(?!sqs:).*")
_PERMISSIONS = {"allowAll": "all", "denyAll": "none", "byQueue": "listed"}
_PERMISSION_WORDS = {permission: word for word, permission in _PERMISSIONS.items()}
_ALLOW = "Amazon SQS can't create the redrive allow policy"


class _Redrive(msgspec.Struct, rename="camel", omit_defaults=True):
    dead_letter_target_arn: str
    max_receive_count: int


class _Allow(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    redrive_permission: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(_PERMISSIONS)})$")]
    source_queue_arns: list[str] | None = None


def _read_redrive(name: str, value: str, queue: str, context: RequestContext) -> Values:
    if not value:
        return {"dead_letter_queue": "", "receives_max": 0}
    refuse = partial(errors.invalid_parameter, name, value)
    try:
        policy = msgspec.json.decode(value[:_REDRIVE_CHARACTERS_MAX], type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise invalid_attribute(name, "Redrive policy is not a valid JSON map.") from None
    members = _Redrive.__struct_encode_fields__
    for member in reversed(members):
        if policy.get(member) is None:
            raise refuse(f"Redrive policy does not contain mandatory attribute: {member}.")
    if len(policy) > len(members):
        raise refuse(f"Only following attributes are supported: [{', '.join(members)}].")
    arn, count = str(policy["deadLetterTargetArn"]), policy["maxReceiveCount"]
    if _OTHER_ARN.fullmatch(arn):
        raise refuse("Only SQS queues are valid resources for deadLetterTargetArn.")
    target = queue_of_arn(arn, context)
    if target is None:
        raise refuse(f"Invalid value for deadLetterTargetArn. It must be the ARN of a queue in {context.region}.")
    if target.partition("/")[0] != queue.partition("/")[0]:
        raise refuse("Dead-letter target owner should be same as the source.")
    digits = count if isinstance(count, str) else msgspec.json.encode(count).decode()
    allowed = limits.SQS_RECEIVES_MAX
    if not re.fullmatch("[0-9]{1,6}", digits) or not allowed.holds(int(digits)):
        raise refuse(
            f"Invalid value for maxReceiveCount: {truncated(digits)}, valid values are from {allowed.minimum} to "
            f"{allowed.maximum} both inclusive."
        )
    return {"dead_letter_queue": target, "receives_max": int(digits)}


def _read_allow(name: str, value: str, queue: str, context: RequestContext) -> Values:
    if not value:
        return {"redrive_permission": "", "redrive_sources": ()}
    refuse = partial(errors.invalid_parameter, name, value)
    try:
        policy = msgspec.json.decode(value[:_REDRIVE_CHARACTERS_MAX], type=_Allow)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise invalid_attribute(
            name,
            f"{_ALLOW}, as it’s in an unsupported format. Give a JSON map with redrivePermission, one of "
            f"{', '.join(_PERMISSIONS)}, and with byQueue the list sourceQueueArns.",
        ) from None
    permission, arns = _PERMISSIONS[policy.redrive_permission], policy.source_queue_arns
    if permission != "listed":
        if arns is not None:
            why = "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
            raise refuse(f"{_ALLOW}. {why}")
        return {"redrive_permission": permission, "redrive_sources": ()}
    if not arns:
        why = "When you specify the byQueue permission type, you must also specify one or more sourceQueueArns values."
        raise refuse(f"{_ALLOW}. {why}")
    if len(arns) > limits.SQS_REDRIVE_SOURCES_MAX:
        why = f"The maximum number of source queue ARNs you can specify is {limits.SQS_REDRIVE_SOURCES_MAX}."
        raise refuse(f"{_ALLOW}. {why}")
    sources = tuple(source for arn in arns if (source := queue_of_arn(arn, context)) is not None)
    if len(sources) < len(arns):
        raise refuse(f"Each of sourceQueueArns must be the ARN of a queue in {context.region}.")
    return {"redrive_permission": permission, "redrive_sources": sources}


def _write_allow(settings: QueueSettings, context: RequestContext) -> str | None:
    if not settings.redrive_permission:
        return None
    sources = [queue_arn(source, context) for source in settings.redrive_sources] or None
    return msgspec.json.encode(_Allow(_PERMISSION_WORDS[settings.redrive_permission], sources)).decode()


ALL = "All"
FIFO_QUEUE = "FifoQueue"
QUEUE_ARN = "QueueArn"
REDRIVE_POLICY = "RedrivePolicy"


_REDRIVE = Setting(
    fields=("dead_letter_queue", "receives_max"),
    read=_read_redrive,
    write=lambda settings, context: (
        msgspec.json.encode(_Redrive(queue_arn(settings.dead_letter_queue, context), settings.receives_max)).decode()
        if settings.dead_letter_queue
        else None
    ),
    allowed=f"JSON: `deadLetterTargetArn`, `maxReceiveCount` ({limits.SQS_RECEIVES_MAX.minimum} to "
    f"{limits.SQS_RECEIVES_MAX.maximum}); empty to remove",
)
_REDRIVE_ALLOW = Setting(
    fields=("redrive_permission", "redrive_sources"),
    read=_read_allow,
    write=_write_allow,
    allowed=f"JSON: `redrivePermission` ({', '.join(f'`{word}`' for word in _PERMISSIONS)}), `sourceQueueArns` "
    f"(up to {limits.SQS_REDRIVE_SOURCES_MAX}, with `byQueue`); empty to remove",
)
_POLICY = f"JSON of up to {limits.SQS_POLICY_BYTES_MAX} bytes ([security.md](../security.md))"
_RULES = f"JSON of up to {limits.VISIBILITY_RULES_BYTES_MAX:,} bytes ([visibility-rules.md](../visibility-rules.md))"
_KEY = f"up to {limits.SQS_KMS_KEY_CHARACTERS_MAX} characters"
_SCOPES = {"queue": "queue", "messageGroup": "group"}
_PER_GROUP = {"perQueue": "queue", "perMessageGroupId": "group"}

SETTINGS: dict[str, Setting] = {
    "VisibilityTimeout": number("visibility_timeout_s", limits.VISIBILITY_TIMEOUT_S),
    "MaximumMessageSize": number("message_bytes_max", limits.MESSAGE_BYTES),
    "MessageRetentionPeriod": number("retention_s", limits.RETENTION_S),
    "DelaySeconds": number("delay_s", limits.SQS_DELAY_S),
    "ReceiveMessageWaitTimeSeconds": number("receive_wait_s", limits.SQS_RECEIVE_WAIT_S),
    "Policy": text("policy", _POLICY, lambda value, queue, context: read_policy(value, queue_arn(queue, context))),
    REDRIVE_POLICY: _REDRIVE,
    "RedriveAllowPolicy": _REDRIVE_ALLOW,
    FIFO_QUEUE: replace(flag("fifo"), fifo=True),
    "ContentBasedDeduplication": replace(flag("content_deduplication"), fifo=True),
    "DeduplicationScope": replace(choice("deduplication_scope", _SCOPES), fifo=True),
    "FifoThroughputLimit": replace(choice("throughput_limit", _PER_GROUP), fifo=True),
    "KmsMasterKeyId": text("kms_key", _KEY, _check_key),
    "KmsDataKeyReusePeriodSeconds": replace(
        number("kms_data_key_reuse_s", limits.SQS_KMS_DATA_KEY_REUSE_S), only_with="kms_key"
    ),
    "SqsManagedSseEnabled": flag("managed_encryption", default=True),
    "VeilmqInFlightMax": override(number("in_flight_max", limits.IN_FLIGHT)),
    "VeilmqVisibilityRules": text("visibility_rules", _RULES, _check_rules),
    "VeilmqEventLog": override(choice("event_log", {"off": "off", "closed": "closed"})),
    "VeilmqReceivesPerSecond": _unless_default(number("receives_per_s_max", limits.RECEIVES_PER_S)),
    "VeilmqSmqBase64": _unless_default(flag("smq_base64")),
    "VeilmqSmqLogging": _unless_default(flag("operations_logged")),
}

READ_ONLY: dict[str, Callable[[QueueView, RequestContext], str]] = {
    QUEUE_ARN: lambda view, context: queue_arn(view.queue, context),
    "ApproximateNumberOfMessages": lambda view, context: str(_counts(view).visible),
    "ApproximateNumberOfMessagesNotVisible": lambda view, context: str(_counts(view).in_flight),
    "ApproximateNumberOfMessagesDelayed": lambda view, context: str(_counts(view).delayed),
    "CreatedTimestamp": lambda view, context: str(view.created_at_ms // limits.SECOND_MS),
    "LastModifiedTimestamp": lambda view, context: str(view.modified_at_ms // limits.SECOND_MS),
}

COUNTED = frozenset(name for name in READ_ONLY if name.startswith("Approximate"))
"""The attributes that need the counts of the queue."""

NAMES = frozenset({ALL, *SETTINGS, *READ_ONLY})
"""All names that GetQueueAttributes accepts."""


_CONFLICTS: dict[str, tuple[Code | None, str]] = {
    "fifo": (None, "Modifying queue type is not supported."),
    "throughput_limit": (
        None,
        "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
    ),
    "kms_key": (
        errors.INVALID_ATTRIBUTE_NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    ),
}
"""Field to correct → the code, if it is not InvalidAttributeValue, and the text of SQS."""

ATTRIBUTE_OF: dict[str, str] = {field: name for name, setting in SETTINGS.items() for field in setting.fields}
"""Field of ``QueueSettings`` → the attribute that sets it."""


def read_settings(attributes: Mapping[str, str], queue: str, context: RequestContext) -> Values:
    """Return ``attributes`` of ``queue`` as changes of ``QueueSettings``.

    Raises InvalidAttributeName for an attribute that does not exist or cannot be set, InvalidAttributeValue for an
    invalid value, InvalidParameterValue for an invalid redrive policy.
    """
    values: Values = {}
    for name, value in attributes.items():
        setting = SETTINGS.get(name)
        if setting is None or setting.fifo > is_fifo(queue):
            if name in {"DeduplicationScope", "FifoThroughputLimit"}:
                why = f"You can specify the {name} only when FifoQueue is set to true."
                raise SqsError(errors.INVALID_ATTRIBUTE_NAME, why)
            raise errors.unknown_attribute(name)
        values |= setting.read(name, value, queue, context)
    return values


def unwrap_setting_result(result: Any, attributes: Mapping[str, str], queue: str) -> Any:
    """Like ``unwrap``, for a command that sets ``attributes`` of ``queue``."""
    if isinstance(result, SettingsConflict):
        code, why = _CONFLICTS.get(result.setting, (None, str(result)))
        raise invalid_attribute(ATTRIBUTE_OF[result.setting], why) if code is None else SqsError(code, why)
    if isinstance(result, DeadLetterQueueRefused):
        reason = str(result)
        if result.missing:
            reason = "Dead letter target does not exist."
        elif is_fifo(result.queue) is not is_fifo(queue):
            reason = "Dead-letter queue must be same type of queue as the source."
        raise errors.invalid_parameter(REDRIVE_POLICY, attributes.get(REDRIVE_POLICY), reason)
    return unwrap(result)


def write_settings(settings: Mapping[str, SettingValue], context: RequestContext) -> dict[str, str]:
    """Return settings by field of ``QueueSettings`` as queue attributes; ``context`` has the region for ARNs.

    Raises ``ValueError`` for an unknown field.
    """
    for field in settings:
        if field not in ATTRIBUTE_OF:
            raise ValueError(f"{field!r} is not a setting of a queue; these are {', '.join(ATTRIBUTE_OF)}")
    wanted = QueueSettings().changed(settings)
    written: dict[str, str] = {}
    for name in dict.fromkeys(ATTRIBUTE_OF[field] for field in settings):
        first, *others = SETTINGS[name].fields
        if first not in settings:
            raise ValueError(f"{' and '.join(others)} can only be changed together with {first}")
        written[name] = SETTINGS[name].write(wanted, context) or ""
    return written


def describe(view: QueueView, names: Iterable[str], context: RequestContext) -> dict[str, str]:
    """Return the attributes ``names`` of a queue (``All``: every attribute that it has)."""
    named, has = frozenset(names), view.settings
    wanted = NAMES if ALL in named else named
    values: dict[str, str | None] = {}
    for name, setting in SETTINGS.items():
        if name in wanted and setting.fifo <= has.fifo and (not setting.only_with or getattr(has, setting.only_with)):
            values[name] = setting.write(has, context)
    for name, value_of in READ_ONLY.items():
        if name in wanted:
            values[name] = value_of(view, context)
    return {name: value for name, value in values.items() if value is not None}


def _counts(view: QueueView) -> QueueCounts:
    assert view.counts is not None, "the command did not ask for counts"
    return view.counts
