"""The canonical form of a request, over which AWS Signature Version 4 is calculated.

The rules are those of the IAM User Guide, "Create a signed AWS API request". A path is taken as it was sent, freed of
``.``, ``..`` and double slashes, and encoded once more (everywhere but in S3); a query is decoded and encoded anew, so
that each way to write it has one form; of a header's value the white space around it goes, and what is left of it
counts as one space.
"""

from collections.abc import Iterable
from urllib.parse import quote_from_bytes, unquote_to_bytes

_KEPT_IN_PATH = "/~"
_KEPT_IN_QUERY = "~"
_REMEMBERED_MAX = 1_024
_REMEMBERED_BYTES_MAX = 512
_paths: dict[bytes, bytes] = {b"": b"/", b"/": b"/"}

Pair = tuple[bytes, bytes]


def path(raw: bytes) -> bytes:
    """Return the canonical form of the path of a target; the last ones are remembered, unless they are long."""
    known = _paths.get(raw)
    if known is not None:
        return known
    found = quote_from_bytes(_without_dots(raw), _KEPT_IN_PATH).encode()
    if len(raw) <= _REMEMBERED_BYTES_MAX:
        if len(_paths) >= _REMEMBERED_MAX:
            _paths.clear()
        _paths[raw] = found
    return found


def pairs(query: bytes) -> list[Pair]:
    """Return the names and values of a query, decoded; ``+`` is a space, as in a form."""
    found = []
    for item in query.split(b"&"):
        if item:
            name, _, value = item.replace(b"+", b" ").partition(b"=")
            found.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return found


def query(decoded: Iterable[Pair]) -> bytes:
    """Return the canonical form of a query: encoded, then sorted by name and value."""
    encoded = sorted((_encoded(name), _encoded(value)) for name, value in decoded)
    return "&".join([f"{name}={value}" for name, value in encoded]).encode()


def trimmed(value: bytes) -> bytes:
    """Return a header's value without white space around it, and with single spaces inside."""
    return b" ".join(value.split())


def _encoded(value: bytes) -> str:
    return quote_from_bytes(value, _KEPT_IN_QUERY)


def _without_dots(raw: bytes) -> bytes:
    kept: list[bytes] = []
    for part in raw.split(b"/"):
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    return b"/" + b"/".join(kept) + (b"/" if kept and raw.endswith(b"/") else b"")
