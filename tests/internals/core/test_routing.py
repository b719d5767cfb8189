"""Routing keys and tables: whose text is read, and which class a message is of."""

import json
from typing import Any

import pytest

from veilmq.core.messages import Attribute, Properties, encode_properties, key_of
from veilmq.core.settings import TableError, read_table

TABLE: dict[str, Any] = {
    "version": 3,
    "attribute": "Kind",
    "classes": [
        {"name": "a", "visibility_timeout_s": 0},
        {"name": "b", "visibility_timeout_s": 30, "queue": "jobs-b"},
        {"name": "c", "visibility_timeout_s": 43_200},
    ],
    "keys": {"mail": 0, "video": 1},
    "default": 2,
}


def _properties(**attributes: Attribute) -> bytes:
    return encode_properties(Properties(attributes=attributes, group="g"))


def test_the_key_is_the_text_of_the_attribute() -> None:
    """Nothing else has one."""
    properties = _properties(Type=Attribute("String", "mail"), Blob=Attribute("Binary", data=b"mail"))
    assert (key_of(properties), key_of(properties, "Blob"), key_of(properties, "Other"), key_of(b"")) == (
        "mail",
        "",
        "",
        "",
    )


def test_a_class_is_found_by_its_key_and_rises_with_each_receive() -> None:
    """Up to the last one; keys that are not listed are of the default."""
    table = read_table(json.dumps(TABLE))
    assert [table.class_of("mail", receives).name for receives in (0, 1, 2, 3, 1_000)] == ["a", "b", "c", "c", "c"]
    assert [table.class_of(key).name for key in ("video", "other", "")] == ["b", "c", "c"]
    assert [table.timeout_s("mail", receives) for receives in (0, 1, 2)] == [0, 30, 43_200]
    assert table.timeout_s("", 0) == 43_200


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"classes": []}, "at least one class"),
        ({"classes": [{"name": "a", "visibility_timeout_s": -1}]}, "'a' must be 0 to 43200"),
        ({"classes": [{"name": "a", "visibility_timeout_s": 43_201}]}, "'a' must be 0 to 43200"),
        ({"classes": TABLE["classes"][::-1]}, "rising order"),
        ({"classes": [{"name": "a"}]}, "visibility_timeout_s"),
        ({"default": 3}, "default is 3, and the classes are 0 to 2"),
        ({"default": -1}, "default is -1"),
        ({"keys": {"mail": 3}}, "class of 'mail' is 3"),
        ({"keys": {"mail": "b"}}, "keys"),
        ({"version": None}, "version"),
    ],
    ids=str,
)
def test_a_table_that_is_wrong_says_what_to_correct(changes: dict[str, Any], why: str) -> None:
    """Each in one sentence."""
    with pytest.raises(TableError, match=why):
        read_table(json.dumps(TABLE | changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", '{"more": ' + "[" * 60_000])
def test_text_that_is_no_table(text: str | bytes) -> None:
    """However deep it is."""
    with pytest.raises(TableError, match="A routing table is JSON with version, classes, keys and default: "):
        read_table(text)
