"""What a signature of SMQ covers of a request: its line, some headers, and its date.

``x-mns-date`` replaces ``Date`` for clients that cannot set that one. As a header whose name begins with ``x-mns-`` it
is signed in any case, so where it is there, it is the date that is compared with the clock; where both are there and
differ, a client may have signed with either (reference, section 3.4).
"""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from veilmq.wire.smq.errors import INVALID_DATE_HEADER, MISSING_DATE_HEADER, SmqError

PREFIX = b"x-mns-"

_DATE_BYTES_MAX = 64
_REMEMBERED_MAX = 256

Headers = Mapping[bytes, bytes]


class Instant(NamedTuple):
    """A date in seconds since the epoch, and as ``20260131T235959Z``."""

    at_s: float
    basic: bytes


class SignedRequest(NamedTuple):
    """A request; ``headers`` are by lower-case name. ``dates`` has what may have been signed as date, ours first.

    ``instants`` are the same, read.
    """

    method: bytes
    target: bytes
    headers: Headers
    dates: tuple[bytes, ...]
    instants: tuple[Instant, ...]


class Dates:
    """Reads dates, and remembers the last ones: all clients send the same for a second."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[bytes, Instant] = {}

    def read(self, date: bytes) -> Instant:
        """Return the instant of an HTTP date; raises ``SmqError`` (InvalidDateHeader)."""
        known = self._known.get(date)
        if known is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            known = self._known[date] = _instant(date)
        return known


def dates_of(headers: Headers) -> tuple[bytes, ...]:
    """Return the dates of a request, the one that is compared with the clock first; raises ``SmqError``."""
    own, general = headers.get(b"x-mns-date"), headers.get(b"date")
    if own and general and own != general:
        return own, general
    date = own or general
    if not date:
        raise SmqError(MISSING_DATE_HEADER)
    return (date,)


def _instant(date: bytes) -> Instant:
    try:
        if len(date) > _DATE_BYTES_MAX:
            raise ValueError
        read = parsedate_to_datetime(date.decode("ascii"))
        at = (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).astimezone(UTC)
        return Instant(at.timestamp(), at.strftime("%Y%m%dT%H%M%SZ").encode())
    except (ValueError, OverflowError):
        raise SmqError(INVALID_DATE_HEADER) from None
