"""A body may be anything, and what is shown of it is bounded."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.console.bodies import CUT_CHARACTERS, HEX_BYTES_MAX, JSON_CHARACTERS_MAX, WHOLE_CHARACTERS, shown

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_json_is_the_same_when_it_is_laid_out(value: object) -> None:
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only)
        seen = shown(body, "json", whole=True)
        if seen.problem:  # half of a pair of surrogates, which JSON cannot say
            continue
        assert seen.text == json.dumps(value, ensure_ascii=ascii_only, indent=2)


def test_numbers_and_names_stay_as_they_were_sent() -> None:
    seen = shown('{"a":1.0,"a":12345678901234567890123,"b":1e5}', "json")
    assert seen.text == '{\n  "a": 1.0,\n  "a": 12345678901234567890123,\n  "b": 1e5\n}'


@pytest.mark.parametrize("body", ["", "nothing", "{", '{"a":}', "[1,]", "NaN", "1 2", "\ud800"])
def test_what_is_no_json_is_text(body: str) -> None:
    seen = shown(body, "json")
    assert (seen.text, seen.view, seen.problem) == (body, "text", "This is no JSON.")


@pytest.mark.parametrize("body", ["[" * 65_000 + "]" * 65_000, '{"a":' * 20_000 + "1" + "}" * 20_000])
def test_the_deepest_json_is_text(body: str) -> None:
    seen = shown(body, "json", whole=True)
    assert (seen.text, seen.view) == (body, "text")
    assert "too deeply" in seen.problem


def test_depth_does_not_multiply_a_body() -> None:
    body = "[" * 500 + ",".join("1" for _ in range(65_000)) + "]" * 500
    seen = shown(body, "json", whole=True)
    assert (seen.view, seen.is_cut) == ("json", True)
    assert len(seen.text) == WHOLE_CHARACTERS


def test_what_is_too_long_or_cut_before_is_not_laid_out() -> None:
    for body, size_bytes in ((f'"{"x" * JSON_CHARACTERS_MAX}"', None), ("[1]", 4)):
        seen = shown(body, "json", size_bytes=size_bytes, whole=True)
        assert (seen.text, seen.view) == (body, "text")
        assert "too long" in seen.problem


def test_the_beginning_of_a_body_is_told_as_cut() -> None:
    for view in ("text", "json", "hex"):
        seen = shown("x" * 600, view, size_bytes=601)
        assert (seen.size_bytes, seen.is_cut) == (601, True)


def test_the_longest_text_in_json_is_shown() -> None:
    body = json.dumps('\\"' * 200_000)
    seen = shown(body, "json", whole=True)
    assert (seen.text, seen.is_cut) == (body, False)


@pytest.mark.parametrize("view", ["text", "json"])
def test_a_long_body_is_cut_and_its_size_told(view: str) -> None:
    seen = shown('"' + "é" * 5_000 + '"', view)
    assert (len(seen.text), seen.is_cut, seen.size_bytes) == (CUT_CHARACTERS, True, 10_002)
    assert not shown('"' + "é" * 5_000 + '"', view, whole=True).is_cut


def test_hex_tells_place_bytes_and_characters() -> None:
    seen = shown("veilmq says 🐘\n", "hex")
    assert seen.text.splitlines() == [
        "000000  76 65 69 6c 6d 71 20 73 61 79 73 20 f0 9f 90 98  veilmq says ....",
        "000010  0a                                               .",
    ]
    assert seen.size_bytes == 17


def test_hex_is_cut_too() -> None:
    body = random.Random(1).randbytes(40_000).hex()
    assert len(shown(body, "hex").text.splitlines()) == 32
    whole = shown(body, "hex", whole=True)
    assert (len(whole.text.splitlines()), whole.is_cut) == (HEX_BYTES_MAX // 16, True)
