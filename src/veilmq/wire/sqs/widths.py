"""How wide a large request may be, found out before its values are built.

Three bytes of JSON (``{},``) become an object of more than a hundred, so a body of 8 MiB could take hundreds of MiB
and a good part of a second; a decoder's own limits on lengths do not help, because it counts what it has built. So a
large body is first split into its members, which stay bytes. Brackets, braces and commas of its lists and maps are
counted, outside of strings and no further than allowed, and only then is the request decoded, from the members that the
action knows: what is unknown, or repeated, is never built. That costs a small body nothing, and a large one less than
decoding it.
"""

import re
from collections.abc import Callable
from typing import get_args, get_origin

import msgspec

from veilmq.core.limits import JSON_PUNCTUATION_MAX, SQS_BATCH_ENTRIES_MAX, SQS_MESSAGE_ATTRIBUTES_MAX
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, SqsError, too_many_attributes, too_many_entries
from veilmq.wire.sqs.shapes import Shape

Narrow = Callable[[bytes], bytes]
"""Body → the members that the action knows, none of them too wide; raises ``SqsError``, ``MsgspecError``."""

_TOO_MANY: dict[str, tuple[int, Callable[[str], SqsError]]] = {
    "Entries": (SQS_BATCH_ENTRIES_MAX, too_many_entries),
    "MessageAttributes": (SQS_MESSAGE_ATTRIBUTES_MAX, too_many_attributes),
}
_PUNCTUATION = re.compile(rb'(?:[^"\[\]{},]++|"[^"]*+")*+([\[\]{},])')
_OPENING = (b"[", b"{")
_ABSENT = msgspec.Raw()


def narrowing(request: type[Shape]) -> Narrow:
    """Return the check of large bodies for the action that ``request`` is asked with."""
    fields = msgspec.structs.fields(request)
    members = msgspec.defstruct(
        "Members",
        [(field.name, msgspec.Raw, _ABSENT) for field in fields],
        rename={field.name: field.encode_name for field in fields},
        omit_defaults=True,
    )
    collections = [(field.name, field.encode_name) for field in fields if _is_collection(field.type)]
    split = msgspec.json.Decoder(members).decode
    join = msgspec.json.Encoder().encode

    def narrow(body: bytes) -> bytes:
        found = split(body)
        for field, member in collections:
            _check(member, bytes(getattr(found, field)))
        return join(found)

    return narrow


def _is_collection(kind: object) -> bool:
    return any(get_origin(choice) in (list, dict) for choice in get_args(kind))


def _check(member: str, value: bytes) -> None:
    """Raise unless ``value``, which is valid JSON, is narrow enough."""
    if not value.startswith(_OPENING):
        return
    depth = items = 0
    # Without escapes a string ends at the next quotation mark.
    plain = value.replace(rb"\\", b"").replace(rb"\"", b"")
    for seen, match in enumerate(_PUNCTUATION.finditer(plain)):
        if seen == JSON_PUNCTUATION_MAX:
            raise _too_wide(member, items)
        mark = match[1]
        if mark == b",":
            items += depth == 1
        else:
            depth += 1 if mark in _OPENING else -1


def _too_wide(member: str, items: int) -> SqsError:
    """Return the error for ``member``, of which ``items`` have been seen when its rest was given up."""
    allowed, too_many = _TOO_MANY.get(member, (items, too_many_entries))
    if items > allowed:
        return too_many(f"more than {items}")
    return SqsError(
        INVALID_PARAMETER_VALUE,
        f"The parameter {member} holds more values than any valid request has; send fewer.",
    )
