"""Requests and replies of SMQ: XML, paths and parameters, members, names of queues, listings."""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from functools import lru_cache
from os import urandom
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes
from xml.parsers.expat import ExpatError, ParserCreate, XMLParserType

import msgspec

from veilmq.core import Value, limits
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import Range
from veilmq.wire.exchange import Reply, RequestContext
from veilmq.wire.exchange import new_request_id as new_uuid
from veilmq.wire.smq import errors
from veilmq.wire.smq.errors import SmqError, invalid_argument
from veilmq.wire.sqs.members import escaped

_ID_PREFIX = urandom(6).hex().upper()


def new_request_id() -> str:
    return f"{_ID_PREFIX}{new_uuid()[-12:].upper()}"


# XML of requests becomes a tree of names and texts.
#
# Namespaces, prefixes, attributes, comments and the order of children are ignored, as the SDKs differ in all of them
# (reference, section 2.3). A document type is an error, so there are no entities except the five of XML and character
# references: no entity bombs, no external files. Depth, number of elements and length of names and attributes are
# limited while the body is parsed, not after. Bodies must be UTF-8, and ASCII if they declare another encoding.
#
# Nearly all requests are small, ASCII and *flat*: a root whose children have only text. Two regular expressions parse
# only these, in half the time. Groups are atomic: before Python 3.11.5 possessive ones match in part (gh-106052).

_CHUNK_BYTES = 65_536
_FLAT_BYTES_MAX = 16_384  # too few bytes to exceed the limit of elements
_FLAT = re.compile(
    rb"""(?:<\?xml\ version="1\.0"(?:\ encoding="[A-Za-z][A-Za-z0-9-]{0,30}+")?\?>[ \n\t]*+)?
    <([A-Za-z]{1,64}+)(?:\ xmlns="[A-Za-z0-9:/.]{0,200}+")?>
    ((?>(?:[ \n\t]*+<([A-Za-z]{1,64}+)>[^<&\x00-\x08\x0b-\x1f]*+</\3>)*))
    ([ \n\t]*+)</\1>[ \n\t]*+""",
    re.VERBOSE,
)
_LEAF = re.compile(rb"<([A-Za-z]++)>([^<]*+)")
_ENCODINGS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


class Element(msgspec.Struct, eq=False, gc=False):
    """An element: its local name and its text, which is empty if it has children."""

    name: str
    text: str
    children: "list[Element]"


def read_xml(body: bytes) -> Element:
    """Return the root of ``body``; raises only ``SmqError`` (MalformedXML)."""
    return read_flat_xml(body) or parse_xml(body)


def read_flat_xml(body: bytes) -> Element | None:
    """Return the root of ``body`` if it is small and flat, otherwise ``None``."""
    if len(body) > _FLAT_BYTES_MAX or not body.isascii() or b"]]>" in body:
        return None
    flat = _FLAT.fullmatch(body)
    if flat is None:
        return None
    root, leaves, _, rest = flat.groups()
    children = [Element(name.decode(), text.decode(), []) for name, text in _LEAF.findall(leaves)]
    return Element(root.decode(), "" if children else rest.decode(), children)


def parse_xml(body: bytes) -> Element:
    """Return the root of any ``body``; raises ``SmqError`` like ``read_xml``."""
    open_children: list[list[Element]] = [[]]  # the children of each open element so far; the first list has the root
    texts: list[str] = []
    elements_left = limits.SMQ_XML_ELEMENTS_MAX

    def start(name: str, attributes: list[str]) -> None:
        nonlocal elements_left
        elements_left -= 1
        if (
            elements_left < 0
            or len(open_children) > limits.SMQ_XML_DEPTH_MAX
            or len(name) > limits.SMQ_XML_TAG_CHARACTERS_MAX
        ):
            _raise_malformed()
        if attributes and sum(map(len, attributes)) > limits.SMQ_XML_TAG_CHARACTERS_MAX:
            _raise_malformed()
        if texts:
            texts.clear()
        open_children.append([])

    def end(name: str) -> None:
        children = open_children.pop()
        text = "" if children else "".join(texts)
        open_children[-1].append(Element(name if ":" not in name else name.rpartition(":")[2], text, children))
        texts.clear()

    def check_encoding(_version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in _ENCODINGS:
            _raise_malformed()

    parser = ParserCreate("utf-8")
    parser.buffer_text = True
    parser.ordered_attributes = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = _raise_malformed
    if not body.isascii():
        parser.XmlDeclHandler = check_encoding
    try:
        _parse(parser, body)
    except ExpatError:
        _raise_malformed()
    return open_children[0][0]


def _raise_malformed(*_declared: object) -> NoReturn:
    raise SmqError(errors.MALFORMED_XML) from None


def _parse(parser: XMLParserType, body: bytes) -> None:
    """Parse ``body`` in chunks. The parser buffers a tag until its end, so a tag as long as a chunk is refused."""
    if b"\0" in body:  # UTF-16 and similar encodings, which the parser would detect
        _raise_malformed()
    start = 0
    while len(body) - start > _CHUNK_BYTES:
        parser.Parse(body[start : start + _CHUNK_BYTES], False)
        if parser.CurrentByteIndex < start:
            _raise_malformed()
        start += _CHUNK_BYTES
    parser.Parse(body[start:], True)


# XML of replies, in the form that SDKs can read.
#
# Only the root has the namespace, without a trailing slash. There are no prefixes and no comments; absent optional
# elements are omitted, not empty (reference, sections 0 and 2.3). Each element ends a line, as in the service: the SDK
# for PHP skips the node after some elements, which without white space would be the next element. Text is escaped by
# ``members.escaped``; only errors that repeat text of a client can have characters that are not in XML.

NAMESPACE = "http://mns.aliyuncs.com/doc/v1"
_CONTENT_TYPE = b"Content-Type: text/xml;charset=utf-8\r\n"


def document(root: str, inner: str) -> bytes:
    """Return a document with the XML ``inner``."""
    line_end = "\n" if inner else ""
    return f'<?xml version="1.0"?>\n<{root} xmlns="{NAMESPACE}">{line_end}{inner}</{root}>'.encode()


def container(name: str, inner: str) -> str:
    return f"<{name}>\n{inner}</{name}>\n"


def elements(content: Mapping[str, str]) -> str:
    return "".join([element(name, text) for name, text in content.items()])


def element(name: str, text: str) -> str:
    return f"<{name}>{escaped(text)}</{name}>\n"


def optional(name: str, text: str | None) -> str:
    """Return an element with ``text``, or no element without a text."""
    return element(name, text) if text else ""


# Parsed requests.
#
# Names of parameters are case-insensitive. Values are percent-encoded or raw, as SDKs do both; a plus sign is not a
# space (reference, sections 0 and 3.4). Two routes with the same method and path differ in the root of the body, so its
# name is extracted before the body is parsed, and checked again then. Parsed paths are cached, as clients repeat them.

VERSION = b"2015-06-06"
VERSION_HEADER = b"x-mns-version"
_VERSION = b"%b: %b\r\n" % (VERSION_HEADER, VERSION)

_CACHED_PATHS_MAX = 1_024
_CACHED_PATH_BYTES_MAX = 512
_AUTHORIZATION = b"MNS"
_PATHS = re.compile(rb"/(?:queues|topics|commonbuy)(?:[/?]|$)|/\?(?i:accountmeta)(?:[=&]|$)")
_ASCII_ROOT = re.compile(rb"(?:<\?xml[^>?]*+\?>\s*+)?<([A-Za-z]++)[\s>]")  # faster than _ROOT, for most bodies
_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?>(?:<(?:\?(?>.*?\?>)|!--(?>.*?-->))\s*+){0,999})<(?:[^\s<>/:=]++:)?([^\s<>/:=]++)", re.S
)


class SmqRequest(Value, gc=False):
    """A parsed request; ``query`` and ``headers`` are by lower-case name.

    ``path`` has the decoded parts between slashes; ``shape`` is the path with ``*`` for every second part, a name, for
    the lookup of routes. ``target`` is undecoded, as signatures cover it. ``root`` is the local name of the root of the
    body, empty without a body or XML. ``error`` is that of an invalid target.
    """

    method: bytes
    target: bytes
    path: tuple[str, ...]
    shape: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    root: str = ""
    error: SmqError | None = None


_NO_PATH: tuple[tuple[str, ...], str] = (), "?"
_NO_QUERY: Mapping[str, str] = {}


def is_smq(target: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request is of SMQ, by the version header, the signature header, or the path."""
    return (
        VERSION_HEADER in headers
        or headers.get(b"authorization", b"").startswith(_AUTHORIZATION)
        or _PATHS.match(target) is not None
    )


def read_request(method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes) -> SmqRequest:
    """Parse a request; an invalid ``target`` becomes ``SmqRequest.error``."""
    raw_path, _, raw_query = target.partition(b"?")
    (path, shape), query, error = _NO_PATH, _NO_QUERY, None
    try:
        path, shape = _path(raw_path) if len(raw_path) <= _CACHED_PATH_BYTES_MAX else _path.__wrapped__(raw_path)
        if raw_query:
            query = _parameters(raw_query)
    except SmqError as failure:
        error = failure
    root = (_ASCII_ROOT.match(body) or _ROOT.match(body)) if body else None
    return SmqRequest(
        method=method,
        target=target,
        path=path,
        shape=shape,
        query=query,
        headers=headers,
        body=body,
        root="" if root is None else root[1].decode(errors="replace"),
        error=error,
    )


@lru_cache(_CACHED_PATHS_MAX)
def _path(raw: bytes) -> tuple[tuple[str, ...], str]:
    """Return the parts and the shape of a path; a trailing slash is ignored."""
    try:
        parts = tuple(unquote_to_bytes(part).decode() for part in raw.strip(b"/").split(b"/") if part or raw != b"/")
    except UnicodeDecodeError:
        raise SmqError(errors.INVALID_REQUEST_URL) from None
    if any("/" in part for part in parts[::2]):  # one part would look like several
        raise SmqError(errors.INVALID_REQUEST_URL)
    return parts, "/".join("*" if index % 2 else part for index, part in enumerate(parts))


def _parameters(query: bytes) -> dict[str, str]:
    """Parse a query string; raises ``SmqError`` (InvalidQueryString), also for a name with two values."""
    parameters: dict[str, str] = {}
    for pair in query.split(b"&"):
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        if b"%" in pair:
            name, value = unquote_to_bytes(name), unquote_to_bytes(value)
        try:
            key, text = name.decode().lower(), value.decode()
        except UnicodeDecodeError:
            raise errors.invalid_query(name.decode(errors="replace")) from None
        if parameters.setdefault(key, text) != text:
            raise errors.invalid_query(key)
    return parameters


# Members of bodies. Unknown children are ignored; of repeated children the last counts. White space around numbers and
# flags is ignored (reference, section 2.3).

SECONDS = "seconds"
BYTES = "bytes"

_WHOLE_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*")
_FLAGS = {"true": True, "false": False}


def body_of(request: SmqRequest, root: str) -> Element:
    """Parse the body of ``request``, an element ``root``; raises ``SmqError`` (MalformedXML)."""
    element = read_xml(request.body)
    if element.name != root:
        raise SmqError(errors.MALFORMED_XML)
    return element


def optional_body_of(request: SmqRequest, root: str) -> Element:
    """Like ``body_of``, but return an element without children if there is no body."""
    return body_of(request, root) if request.body.strip() else Element(root, "", [])


def texts(element: Element) -> dict[str, str]:
    return {child.name: child.text for child in element.children}


def children(element: Element, name: str) -> list[Element]:
    return [child for child in element.children if child.name == name]


def whole_number(name: str, text: str, allowed: Range, unit: str = "") -> int:
    """Parse a whole number within ``allowed``; raises ``SmqError`` (InvalidArgument), which names the ``unit``."""
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None or not allowed.holds(int(match[1])):
        why = f"The value of {name} should between {allowed.minimum} and {allowed.maximum} {unit}".rstrip()
        raise SmqError(errors.INVALID_ARGUMENT, f"{why}.")
    return int(match[1])


def flag(name: str, text: str) -> bool:
    """Parse true or false; raises ``SmqError`` (InvalidArgument)."""
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise invalid_argument(f"{name}, which is True or False")
    return value


# Names of queues. A new queue has a name in the alphabet of SMQ, 1 to 256 characters; the suffix .fifo is allowed too,
# so that FIFO queues can be reached by both protocols. Existing queues may have names that only SQS can create.


class NameRule(NamedTuple):
    """The rules for a name; ``length_error`` is for an empty or too long name, ``error`` for other characters."""

    pattern: re.Pattern[str]
    characters_max: int
    length_error: errors.Code
    error: errors.Code


QUEUE_NAME = NameRule(
    re.compile(r"[A-Za-z0-9_.-]+"),
    limits.SMQ_QUEUE_NAME_CHARACTERS_MAX,
    errors.QUEUE_NAME_LENGTH_ERROR,
    errors.INVALID_QUEUE_NAME,
)
NEW_QUEUE_NAME = QUEUE_NAME._replace(pattern=re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*(?:\.fifo)?"))


def checked_name(name: str, rule: NameRule = QUEUE_NAME) -> str:
    """Return ``name``; raises the ``SmqError`` of ``rule`` if it is invalid."""
    if not 1 <= len(name) <= rule.characters_max:
        raise SmqError(rule.length_error)
    if not rule.pattern.fullmatch(name):
        raise SmqError(rule.error)
    return name


def queue_of(request: SmqRequest, context: RequestContext, rule: NameRule = QUEUE_NAME) -> str:
    """Return the full name of the queue in the path; raises ``SmqError`` for an invalid name."""
    return f"{context.account}/{checked_name(request.path[1], rule)}"


def queue_url(name: str, context: RequestContext) -> str:
    """Return the URL of the queue ``name`` (without its account) at the address that the caller uses."""
    return f"{context.base_url}/queues/{name}"


# Replies.


def reply(
    status: int, body: bytes = b"", *, location: str = "", code: str = "OK", identifier: str | None = None
) -> Reply:
    """Return a reply; ``location`` is the URL of a created resource, ``code`` the name of an error.

    ``identifier`` is the request id, if the body contains it. SDKs compare the names of headers case-sensitively, so
    they are sent as they are written here (reference, section 0).
    """
    headers = _CONTENT_TYPE if body else b""
    headers += f"x-mns-request-id: {identifier or new_request_id()}\r\n".encode() + _VERSION
    if location:
        headers += f"Location: {location}\r\n".encode()
    return Reply(status, headers, body, code)


def unwrap(result: Any) -> Any:
    """Return ``result``; raises a ``VeilmqError`` as the ``SmqError`` that it becomes."""
    if isinstance(result, VeilmqError):
        raise errors.from_core(result)
    return result


def unwrap_single(results: Any) -> Any:
    """Return the outcome of a command with one entry, or raise like ``unwrap``."""
    return unwrap(unwrap(results)[0])


def no_content(result: Any) -> Reply:
    """Return a reply without content, or raise like ``unwrap``."""
    unwrap(result)
    return reply(204)


def document_response(root: str, write: Callable[[Any], str]) -> Callable[[Any], Reply]:
    """Return a ``respond`` that replies with a document: ``root`` with the XML ``write(result)``."""
    return lambda result: reply(200, document(root, write(unwrap(result))))


def creation_response(location: str) -> Callable[[Any], Reply]:
    """Return a ``respond`` for a resource at the URL ``location``: 201 if it was created, 204 if it existed."""
    return lambda result: reply(201 if unwrap(result).is_new else 204, location=location)


def deletion_response(missing: type[VeilmqError]) -> Callable[[Any], Reply]:
    """Return a ``respond`` for a delete, which also succeeds with the error ``missing``."""
    return lambda result: reply(204) if isinstance(result, missing) else no_content(result)


# Listings, whose parameters are headers (reference, section 4.5). A marker is the name after which the next page
# begins, in base64. It needs no MAC: it gives access to nothing that is not accessible without it.

_PREFIX = b"x-mns-prefix"
_COUNT = b"x-mns-ret-number"
_MARKER = b"x-mns-marker"
_WITH_META = b"x-mns-with-meta"


def read_listing(headers: Mapping[bytes, bytes]) -> tuple[dict[str, Any], bool]:
    """Return the page that ``headers`` select, as fields of a list command, and whether attributes are requested.

    Raises ``SmqError`` (InvalidArgument).
    """
    prefix, count, marker, detailed = (
        headers.get(name, b"").decode("latin-1").strip() for name in (_PREFIX, _COUNT, _MARKER, _WITH_META)
    )
    try:
        after = checked_name(b64decode(marker, validate=True).decode()) if marker else ""
    except (Base64Error, ValueError, SmqError):
        raise invalid_argument(f"{_MARKER.decode()}, which is the NextMarker of the page before") from None
    allowed = limits.SMQ_LIST_RESULTS
    number = whole_number(_COUNT.decode(), count, allowed) if count else allowed.default
    page = {"prefix": prefix, "after": after, "count": number}
    return page, flag(_WITH_META.decode(), detailed) if detailed else False


def listing_response(kind: str, entries_of: Callable[[Any], list[tuple[str, str, str]]]) -> Callable[[Any], Reply]:
    """Return a ``respond`` for a page of ``kind``; ``entries_of(page)`` returns (name, URL, more XML) of each entry."""

    def respond(result: Any) -> Reply:
        page = unwrap(result)
        entries = entries_of(page)
        content = [container(kind, element(f"{kind}URL", url) + more) for _, url, more in entries]
        if page.more:
            content.append(element("NextMarker", b64encode(entries[-1][0].encode()).decode()))
        return reply(200, document(f"{kind}s", "".join(content)))

    return respond
