"""A tree of parameters becomes the members of a request, by the types of its struct."""

from typing import Any

import pytest

from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import Integer, Shape
from veilmq.wire.sqs.query import Form, parameters, reader


class Part(Shape, frozen=True, kw_only=True):
    """An element of a list or a map."""

    id: str | None = None
    values: list[bytes] | None = None


class Asked(Shape, frozen=True, kw_only=True):
    """A request with one member of each kind."""

    text: str = ""
    number: Integer | None = None
    flag: bool | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None
    parts: list[Part] | None = None
    settings: dict[str, Part] | None = None
    entries: list[Part] | None = None


read = reader(Asked, "Do")
NOTHING: dict[str, Any] = {"Parts": [], "Entries": []}
"""Lists of structures cannot be left out: without parameters they are empty."""


def members(body: bytes) -> dict[str, Any]:
    """Return what is made of ``body``."""
    return read(parameters(Form(b"/", b"", body)))


def refusal(body: bytes) -> SqsError:
    """Return the error with which ``body`` is refused."""
    with pytest.raises(SqsError) as caught:
        members(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {}),
        (b"Text=&Unknown=x&Other.1.2=y", {"Text": ""}),
        (b"Text=null&Number=-7&Flag=true", {"Text": "null", "Number": -7, "Flag": True}),
        (b"Number=+7&Flag=false", {"Number": " 7", "Flag": False}),
        (b"Number=%2B7", {"Number": 7}),
        (b"Number=7.5&Flag=TRUE", {"Number": "7.5", "Flag": "TRUE"}),
        (b"Number=1234567890123456789", {"Number": "1234567890123456789"}),
        (b"Name.1=a&Name.2=b", {"Names": ["a", "b"]}),
        (b"Name.10=c&Name.9=b&Name.999999999=d&Name.1=a", {"Names": ["a", "b", "c", "d"]}),
        (b"Name=a", {"Names": ["a"]}),
        (b"Names=", {}),
        (b"Tag.1.Key=a&Tag.1.Value=b&Tag.2.Value=d&Tag.2.Key=c", {"tags": {"a": "b", "c": "d"}}),
        (b"Tag.Key=a&Tag.Value=b", {"tags": {"a": "b"}}),
        (b"Tag.1.Key=a&Tag.1.Value=", {"tags": {"a": ""}}),
        (b"Part.1.Id=a&Part.2.Value.1=YQ", {"Parts": [{"Id": "a"}, {"Values": ["YQ"]}]}),
        (b"Setting.1.Name=a&Setting.1.Value.Id=b", {"Settings": {"a": {"Id": "b"}}}),
        (b"Setting.1.Name=a", {"Settings": {"a": {}}}),
        (b"DoRequestEntry.2.Id=b&DoRequestEntry.1.Id=a", {"Entries": [{"Id": "a"}, {"Id": "b"}]}),
        (b"Entries=", {}),
    ],
    ids=repr,
)
def test_what_is_made_of_parameters(body: bytes, expected: dict[str, Any]) -> None:
    """Names and nesting change; a value that is not of its type stays as it is, for the struct to refuse."""
    assert members(body) == NOTHING | expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"Text.1=a", {"Text": {"1": "a"}}),
        (b"Number.1=1", {"Number": {"1": "1"}}),
        (b"Flag.1=true", {"Flag": {"1": "true"}}),
        (b"Name.1.Foo=a", {"Names": [{"Foo": "a"}]}),
        (b"Tag=a", {"tags": "a"}),
        (b"Tag.1.Key=a&Tag.1.Value.1=b", {"tags": {"a": {"1": "b"}}}),
        (b"Part.1=a", {"Parts": ["a"]}),
        (b"Setting.1.Name=a&Setting.1.Value=b", {"Settings": {"a": "b"}}),
    ],
    ids=repr,
)
def test_what_has_the_wrong_form_stays(body: bytes, expected: dict[str, Any]) -> None:
    """The struct refuses it, with the place."""
    assert members(body) == NOTHING | expected


@pytest.mark.parametrize("index", ["0", "-1", "01", "x", "", "1x", "1 ", "٣", "1000000000", "member"])
@pytest.mark.parametrize("body", ["Name.{}=a", "Name.1=a&Name.{}=b", "Tag.{}.Key=a", "Part.{}.Id=b"])
def test_an_index_is_a_number_from_1_on(body: str, index: str) -> None:
    """In the words of AWS; a list with ``.member.`` in it is refused as it is there."""
    error = refusal(body.format(index).encode())
    assert error.code is errors.MALFORMED_INPUT
    assert error.message == f"{index} is not a valid index"


@pytest.mark.parametrize(
    "body",
    [b"Names.1=a", b"Names.member.1=a", b"tags.1.Key=a&tags.1.Value=b", b"Entries.1.Id=a", b"Setting.1.Name.1=a"],
)
def test_a_list_where_none_belongs(body: bytes) -> None:
    """Under the name that it has in JSON, it would be lost."""
    error = refusal(body)
    assert error.code is errors.MALFORMED_INPUT
    assert error.message == "Start of list found where not expected"


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (b"Tag.1.Value=b", "Tag.1.Key"),
        (b"Tag.7.Key=b", "Tag.7.Value"),
        (b"Tag.1=b", "Tag.1.Key"),
        (b"Tag.Key=b", "Tag.Value"),
        (b"Setting.1.Value.Id=b", "Setting.1.Name"),
    ],
)
def test_an_entry_needs_key_and_value(body: bytes, missing: str) -> None:
    """The parameter that is missing is named as the client would have sent it."""
    error = refusal(body)
    assert error.code is errors.MISSING_PARAMETER
    assert error.message == f"The request must contain the parameter {missing}."
