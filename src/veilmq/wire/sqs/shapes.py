"""How the wire spells a member: our ``queue_url`` is ``QueueUrl``, our ``md5_of_body`` is ``MD5OfBody``.

Members that are ``None`` are left out of replies, and a request's ``null`` is a member left out, as on AWS. Members
that nobody knows are ignored. Integers have 32 bits.
"""

from typing import Annotated

import msgspec

Integer = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An integer of the service model; a wider one cannot be converted, as on AWS."""

_ACRONYMS = {"aws": "AWS", "md5": "MD5"}
_LOWER_CASE = {"tags"}


def wire_name(field: str) -> str:
    """Return the member's name on the wire for a ``field`` of a struct."""
    if field in _LOWER_CASE:
        return field
    return "".join(_ACRONYMS.get(word) or word.capitalize() for word in field.split("_"))


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=wire_name):
    """The root of what is read from and written to the wire."""


class AttributeValue(Shape, frozen=True, kw_only=True):
    """One message attribute; the lists are reserved by AWS and may only be empty."""

    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None
    data_type: str | None = None
