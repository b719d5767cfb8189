"""The Query protocol: the codec of older AWS SDKs, of curl, and of URLs.

The parameters ``Action``, ``Version`` and the members of the request come in the query string, in a form, or in both;
the reply is XML. The queue is the one in ``QueueUrl``, or else the one at whose URL the request was made; of the
actions that are about no queue only GetQueueUrl is valid there. ``Version`` may be left out. Parameters that the action
does not know are ignored, as are those of signatures (``AWSAccessKeyId``, ``Signature``, ``X-Amz-…``).

What does not fit is MalformedInput: that is what SQS's users report for names that are no list
(``MessageAttributeNames.member.1``: "Start of list found where not expected") and numbers that are no index
("0 is not a valid index"). Values that cannot be converted get the same code and the words of the JSON protocol, as
the same framework of AWS's is behind both. A query string that cannot be read is MalformedQueryString, another
version NoSuchVersion (API Reference, "Common Errors").
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
"""Maps that Java's older SDKs send under the member's own name: ``Tags.1.Key`` of TagQueue."""

VALUE = "Value"
"""What the value of a map's entry is called."""


def element_name(member: str, action: str) -> str:
    """Return the name of the elements of ``member``, a list or a map in a request or a reply of ``action``."""
    singular = member[:1].upper() + member[1:].removesuffix("s")
    return _ELEMENTS.get(member, singular).format(action=action)


def key_name(element: str) -> str:
    """Return what the key is called in an entry ``element`` of a map."""
    return _KEYS.get(element, "Name")


# The parameters of a Query request, from the query string, the form or both, as a tree of their names.
#
# ``Attribute.1.Name=x`` becomes ``{"Attribute": {"1": {"Name": "x"}}}``. The work is bounded before it begins: by the
# number of parameters, which are counted before they are split, and by the depth of their names. Nothing is guessed: a
# percent sign without two digits, bytes that are not UTF-8 and a name with two values are refused.

Node = Union[str, "Tree"]
"""The value of a parameter, or what is below a part of a name."""

Tree = dict[str, Node]
"""Part of a name → what is below it."""

_TARGET = re.compile(rb"(?:[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)?([^?#]*)(?:\?([^#]*))?")
_ACTION = re.compile(rb"(?:^|&)Action=([^&]*)")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNREADABLE = "A parameter of the request cannot be read"


class Form(msgspec.Struct, frozen=True, gc=False):
    """Where the parameters are: the ``path`` of the request's target, its query string ``query``, and ``body``."""

    path: bytes
    query: bytes
    body: bytes


def form_of(target: bytes, body: bytes) -> Form:
    """Return the form of a request for ``target``, a path or (from a proxy's client) a whole URL."""
    match = _TARGET.match(target)
    assert match is not None, "every part of the pattern may be empty"
    return Form(match[1], match[2] or b"", body)


def action_of(form: Form) -> bytes | None:
    """Return the action that ``form`` names, as it stands there; ``None`` if it names none."""
    match = _ACTION.search(form.query) or _ACTION.search(form.body)
    return match[1] if match else None


def parameters(form: Form) -> Tree:
    """Return all parameters of ``form``; raises MalformedInput and MalformedQueryString."""
    if form.query.count(b"&") + form.body.count(b"&") + 2 > QUERY_PARAMETERS_MAX:
        raise malformed(f"The request has more than {QUERY_PARAMETERS_MAX} parameters; send fewer.")
    tree: Tree = {}
    for text in (form.query, form.body):
        for piece in filter(None, text.split(b"&")):
            name, _, value = piece.partition(b"=")
            _insert(tree, _decoded(name), _decoded(value))
    return tree


def malformed(reason: str) -> SqsError:
    """Return the error for parameters that do not fit together, or not the action."""
    return SqsError(errors.MALFORMED_INPUT, reason)


def _decoded(raw: bytes) -> str:
    """Return ``raw`` without its percent escapes.

    Quoted-printable differs from them by the sign only, and its decoder is written in C: 8 MiB of escapes take it some
    milliseconds and no memory beside the result, where ``urllib.parse.unquote`` makes a list of three million pieces.
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


# From a tree of parameters to the members of a request, by the types of its struct.
#
# Only names and nesting are changed here; whether the values fit is for the struct to say, as in JSON. A list is in
# the order of its numbers, which begin at 1 and may leave some out. One attribute may go without its number
# (``Attribute.Name=…``, ``AttributeName=All``), as the API Reference has it in its examples. An empty value is a list
# or a map without members, as older SDKs write it. What has a number must have one that is valid, and a member must be
# called by its name in this protocol: a list under the name that it has in JSON, or with ``.member.`` in it, would be
# lost, so it is refused in the words that Amazon SQS has for it.

_NUMBER = re.compile("[+-]?[0-9]{1,18}")
_INDEX = re.compile("[1-9][0-9]{0,8}")
_UNEXPECTED_LIST = "Start of list found where not expected"


@cache
def _members_of(request: type[msgspec.Struct], action: str) -> list[tuple[str, str, Any, bool]]:
    """Return the members of ``request``: name, parameter, type, and whether it is one that is left out if empty."""
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
    """Return what the parameters ``node`` of ``action`` have for the members of ``request``."""
    members = _members_of(request, action)
    for name, parameter, _, _ in members:
        if name in node and name != parameter and isinstance(node[name], dict):
            if name not in LEGACY_NAMES or parameter in node:
                raise malformed(_UNEXPECTED_LIST)
            node = {**node, parameter: node[name]}
    return {
        name: _read(kind, node.get(parameter, {}), parameter, action)
        for name, parameter, kind, always in members
        if always or parameter in node
    }


def _read(kind: Any, node: Node, element: str, action: str) -> Any:
    """Return what a member is converted from, whose elements are called ``element``; as it is where it cannot fit."""
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
    read = {}
    for name, entry in entries.items():
        if isinstance(entry, str) or key not in entry:
            raise errors.missing_parameter(f"{name}.{key}")
        if VALUE not in entry and not isinstance(kind.value_type, inspect.StructType):
            raise errors.missing_parameter(f"{name}.{VALUE}")
        given = entry[key]
        if not isinstance(given, str):
            raise malformed(_UNEXPECTED_LIST)
        read[given] = _read(kind.value_type, entry.get(VALUE, {}), VALUE, action)
    return read


def _indices(node: Tree) -> list[str]:
    """Return the numbers of the elements of a list, in their order."""
    for index in node:
        if not _INDEX.fullmatch(index):
            raise malformed(f"{truncated(index)} is not a valid index")
    return sorted(node, key=int)


# Replies to Query requests: XML, or JSON for a GET that accepts JSON and nothing else, as Amazon SQS answers it.
#
# Both are made of the same tree: a list is a list, a map is a list of its entries, and a member without a value is
# ``None``. The lists of messages and of queue URLs have names of their own in JSON.
#
# In XML, lists and maps are flattened, and everything is escaped. What XML 1.0 cannot carry is replaced by U+FFFD,
# whether it came from an error that repeats the client's text or from anywhere else: a reply is always well-formed.
# (Message bodies with such characters are refused when they are sent.) A carriage return is written as a reference,
# because a parser would read a line feed.

_PROLOGUE = '<?xml version="1.0"?>'
_NAMESPACE = ' xmlns="http://queue.amazonaws.com/doc/2012-11-05/"'
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


@cache
def _names(shape: type[Shape]) -> list[tuple[str, str]]:
    """Return the fields of ``shape``, each with its name in the tree."""
    names = zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    return [(field, _JSON_NAMES.get(name, name)) for field, name in names]


def _members(shape: Shape, action: str) -> dict[str, Any]:
    """Return the tree of the members of ``shape``."""
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
    """Return the elements of ``tree``."""
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


def _write_xml(root: str, tree: dict[str, Any], action: str) -> bytes:
    return f"{_PROLOGUE}<{root}{_NAMESPACE}>{_xml(tree, action)}</{root}>".encode()


def _write_json(root: str, tree: dict[str, Any], action: str) -> bytes:
    return msgspec.json.encode(tree if root == _ERROR else {root: tree})


VERSION = "2012-11-05"

_NO_SUCH_QUEUE = "The specified queue does not exist for this wsdl version."
_ERROR = "ErrorResponse"


class ReplyFormat(NamedTuple):
    """How replies are written: ``headers`` with the place of the request's id, and an error's empty detail."""

    headers: bytes
    write: Callable[[str, dict[str, Any], str], bytes]
    detail: str | None


XML = ReplyFormat(b"Content-Type: text/xml\r\nx-amzn-RequestId: %b\r\n", _write_xml, "")
"""What clients get."""

JSON = ReplyFormat(b"Content-Type: application/json\r\nx-amzn-RequestId: %b\r\n", _write_json, None)
"""What they get for a GET that accepts JSON and nothing else."""


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
    """Return the plan of ``action`` for ``form``, which responds with a ``Reply``.

    Raises ``SqsError``, and nothing else, whatever the bytes are.
    """
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
    """Return the reply for a request that was refused."""
    if isinstance(error, VeilmqError):
        error = errors.from_core(error)
    identifier = new_request_id()
    code, text = error.code, error.message
    if code is errors.QUEUE_DOES_NOT_EXIST:
        text = text.replace(errors.NO_SUCH_QUEUE, _NO_SUCH_QUEUE, 1)
    about = {"Type": code.fault, "Code": code.query, "Message": text, "Detail": reply_format.detail}
    body = reply_format.write(_ERROR, {"Error": about, "RequestId": identifier}, "")
    return Reply(code.status, reply_format.headers % identifier.encode(), body, code.name)
