"""The JSON of replies to Query requests: what Amazon SQS answers to a GET that accepts JSON and nothing else.

The members are those of the XML, but a list is a list, a map is a list of its entries, and a member without a value is
``null``. The lists of messages and of queue URLs have names of their own.
"""

from base64 import b64encode
from typing import Any

import msgspec

from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.query_names import VALUE, element_name, key_name
from veilmq.wire.sqs.shapes import Shape

_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


def response_json(action: str, response: Shape | None, request_id: str) -> bytes:
    """Return the document that answers ``action``; ``None`` is an action that answers nothing."""
    result = {} if response is None else {f"{action}Result": _members(response, action)}
    metadata = {"ResponseMetadata": {"RequestId": request_id}}
    return msgspec.json.encode({f"{action}Response": result | metadata})


def error_json(error: SqsError, request_id: str) -> bytes:
    """Return the document that refuses a request."""
    code = error.code
    about = {"Code": code.query, "Detail": None, "Message": error.message, "Type": code.fault}
    return msgspec.json.encode({"Error": about, "RequestId": request_id})


def _members(shape: Shape, action: str) -> dict[str, Any]:
    names = zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    return {_NAMES.get(name, name): _value(getattr(shape, field), name, action) for field, name in names}


def _value(value: Any, name: str, action: str) -> Any:
    if isinstance(value, Shape):
        return _members(value, action)
    if isinstance(value, list):
        return [_value(item, name, action) for item in value]
    if isinstance(value, dict):
        key = key_name(element_name(name, action))
        return [{key: entry, VALUE: _value(content, name, action)} for entry, content in value.items()]
    return b64encode(value).decode() if isinstance(value, bytes) else value
