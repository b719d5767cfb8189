"""The XML of requests: a tree of names and texts, and nothing of XML that a request has no use for.

Namespaces, prefixes, attributes, comments and the order of children do not count, as the SDKs differ in all of them
(reference, section 2.3). There are no document types, so no entities but the five of XML and references to characters:
what could grow ("bombs"), or name a file, ends at its first character. Depth, number of elements and length of names
and attributes are bounded while the body is read, not after. Bodies are UTF-8 whatever they say, and one that is not is
malformed; so is one that names another encoding and has more than ASCII.

Nearly all requests are small, in ASCII, and *flat*: a root whose children have text and nothing else. Those are read by
two regular expressions in half the time of a parser. They fit such bodies alone, in which both find the same.
"""

import re
from xml.parsers.expat import ExpatError, ParserCreate, XMLParserType

import msgspec

from veilmq.core.limits import SMQ_XML_DEPTH_MAX, SMQ_XML_ELEMENTS_MAX, SMQ_XML_TAG_CHARACTERS_MAX
from veilmq.wire.smq.errors import MALFORMED_XML, SmqError

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


class _Refused(Exception):
    """The body is well-formed so far, and nothing that a request may be."""


def read(body: bytes) -> Element:
    """Return the root of ``body``; raises ``SmqError`` (MalformedXML), and nothing else, whatever it holds."""
    return read_flat(body) or parse(body)


def read_flat(body: bytes) -> Element | None:
    """Return what ``parse`` would, if ``body`` is small and flat; else ``None``, which says nothing about it."""
    if len(body) > _FLAT_BYTES_MAX or not body.isascii() or b"]]>" in body:
        return None
    flat = _FLAT.fullmatch(body)
    if flat is None:
        return None
    root, leaves, _, rest = flat.groups()
    children = [Element(name.decode(), text.decode(), []) for name, text in _LEAF.findall(leaves)]
    return Element(root.decode(), "" if children else rest.decode(), children)


def parse(body: bytes) -> Element:
    """Do the same as ``read``, for bodies of any kind."""
    families: list[list[Element]] = [[]]  # the children so far of each element that is open, and the root
    texts: list[str] = []
    left = SMQ_XML_ELEMENTS_MAX

    def start(name: str, attributes: list[str]) -> None:
        nonlocal left
        left -= 1
        if left < 0 or len(families) > SMQ_XML_DEPTH_MAX or len(name) > SMQ_XML_TAG_CHARACTERS_MAX:
            raise _Refused
        if attributes and sum(map(len, attributes)) > SMQ_XML_TAG_CHARACTERS_MAX:
            raise _Refused
        if texts:
            texts.clear()
        families.append([])

    def end(name: str) -> None:
        children = families.pop()
        text = "" if children else "".join(texts)
        families[-1].append(Element(name if ":" not in name else name.rpartition(":")[2], text, children))
        texts.clear()

    parser = ParserCreate("utf-8")
    parser.buffer_text = True
    parser.ordered_attributes = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = _refuse_type
    if not body.isascii():
        parser.XmlDeclHandler = _check_encoding
    try:
        _parse(parser, body)
    except (ExpatError, _Refused):
        raise SmqError(MALFORMED_XML) from None
    return families[0][0]


def _parse(parser: XMLParserType, body: bytes) -> None:
    """Have ``body`` parsed in pieces: the parser keeps all of a tag until it ends, and no tag is as long as a piece."""
    if b"\0" in body:  # UTF-16 and its kin, which the parser would find out by itself
        raise _Refused
    last = 0
    while len(body) - last > _PIECE_BYTES:
        parser.Parse(body[last : last + _PIECE_BYTES], False)
        if parser.CurrentByteIndex < last:
            raise _Refused
        last += _PIECE_BYTES
    parser.Parse(body[last:], True)


def _refuse_type(*_declared: object) -> None:
    raise _Refused


def _check_encoding(_version: str, encoding: str | None, _standalone: int) -> None:
    if encoding is not None and encoding.lower() not in _ENCODINGS:
        raise _Refused
