"""Routing by the rules of a file, and the errors for invalid files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumer.simulation import received
from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.forwarding_rules import RoutesError, read_rules

JOB = json.dumps(
    {"job": {"kind": "render", "pages": 120, "urgent": True, "note": None, "a/b": {"m~n": 1}}, "list": [1, {"x": "y"}]}
)


def holds(condition: str, message: ReceivedMessage) -> bool:
    """Return whether a rule with this one condition matches ``message``."""
    rules = read_rules(f'default = "other"\n[[rules]]\nqueue = "chosen"\n{condition}\n')
    return rules.route(message).queue == "chosen"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('attributes.kind = "video"', True),
        ('attributes.kind = "vide"', False),
        ('attributes.kind = ["audio", "video"]', True),
        ('attributes.kind = ["audio"]', False),
        ('attributes.kind = { prefix = "vid" }', True),
        ('attributes.kind = { prefix = "video2" }', False),
        ("attributes.kind = { present = true }", True),
        ("attributes.kind = { present = false }", False),
        ('attributes.none = "video"', False),
        ("attributes.none = { present = false }", True),
        ("attributes.none = { min = 0 }", False),
        ("attributes.count = 7", True),
        ('attributes.count = "7"', True),
        ("attributes.count = 7.0", True),
        ("attributes.count = { min = 7, max = 7 }", True),
        ("attributes.count = { min = 8 }", False),
        ("attributes.count = { max = 6 }", False),
        ("attributes.share = { min = 0.25, max = 0.75 }", True),
        ("attributes.kind = { min = 0 }", False),
        ("attributes.raw = { present = true }", True),
        ('attributes.raw = "x"', False),
        ('attributes.kind = "video"\nattributes.count = 8', False),
        ('attributes.kind = "video"\nattributes.count = 7', True),
    ],
    ids=str,
)
def test_attributes(condition: str, expected: bool) -> None:
    assert holds(condition, received(kind="video", count=7, share=0.5, raw=b"x")) is expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('body."/job/kind" = "render"', True),
        ('body."/job/kind" = "draw"', False),
        ('body."/job/pages" = { min = 100 }', True),
        ('body."/job/pages" = 120', True),
        ('body."/job/pages" = "120"', False),
        ('body."/job/urgent" = true', True),
        ('body."/job/urgent" = false', False),
        ('body."/job/urgent" = 1', False),
        ('body."/job/note" = { present = true }', True),
        ('body."/job/note" = ""', False),
        ('body."/job" = { present = true }', True),
        ('body."/job/none" = { present = false }', True),
        ('body."/job/kind/deeper" = { present = true }', False),
        ('body."/list/0" = 1', True),
        ('body."/list/1/x" = "y"', True),
        ('body."/list/2" = { present = true }', False),
        ('body."/list/-1" = { present = true }', False),
        ('body."/list/00" = { present = true }', False),
        (f'body."/list/{"9" * 5_000}" = {{ present = true }}', False),
        ('body."/job/a~1b/m~0n" = 1', True),
        ('body."" = { present = true }', True),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fields_of_the_body(condition: str, expected: bool) -> None:
    assert holds(condition, received(JOB)) is expected


def test_the_size_is_that_of_the_body_in_utf_8() -> None:
    assert holds("size = 2", received("é"))
    assert holds("size = { min = 3 }", received("xyz"))
    assert not holds("size = { max = 2 }", received("xyz"))


RULE = 'default = "d"\n\n[[rules]]\nqueue = "a"\nsize = 1\n\n[[ rules ]]\nqueue = "b"\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("default 1", "not TOML"),
        ('default = "a"\nrules = \nqueues = 1', "line 2"),
        ("", "default"),
        ("default = 1", "default: expected `string`, got `int`"),
        ('default = ""', "default"),
        ('default = "d"\nrule = []', "unknown field `rule`"),
        (RULE, "Rule 2 (line 7): the rule for b has no condition"),
        (RULE + "kind = 1", "Rule 2 (line 7): the rule: table contains unknown field `kind`"),
        (RULE + 'size = { min = "x" }', "Rule 2 (line 7): size.min: expected"),
        (RULE + "size = {}", "Rule 2 (line 7): size: the test is empty"),
        (RULE + "size = { min = 2, max = 1 }", "size: min (2) is more than max (1)"),
        (RULE + "size = { least = 2 }", "size: table contains unknown field `least`"),
        (RULE + "attributes.kind = []", "attributes.kind: the list is empty"),
        (RULE + "attributes.kind = [[1]]", "attributes.kind[0]: expected"),
        (RULE + "attributes.kind = 1979-05-27", "attributes.kind: expected"),
        (RULE + 'body."job" = 1', "body.'job': 'job' is not a path into the body"),
        ('default = "d"\nrules = [{ queue = "a" }]', "Rule 1: the rule for a has no condition"),
        ('default = "d"\n[queues.e]\nvisibility_timeout_s = 1', "queues.e: no rule names that queue"),
        ('default = "d"\n[queues.d]\nvisibility_timeout_s = 43201', "queues.d.visibility_timeout_s: expected"),
        ('default = "d"\n[queues.d]\ntimeout = 1', "queues.d: table"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_an_error_names_the_position_of_the_mistake(text: str, error: str) -> None:
    with pytest.raises(RoutesError) as caught:
        read_rules(text)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, st.lists(st.text(max_size=3), max_size=4))
def test_a_pointer_finds_what_a_walk_finds(document: Any, path: list[str]) -> None:
    expected, present = document, True
    for part in path:
        if isinstance(expected, dict) and part in expected:
            expected = expected[part]
        elif isinstance(expected, list) and part in map(str, range(len(expected))):
            expected = expected[int(part)]
        else:
            present = False
            break
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
    condition = f"body.{json.dumps(pointer, ensure_ascii=True)} = {{ present = true }}"
    if all(0x20 <= ord(char) != 0x7F and not 0xD800 <= ord(char) < 0xE000 and ord(char) < 0x10000 for char in pointer):
        assert holds(condition, received(json.dumps(document))) is present
