"""Numbers in requests: the borders of each range."""

import pytest

from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, MISSING_PARAMETER, SqsError
from veilmq.wire.sqs.members import NUMBERS, check_number, required, required_number

RANGES = [
    ("MaxNumberOfMessages", 1, 10),
    ("MaxResults", 1, 1000),
    ("ListMessageMoveTasks.MaxResults", 1, 10),
    ("MaxNumberOfMessagesPerSecond", 1, 500),
    ("VisibilityTimeout", 0, 43_200),
    ("WaitTimeSeconds", 0, 20),
    ("DelaySeconds", 0, 900),
]


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_both_ends_are_allowed_and_their_neighbours_are_not(name: str, least: int, most: int) -> None:
    """And an absent number is."""
    member = name.rpartition(".")[2]
    for value in (None, least, most):
        check_number(name, value)
    for value in (least - 1, most + 1, -(2**31), 2**31 - 1):
        with pytest.raises(SqsError, match=f"^Value {value} for parameter {member} is invalid. Reason: ") as caught:
            check_number(name, value)
        assert caught.value.code is INVALID_PARAMETER_VALUE


def test_every_number_is_in_the_table_above() -> None:
    """No range is untested."""
    assert set(NUMBERS) == {row[0] for row in RANGES}


@pytest.mark.parametrize("value", [None, ""])
def test_a_required_text(value: str | None) -> None:
    """Must be there, and not empty."""
    assert required("Foo", "x") == "x"
    with pytest.raises(SqsError, match=r"The request must contain the parameter Foo\.") as caught:
        required("Foo", value)
    assert caught.value.code is MISSING_PARAMETER


def test_a_required_number() -> None:
    """Must be there; zero is a number."""
    assert required_number("VisibilityTimeout", 0) == 0
    with pytest.raises(SqsError, match=r"The request must contain the parameter VisibilityTimeout\."):
        required_number("VisibilityTimeout", None)
