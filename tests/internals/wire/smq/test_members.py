"""What requests carry: numbers, flags and children."""

import pytest

from tests.internals.wire.smq.asking import request
from veilmq.core.limits import Range
from veilmq.wire.smq import SmqError
from veilmq.wire.smq.request import body_of, children, flag, optional_body_of, texts, whole_number

ALLOWED = Range(minimum=1, maximum=16, default=8)


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("16", 16), (" 08\r\n", 8)])
def test_a_number_may_have_white_space_around_it(text: str, number: int) -> None:
    """And zeros before it."""
    assert whole_number("N", text, ALLOWED) == number


@pytest.mark.parametrize("text", ["", " ", "0", "17", "-1", "+1", "1.0", "1 6", "٣", "9" * 5_000])
def test_anything_else_is_no_number_of_the_range(text: str) -> None:
    """The error says which are."""
    with pytest.raises(SmqError, match="The value of N should between 1 and 16 seconds"):
        whole_number("N", text, ALLOWED, "seconds")


@pytest.mark.parametrize(("text", "value"), [("True", True), ("false", False), (" TRUE ", True)])
def test_a_flag_is_true_or_false_in_any_case(text: str, value: bool) -> None:
    """Printed it is True or False."""
    assert flag("F", text) is value
    for wrong in ("", "yes", "1"):
        with pytest.raises(SmqError, match="F, which is True or False"):
            flag("F", wrong)


def test_the_children_of_a_body() -> None:
    """By name; of two the last one counts, and what is nested is no text."""
    root = body_of(request("PUT", "/queues/q", "<Queue><a>1</a><b><c>2</c></b><a>3</a></Queue>"), "Queue")
    assert texts(root) == {"a": "3", "b": ""}
    assert [child.text for child in children(root, "a")] == ["1", "3"]


def test_a_body_is_what_its_root_says() -> None:
    """One that may be left out is empty then."""
    with pytest.raises(SmqError, match="not well-formed"):
        body_of(request("PUT", "/queues/q", "<Topic/>"), "Queue")
    with pytest.raises(SmqError, match="not well-formed"):
        body_of(request("PUT", "/queues/q"), "Queue")
    assert optional_body_of(request("PUT", "/queues/q", " \n"), "Queue").children == []
