"""The Query protocol, of older AWS SDKs, curl and plain URLs.

The parameters (``Action``, ``Version`` and the members of the request) are in the query string, in a form, or in both;
the reply is XML. The queue is ``QueueUrl``, by default the path of the request; at the path of a queue, GetQueueUrl is
the only valid action that is not on a queue. ``Version`` is optional. Unknown parameters are ignored, as are those of
signatures (``AWSAccessKeyId``, ``Signature``, ``X-Amz-…``).

Errors of structure are MalformedInput, with the texts that users of SQS report: "Start of list found where not
expected" for a name that is not a list (``MessageAttributeNames.member.1``), "0 is not a valid index" for an index.
Values that cannot be converted have the same code and the texts of the JSON protocol, which has the same framework of
AWS. A query string that cannot be decoded is MalformedQueryString, another version NoSuchVersion (API Reference,
"Common Errors").
"""

import re
from base64 import b64encode
from binascii import a2b_qp
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, Union

import msgspec
from msgspec import inspect

from veilmq.core.errors import VeilmqError
from veilmq.core.limits import QUERY_DEPTH_MAX, QUERY_PARAMETERS_MAX
from veilmq.wire.exchange import Plan, Reply, RequestContext, new_request_id
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS, unknown_action
from veilmq.wire.sqs.errors import SqsError, truncated
from veilmq.wire.sqs.members import Shape, escaped

_ELEMENTS = {
    "Actions": "ActionName",
    "Entries": "{action}RequestEntry",
    "Failed": "BatchResultErrorEntry",
    "Results": "{action}ResultEntry",
    "Successful": "{action}ResultEntry",
}
_KEYS = {"Tag": "Key"}

LEGACY_NAMES = frozenset({"Tags"})
"""Maps that older SDKs for Java send by the name of the member: ``Tags.1.Key`` of TagQueue."""

VALUE = "Value"
"""The name of the value in an entry of a map."""


def element_name(member: str, action: str) -> str:
    """Return the name of the elements of ``member``, a list or a map of ``action``."""
    singular = member[:1].upper() + member[1:].removesuffix("s")
    return _ELEMENTS.get(member, singular).format(action=action)


def key_name(element: str) -> str:
    """Return the name of the key in an entry ``element`` of a map."""
    return _KEYS.get(element, "Name")


# Parameters become a tree: ``Attribute.1.Name=x`` is ``{"Attribute": {"1": {"Name": "x"}}}``. Their number, counted
# before they are split, and the depth of their names are limited. Invalid percent escapes, invalid UTF-8 and a name
# with two values are errors.

Node = Union[str, "Tree"]
"""The value of a parameter, or a subtree."""

Tree = dict[str, Node]
"""Parameters by the first part of their names."""

_ACTION = re.compile(rb"(?:^|&)Action=([^&]*)")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNREADABLE = "A parameter of the request cannot be read"


class Form(msgspec.Struct, frozen=True, gc=False):
    """The undecoded parts of a request: the path and the query string of its target, and its body."""

    path: bytes
    query: bytes
    body: bytes


def form_of(target: bytes, body: bytes) -> Form:
    """Return the form of a request."""
    path, _, query = target.partition(b"#")[0].partition(b"?")
    return Form(path, query, body)


def action_of(form: Form) -> bytes | None:
    """Return the undecoded value of ``Action``, if any."""
    match = _ACTION.search(form.query) or _ACTION.search(form.body)
    return match[1] if match else None


def parameters(form: Form) -> Tree:
    """Return all parameters of ``form``; raises MalformedInput or MalformedQueryString."""
    if form.query.count(b"&") + form.body.count(b"&") + 2 > QUERY_PARAMETERS_MAX:
        raise malformed(f"The request has more than {QUERY_PARAMETERS_MAX} parameters; send fewer.")
    tree: Tree = {}
    for text in (form.query, form.body):
        for piece in filter(None, text.split(b"&")):
            name, _, value = piece.partition(b"=")
            _insert(tree, _decoded(name), _decoded(value))
    return tree


def malformed(reason: str) -> SqsError:
    return SqsError(errors.MALFORMED_INPUT, reason)


def _decoded(raw: bytes) -> str:
    """Decode percent escapes, with the decoder of quoted-printable, which differs in the sign only and is written in C.

    For 8 MiB of escapes it takes some milliseconds and no memory beside the result; ``urllib.parse.unquote`` makes a
    list of three million parts.
    """
    raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        if _BROKEN_ESCAPE.search(raw):
            why = f"{_UNREADABLE}: a percent sign is not followed by two hexadecimal digits."
            raise SqsError(errors.MALFORMED_QUERY_STRING, why)
        raw = a2b_qp(raw.replace(b"=", b"=3D").replace(b"%", b"="))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise SqsError(errors.MALFORMED_QUERY_STRING, f"{_UNREADABLE}: it is not valid UTF-8.") from None


def _insert(tree: Tree, name: str, value: str) -> None:
    *above, last = name.split(".", QUERY_DEPTH_MAX)
    node: Node = tree
    for part in above:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node
    if isinstance(node, str) or node.setdefault(last, value) != value:
        raise malformed(f"The parameter {truncated(name)} has two values; send it once.")


# From the tree of parameters to the members of a request, by the types of its struct. Only names and nesting change
# here; msgspec checks the values, as for JSON.
#
# - A list is in the order of its indices, which begin at 1 and may have gaps. A single element may have no index
#   (``Attribute.Name=…``, ``AttributeName=All``), as in examples of the API Reference.
# - An empty value is an empty list or map, as older SDKs write it.
# - A list with its JSON name, or with ``.member.`` in its name, is an error with the text of SQS; ignoring it would
#   lose the list.

_NUMBER = re.compile("[+-]?[0-9]{1,18}")
_INDEX = re.compile("[1-9][0-9]{0,8}")
_UNEXPECTED_LIST = "Start of list found where not expected"


@cache
def _members_of(request: type[msgspec.Struct], action: str) -> list[tuple[str, str, Any, bool]]:
    """Return (name, parameter, type, whether it is a list of structs) for each member of ``request``."""
    members = []
    for field in msgspec.structs.fields(request):
        kind: Any = inspect.type_info(field.type)
        (kind,) = (each for each in getattr(kind, "types", (kind,)) if not isinstance(each, inspect.NoneType))
        is_list = isinstance(kind, inspect.ListType)
        name = field.encode_name
        parameter = element_name(name, action) if is_list or isinstance(kind, inspect.DictType) else name
        members.append((name, parameter, kind, is_list and isinstance(kind.item_type, inspect.StructType)))
    return members


def read_members(request: type[msgspec.Struct], node: Tree, action: str) -> dict[str, Any]:
    """Return the members of ``request`` in the parameters ``node`` of ``action``."""
    members = _members_of(request, action)
    for name, parameter, _, _ in members:
        if name in node and name != parameter and isinstance(node[name], dict):
            if name not in LEGACY_NAMES or parameter in node:
                raise malformed(_UNEXPECTED_LIST)
            node = {**node, parameter: node[name]}
    return {
        name: _read(kind, node.get(parameter, {}), parameter, action)
        for name, parameter, kind, is_struct_list in members
        if is_struct_list or parameter in node
    }


def _read(kind: Any, node: Node, element: str, action: str) -> Any:
    """Return the value of a member of type ``kind``, for msgspec to convert; a value of another type is unchanged."""
    if isinstance(kind, inspect.StrType):
        return node
    if isinstance(kind, inspect.StructType):
        return node if isinstance(node, str) else read_members(kind.cls, node, action)
    if isinstance(kind, inspect.ListType):
        items = [node] if isinstance(node, str) else [node[index] for index in _indices(node)]
        return [_read(kind.item_type, item, element, action) for item in items] if node else []
    if isinstance(kind, inspect.DictType):
        return _read_map(kind, node, element, action)
    if isinstance(kind, inspect.IntType) and isinstance(node, str) and _NUMBER.fullmatch(node):
        return int(node)
    return node


def _read_map(kind: inspect.DictType, node: Node, element: str, action: str) -> Any:
    if isinstance(node, str):
        return node or {}
    key = key_name(element)
    entries = {element: node} if key in node else {f"{element}.{index}": node[index] for index in _indices(node)}
    read: dict[str, Any] = {}
    for name, entry in entries.items():
        if isinstance(entry, str) or key not in entry:
            raise errors.missing_parameter(f"{name}.{key}")
        if VALUE not in entry and not isinstance(kind.value_type, inspect.StructType):
            raise errors.missing_parameter(f"{name}.{VALUE}")
        entry_key = entry[key]
        if not isinstance(entry_key, str):
            raise malformed(_UNEXPECTED_LIST)
        value = _read(kind.value_type, entry.get(VALUE, {}), VALUE, action)
        if read.setdefault(entry_key, value) != value:
            raise malformed(f"The parameter {element} has two values for {truncated(entry_key)}; send it once.")
    return read


def _indices(node: Tree) -> list[str]:
    """Return the indices of the elements of a list, sorted."""
    for index in node:
        if not _INDEX.fullmatch(index):
            raise malformed(f"{truncated(index)} is not a valid index")
    return sorted(node, key=int)


# Replies are XML, or JSON for a GET that accepts only JSON, as on AWS.
#
# Both are made from the same tree: a map becomes a list of its entries, a member without a value is ``None``. In JSON,
# the lists of messages and of queue URLs have names of their own.
#
# In XML, lists and maps are flattened and all text is escaped (``members.escaped``), so a reply is always well-formed,
# also if it repeats text of the client. (Message bodies with characters that are not in XML are refused when sent.)

_PROLOGUE = '<?xml version="1.0"?>'
_NAMESPACE = ' xmlns="http://queue.amazonaws.com/doc/2012-11-05/"'
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


@cache
def _names(shape: type[Shape]) -> list[tuple[str, str]]:
    """Return (field, name in the tree) for each field of ``shape``."""
    names = zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    return [(field, _JSON_NAMES.get(name, name)) for field, name in names]


def _members(shape: Shape, action: str) -> dict[str, Any]:
    return {
        name: value if (value := getattr(shape, field)) is None else _content(value, name, action)
        for field, name in _names(type(shape))
    }


def _content(value: Any, name: str, action: str) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Shape):
        return _members(value, action)
    if isinstance(value, list):
        return [_content(item, name, action) for item in value]
    if isinstance(value, dict):
        key = key_name(element_name(name, action))
        return [{key: entry, VALUE: _content(content, name, action)} for entry, content in value.items()]
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _xml(tree: dict[str, Any], action: str) -> str:
    parts = []
    for name, value in tree.items():
        if isinstance(value, list):
            element = element_name(name, action)
            parts += [_element(element, item, action) for item in value]
        elif value is not None:
            parts.append(_element(name, value, action))
    return "".join(parts)


def _element(name: str, value: Any, action: str) -> str:
    if isinstance(value, str):
        content = escaped(value)
    else:
        content = _xml(value, action) if isinstance(value, dict) else str(value).lower()
    return f"<{name}>{content}</{name}>" if content else f"<{name}/>"


VERSION = "2012-11-05"

_NO_SUCH_QUEUE = "The specified queue does not exist for this wsdl version."
_ERROR = "ErrorResponse"


class ReplyFormat(NamedTuple):
    """The format of replies; ``headers`` has a placeholder for the request id, ``detail`` is that of errors."""

    headers: bytes
    write: Callable[[str, dict[str, Any], str], bytes]
    detail: str | None


XML = ReplyFormat(
    b"Content-Type: text/xml\r\nx-amzn-RequestId: %b\r\n",
    lambda root, tree, action: f"{_PROLOGUE}<{root}{_NAMESPACE}>{_xml(tree, action)}</{root}>".encode(),
    "",
)
"""The default format."""

JSON = ReplyFormat(
    b"Content-Type: application/json\r\nx-amzn-RequestId: %b\r\n",
    lambda root, tree, action: msgspec.json.encode(tree if root == _ERROR else {root: tree}),
    None,
)
"""The format for a GET that accepts only JSON."""


def _reply(respond: Callable[[Any], Any], action: str, reply_format: ReplyFormat, result: Any) -> Reply:
    try:
        response = respond(result)
    except SqsError as error:
        return encode_error(error, reply_format)
    identifier = new_request_id()
    tree = {} if response is None else {f"{action}Result": _members(response, action)}
    tree["ResponseMetadata"] = {"RequestId": identifier}
    return Reply(200, reply_format.headers % identifier.encode(), reply_format.write(f"{action}Response", tree, action))


def decode(action: bytes, form: Form, context: RequestContext, reply_format: ReplyFormat = XML) -> Plan:
    """Decode a request of ``action``; ``Plan.respond`` returns a ``Reply``. Raises only ``SqsError``, for any bytes."""
    name = action.decode("ascii", "replace")
    row = ACTIONS.get(name)
    if row is None:
        raise unknown_action(action)
    tree = parameters(form)
    version = tree.get("Version", VERSION)
    if version != VERSION:
        why = f"The requested version ({truncated(str(version))}) of service AmazonSQS does not exist; use {VERSION}."
        raise SqsError(errors.NO_SUCH_VERSION, why)
    members = read_members(row.request, tree, name)
    path = form.path.decode("latin-1")
    if path.strip("/"):
        if "queue_url" in row.request.__struct_fields__:
            members.setdefault("QueueUrl", path)
        elif name != "GetQueueUrl":
            raise unknown_action(action)
    try:
        request = msgspec.convert(members, row.request)
    except msgspec.ValidationError as error:
        raise malformed(errors.conversion_error(error) or f"A parameter cannot be converted: {error}.") from None
    plan = request.plan(context)
    return Plan(plan.command, partial(_reply, plan.respond, name, reply_format), plan.wait_s)


def encode_error(error: SqsError | VeilmqError, reply_format: ReplyFormat = XML) -> Reply:
    """Return an error reply."""
    if isinstance(error, VeilmqError):
        error = errors.from_core(error)
    identifier = new_request_id()
    code, text = error.code, error.message
    if code is errors.QUEUE_DOES_NOT_EXIST:
        text = text.replace(errors.NO_SUCH_QUEUE, _NO_SUCH_QUEUE, 1)
    about = {"Type": code.fault, "Code": code.query, "Message": text, "Detail": reply_format.detail}
    body = reply_format.write(_ERROR, {"Error": about, "RequestId": identifier}, "")
    return Reply(code.status, reply_format.headers % identifier.encode(), body, code.name)
