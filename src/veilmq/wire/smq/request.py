"""A request of SMQ and its answer: XML, path and parameters, members, names of queues, listings."""

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

_BEGINNING = urandom(6).hex().upper()


def new_request_id() -> str:
    """Return the id of another request."""
    return f"{_BEGINNING}{new_uuid()[-12:].upper()}"


# The XML of requests: a tree of names and texts, and nothing of XML that a request has no use for.
#
# Namespaces, prefixes, attributes, comments and the order of children do not count, as the SDKs differ in all of them
# (reference, section 2.3). There are no document types, so no entities but the five of XML and references to
# characters: what could grow ("bombs"), or name a file, ends at its first character. Depth, number of elements and
# length of names and attributes are bounded while the body is read, not after. Bodies are UTF-8 whatever they say, and
# one that is not is malformed; so is one that names another encoding and has more than ASCII.
#
# Nearly all requests are small, in ASCII, and *flat*: a root whose children have text and nothing else. Those are read
# by two regular expressions in half the time of a parser. They fit such bodies alone, in which both find the same.

_PIECE_BYTES = 65_536
_FLAT_BYTES_MAX = 16_384  # in which there are too few elements, whatever they are, to count them
_FLAT = re.compile(
    rb"""(?:<\?xml\ version="1\.0"(?:\ encoding="[A-Za-z][A-Za-z0-9-]{0,30}+")?\?>[ \n\t]*+)?
    <([A-Za-z]{1,64}+)(?:\ xmlns="[A-Za-z0-9:/.]{0,200}+")?>
    ((?:[ \n\t]*+<([A-Za-z]{1,64}+)>[^<&\x00-\x08\x0b-\x1f]*+</\3>)*+)
    ([ \n\t]*+)</\1>[ \n\t]*+""",
    re.VERBOSE,
)
_LEAF = re.compile(rb"<([A-Za-z]++)>([^<]*+)")
_ENCODINGS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


class Element(msgspec.Struct, eq=False, gc=False):
    """``name`` is the local one; ``text`` is all text, and empty where there are ``children``."""

    name: str
    text: str
    children: "list[Element]"


def read_xml(body: bytes) -> Element:
    """Return the root of ``body``; raises ``SmqError`` (MalformedXML), and nothing else, whatever it holds."""
    return read_flat_xml(body) or parse_xml(body)


def read_flat_xml(body: bytes) -> Element | None:
    """Return what ``parse_xml`` would, if ``body`` is small and flat; else ``None``, which says nothing about it."""
    if len(body) > _FLAT_BYTES_MAX or not body.isascii() or b"]]>" in body:
        return None
    flat = _FLAT.fullmatch(body)
    if flat is None:
        return None
    root, leaves, _, rest = flat.groups()
    children = [Element(name.decode(), text.decode(), []) for name, text in _LEAF.findall(leaves)]
    return Element(root.decode(), "" if children else rest.decode(), children)


def parse_xml(body: bytes) -> Element:
    """Do the same as ``read_xml``, for bodies of any kind."""
    families: list[list[Element]] = [[]]  # the children so far of each element that is open, and the root
    texts: list[str] = []
    left = limits.SMQ_XML_ELEMENTS_MAX

    def start(name: str, attributes: list[str]) -> None:
        nonlocal left
        left -= 1
        if left < 0 or len(families) > limits.SMQ_XML_DEPTH_MAX or len(name) > limits.SMQ_XML_TAG_CHARACTERS_MAX:
            _refuse()
        if attributes and sum(map(len, attributes)) > limits.SMQ_XML_TAG_CHARACTERS_MAX:
            _refuse()
        if texts:
            texts.clear()
        families.append([])

    def end(name: str) -> None:
        children = families.pop()
        text = "" if children else "".join(texts)
        families[-1].append(Element(name if ":" not in name else name.rpartition(":")[2], text, children))
        texts.clear()

    def check_encoding(_version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in _ENCODINGS:
            _refuse()

    parser = ParserCreate("utf-8")
    parser.buffer_text = True
    parser.ordered_attributes = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = _refuse
    if not body.isascii():
        parser.XmlDeclHandler = check_encoding
    try:
        _parse(parser, body)
    except ExpatError:
        _refuse()
    return families[0][0]


def _refuse(*_declared: object) -> NoReturn:
    raise SmqError(errors.MALFORMED_XML) from None


def _parse(parser: XMLParserType, body: bytes) -> None:
    """Have ``body`` parsed in pieces: the parser keeps all of a tag until it ends, and no tag is as long as a piece."""
    if b"\0" in body:  # UTF-16 and its kin, which the parser would find out by itself
        _refuse()
    last = 0
    while len(body) - last > _PIECE_BYTES:
        parser.Parse(body[last : last + _PIECE_BYTES], False)
        if parser.CurrentByteIndex < last:
            _refuse()
        last += _PIECE_BYTES
    parser.Parse(body[last:], True)


# The XML of replies: elements with text, written as the SDKs read them.
#
# The namespace stands on the root alone, without a slash at its end; there are neither prefixes nor comments, and what
# is optional and absent is left out, not empty (reference, sections 0 and 2.3). Each element ends a line, as the
# service writes them: the SDK for PHP skips the node behind the end of some elements, which without white space is the
# next one. What XML 1.0 cannot carry is replaced by U+FFFD: it can come from an error that repeats what a client sent,
# not from a message, as no protocol takes one with such characters. A carriage return is written as a reference,
# because a parser would read a line feed.

NAMESPACE = "http://mns.aliyuncs.com/doc/v1"
_CONTENT_TYPE = b"Content-Type: text/xml;charset=utf-8\r\n"


def document(root: str, inner: str) -> bytes:
    """Return a whole document; ``inner`` is written XML."""
    line_end = "\n" if inner else ""
    return f'<?xml version="1.0"?>\n<{root} xmlns="{NAMESPACE}">{line_end}{inner}</{root}>'.encode()


def container(name: str, inner: str) -> str:
    """Return an element with ``inner``, which is written XML."""
    return f"<{name}>\n{inner}</{name}>\n"


def elements(content: Mapping[str, str]) -> str:
    """Return elements with texts, by name, in their order."""
    return "".join([element(name, text) for name, text in content.items()])


def element(name: str, text: str) -> str:
    """Return an element with ``text``, which is any."""
    return f"<{name}>{escaped(text)}</{name}>\n"


def optional(name: str, text: str | None) -> str:
    """Return the same, and nothing where there is no text."""
    return element(name, text) if text else ""


# A request of SMQ, taken apart: the parts of its path, its parameters, and what its body is about.
#
# Names of parameters are case-insensitive; their values are percent-encoded or raw, as SDKs do either,
# and a plus sign is itself (reference, sections 0 and 3.4). The name of the body's root distinguishes two routes that
# share method and path, so it is found before the body is parsed, and checked again then.
#
# What a path means is remembered, as clients repeat the few that they have.

VERSION = b"2015-06-06"
VERSION_HEADER = b"x-mns-version"
_VERSION = b"%b: %b\r\n" % (VERSION_HEADER, VERSION)

_REMEMBERED_MAX = 1_024
_REMEMBERED_BYTES_MAX = 512
_AUTHORIZATION = b"MNS"
_PATHS = re.compile(rb"/(?:queues|topics|commonbuy)(?:[/?]|$)|/\?(?i:accountmeta)(?:[=&]|$)")
_USUAL_ROOT = re.compile(rb"(?:<\?xml[^>?]*+\?>\s*+)?+<([A-Za-z]++)[\s>]")  # what the other one finds, sooner
_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:(?:<\?(?>.*?\?>)|<!--(?>.*?-->))\s*+)*+<(?:[^\s<>/:=]++:)?([^\s<>/:=]++)", re.DOTALL
)


class SmqRequest(Value, gc=False):
    """``path`` has the decoded parts between slashes, ``query`` the decoded values by lower-case name.

    ``shape`` is the path with every second part, a name, as ``*``: by it routes are found.
    ``headers`` are by lower-case name. ``target`` is as it was sent: signatures cover it. ``root`` is the local name of
    the body's root, empty where there is no body or no XML. ``error`` is what is wrong with the target, if anything is.
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


_NOWHERE: tuple[tuple[str, ...], str] = (), "?"
_NONE: Mapping[str, str] = {}


def is_smq(target: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request is one of SMQ: by the version's header, the signature's, or its path."""
    return (
        VERSION_HEADER in headers
        or headers.get(b"authorization", b"").startswith(_AUTHORIZATION)
        or _PATHS.match(target) is not None
    )


def read_request(method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes) -> SmqRequest:
    """Return the request for ``target``, whatever that holds."""
    raw_path, _, raw_query = target.partition(b"?")
    (path, shape), query, error = _NOWHERE, _NONE, None
    try:
        path, shape = _path(raw_path) if len(raw_path) <= _REMEMBERED_BYTES_MAX else _path.__wrapped__(raw_path)
        if raw_query:
            query = _parameters(raw_query)
    except SmqError as failure:
        error = failure
    root = (_USUAL_ROOT.match(body) or _ROOT.match(body)) if body else None
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


@lru_cache(_REMEMBERED_MAX)
def _path(raw: bytes) -> tuple[tuple[str, ...], str]:
    """Return parts and shape of ``raw``; a slash at its end means nothing."""
    try:
        parts = tuple(unquote_to_bytes(part).decode() for part in raw.strip(b"/").split(b"/") if part or raw != b"/")
    except UnicodeDecodeError:
        raise SmqError(errors.INVALID_REQUEST_URL) from None
    if any("/" in word for word in parts[::2]):  # one part would pass for several
        raise SmqError(errors.INVALID_REQUEST_URL)
    return parts, "/".join("*" if place % 2 else part for place, part in enumerate(parts))


def _parameters(query: bytes) -> dict[str, str]:
    """Return the parameters; raises ``SmqError`` (InvalidQueryString) for one given twice with two values."""
    given: dict[str, str] = {}
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
        if given.setdefault(key, text) != text:
            raise errors.invalid_query(key)
    return given


# What requests carry, read: the children of an XML element, numbers and flags with the rules for them.
#
# Unknown children are ignored, and of one that is given twice the last counts. A number or a flag may
# have white space around it, and no other text (reference, section 2.3).

SECONDS = "seconds"
BYTES = "bytes"

_WHOLE_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*")
_FLAGS = {"true": True, "false": False}


def body_of(request: SmqRequest, root: str) -> Element:
    """Return the body of ``request``, which must be a ``root``; raises ``SmqError`` (MalformedXML)."""
    element = read_xml(request.body)
    if element.name != root:
        raise SmqError(errors.MALFORMED_XML)
    return element


def optional_body_of(request: SmqRequest, root: str) -> Element:
    """Return the same, and an element without children where there is no body."""
    return body_of(request, root) if request.body.strip() else Element(root, "", [])


def texts(element: Element) -> dict[str, str]:
    """Return the text of each child of ``element`` by its name."""
    return {child.name: child.text for child in element.children}


def children(element: Element, name: str) -> list[Element]:
    """Return the children of that ``name``."""
    return [child for child in element.children if child.name == name]


def whole_number(name: str, text: str, allowed: Range, unit: str = "") -> int:
    """Return the number that ``text`` is; raises ``SmqError`` (InvalidArgument) unless it is one of ``allowed``.

    ``unit`` is that of the numbers, for the error.
    """
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None or not allowed.holds(int(match[1])):
        why = f"The value of {name} should between {allowed.minimum} and {allowed.maximum} {unit}".rstrip()
        raise SmqError(errors.INVALID_ARGUMENT, f"{why}.")
    return int(match[1])


def flag(name: str, text: str) -> bool:
    """Return whether ``text`` says true; raises ``SmqError`` (InvalidArgument) unless it says true or false."""
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise invalid_argument(f"{name}, which is True or False")
    return value


# Names of queues in paths, and the URLs that lead there.
#
# A queue is made under a name of SMQ's alphabet, 1 to 256 characters; of what only SQS's names have, the end of a FIFO
# queue's is allowed, so that there are FIFO queues that both protocols reach. A queue that is there is found by any
# name that a listing shows, also one that only SQS could make.


class NameRule(NamedTuple):
    """What a name may be, and the errors of one that is too long or empty, and of one with other characters."""

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
    """Return ``name``; raises the ``SmqError`` of ``rule``."""
    if not 1 <= len(name) <= rule.characters_max:
        raise SmqError(rule.length_error)
    if not rule.pattern.fullmatch(name):
        raise SmqError(rule.error)
    return name


def queue_of(request: SmqRequest, context: RequestContext, rule: NameRule = QUEUE_NAME) -> str:
    """Return the store's name (``account/name``) of the queue in the path; raises ``SmqError`` for what is no name."""
    return f"{context.account}/{checked_name(request.path[1], rule)}"


def queue_url(name: str, context: RequestContext) -> str:
    """Return the URL of the queue ``name``, without its account, as the caller reaches it."""
    return f"{context.base_url}/queues/{name}"


# What a route makes of a request: the command for the engine, and the way from its result to the reply.


def reply(
    status: int, body: bytes = b"", *, location: str = "", code: str = "OK", identifier: str | None = None
) -> Reply:
    """Return a reply; ``location`` is the URL of what was made or found, ``code`` an error's name.

    The body is a whole document, empty where there is none; ``identifier`` is that of the request where it stands in
    it. The names of the headers leave as they stand here, byte for byte: SDKs compare them case-sensitively
    (reference, section 0).
    """
    headers = _CONTENT_TYPE if body else b""
    headers += f"x-mns-request-id: {identifier or new_request_id()}\r\n".encode() + _VERSION
    if location:
        headers += f"Location: {location}\r\n".encode()
    return Reply(status, headers, body, code)


def unwrap(result: Any) -> Any:
    """Return ``result``; raises the ``SmqError`` for a ``VeilmqError``."""
    if isinstance(result, VeilmqError):
        raise errors.from_core(result)
    return result


def unwrap_single(results: Any) -> Any:
    """Return the outcome of a command that had one entry; raises the ``SmqError`` for a ``VeilmqError``."""
    return unwrap(unwrap(results)[0])


def no_content(result: Any) -> Reply:
    """Answer with no content; raises the ``SmqError`` for a ``VeilmqError``."""
    unwrap(result)
    return reply(204)


def document_response(root: str, written: Callable[[Any], str]) -> Callable[[Any], Reply]:
    """Return the answer to a request that shows something: a ``root`` with what is ``written`` of the result."""
    return lambda result: reply(200, document(root, written(unwrap(result))))


def creation_response(location: str) -> Callable[[Any], Reply]:
    """Return the answer to a request that makes something (201) or finds it (204), at the URL ``location``."""
    return lambda result: reply(201 if unwrap(result).is_new else 204, location=location)


def deletion_response(missing: type[VeilmqError]) -> Callable[[Any], Reply]:
    """Return the answer to a delete, which succeeds for what is ``missing``, too."""
    return lambda result: reply(204) if isinstance(result, missing) else no_content(result)


# Listings: the parameters, which are headers, and the page (reference, section 4.5).
#
# A marker is the name after which the next page begins, in base64: it is opaque to clients, and leads nowhere that
# they could not go without it.

_PREFIX = b"x-mns-prefix"
_COUNT = b"x-mns-ret-number"
_MARKER = b"x-mns-marker"
_WITH_META = b"x-mns-with-meta"


def read_listing(headers: Mapping[bytes, bytes]) -> tuple[dict[str, Any], bool]:
    """Return the page that ``headers`` ask for, and whether with attributes; raises ``SmqError`` (InvalidArgument).

    A page has at most ``count`` names with ``prefix`` after the name ``after``, as the commands of listings have them.
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
    """Return the answer with a page of a ``kind``: of each entry on it its name, its URL, and what else is written.

    The last name leads on to the next page, where there is one.
    """

    def respond(result: Any) -> Reply:
        page = unwrap(result)
        entries = entries_of(page)
        content = [container(kind, element(f"{kind}URL", url) + more) for _, url, more in entries]
        if page.more:
            content.append(element("NextMarker", b64encode(entries[-1][0].encode()).decode()))
        return reply(200, document(f"{kind}s", "".join(content)))

    return respond
