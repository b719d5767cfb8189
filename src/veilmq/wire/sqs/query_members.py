"""From a tree of parameters to the members of a request, by the types of its struct.

Only names and nesting are changed here; whether the values fit is for the struct to say, as in JSON. A list is in the
order of its numbers, which begin at 1 and may leave some out. One attribute may go without its number
(``Attribute.Name=…``, ``AttributeName=All``), as the API Reference has it in its examples. An empty value is a list
or a map without members, as older SDKs write it. What has a number must have one that is valid, and a member must be
called by its name in this protocol: a list under the name that it has in JSON, or with ``.member.`` in it, would be
lost, so it is refused in the words that Amazon SQS has for it.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec import inspect

from veilmq.wire.sqs.errors import missing_parameter, shown
from veilmq.wire.sqs.query_form import Node, Tree, malformed
from veilmq.wire.sqs.query_names import OLDER_NAMES, VALUE, element_name, key_name
from veilmq.wire.sqs.shapes import Shape

Read = Callable[[Node], Any]
"""What stands at a member's place → what the struct is converted from; left as it is where it cannot fit."""

_NUMBER = re.compile("[+-]?[0-9]{1,18}")
_INDEX = re.compile("[1-9][0-9]{0,8}")
_TRUTH = {"true": True, "false": False}
_MISPLACED = "Start of list found where not expected"


class _Member(NamedTuple):
    name: str
    parameter: str
    read: Read
    always: bool  # a list of structures: there is no other way to say that it is empty than to leave it out


def reader(request: type[Shape], action: str) -> Callable[[Tree], dict[str, Any]]:
    """Return what makes members of ``request`` out of the parameters of ``action``."""
    return _structure(inspect.type_info(request), "", action)


def _read(kind: inspect.Type, element: str, action: str) -> Read:
    """Return the reader of one type; ``element`` is the name under which a list or a map has its elements."""
    return _READERS[type(kind)](kind, element, action)


def _structure(kind: Any, element: str, action: str) -> Callable[[Any], Any]:
    members = [_member(field, action) for field in kind.fields]
    renamed = [(member.name, member.parameter) for member in members if member.name in OLDER_NAMES]
    collections = [member.name for member in members if member.name != member.parameter]

    def read(node: Node) -> Any:
        if isinstance(node, str):
            return node
        for older, parameter in renamed:
            if isinstance(node.get(older), dict) and parameter not in node:
                node = {parameter: node[older], **{name: value for name, value in node.items() if name != older}}
        if any(isinstance(node.get(name), dict) for name in collections):
            raise malformed(_MISPLACED)
        return {
            member.name: member.read(node.get(member.parameter, {}))
            for member in members
            if member.always or member.parameter in node
        }

    return read


def _member(field: inspect.Field, action: str) -> _Member:
    kind = _present(field.type)
    name = parameter = field.encode_name
    if type(kind) in _COLLECTIONS:
        parameter = element_name(name, action)
    always = isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType)
    return _Member(name, parameter, _read(kind, parameter, action), always)


def _present(kind: inspect.Type) -> inspect.Type:
    """Return what a member is when it is there."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    (present,) = (choice for choice in kind.types if not isinstance(choice, inspect.NoneType))
    return present


def _list(kind: Any, element: str, action: str) -> Read:
    read_item = _read(kind.item_type, element, action)

    def read(node: Node) -> Any:
        if not node:
            return []
        items = [node] if isinstance(node, str) else [item for _, item in _numbered(node)]
        return [read_item(item) for item in items]

    return read


def _map(kind: Any, element: str, action: str) -> Read:
    key = key_name(element)
    read_value = _read(kind.value_type, VALUE, action)
    may_be_empty = isinstance(kind.value_type, inspect.StructType)

    def read_entry(name: str, entry: Node) -> tuple[Any, Any]:
        if isinstance(entry, str) or key not in entry:
            raise missing_parameter(f"{name}.{key}")
        if VALUE not in entry and not may_be_empty:
            raise missing_parameter(f"{name}.{VALUE}")
        return _text(entry[key]), read_value(entry.get(VALUE, {}))

    def read(node: Node) -> Any:
        if isinstance(node, str):
            return node or {}
        if key in node:
            return dict([read_entry(element, node)])
        return dict(read_entry(f"{element}.{index}", entry) for index, entry in _numbered(node))

    return read


def _numbered(node: Tree) -> Iterator[tuple[str, Node]]:
    """Yield the elements of a list in the order of their numbers."""
    for index in node:
        if not _INDEX.fullmatch(index):
            raise malformed(f"{shown(index)} is not a valid index")
    for index in sorted(node, key=int):
        yield index, node[index]


def _text(node: Node) -> str:
    if isinstance(node, str):
        return node
    raise malformed(_MISPLACED)


def _number(node: Node) -> Node | int:
    return int(node) if isinstance(node, str) and _NUMBER.fullmatch(node) else node


def _truth(node: Node) -> Node | bool:
    return _TRUTH.get(node, node) if isinstance(node, str) else node


def _unchanged(node: Node) -> Node:
    return node


_READERS: dict[type[inspect.Type], Callable[[Any, str, str], Read]] = {
    inspect.StructType: _structure,
    inspect.ListType: _list,
    inspect.DictType: _map,
    inspect.IntType: lambda kind, element, action: _number,
    inspect.BoolType: lambda kind, element, action: _truth,
    inspect.StrType: lambda kind, element, action: _unchanged,
    inspect.BytesType: lambda kind, element, action: _unchanged,
}
_COLLECTIONS = {inspect.ListType, inspect.DictType}
