"""Queue policies in words: who may do what, and when."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    """Return what a policy says, statement by statement; ``None`` for one that nobody can read."""
    try:
        return [_statement(each) for each in statements(decode(policy))]
    except PolicyError:
        return None


def _statement(element: Mapping[str, Any]) -> StatementWords:
    return StatementWords(
        label=str(element.get("Sid", "")),
        allows=element.get("Effect") == "Allow",
        who=_all_but(element, "Principal", _who),
        what=_all_but(element, "Action", _names),
        where=_all_but(element, "Resource", _names) if {"Resource", "NotResource"} & element.keys() else "",
        when=_conditions(element.get("Condition", {})),
    )


def _all_but(element: Mapping[str, Any], name: str, words: Any) -> str:
    if f"Not{name}" in element:
        return f"all but {words(element[f'Not{name}'])}"
    return str(words(element.get(name)))


def _who(given: Any) -> str:
    if not isinstance(given, Mapping):
        return _EVERYBODY if given == "*" else str(given)
    return "; ".join(_principals(kind, texts) for kind, texts in given.items())


def _principals(kind: str, texts: Any) -> str:
    named = ", ".join(_EVERYBODY if text == "*" else str(text) for text in _several(texts))
    return named if kind == "AWS" else f"{kind} {named}"


def _names(given: Any) -> str:
    return ", ".join(str(each) for each in _several(given)) if given != "*" else "everything"


def _several(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [given]


def _conditions(given: Any) -> list[str]:
    if not isinstance(given, Mapping):
        return [str(given)]
    return [
        _condition(operator, key, values)
        for operator, keys in given.items()
        if isinstance(keys, Mapping)
        for key, values in keys.items()
    ]


def _condition(operator: str, key: str, values: Any) -> str:
    prefix, _, bare = operator.lower().rpartition(":")
    optional = bare.endswith(_IF_EXISTS)
    bare = bare.removesuffix(_IF_EXISTS)
    if bare == "null":
        absent = any(str(value).lower() == "true" for value in _several(values))
        return f"{key} is {'absent' if absent else 'there'}"
    wanted = " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in _several(values))
    suffix = ", if it is there" if optional else ""
    return f"{_SETS.get(prefix, '')}{key} {_OPERATORS.get(bare, operator)} {wanted}{suffix}"
