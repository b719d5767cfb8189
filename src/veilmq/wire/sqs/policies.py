"""Queue policies: a document is parsed once and evaluated for each request.

The language is that of the SQS Developer Guide ("Using custom policies with the Amazon SQS access policy language") and
of the IAM User Guide ("IAM JSON policy elements reference"), the limits those of "Amazon SQS policy quotas". A
statement matches a request if principal, action, resource and all conditions match. A matching Deny wins. Callers of
other accounts need a matching Allow; those of the queue's account do not.

Parsing drops statements on other queues, expands wildcards in actions, and indexes the statements by action.
"""

import enum
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import translate
from functools import lru_cache, partial
from ipaddress import ip_address, ip_network
from operator import attrgetter, eq, ge, gt, le, lt
from typing import Any, NamedTuple

import msgspec

from veilmq.core import limits
from veilmq.wire.exchange import Caller, root_arn
from veilmq.wire.sqs.errors import truncated

_ARN_PARTS = 6
_ALL_VALUES = "forallvalues:"
_ANY_VALUE = "foranyvalue:"
_IF_EXISTS = "ifexists"
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")


class PolicyError(ValueError):
    """The policy is invalid; ``str()`` names the part and the reason."""


ReadClient = Callable[[], tuple[str | None, str | None]]
"""Returns the address of a client and its ``User-Agent``, if any; called if a condition needs them."""


class PolicyRequest(msgspec.Struct, gc=False):
    """The properties of a request that a policy uses; ``action`` is in lower case, ``owner`` is the queue's account."""

    caller: Caller
    owner: str
    action: str
    secure: bool
    now_s: float
    region: str
    client: ReadClient


ReadKey = Callable[[PolicyRequest], str | None]
Test = Callable[[str, Any], bool]

KEYS: dict[str, ReadKey] = {
    "aws:sourceip": lambda request: request.client()[0],
    "aws:useragent": lambda request: request.client()[1],
    "aws:principalarn": attrgetter("caller.arn"),
    "aws:principalaccount": attrgetter("caller.account"),
    "aws:principaltype": lambda request: "Account" if request.caller.is_root else "User",
    "aws:userid": attrgetter("caller.sender_id"),
    "aws:username": lambda request: request.caller.user or None,
    "aws:securetransport": lambda request: str(request.secure).lower(),
    "aws:currenttime": lambda request: datetime.fromtimestamp(request.now_s, tz=UTC).isoformat(),
    "aws:epochtime": lambda request: str(int(request.now_s)),
    "aws:requestedregion": attrgetter("region"),
    "aws:resourceaccount": attrgetter("owner"),
    "aws:principalisawsservice": lambda request: "false",
    "aws:viaawsservice": lambda request: "false",
}
"""Condition key, in lower case → its value for a request."""

SOURCE_IP = "aws:sourceip"
_CONSTANT_KEYS = frozenset(
    {key for key in KEYS if "principal" in key}
    | {"aws:userid", "aws:username", "aws:securetransport", "aws:requestedregion", "aws:resourceaccount"}
    | {"aws:viaawsservice"}
)
VARYING = frozenset(KEYS) - _CONSTANT_KEYS - {SOURCE_IP}
"""The keys whose values may differ between requests of a caller from one address; includes new keys by default."""


class Condition(NamedTuple):
    """One condition: ``test`` compares the value of a key with each of ``expected``."""

    key: str
    value_of: ReadKey
    test: Test
    expected: tuple[Any, ...]
    negated: bool
    when_absent: bool

    def matches(self, request: PolicyRequest) -> bool:
        """Return whether the request meets the condition."""
        value = self.value_of(request)
        if value is None:
            return self.when_absent
        return any(self.test(value, expected) for expected in self.expected) is not self.negated


class _Operator(NamedTuple):
    """A condition operator: ``read`` parses a value of a policy or raises ``ValueError``; ``error`` is the reason."""

    read: Callable[[str], Any]
    test: Test
    error: str = ""


def glob(pattern: str) -> re.Pattern[str]:
    """Compile ``pattern``, in which ``*`` is any text and ``?`` any character; does not backtrack."""
    return re.compile(translate(pattern.replace("[", "[[]")))


def _glob_test(value: str, expected: re.Pattern[str]) -> bool:
    return expected.match(value) is not None


def _arn_test(value: str, expected: list[re.Pattern[str]]) -> bool:
    parts = value.split(":", _ARN_PARTS - 1)
    return len(parts) == len(expected) and all(map(_glob_test, parts, expected))


def _read_number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _read_instant(text: str) -> float:
    """Return seconds since the epoch, from a number of them or an ISO 8601 date."""
    if _NUMBER.fullmatch(text):
        return float(text)
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()


def _read_bool(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower()


@lru_cache(maxsize=4_096)  # addresses repeat, and parsing one takes longer than comparing it
def _ip_test(value: str, expected: Any) -> bool:
    return ip_address(value) in expected


def _comparison(read: Callable[[str], float], compare: Callable[[float, float], bool], error: str) -> _Operator:
    def test(value: str, expected: float) -> bool:
        try:
            return compare(read(value), expected)
        except ValueError:
            return False

    return _Operator(read, test, error)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "equals": eq,
    "lessthan": lt,
    "lessthanequals": le,
    "greaterthan": gt,
    "greaterthanequals": ge,
}
_ARN = _Operator(lambda text: list(map(glob, text.split(":", _ARN_PARTS - 1))), _arn_test)
_BOOL = _Operator(_read_bool, eq, "neither true nor false")
_OPERATORS: dict[str, _Operator] = {
    "stringequals": _Operator(str, eq),
    "stringequalsignorecase": _Operator(str.lower, lambda value, expected: value.lower() == expected),
    "stringlike": _Operator(glob, _glob_test),
    "binaryequals": _Operator(str, eq),
    "bool": _BOOL,
    "ipaddress": _Operator(partial(ip_network, strict=False), _ip_test, "no address range"),
    "arnequals": _ARN,
    "arnlike": _ARN,
    **{f"numeric{name}": _comparison(_read_number, compare, "no number") for name, compare in _COMPARISONS.items()},
    **{f"date{name}": _comparison(_read_instant, compare, "no date") for name, compare in _COMPARISONS.items()},
}
_NEGATED = {
    "stringnotequals": "stringequals",
    "stringnotequalsignorecase": "stringequalsignorecase",
    "stringnotlike": "stringlike",
    "notipaddress": "ipaddress",
    "arnnotequals": "arnequals",
    "arnnotlike": "arnlike",
    "numericnotequals": "numericequals",
    "datenotequals": "dateequals",
}


def _read_conditions(document: object) -> tuple[Condition, ...]:
    if not isinstance(document, dict):
        raise PolicyError("Condition must be an object")
    conditions = []
    for operator, entries in document.items():
        if not isinstance(entries, dict) or not entries:
            raise PolicyError(f"{operator} must be an object of keys and values")
        for key, values in entries.items():
            listed = values if isinstance(values, list) else [values]
            if not listed or not all(isinstance(value, str | bool | int | float) for value in listed):
                raise PolicyError(f"{operator} of {key} must be a value or a list of values")
            texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in listed]
            conditions.append(_read_condition(str(operator), str(key).lower(), texts))
    if len(conditions) > limits.SQS_POLICY_CONDITIONS_MAX:
        raise PolicyError(f"a statement has more than {limits.SQS_POLICY_CONDITIONS_MAX} conditions")
    return tuple(conditions)


def _read_condition(name: str, key: str, values: list[str]) -> Condition:
    operator = name.lower()
    for_all, for_any = operator.startswith(_ALL_VALUES), operator.startswith(_ANY_VALUE)
    operator = operator.removeprefix(_ALL_VALUES).removeprefix(_ANY_VALUE)
    value_of = KEYS.get(key, lambda request: None)
    if operator == "null":
        expected = _read_values(_BOOL, values)
        return Condition(
            key, value_of, lambda value, expected: expected == "false", expected, False, "true" in expected
        )
    if_exists = operator.endswith(_IF_EXISTS)
    operator = operator.removesuffix(_IF_EXISTS)
    negated = operator in _NEGATED
    known = _OPERATORS.get(_NEGATED.get(operator, operator))
    if known is None:
        raise PolicyError(f"there is no condition operator {name}")
    when_absent = (negated or if_exists or for_all) and not for_any
    return Condition(key, value_of, known.test, _read_values(known, values), negated, when_absent)


def _read_values(operator: _Operator, values: list[str]) -> tuple[Any, ...]:
    expected = []
    for value in values:
        try:
            expected.append(operator.read(value))
        except ValueError:
            raise PolicyError(f"'{value}' is {operator.error}") from None
    return tuple(expected)


GRANTABLE = (
    "SendMessage",
    "ReceiveMessage",
    "DeleteMessage",
    "ChangeMessageVisibility",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
)
"""The actions that a queue's owner may grant to other accounts (API Reference, "Cross-account permissions ...")."""

OWNER_ONLY = (
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
)
"""The actions that only the owner may perform; a policy may deny them to users of the owner."""

BATCH = "Batch"
_ACTIONS = frozenset(name.lower() for name in (*GRANTABLE, *OWNER_ONLY))
_GRANTABLE = frozenset(name.lower() for name in GRANTABLE)
_ALSO_REQUIRED = {"startmessagemovetask": ("receivemessage", "deletemessage")}  # done on behalf of the caller
_ALWAYS_FOR_ROOT = frozenset({"setqueueattributes", "getqueueattributes", "addpermission", "removepermission"})

_VERSIONS = ("2008-10-17", "2012-10-17")
_VERSION_WITH_VARIABLES = "2012-10-17"
_DOCUMENT_ELEMENTS = frozenset({"Version", "Id", "Statement"})
_STATEMENT_ELEMENTS = frozenset(
    {"Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition"}
)
_PRINCIPAL_TYPES = frozenset({"AWS", "Service", "Federated", "CanonicalUser"})
_ACCOUNT = re.compile(r"[0-9]{12}")
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:(iam|sts)::([0-9]{12}):(root|[a-z-]+/[^*?]+)")


class Verdict(enum.Enum):
    """The result of a policy for a request."""

    ALLOW = "allow"
    DENY = "deny"
    NO_MATCH = "no match"


class _Statement(NamedTuple):
    """One statement; its principals are ``any_principal``, ``accounts`` and ``arns``, or if ``negated`` all others."""

    denies: bool
    actions: frozenset[str]
    any_principal: bool
    accounts: frozenset[str] = frozenset()
    arns: frozenset[str] = frozenset()
    negated: bool = False
    conditions: tuple[Condition, ...] = ()

    def matches(self, request: PolicyRequest) -> bool:
        caller = request.caller
        named = self.any_principal or caller.account in self.accounts or caller.arn in self.arns
        return named is not self.negated and all(condition.matches(request) for condition in self.conditions)


class Policy:
    """A parsed policy of one queue; ``uses_address`` if a verdict may depend on the address of the client."""

    __slots__ = ("_by_action", "_varying", "uses_address")

    def __init__(self, statements: Iterable[_Statement]) -> None:
        ordered = sorted(statements, key=lambda statement: not statement.denies)
        self._by_action = {
            action: tuple(statement for statement in ordered if action in statement.actions) for action in _ACTIONS
        }
        keys = {
            action: {condition.key for statement in matching for condition in statement.conditions}
            for action, matching in self._by_action.items()
        }
        self._varying = frozenset(action for action, used in keys.items() if not VARYING.isdisjoint(used))
        self.uses_address = any(SOURCE_IP in used for used in keys.values())

    def verdict(self, request: PolicyRequest) -> Verdict:
        """Evaluate the policy for a request."""
        for statement in self._by_action[request.action]:
            if statement.matches(request):
                return Verdict.DENY if statement.denies else Verdict.ALLOW
        return Verdict.NO_MATCH

    def varies(self, action: str) -> bool:
        """Return whether the verdict on ``action`` may differ between requests of a caller from one address."""
        return action in self._varying


DENY_ALL = Policy([_Statement(denies=True, actions=_ACTIONS, any_principal=True)])
"""A policy that denies everything."""


def actions_of(name: str) -> tuple[str, ...]:
    """Return the actions that must be permitted for ``name``: itself first, lower-case, without ``Batch``."""
    action = name.removesuffix(BATCH).lower()
    return (action, *_ALSO_REQUIRED.get(action, ()))


def permits(policy: Policy | None, request: PolicyRequest) -> bool:
    """Return whether a request is permitted on a queue with ``policy``, if any.

    The owner account itself may always read and set the policy, so that no policy can lock it out.
    """
    caller = request.caller
    if caller.account != request.owner:
        return request.action in _GRANTABLE and policy is not None and policy.verdict(request) is Verdict.ALLOW
    if policy is None or (caller.is_root and request.action in _ALWAYS_FOR_ROOT):
        return True
    return policy.verdict(request) is not Verdict.DENY


def read_policy(text: str, arn: str) -> Policy:
    """Parse the policy of the queue ``arn``; raises ``PolicyError`` like AWS."""
    document = decode(text)
    variables = document.get("Version") == _VERSION_WITH_VARIABLES
    read = [(element, _read_statement(element, variables=variables)) for element in statements(document)]
    on_queue = []
    for element, statement in read:
        name = _element_name(element, "Resource")
        resources = _texts(name, element.get(name, "*"))  # a statement without a resource applies to the queue
        if any(glob(text).match(arn) for text in resources) is not (name == "NotResource"):
            on_queue.append(statement)
    return Policy(on_queue)


def decode(text: str) -> dict[str, Any]:
    """Decode a policy document; raises ``PolicyError``."""
    if len(text.encode()) > limits.SQS_POLICY_BYTES_MAX:
        raise PolicyError(f"it has more than {limits.SQS_POLICY_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise PolicyError("it is not JSON") from None
    if not isinstance(document, dict):
        raise PolicyError("it is not a JSON object")
    _check_names(document, _DOCUMENT_ELEMENTS)
    if document.get("Version", _VERSIONS[0]) not in _VERSIONS:
        raise PolicyError(f"Version must be one of {', '.join(_VERSIONS)}")
    if not isinstance(document.get("Id", ""), str):
        raise PolicyError("Id must be text")
    statements(document)
    return document


def statements(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statements of a document; raises ``PolicyError`` for invalid ones, too many, or a repeated Sid."""
    value: Any = document.get("Statement")
    elements: list[Any] = value if isinstance(value, list) else [value]
    if not elements or not all(isinstance(element, dict) for element in elements):
        raise PolicyError("Statement must be an object or a list of objects")
    if len(elements) > limits.SQS_POLICY_STATEMENTS_MAX:
        raise PolicyError(f"it has more than {limits.SQS_POLICY_STATEMENTS_MAX} statements")
    labels = [element["Sid"] for element in elements if "Sid" in element]
    if not all(isinstance(label, str) for label in labels):
        raise PolicyError("Sid must be text")
    if len(set(labels)) < len(labels):
        raise PolicyError("two statements have the same Sid")
    return elements


def _read_statement(element: Mapping[str, Any], *, variables: bool) -> _Statement:
    _check_names(element, _STATEMENT_ELEMENTS)
    if element.get("Effect") not in ("Allow", "Deny"):
        raise PolicyError("Effect must be Allow or Deny")
    for name, required in (("Principal", 1), ("Action", 1), ("Resource", 0)):
        names = {name, f"Not{name}"} & element.keys()
        if len(names) > 1 or len(names) < required:
            raise PolicyError(f"a statement needs one of {name} and Not{name}")
    if variables and b"${" in msgspec.json.encode(element):
        raise PolicyError("variables (${...}) are not supported; write the values, or use Version 2008-10-17")
    principal = element[_element_name(element, "Principal")]
    by_type = {"AWS": "*"} if principal == "*" else principal
    if not isinstance(by_type, dict) or not by_type or not by_type.keys() <= _PRINCIPAL_TYPES:
        raise PolicyError('Principal must be "*" or an object like {"AWS": "123456789012"}')
    lists = {kind: _texts(f"Principal {kind}", texts) for kind, texts in by_type.items()}
    if sum(map(len, lists.values())) > limits.SQS_POLICY_PRINCIPALS_MAX:
        raise PolicyError(f"a statement has more than {limits.SQS_POLICY_PRINCIPALS_MAX} principals")
    principals = lists.get("AWS", [])  # other principals are services of AWS, which are not callers here
    accounts = {text for text in principals if _ACCOUNT.fullmatch(text)}
    arns = {text for text in principals if text != "*" and text not in accounts}
    for arn in arns:
        match = _PRINCIPAL.fullmatch(arn)
        if match is None:
            raise PolicyError(f"{truncated(arn)} is not a principal; use an account or the ARN of a user")
        if match[3] == "root":
            accounts.add(match[2])
    if element["Effect"] == "Deny" and "NotPrincipal" in element:  # an account exempts itself, not its users
        arns, accounts = arns | {root_arn(account) for account in accounts}, set()
    action = _element_name(element, "Action")
    actions = _texts(action, element[action])
    if len(actions) > limits.SQS_POLICY_ACTIONS_MAX:
        raise PolicyError(f"a statement has more than {limits.SQS_POLICY_ACTIONS_MAX} actions")
    matching = frozenset().union(*map(_matching_actions, actions))
    return _Statement(
        denies=element["Effect"] == "Deny",
        actions=_ACTIONS - matching if action == "NotAction" else matching,
        any_principal="*" in principals,
        accounts=frozenset(accounts),
        arns=frozenset(arns),
        negated="NotPrincipal" in element,
        conditions=_read_conditions(element.get("Condition", {})),
    )


def _check_names(names: Mapping[str, Any], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise PolicyError(f"there is no element {truncated(name)}")


def _element_name(element: Mapping[str, Any], name: str) -> str:
    """Return ``name`` or its negation, whichever the statement has."""
    return f"Not{name}" if f"Not{name}" in element else name


def _texts(name: str, value: object) -> list[str]:
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise PolicyError(f"{name} must be text or a list of texts")
    return texts


def _matching_actions(text: str) -> frozenset[str]:
    service, _, name = text.lower().rpartition(":")
    if text != "*" and service != "sqs":
        raise PolicyError(f"{truncated(text)} is not an action of SQS; write sqs:SendMessage, sqs:* or *")
    pattern = glob(name)
    matching = frozenset(action for action in _ACTIONS if pattern.match(action))
    if not matching:
        single = name.removesuffix(BATCH.lower())
        remedy = f"; sqs:{single} covers it" if single in _ACTIONS else ""
        raise PolicyError(f"there is no action {truncated(text)}{remedy}")
    return matching
