"""Why a value cannot be converted, in AWS's words, for whatever msgspec says."""

from typing import Any

import msgspec
import pytest

from veilmq.wire.sqs.errors import explain
from veilmq.wire.sqs.members import Integer, Shape


class Asked(Shape, frozen=True, kw_only=True):
    """A request with one member of each kind."""

    text: str | None = None
    number: Integer | None = None
    flag: bool | None = None
    blob: bytes | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"Text": 1}, "NUMBER_VALUE can not be converted to a String (at Text)"),
        ({"Number": "1"}, "STRING_VALUE can not be converted to an Integer (at Number)"),
        ({"Number": 1.5}, "DECIMAL_VALUE can not be converted to an Integer (at Number)"),
        ({"Number": 2**31}, "NUMBER_VALUE can not be converted to an Integer, it is out of range (at Number)"),
        ({"Number": 2**65}, "NUMBER_VALUE can not be converted to an Integer, it is out of range (at Number)"),
        ({"Flag": "yes"}, "STRING_VALUE can not be converted to a Boolean (at Flag)"),
        ({"Blob": True}, "BOOLEAN_VALUE can not be converted to a Blob (at Blob)"),
        ({"Names": "a"}, "STRING_VALUE can not be converted to a List (at Names)"),
        ({"Names": [None]}, "NULL_VALUE can not be converted to a String (at Names[0])"),
        ({"Names": {}}, "Start of structure or map found where not expected (at Names)"),
        ({"tags": []}, "Start of list found where not expected (at tags)"),
        ({"tags": "a"}, "STRING_VALUE can not be converted to a Structure (at tags)"),
        ("a", "STRING_VALUE can not be converted to a Structure"),
        ({"Blob": "%"}, None),
    ],
    ids=repr,
)
def test_the_reason(members: Any, reason: str | None) -> None:
    """With the place; the codec finds words for what is not about a type."""
    with pytest.raises(msgspec.ValidationError) as converting:
        msgspec.convert(members, type=Asked)
    with pytest.raises(msgspec.ValidationError) as decoding:
        msgspec.json.decode(msgspec.json.encode(members), type=Asked)
    assert explain(converting.value) == explain(decoding.value) == reason
