"""Queue attributes: which exist, which may be set, and how each maps to fields of ``QueueSettings``.

One table per kind. A setting has a kind, which reads and writes it; a read-only attribute has a function that returns
it. Attributes of FIFO queues are unknown to the others. Those that Amazon does not have begin with ``Veilmq``.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec

from veilmq.core.commands import QueueCounts, QueueView
from veilmq.core.errors import DeadLetterQueueRefused, SettingsConflict, TooManyTags
from veilmq.core.limits import (
    IN_FLIGHT,
    MESSAGE_BYTES,
    RECEIVES_PER_S,
    RETENTION_S,
    SECOND_MS,
    SQS_DELAY_S,
    SQS_KMS_DATA_KEY_REUSE_S,
    SQS_KMS_KEY_CHARACTERS_MAX,
    SQS_POLICY_BYTES_MAX,
    SQS_RECEIVE_WAIT_S,
    SQS_RECEIVES_MAX,
    SQS_REDRIVE_SOURCES_MAX,
    VISIBILITY_RULES_BYTES_MAX,
    VISIBILITY_TIMEOUT_S,
    Range,
)
from veilmq.core.settings import QueueSettings, SettingValue, TableError, read_table
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    Code,
    SqsError,
    invalid_parameter,
    shown,
    too_many_tags,
    unknown_attribute,
)
from veilmq.wire.sqs.members import answered
from veilmq.wire.sqs.names import is_fifo, queue_arn, queue_of_arn
from veilmq.wire.sqs.policies import PolicyError, read_policy

Values = dict[str, SettingValue]
"""Values by field of ``QueueSettings``."""

_WHOLE_NUMBER = re.compile("[0-9]{1,10}")
_FLAGS = {"true": True, "false": False}
_FLAG_TEXTS = {value: text for text, value in _FLAGS.items()}


class Kind(ABC):
    """How an attribute is read and written.

    ``fields`` are those of ``QueueSettings`` that keep it. ``allowed`` and ``default`` are for the reference page; the
    default is empty where a queue that never set the attribute shows nothing.
    """

    fields: tuple[str, ...]
    allowed: str
    default: str = ""

    @abstractmethod
    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return what ``text`` for the attribute ``name`` of ``queue`` sets; raises ``SqsError``."""

    @abstractmethod
    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return what GetQueueAttributes shows, ``None`` for nothing."""


class Number(Kind):
    """A whole number within a range."""

    def __init__(self, field: str, allowed: Range) -> None:
        """``allowed`` has the default, too."""
        self.fields, self.range = (field,), allowed
        self.allowed, self.default = f"{allowed.minimum} to {allowed.maximum}", str(allowed.default)

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the number; raises InvalidAttributeValue for other text and for numbers out of range."""
        if not _WHOLE_NUMBER.fullmatch(text) or not self.range.holds(int(text)):
            raise invalid_attribute(
                name, f"Must be a whole number between {self.range.minimum} and {self.range.maximum}."
            )
        return {self.fields[0]: int(text)}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the number in digits."""
        return str(getattr(settings, self.fields[0]))


class Choice(Kind):
    """One of several words, each with the value that it stands for inside; the first one is the default."""

    def __init__(self, field: str, words: Mapping[str, SettingValue], *, any_case: bool = False) -> None:
        """``any_case``: the words, which are lower-case, may be given in any case."""
        self.fields, self.words, self.any_case = (field,), words, any_case
        self.allowed, self.default = " or ".join(f"`{word}`" for word in words), next(iter(words))

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return what the word stands for; raises InvalidAttributeValue for any other."""
        word = text.lower() if self.any_case else text
        if word not in self.words:
            raise invalid_attribute(name, f"Must be {' or '.join(self.words)}.")
        return {self.fields[0]: self.words[word]}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the word of the value."""
        value = getattr(settings, self.fields[0])
        return next(word for word, meant in self.words.items() if meant == value)


class Override(Kind):
    """A number or a word of the queue's own in place of the server's setting; empty for the server's, and not shown."""

    def __init__(self, own: Number | Choice) -> None:
        """``own`` is the kind of the queue's own value."""
        self.own, self.fields, self.allowed = own, own.fields, f"{own.allowed}; empty for the server's setting"

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the value, ``None`` for empty text; raises InvalidAttributeValue for a value that cannot be."""
        return self.own.read(name, text, queue, context) if text else dict.fromkeys(self.fields)

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the queue's own value as text."""
        return None if getattr(settings, self.fields[0]) is None else self.own.write(settings, context)


class Text(Kind):
    """A text kept as it was given, once ``check`` has found nothing wrong; empty for none, which shows nothing."""

    def __init__(self, field: str, allowed: str, check: Callable[[str, str, RequestContext], str | None]) -> None:
        """``check`` gets the text, the queue and the context, and returns what is wrong, or ``None``."""
        self.fields, self.allowed, self.check = (field,), f"{allowed}; empty to remove", check

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the text; raises InvalidAttributeValue where it is wrong."""
        reason = self.check(text, queue, context) if text else None
        if reason is not None:
            raise invalid_attribute(name, reason)
        return {self.fields[0]: text}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the text."""
        return getattr(settings, self.fields[0]) or None


def check_policy(text: str, queue: str, context: RequestContext) -> str | None:
    """Return why ``text`` is no policy of ``queue``, ``None`` for one that is."""
    try:
        read_policy(text, queue_arn(queue, context))
    except PolicyError as error:
        return f"{str(error)[:1].upper()}{str(error)[1:]}."
    return None


def _check_rules(text: str, queue: str, context: RequestContext) -> str | None:
    if len(text.encode()) > VISIBILITY_RULES_BYTES_MAX:
        return f"Must have at most {VISIBILITY_RULES_BYTES_MAX:,} bytes."
    try:
        read_table(text)
    except TableError as error:
        return str(error)
    return None


def _check_key(text: str, queue: str, context: RequestContext) -> str | None:
    if len(text) <= SQS_KMS_KEY_CHARACTERS_MAX and text.isprintable():
        return None
    return f"Must be at most {SQS_KMS_KEY_CHARACTERS_MAX} printable characters."


def flag(field: str, *, default: bool = False) -> Choice:
    """Return the kind of an attribute that is ``true`` or ``false``, in any case."""
    return Choice(field, {_FLAG_TEXTS[default]: default, _FLAG_TEXTS[not default]: not default}, any_case=True)


def invalid_attribute(name: str, reason: str) -> SqsError:
    """Return the error for a value of the queue attribute ``name`` that breaks the rule ``reason``."""
    return SqsError(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {reason}")


# RedrivePolicy and RedriveAllowPolicy: where dead letters go, and which queues may name a queue as their target.
#
# Both are texts in JSON. A text of another form is InvalidAttributeValue, as for the plain attributes; a policy that
# breaks a rule is InvalidParameterValue, with the policy and AWS's reason. An empty text removes a policy.


_DIGITS = re.compile("[0-9]{1,6}")
_OTHER_ARN = re.compile("arn:[^:]*:(?!sqs:).*")
_PERMISSIONS = {"allowAll": "all", "denyAll": "none", "byQueue": "listed"}
_WORDS = {meant: word for word, meant in _PERMISSIONS.items()}
_LISTED = "byQueue"
_ALLOW = "Amazon SQS can't create the redrive allow policy"
_WITHOUT_BY_QUEUE = "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
_TOO_FEW = "When you specify the byQueue permission type, you must also specify one or more sourceQueueArns values."
_TOO_MANY = f"The maximum number of source queue ARNs you can specify is {SQS_REDRIVE_SOURCES_MAX}."

_Refuse = Callable[[str], SqsError]


class _Redrive(msgspec.Struct, rename="camel", omit_defaults=True):
    dead_letter_target_arn: str
    max_receive_count: int


class _Allow(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    redrive_permission: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(_PERMISSIONS)})$")]
    source_queue_arns: list[str] | None = None


class RedrivePolicy(Kind):
    """After how many receives a message goes to which dead-letter queue."""

    fields = ("dead_letter_queue", "receives_max")
    allowed = (
        f"JSON: `deadLetterTargetArn`, `maxReceiveCount` ({SQS_RECEIVES_MAX.minimum} to {SQS_RECEIVES_MAX.maximum}); "
        "empty to remove"
    )
    default = ""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the dead-letter queue by its full name, and the number; raises InvalidParameterValue."""
        if not text:
            return {"dead_letter_queue": "", "receives_max": 0}
        refuse = partial(invalid_parameter, name, text)
        given = _decode_map(name, text)
        for member in reversed(_Redrive.__struct_encode_fields__):
            if given.get(member) is None:
                raise refuse(f"Redrive policy does not contain mandatory attribute: {member}.")
        if len(given) > len(_Redrive.__struct_encode_fields__):
            raise refuse("Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].")
        return {
            "dead_letter_queue": _target(given["deadLetterTargetArn"], queue, context, refuse),
            "receives_max": _receives(given["maxReceiveCount"], refuse),
        }

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the policy, the number as a number."""
        if not settings.dead_letter_queue:
            return None
        return _encode(
            _Redrive(
                dead_letter_target_arn=queue_arn(settings.dead_letter_queue, context),
                max_receive_count=settings.receives_max,
            )
        )


class RedriveAllowPolicy(Kind):
    """Which queues may name this one as their dead-letter queue."""

    fields = ("redrive_permission", "redrive_sources")
    allowed = (
        f"JSON: `redrivePermission` ({', '.join(f'`{word}`' for word in _PERMISSIONS)}), `sourceQueueArns` "
        f"(up to {SQS_REDRIVE_SOURCES_MAX}, with `{_LISTED}`); empty to remove"
    )
    default = ""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the permission and the sources by their full names; raises InvalidParameterValue."""
        if not text:
            return {"redrive_permission": "", "redrive_sources": ()}
        refuse = partial(invalid_parameter, name, text)
        policy = _decode_allow(name, text)
        if policy.redrive_permission != _LISTED and policy.source_queue_arns is not None:
            raise refuse(f"{_ALLOW}. {_WITHOUT_BY_QUEUE}")
        permission = _PERMISSIONS[policy.redrive_permission]
        sources = _sources(policy.source_queue_arns or [], context, refuse) if permission == "listed" else ()
        return {"redrive_permission": permission, "redrive_sources": sources}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the policy; a queue without one shows none, and allows all."""
        if not settings.redrive_permission:
            return None
        return _encode(
            _Allow(
                redrive_permission=_WORDS[settings.redrive_permission],
                source_queue_arns=[queue_arn(source, context) for source in settings.redrive_sources] or None,
            )
        )


def _decode_map(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise invalid_attribute(name, "Redrive policy is not a valid JSON map.") from None


def _decode_allow(name: str, text: str) -> _Allow:
    try:
        return msgspec.json.decode(text, type=_Allow)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise invalid_attribute(
            name,
            f"{_ALLOW}, as it’s in an unsupported format. Give a JSON map with redrivePermission, one of "
            f"{', '.join(_PERMISSIONS)}, and with byQueue the list sourceQueueArns.",
        ) from None


def _encode(policy: _Redrive | _Allow) -> str:
    return msgspec.json.encode(policy).decode()


def _target(value: Any, queue: str, context: RequestContext, refuse: _Refuse) -> str:
    arn = str(value)
    if _OTHER_ARN.fullmatch(arn):
        raise refuse("Only SQS queues are valid resources for deadLetterTargetArn.")
    target = queue_of_arn(arn, context)
    if target is None:
        raise refuse(f"Invalid value for deadLetterTargetArn. It must be the ARN of a queue in {context.region}.")
    if target.partition("/")[0] != queue.partition("/")[0]:
        raise refuse("Dead-letter target owner should be same as the source.")
    return target


def _receives(value: Any, refuse: _Refuse) -> int:
    digits = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if not _DIGITS.fullmatch(digits) or not SQS_RECEIVES_MAX.holds(int(digits)):
        raise refuse(
            f"Invalid value for maxReceiveCount: {shown(digits)}, valid values are from {SQS_RECEIVES_MAX.minimum} to "
            f"{SQS_RECEIVES_MAX.maximum} both inclusive."
        )
    return int(digits)


def _sources(arns: list[str], context: RequestContext, refuse: _Refuse) -> tuple[str, ...]:
    if not 1 <= len(arns) <= SQS_REDRIVE_SOURCES_MAX:
        raise refuse(f"{_ALLOW}. {_TOO_FEW if not arns else _TOO_MANY}")
    sources = tuple(queue for queue in (queue_of_arn(arn, context) for arn in arns) if queue is not None)
    if len(sources) < len(arns):
        raise refuse(f"Each of sourceQueueArns must be the ARN of a queue in {context.region}.")
    return sources


ALL = "All"
FIFO_QUEUE = "FifoQueue"
QUEUE_ARN = "QueueArn"
REDRIVE_POLICY = "RedrivePolicy"


@dataclass(frozen=True, slots=True)
class Setting:
    """An attribute that may be set.

    ``fifo``: only FIFO queues have it; it is not shown while the field ``only_with`` is empty.
    """

    kind: Kind
    fifo: bool = False
    only_with: str = ""

    def shows(self, queue: QueueSettings) -> bool:
        """Return whether a queue with these settings has the attribute."""
        return self.fifo <= queue.fifo and (not self.only_with or bool(getattr(queue, self.only_with)))


SETTINGS: dict[str, Setting] = {
    "VisibilityTimeout": Setting(Number("visibility_timeout_s", VISIBILITY_TIMEOUT_S)),
    "MaximumMessageSize": Setting(Number("message_bytes_max", MESSAGE_BYTES)),
    "MessageRetentionPeriod": Setting(Number("retention_s", RETENTION_S)),
    "DelaySeconds": Setting(Number("delay_s", SQS_DELAY_S)),
    "ReceiveMessageWaitTimeSeconds": Setting(Number("receive_wait_s", SQS_RECEIVE_WAIT_S)),
    "Policy": Setting(
        Text("policy", f"JSON of up to {SQS_POLICY_BYTES_MAX} bytes ([security.md](../security.md))", check_policy)
    ),
    REDRIVE_POLICY: Setting(RedrivePolicy()),
    "RedriveAllowPolicy": Setting(RedriveAllowPolicy()),
    FIFO_QUEUE: Setting(flag("fifo"), fifo=True),
    "ContentBasedDeduplication": Setting(flag("content_deduplication"), fifo=True),
    "DeduplicationScope": Setting(
        Choice("deduplication_scope", {"queue": "queue", "messageGroup": "group"}), fifo=True
    ),
    "FifoThroughputLimit": Setting(
        Choice("throughput_limit", {"perQueue": "queue", "perMessageGroupId": "group"}), fifo=True
    ),
    "KmsMasterKeyId": Setting(Text("kms_key", f"up to {SQS_KMS_KEY_CHARACTERS_MAX} characters", _check_key)),
    "KmsDataKeyReusePeriodSeconds": Setting(
        Number("kms_data_key_reuse_s", SQS_KMS_DATA_KEY_REUSE_S), only_with="kms_key"
    ),
    "SqsManagedSseEnabled": Setting(flag("managed_encryption", default=True)),
    "VeilmqInFlightMax": Setting(Override(Number("in_flight_max", IN_FLIGHT))),
    "VeilmqVisibilityRules": Setting(
        Text(
            "visibility_rules",
            f"JSON of up to {VISIBILITY_RULES_BYTES_MAX:,} bytes ([visibility-rules.md](../visibility-rules.md))",
            _check_rules,
        )
    ),
    "VeilmqEventLog": Setting(Override(Choice("event_log", {"off": "off", "closed": "closed"}))),
    "VeilmqReceivesPerSecond": Setting(Number("receives_per_s_max", RECEIVES_PER_S), only_with="receives_per_s_max"),
    "VeilmqSmqBase64": Setting(flag("smq_base64"), only_with="smq_base64"),
    "VeilmqSmqLogging": Setting(flag("operations_logged"), only_with="operations_logged"),
}

READ_ONLY: dict[str, Callable[[QueueView, RequestContext], str]] = {
    QUEUE_ARN: lambda view, context: queue_arn(view.queue, context),
    "ApproximateNumberOfMessages": lambda view, context: str(_counts(view).visible),
    "ApproximateNumberOfMessagesNotVisible": lambda view, context: str(_counts(view).in_flight),
    "ApproximateNumberOfMessagesDelayed": lambda view, context: str(_counts(view).delayed),
    "CreatedTimestamp": lambda view, context: str(view.created_at_ms // SECOND_MS),
    "LastModifiedTimestamp": lambda view, context: str(view.modified_at_ms // SECOND_MS),
}

COUNTED = frozenset(name for name in READ_ONLY if name.startswith("Approximate"))
"""The attributes that need the queue's counters."""

NAMES = frozenset({ALL, *SETTINGS, *READ_ONLY})
"""Every name that GetQueueAttributes knows."""

_HIGH_THROUGHPUT = frozenset({"DeduplicationScope", "FifoThroughputLimit"})

_CONFLICTS: dict[str, tuple[Code | None, str]] = {
    "fifo": (None, "Modifying queue type is not supported."),
    "throughput_limit": (
        None,
        "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
    ),
    "kms_key": (
        INVALID_ATTRIBUTE_NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    ),
}
"""Field to correct → the service's words, and their code where that is not InvalidAttributeValue."""

_NAME_OF_FIELD: dict[str, str] = {field: name for name, setting in SETTINGS.items() for field in setting.kind.fields}

SETTABLE = tuple(_NAME_OF_FIELD)
"""The fields of ``QueueSettings`` that some attribute sets."""


def read_settings(attributes: Mapping[str, str], queue: str, context: RequestContext) -> Values:
    """Return ``attributes`` of ``queue`` as changes of ``QueueSettings``.

    Raises InvalidAttributeName for one that does not exist or cannot be set, InvalidAttributeValue for a value out of
    range, InvalidParameterValue for a bad redrive policy.
    """
    values: Values = {}
    for name, text in attributes.items():
        values |= _setting(name, queue).kind.read(name, text, queue, context)
    return values


def accepted(result: Any, attributes: Mapping[str, str], queue: str) -> Any:
    """Return the result of the command that was to set ``attributes`` of ``queue``; raises the ``SqsError``."""
    if isinstance(result, SettingsConflict):
        code, text = _CONFLICTS.get(result.setting, (None, str(result)))
        raise invalid_attribute(attribute_of(result.setting), text) if code is None else SqsError(code, text)
    if isinstance(result, DeadLetterQueueRefused):
        raise invalid_parameter(REDRIVE_POLICY, attributes.get(REDRIVE_POLICY), _why_refused(result, queue))
    if isinstance(result, TooManyTags):
        raise too_many_tags(queue)
    return answered(result)


def _why_refused(error: DeadLetterQueueRefused, queue: str) -> str:
    if error.missing:
        return "Dead letter target does not exist."
    if is_fifo(error.queue) is not is_fifo(queue):
        return "Dead-letter queue must be same type of queue as the source."
    return str(error)


def attribute_of(field: str) -> str:
    """Return the attribute that a ``field`` of ``QueueSettings`` is on the wire."""
    return _NAME_OF_FIELD[field]


def check_names(names: Iterable[str]) -> None:
    """Raise InvalidAttributeName for the first of ``names`` that no queue has."""
    for name in names:
        if name not in NAMES:
            raise unknown_attribute(name)


def describe(view: QueueView, names: Iterable[str], context: RequestContext) -> dict[str, str]:
    """Return the attributes of a queue that ``names`` ask for (``All``: every one that it has)."""
    wanted = frozenset(names)
    values: dict[str, str | None] = {}
    for name, setting in SETTINGS.items():
        if setting.shows(view.settings):
            values[name] = setting.kind.write(view.settings, context)
    for name, value_of in READ_ONLY.items():
        if ALL in wanted or name in wanted:
            values[name] = value_of(view, context)
    return {name: text for name, text in values.items() if text is not None and (ALL in wanted or name in wanted)}


def _setting(name: str, queue: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is not None and setting.fifo <= is_fifo(queue):
        return setting
    if name in _HIGH_THROUGHPUT:
        raise SqsError(INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true.")
    raise unknown_attribute(name)


def _counts(view: QueueView) -> QueueCounts:
    assert view.counts is not None, "the command did not ask for counts"
    return view.counts
