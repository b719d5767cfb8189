"""Accounts and policies, read-only: an account's keys, its policies in words, and the caller's permissions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from veilmq.console.api_client import ApiError
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.queue_queries import QueueList, queues_with_prefix, url_of
from veilmq.core.limits import SECOND_MS
from veilmq.wire.sqs.policies import PolicyError, decode, statements

_OPERATORS = {
    "arnequals": "is like",
    "arnlike": "is like",
    "arnnotequals": "is not like",
    "arnnotlike": "is not like",
    "binaryequals": "is",
    "bool": "is",
    "dateequals": "is",
    "dategreaterthan": "is after",
    "dategreaterthanequals": "is not before",
    "datelessthan": "is before",
    "datelessthanequals": "is not after",
    "datenotequals": "is not",
    "ipaddress": "is in",
    "notipaddress": "is not in",
    "numericequals": "is",
    "numericgreaterthan": "is more than",
    "numericgreaterthanequals": "is at least",
    "numericlessthan": "is less than",
    "numericlessthanequals": "is at most",
    "numericnotequals": "is not",
    "stringequals": "is",
    "stringequalsignorecase": "is, in any case,",
    "stringlike": "is like",
    "stringnotequals": "is not",
    "stringnotequalsignorecase": "is not, in any case,",
    "stringnotlike": "is not like",
}
_SETS = {"forallvalues": "each value of ", "foranyvalue": "any value of "}
_IF_EXISTS = "ifexists"
_EVERYBODY = "everybody"


class StatementWords(NamedTuple):
    """One statement: it ``allows`` or denies; the other fields are parts of a sentence."""

    label: str
    allows: bool
    who: str
    what: str
    where: str
    when: list[str]


def in_words(policy: str) -> list[StatementWords] | None:
    """Return the statements of a policy in words; ``None`` if it is invalid."""
    try:
        return [_statement(each) for each in statements(decode(policy))]
    except PolicyError:
        return None


def _statement(element: Mapping[str, Any]) -> StatementWords:
    return StatementWords(
        label=str(element.get("Sid", "")),
        allows=element.get("Effect") == "Allow",
        who=_all_but(element, "Principal", _principal_words),
        what=_all_but(element, "Action", _names),
        where=_all_but(element, "Resource", _names) if {"Resource", "NotResource"} & element.keys() else "",
        when=_conditions(element.get("Condition", {})),
    )


def _all_but(element: Mapping[str, Any], name: str, words: Any) -> str:
    if f"Not{name}" in element:
        return f"all but {words(element[f'Not{name}'])}"
    return str(words(element.get(name)))


def _principal_words(principal: Any) -> str:
    if not isinstance(principal, Mapping):
        return _EVERYBODY if principal == "*" else str(principal)
    return "; ".join(_principals(kind, texts) for kind, texts in principal.items())


def _principals(kind: str, texts: Any) -> str:
    names = ", ".join(_EVERYBODY if text == "*" else str(text) for text in _as_list(texts))
    return names if kind == "AWS" else f"{kind} {names}"


def _names(names: Any) -> str:
    return ", ".join(str(each) for each in _as_list(names)) if names != "*" else "everything"


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _conditions(condition: Any) -> list[str]:
    if not isinstance(condition, Mapping):
        return [str(condition)]
    return [
        _condition(operator, key, values)
        for operator, keys in condition.items()
        if isinstance(keys, Mapping)
        for key, values in keys.items()
    ]


def _condition(operator: str, key: str, values: Any) -> str:
    prefix, _, bare = operator.lower().rpartition(":")
    optional = bare.endswith(_IF_EXISTS)
    bare = bare.removesuffix(_IF_EXISTS)
    if bare == "null":
        absent = any(str(value).lower() == "true" for value in _as_list(values))
        return f"{key} is {'absent' if absent else 'there'}"
    expected = " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in _as_list(values))
    suffix = ", if it is there" if optional else ""
    return f"{_SETS.get(prefix, '')}{key} {_OPERATORS.get(bare, operator)} {expected}{suffix}"


_QUEUES_MAX = 50


class QueuePolicy(NamedTuple):
    """The policy of a queue: its ``statements`` (``None`` if invalid), and whether the caller may do each action.

    ``is_hidden`` if the caller may not see it; the rest is then empty.
    """

    queue: str
    text: str
    statements: list[StatementWords] | None
    may: Sequence[tuple[str, bool]] | None
    is_hidden: bool = False


async def show(page: PageContext) -> Response:
    """Show the caller's account, and the policies of its queues with a prefix, or of one queue by its full name."""
    search = page.query.get("search", "").strip()
    matching = QueueList([search]) if "/" in search else await queues_with_prefix(page, search, count_max=_QUEUES_MAX)
    keys = page.ports.keys
    return page.render(
        "accounts.html",
        keys=None if keys is None else [(key, _instant_ms(key.expires_at_s)) for key in keys(page.account)],
        policies=[await _policy(page, queue) for queue in matching.queues],
        has_more=matching.has_more,
        search=search,
        problem=matching.problem,
    )


async def _policy(page: PageContext, queue: str) -> QueuePolicy:
    fields = {"QueueUrl": url_of(queue), "AttributeNames": ["Policy"]}
    try:
        reply = await page.sqs("GetQueueAttributes", fields)
    except ApiError:
        return QueuePolicy(queue, "", None, None, is_hidden=True)
    text = reply.get("Attributes", {}).get("Policy", "")
    return QueuePolicy(queue, text, in_words(text) if text else [], _permissions(page, queue, text))


def _permissions(page: PageContext, queue: str, policy: str) -> Sequence[tuple[str, bool]] | None:
    """Return the caller's permissions; ``None`` without authentication: everything is allowed."""
    if page.caller is None:
        return None
    return page.ports.allowed_actions(page.caller, queue, policy, peer=page.peer, program=page.program)


def _instant_ms(at_s: float | None) -> int | None:
    return None if at_s is None else int(at_s * SECOND_MS)


PAGES = (PageRoute("/console/accounts", show),)
