"""The body of a message as text, as JSON with a line for each value, or as hex, cut where it gets long.

It may be anything, up to a mebibyte of it and nested as deeply as one likes: what is made of it here is bounded in time
and in size, and what it is made into is text, which a page escapes.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

CUT_CHARACTERS = 2_000
"""How much of a body is shown where there are many of them."""

WHOLE_CHARACTERS = 1_200_000
"""How much of it is shown of one alone: as text, each body that a queue can take."""

JSON_CHARACTERS_MAX = 131_072
"""How long a body may be that is laid out as JSON: some tenth of a second, in which the server does nothing else."""

HEX_BYTES_MAX = 65_536
"""How many bytes are shown as hex of one alone: four times as long on the page."""

_HEX_CUT_BYTES = 512
_ROW_BYTES = 16
_STEP = "  "
_STEPS_MAX = 40  # values deeper than that are indented no further, so that depth does not multiply a body
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{}:,]|[^][{}:,"\s]+')
_PRINTABLE = range(0x20, 0x7F)


class ShownBody(NamedTuple):
    """``text`` is what is shown, as the ``view`` that was wanted or, where ``problem`` says why not, as text.

    ``is_cut`` where it is not all; ``size_bytes`` is that of the body in UTF-8.
    """

    text: str
    view: str
    size_bytes: int
    is_cut: bool
    problem: str = ""


def shown(body: str, view: str, *, size_bytes: int | None = None, whole: bool = False) -> ShownBody:
    """Return ``body`` as ``text``, ``json`` or ``hex``, cut unless it is to be shown ``whole``.

    ``size_bytes`` is that of the whole body, where this may be the beginning of it.
    """
    data = body.encode("utf-8", "surrogatepass")
    size_bytes = len(data) if size_bytes is None else size_bytes
    if view == "hex":
        most = HEX_BYTES_MAX if whole else _HEX_CUT_BYTES
        return ShownBody(hex_rows(data[:most]), "hex", size_bytes, size_bytes > most)
    most = WHOLE_CHARACTERS if whole else CUT_CHARACTERS
    problem = not_json(body, data, size_bytes) if view == "json" else ""
    if view == "json" and not problem:
        text, is_cut = json_lines(body, most)
        return ShownBody(text, "json", size_bytes, is_cut)
    return ShownBody(body[:most], "text", size_bytes, len(body) > most or len(data) < size_bytes, problem)


def not_json(body: str, data: bytes, size_bytes: int) -> str:
    """Return why ``body``, in UTF-8 ``data``, cannot be shown as JSON, a sentence; nothing if it can."""
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
    """Return valid JSON with a line for each value, and whether it was cut; numbers and texts stay as they were sent.

    (What is equal for a parser need not be for whoever looks for a fault: ``1.0`` and ``1``, a name given twice.)
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
    """Return rows of sixteen bytes: where they are, their digits, and those that are characters of ASCII."""
    return "\n".join(_row(at, data[at : at + _ROW_BYTES]) for at in range(0, len(data), _ROW_BYTES))


def _row(at: int, data: bytes) -> str:
    characters = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in data)
    return f"{at:06x}  {data.hex(' '):<{_ROW_BYTES * 3 - 1}}  {characters}"
