"""Replies to Query requests: XML, or JSON for a GET that accepts JSON and nothing else, as Amazon SQS answers it.

The elements of the XML are the members of a struct, lists and maps are flattened, and everything is escaped. What XML
1.0 cannot carry is replaced by U+FFFD, whether it came from an error that repeats the client's text or from anywhere
else: a reply is always well-formed. (Message bodies with such characters are refused when they are sent.) A carriage
return is written as a reference, because a parser would read a line feed.

The JSON has the members of the XML, but a list is a list, a map is a list of its entries, and a member without a value
is ``null``. The lists of messages and of queue URLs have names of their own.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.query_names import VALUE, element_name, key_name
from veilmq.wire.sqs.shapes import Shape
from veilmq.wire.sqs.text import ILLEGAL

_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_PROLOGUE = '<?xml version="1.0"?>'
_CARRIAGE_RETURN = {"\r": "&#xD;"}
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


def response_xml(action: str, response: Shape | None, request_id: str) -> bytes:
    """Return the document that answers ``action``; ``None`` is an action that answers nothing."""
    result = "" if response is None else _element(f"{action}Result", _members(response, action))
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    return f'{_PROLOGUE}<{action}Response xmlns="{_NAMESPACE}">{result}{metadata}</{action}Response>'.encode()


def error_xml(error: SqsError, request_id: str) -> bytes:
    """Return the document that refuses a request."""
    code = error.code
    about = f"<Type>{code.fault}</Type><Code>{code.query}</Code>{_element('Message', _text(error.message))}<Detail/>"
    return (
        f'{_PROLOGUE}<ErrorResponse xmlns="{_NAMESPACE}"><Error>{about}</Error>'
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"


def _members(shape: Shape, action: str) -> str:
    present = ((name, getattr(shape, field)) for field, name in _names(type(shape)))
    return "".join(_member(name, value, action) for name, value in present if value is not None)


@cache
def _names(shape: type[Shape]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True))


def _member(name: str, value: Any, action: str) -> str:
    write = _COLLECTIONS.get(type(value))
    if write is not None:
        return write(element_name(name, action), value, action)
    return _element(name, _content(value, action))


def _list(element: str, items: Iterable[Any], action: str) -> str:
    return "".join(_element(element, _content(item, action)) for item in items)


def _map(element: str, entries: Mapping[str, Any], action: str) -> str:
    key = key_name(element)
    return "".join(
        _element(element, _element(key, _text(name)) + _element(VALUE, _content(value, action)))
        for name, value in entries.items()
    )


def _content(value: Any, action: str) -> str:
    write = _SCALARS.get(type(value))
    return write(value) if write is not None else _members(value, action)


def _text(text: str) -> str:
    if text.isascii() and text.isprintable():
        return escape(text)
    return escape(ILLEGAL.sub("\ufffd", text), _CARRIAGE_RETURN)


_SCALARS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: str,
    bool: lambda value: "true" if value else "false",
    bytes: lambda value: b64encode(value).decode(),
}
_COLLECTIONS: dict[type, Callable[[str, Any, str], str]] = {list: _list, dict: _map}


def response_json(action: str, response: Shape | None, request_id: str) -> bytes:
    """Return the document that answers ``action``; ``None`` is an action that answers nothing."""
    result = {} if response is None else {f"{action}Result": _json_members(response, action)}
    metadata = {"ResponseMetadata": {"RequestId": request_id}}
    return msgspec.json.encode({f"{action}Response": result | metadata})


def error_json(error: SqsError, request_id: str) -> bytes:
    """Return the document that refuses a request."""
    code = error.code
    about = {"Code": code.query, "Detail": None, "Message": error.message, "Type": code.fault}
    return msgspec.json.encode({"Error": about, "RequestId": request_id})


def _json_members(shape: Shape, action: str) -> dict[str, Any]:
    return {
        _JSON_NAMES.get(name, name): _json_value(getattr(shape, field), name, action)
        for field, name in _names(type(shape))
    }


def _json_value(value: Any, name: str, action: str) -> Any:
    if isinstance(value, Shape):
        return _json_members(value, action)
    if isinstance(value, list):
        return [_json_value(item, name, action) for item in value]
    if isinstance(value, dict):
        key = key_name(element_name(name, action))
        return [{key: entry, VALUE: _json_value(content, name, action)} for entry, content in value.items()]
    return b64encode(value).decode() if isinstance(value, bytes) else value
