"""What requests carry, read: the children of an XML element, numbers and flags with the rules for them.

Children that nobody knows are passed over, and of one that is given twice the last counts. A number or a flag may have
white space around it, and no other text (reference, section 2.3).
"""

import re

from veilmq.core.limits import Range
from veilmq.wire.smq.errors import MALFORMED_XML, SmqError, invalid_argument, out_of_range
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_reading import Element, read

SECONDS = "seconds"
BYTES = "bytes"

_WHOLE_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*")
_FLAGS = {"true": True, "false": False}


def body_of(request: SmqRequest, root: str) -> Element:
    """Return the body of ``request``, which must be a ``root``; raises ``SmqError`` (MalformedXML)."""
    element = read(request.body)
    if element.name != root:
        raise SmqError(MALFORMED_XML)
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
    """Return the number that ``text`` is; raises ``SmqError`` (InvalidArgument) unless it is one of ``allowed``."""
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None or not allowed.holds(int(match[1])):
        raise out_of_range(name, allowed, unit)
    return int(match[1])


def flag(name: str, text: str) -> bool:
    """Return whether ``text`` says true; raises ``SmqError`` (InvalidArgument) unless it says true or false."""
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise invalid_argument(f"{name}, which is True or False")
    return value
