"""Listings: what is asked for in headers, and the page (reference, section 4.5).

A marker is the name after which the next page begins, in base64: it is opaque to clients, and leads nowhere that they
could not go without it.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping

import msgspec

from veilmq.core.limits import SMQ_LIST_RESULTS
from veilmq.wire.smq.errors import invalid_argument
from veilmq.wire.smq.members import flag, whole_number
from veilmq.wire.smq.xml_writing import element

_PREFIX = b"x-mns-prefix"
_COUNT = b"x-mns-ret-number"
_MARKER = b"x-mns-marker"
_WITH_META = b"x-mns-with-meta"


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What to list: at most ``count`` names with ``prefix`` after the name ``after``, ``detailed`` with attributes."""

    prefix: str
    after: str
    count: int
    detailed: bool


def read_listing(headers: Mapping[bytes, bytes]) -> Listing:
    """Return what ``headers`` ask for; raises ``SmqError`` (InvalidArgument)."""
    count = _text(headers, _COUNT)
    detailed = _text(headers, _WITH_META)
    return Listing(
        prefix=_text(headers, _PREFIX),
        after=_name_of(_text(headers, _MARKER)),
        count=whole_number(_COUNT.decode(), count, SMQ_LIST_RESULTS) if count else SMQ_LIST_RESULTS.default,
        detailed=flag(_WITH_META.decode(), detailed) if detailed else False,
    )


def next_marker(last: str, *, more: bool) -> str:
    """Return the element that leads on from ``last``, the last name of a page; nothing where it was the last page."""
    return element("NextMarker", b64encode(last.encode()).decode()) if more else ""


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1").strip()


def _name_of(marker: str) -> str:
    try:
        return b64decode(marker, validate=True).decode()
    except (Base64Error, ValueError):
        raise invalid_argument(f"{_MARKER.decode()}, which is the NextMarker of the page before") from None
