"""RedrivePolicy and RedriveAllowPolicy: where dead letters go, and who may name a queue as the place.

Both are texts in JSON. A text of another form is InvalidAttributeValue, as for the plain attributes; a policy that
breaks a rule is InvalidParameterValue, with the policy and AWS's reason. An empty text removes a policy.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from veilmq.core.limits import SQS_RECEIVES_MAX, SQS_REDRIVE_SOURCES_MAX
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError, invalid_parameter, shown
from veilmq.wire.sqs.names import queue_arn, queue_of_arn
from veilmq.wire.sqs.setting_kinds import Values, invalid_attribute

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


class RedrivePolicy:
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


class RedriveAllowPolicy:
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
