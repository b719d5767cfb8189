"""The body of a message as text, as indented JSON, or as hex, cut if it is long.

A body may be up to a mebibyte of anything, nested to any depth: rendering is bounded in time and size, and its output
is text, which the template escapes.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

CUT_CHARACTERS = 2_000
"""How much of a body is shown in a list of messages."""

WHOLE_CHARACTERS = 1_200_000
"""How much is shown of a single body: as text, every body that a queue accepts."""

JSON_CHARACTERS_MAX = 131_072
"""Longest body that is indented as JSON: about a tenth of a second, which blocks the event loop."""

HEX_BYTES_MAX = 65_536
"""How many bytes of a single body are shown as hex, which is four times as long."""

_HEX_CUT_BYTES = 512
_ROW_BYTES = 16
_STEP = "  "
_STEPS_MAX = 40  # deeper values are not indented further, so that depth does not multiply the size
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{}:,]|[^][{}:,"\s]+')
_PRINTABLE = range(0x20, 0x7F)


class ShownBody(NamedTuple):
    """``text`` is the body in the requested ``view``, or as text if ``problem`` says why not.

    ``is_cut`` if something is missing; ``size_bytes`` is the size of the body in UTF-8.
    """

    text: str
    view: str
    size_bytes: int
    is_cut: bool
    problem: str = ""


def shown(body: str, view: str, *, size_bytes: int | None = None, whole: bool = False) -> ShownBody:
    """Return ``body`` as ``text``, ``json`` or ``hex``; cut, unless ``whole``.

    ``size_bytes`` is the size of the complete body, if ``body`` may be only its beginning.
    """
    data = body.encode("utf-8", "surrogatepass")
    size_bytes = len(data) if size_bytes is None else size_bytes
    if view == "hex":
        limit = HEX_BYTES_MAX if whole else _HEX_CUT_BYTES
        return ShownBody(hex_rows(data[:limit]), "hex", size_bytes, size_bytes > limit)
    limit = WHOLE_CHARACTERS if whole else CUT_CHARACTERS
    problem = not_json(body, data, size_bytes) if view == "json" else ""
    if view == "json" and not problem:
        text, is_cut = json_lines(body, limit)
        return ShownBody(text, "json", size_bytes, is_cut)
    return ShownBody(body[:limit], "text", size_bytes, len(body) > limit or len(data) < size_bytes, problem)


def not_json(body: str, data: bytes, size_bytes: int) -> str:
    """Return why ``body``, in UTF-8 ``data``, cannot be shown as JSON, as a sentence; empty if it can."""
    if len(data) < size_bytes or len(body) > JSON_CHARACTERS_MAX:
        return "This is too long to be laid out as JSON here."
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        return "This is JSON nested too deeply to be laid out."
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "This is no JSON."
    return ""


def json_lines(body: str, characters_max: int) -> tuple[str, bool]:
    """Return valid JSON with one value per line, and whether it was cut.

    Tokens are unchanged, since differences that a parser ignores may matter for debugging: ``1.0`` and ``1``, duplicate
    names.
    """
    parts: list[str] = []
    room = characters_max
    for part in _laid_out(body):
        if len(part) > room:
            parts.append(part[:room])
            return "".join(parts), True
        parts.append(part)
        room -= len(part)
    return "".join(parts), False


def _laid_out(body: str) -> Iterator[str]:
    depth, before = 0, ""
    for match in _TOKEN.finditer(body):
        token = match[0]
        if token in "]}":
            depth -= 1
            yield token if before in ("[", "{") else _line(depth) + token
        elif token == ",":
            yield token + _line(depth)
        elif token == ":":
            yield ": "
        else:
            yield _line(depth) + token if before in ("[", "{") else token
            depth += token in "[{"
        before = token


def _line(depth: int) -> str:
    return "\n" + _STEP * min(depth, _STEPS_MAX)


def hex_rows(data: bytes) -> str:
    """Return rows of sixteen bytes: offset, hex digits, and ASCII characters."""
    return "\n".join(_row(at, data[at : at + _ROW_BYTES]) for at in range(0, len(data), _ROW_BYTES))


def _row(at: int, data: bytes) -> str:
    characters = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in data)
    return f"{at:06x}  {data.hex(' '):<{_ROW_BYTES * 3 - 1}}  {characters}"
