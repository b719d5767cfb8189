"""AddPermission and RemovePermission, and the attribute ``Policy`` that both of them edit.

A permission is a statement whose ``Sid`` is the label. What AddPermission writes looks as AWS writes it, so that tools
that read a policy find what they expect; the other statements stay as they were given. Both are one command that reads
and writes, so that of two at once neither is lost.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from veilmq.core.commands import EditQueue
from veilmq.core.errors import EditRefused
from veilmq.core.limits import (
    SQS_POLICY_ACTIONS_MAX,
    SQS_POLICY_BYTES_MAX,
    SQS_POLICY_LABEL_CHARACTERS_MAX,
    SQS_POLICY_STATEMENTS_MAX,
)
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs.callers import root_arn
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, OVER_LIMIT, SqsError, invalid_parameter, missing_parameter
from veilmq.wire.sqs.names import queue_arn, queue_of
from veilmq.wire.sqs.parameters import required
from veilmq.wire.sqs.plan import Plan, answered
from veilmq.wire.sqs.policies import GRANTABLE, decode, read_policy, statements
from veilmq.wire.sqs.policy_conditions import PolicyError
from veilmq.wire.sqs.requests import AddPermissionRequest, RemovePermissionRequest
from veilmq.wire.sqs.setting_kinds import Values, invalid_attribute

_FIELD = "policy"
_ANY = "*"
_VERSION = "2008-10-17"
_LABEL = re.compile(rf"[A-Za-z0-9_-]{{1,{SQS_POLICY_LABEL_CHARACTERS_MAX}}}")
_ACCOUNT = re.compile("[0-9]{12}")


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """The kind of the attribute ``Policy``: a document kept as it was given, once it was found to be one."""

    fields: tuple[str, ...] = (_FIELD,)
    allowed: str = f"JSON of up to {SQS_POLICY_BYTES_MAX} bytes ([security.md](../security.md)); empty to remove"
    default: str = ""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the text; raises InvalidAttributeValue for one that is no policy."""
        try:
            if text:
                read_policy(text, queue_arn(queue, context))
        except PolicyError as error:
            raise invalid_attribute(name, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        return {_FIELD: text}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the document."""
        return settings.policy or None


def add_permission(request: AddPermissionRequest, context: RequestContext) -> Plan:
    """AddPermission: lets other accounts do some things with a queue, by a statement in its policy."""
    queue = queue_of(request.queue_url, context)
    label = _label(request.label)
    actions = _actions(request.actions)
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _single([root_arn(account) for account in _accounts(request.aws_account_ids)])},
        "Action": _single([f"SQS:{action}" for action in actions]),
        "Resource": queue_arn(queue, context),
    }
    return Plan(EditQueue(queue=queue, setting=_FIELD, edit=Grant(statement)), _edited)


def remove_permission(request: RemovePermissionRequest, context: RequestContext) -> Plan:
    """RemovePermission: removes the statement of a label from the policy of a queue."""
    queue = queue_of(request.queue_url, context)
    return Plan(EditQueue(queue=queue, setting=_FIELD, edit=Revoke(_label(request.label))), _edited)


@dataclass(frozen=True, slots=True)
class Grant:
    """The edit that adds ``statement`` to a policy, or begins one."""

    statement: dict[str, Any]

    def __call__(self, text: str) -> str:
        """Return the new document; raises ``EditRefused`` where the label is there already, or it would be too long."""
        label, arn = self.statement["Sid"], self.statement["Resource"]
        document = decode(text) if text else {"Version": _VERSION, "Id": f"{arn}/SQSDefaultPolicy"}
        found = statements(document) if text else []
        if any(other.get("Sid") == label for other in found):
            raise EditRefused(invalid_parameter("Label", label, "Already exists."))
        if len(found) >= SQS_POLICY_STATEMENTS_MAX:
            many = f"{len(found) + 1} statements were found, maximum allowed is {SQS_POLICY_STATEMENTS_MAX}."
            raise EditRefused(SqsError(OVER_LIMIT, many))
        made = _encode(document | {"Statement": [*found, self.statement]})
        if len(made.encode()) > SQS_POLICY_BYTES_MAX:
            raise EditRefused(SqsError(OVER_LIMIT, f"The policy would have more than {SQS_POLICY_BYTES_MAX} bytes."))
        return made


@dataclass(frozen=True, slots=True)
class Revoke:
    """The edit that removes the statement ``label`` from a policy; without any left there is none."""

    label: str

    def __call__(self, text: str) -> str:
        """Return the new document; raises ``EditRefused`` where there is no such statement."""
        document = decode(text) if text else {}
        found = statements(document) if text else []
        left = [statement for statement in found if statement.get("Sid") != self.label]
        if len(left) == len(found):
            raise EditRefused(invalid_parameter("Label", self.label, "can't find label on existing policy."))
        return _encode(document | {"Statement": left}) if left else ""


def _edited(result: Any) -> None:
    if isinstance(result, EditRefused):
        raise result.reason
    answered(result)


def _label(label: str | None) -> str:
    found = required("Label", label)
    if not _LABEL.fullmatch(found):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "Label can only include alphanumeric characters, hyphens, or underscores. "
            f"1 to {SQS_POLICY_LABEL_CHARACTERS_MAX} in length",
        )
    return found


def _accounts(accounts: list[str] | None) -> list[str]:
    if not accounts:
        raise invalid_parameter("PrincipalId", "[]", "Unable to verify.")
    for account in accounts:
        if not _ACCOUNT.fullmatch(account):
            raise invalid_parameter("PrincipalId", f"[{account}]", "Unable to verify.")
    return list(dict.fromkeys(accounts))


def _actions(actions: list[str] | None) -> list[str]:
    if not actions:
        raise missing_parameter("Actions")
    if len(actions) > SQS_POLICY_ACTIONS_MAX:
        raise SqsError(OVER_LIMIT, f"{len(actions)} Actions were found, maximum allowed is {SQS_POLICY_ACTIONS_MAX}.")
    for action in actions:
        if action != _ANY and action not in GRANTABLE:
            raise invalid_parameter(
                "ActionName", f"SQS:{action}", "Only the queue owner is allowed to invoke this action."
            )
    return list(dict.fromkeys(actions))


def _single(texts: list[str]) -> str | list[str]:
    return texts[0] if len(texts) == 1 else texts


def _encode(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()
