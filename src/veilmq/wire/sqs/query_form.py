"""The parameters of a Query request, from the query string, the form or both, as a tree of their names.

``Attribute.1.Name=x`` becomes ``{"Attribute": {"1": {"Name": "x"}}}``. The work is bounded before it begins: by the
number of parameters, which are counted before they are split, and by the depth of their names. Nothing is guessed: a
percent sign without two digits, bytes that are not UTF-8 and a name with two values are refused.
"""

import re
from binascii import a2b_qp
from collections.abc import Iterator
from typing import Union

import msgspec

from veilmq.core.limits import QUERY_DEPTH_MAX, QUERY_PARAMETERS_MAX
from veilmq.wire.sqs.errors import MALFORMED_INPUT, MALFORMED_QUERY_STRING, SqsError, shown

Node = Union[str, "Tree"]
"""The value of a parameter, or what is below a part of a name."""

Tree = dict[str, Node]
"""Part of a name → what is below it."""

_TARGET = re.compile(rb"(?:[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)?([^?#]*)(?:\?([^#]*))?")
_ACTION = re.compile(rb"(?:^|&)Action=([^&]*)")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


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
        for name, value in _pairs(text):
            _place(tree, name, value)
    return tree


def malformed(reason: str) -> SqsError:
    """Return the error for parameters that do not fit together, or not the action."""
    return SqsError(MALFORMED_INPUT, reason)


def _pairs(text: bytes) -> Iterator[tuple[str, str]]:
    for piece in text.split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            yield _decoded(name), _decoded(value)


def _decoded(raw: bytes) -> str:
    """Return ``raw`` without its percent escapes.

    Quoted-printable differs from them by the sign only, and its decoder is written in C: 8 MiB of escapes take it some
    milliseconds and no memory beside the result, where ``urllib.parse.unquote`` makes a list of three million pieces.
    """
    raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        if _BROKEN_ESCAPE.search(raw):
            raise _unreadable("a percent sign is not followed by two hexadecimal digits")
        raw = a2b_qp(raw.replace(b"=", b"=3D").replace(b"%", b"="))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _unreadable("it is not valid UTF-8") from None


def _unreadable(reason: str) -> SqsError:
    return SqsError(MALFORMED_QUERY_STRING, f"A parameter of the request cannot be read: {reason}.")


def _place(tree: Tree, name: str, value: str) -> None:
    *above, last = name.split(".", QUERY_DEPTH_MAX)
    node = tree
    for part in above:
        below = node.setdefault(part, {})
        if isinstance(below, str):
            raise _contradiction(name)
        node = below
    if node.setdefault(last, value) != value:
        raise _contradiction(name)


def _contradiction(name: str) -> SqsError:
    return malformed(f"The parameter {shown(name)} has two values; send it once.")
