"""A request of SMQ, taken apart: the parts of its path, its parameters, and what its body is about.

Names of parameters do not tell upper case from lower; their values are percent-encoded or raw, as SDKs do either, and a
plus sign is itself (reference, sections 0 and 3.4). The name of the body's root tells two routes apart that share
method and path, so it is looked for before the body is read; whoever reads the body checks it again.

What a path means is remembered, as clients repeat the few that they have.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from veilmq.wire.smq.errors import INVALID_REQUEST_URL, SmqError, invalid_query

VERSION = b"2015-06-06"
VERSION_HEADER = b"x-mns-version"

_REMEMBERED_MAX = 1_024
_REMEMBERED_BYTES_MAX = 512
_AUTHORIZATION = b"MNS"
_PATHS = re.compile(rb"/(?:queues|topics|commonbuy)(?:[/?]|$)|/\?(?i:accountmeta)(?:[=&]|$)")
_USUAL_ROOT = re.compile(rb"(?:<\?xml[^>?]*+\?>\s*+)?+<([A-Za-z]++)[\s>]")  # what the other one finds, sooner
_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:(?:<\?(?>.*?\?>)|<!--(?>.*?-->))\s*+)*+<(?:[^\s<>/:=]++:)?([^\s<>/:=]++)", re.DOTALL
)


class Path(NamedTuple):
    """The decoded parts of a path, and its ``shape``: the same with every second part, a name, as ``*``."""

    parts: tuple[str, ...]
    shape: str


class SmqRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``path`` has the decoded parts between slashes, ``query`` the decoded values by lower-case name.

    ``shape`` is that of the path, which tells routes apart.
    ``headers`` are by lower-case name. ``target`` is as it was sent: signatures cover it. ``root`` is the local name of
    the body's root, empty where there is no body or no XML. ``flaw`` is what is wrong with the target, if anything is.
    """

    method: bytes
    target: bytes
    path: tuple[str, ...]
    shape: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    root: str = ""
    flaw: SmqError | None = None


_NOWHERE = Path((), "?")
_NONE: Mapping[str, str] = {}
_known: dict[bytes, Path] = {}


def is_smq(target: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a request is one of SMQ: by the version's header, the signature's, or its path."""
    return (
        VERSION_HEADER in headers
        or headers.get(b"authorization", b"").startswith(_AUTHORIZATION)
        or _PATHS.match(target) is not None
    )


def read_request(method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes) -> SmqRequest:
    """Return the request for ``target``, whatever that holds."""
    raw_path, _, raw_query = target.partition(b"?")
    path, query, flaw = _NOWHERE, _NONE, None
    try:
        path = _known.get(raw_path) or _path(raw_path)
        if raw_query:
            query = _parameters(raw_query)
    except SmqError as error:
        flaw = error
    root = (_USUAL_ROOT.match(body) or _ROOT.match(body)) if body else None
    return SmqRequest(
        method=method,
        target=target,
        path=path.parts,
        shape=path.shape,
        query=query,
        headers=headers,
        body=body,
        root="" if root is None else root[1].decode(errors="replace"),
        flaw=flaw,
    )


def _path(raw: bytes) -> Path:
    """Return what ``raw`` means, and remember it unless it is long; a slash at its end means nothing."""
    try:
        parts = tuple(unquote_to_bytes(part).decode() for part in raw.strip(b"/").split(b"/") if part or raw != b"/")
    except UnicodeDecodeError:
        raise SmqError(INVALID_REQUEST_URL) from None
    if any("/" in word for word in parts[::2]):  # one part would pass for several
        raise SmqError(INVALID_REQUEST_URL)
    path = Path(parts, "/".join("*" if place % 2 else part for place, part in enumerate(parts)))
    if len(raw) <= _REMEMBERED_BYTES_MAX:
        if len(_known) >= _REMEMBERED_MAX:
            _known.clear()
        _known[raw] = path
    return path


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
            raise invalid_query(name.decode(errors="replace")) from None
        if given.setdefault(key, text) != text:
            raise invalid_query(key)
    return given
