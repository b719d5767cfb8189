"""Queue attributes: what may be set, to what, and what is told."""

import msgspec
import pytest

from tests.wire.sqs.asking import CONTEXT, VIEW, refusal
from tests.wire.sqs.client import service_model
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import SqsError, errors
from veilmq.wire.sqs.settings import (
    COUNTED,
    NAMES,
    NOT_SUPPORTED,
    READ_ONLY,
    SETTINGS,
    attribute_of,
    check_names,
    describe,
    read_settings,
)

RANGES = {
    "VisibilityTimeout": (0, 43_200),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "DelaySeconds": (0, 900),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
}


def test_the_names_are_those_of_the_service_model() -> None:
    """All of them, whether this version has them or not."""
    assert set(service_model().shape_for("QueueAttributeName").enum) == NAMES


def test_every_field_of_the_settings_is_one_attribute() -> None:
    """And back."""
    fields = {field.name for field in msgspec.structs.fields(QueueSettings)}
    assert {setting.field for setting in SETTINGS.values()} == fields
    assert {attribute_of(field) for field in fields} == set(SETTINGS) == set(RANGES)


@pytest.mark.parametrize("name", list(RANGES))
def test_the_borders_of_each_setting(name: str) -> None:
    """Both ends are allowed, their neighbours are refused with the range."""
    least, most = RANGES[name]
    field = SETTINGS[name].field
    assert read_settings({name: str(least)}) == {field: least}
    assert read_settings({name: str(most)}) == {field: most}
    for value in (least - 1, most + 1):
        with pytest.raises(SqsError, match=f"between {least} and {most}") as caught:
            read_settings({name: str(value)})
        assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize("text", ["", " 5", "5 ", "+5", "-0", "5.0", "1e1", "x", "٣", "5\n", "0x5", "9" * 5_000])
def test_a_value_is_a_whole_number_in_ascii(text: str) -> None:
    """Anything else is refused."""
    error = refusal("SetQueueAttributes", Attributes={"DelaySeconds": text})
    assert error.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize("name", [*READ_ONLY, "All", "Foo", "", "delayseconds"])
def test_what_cannot_be_set_is_an_unknown_attribute(name: str) -> None:
    """As on AWS."""
    error = refusal("SetQueueAttributes", Attributes={name: "1"})
    assert (error.code, error.message) == (errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_what_this_version_has_not_is_refused_and_absent(name: str) -> None:
    """Never accepted and ignored."""
    error = refusal("CreateQueue", QueueName="q", Attributes={"DelaySeconds": "1", name: "x"})
    assert error.code is errors.UNSUPPORTED_OPERATION
    assert f"does not support the queue attribute {name}" in error.message
    assert describe(VIEW, [name], CONTEXT) == {}


def test_one_attribute_by_its_name() -> None:
    """And a name given twice is one."""
    assert describe(VIEW, ["QueueArn", "QueueArn"], CONTEXT) == {
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orders"
    }


def test_counters_are_told_only_when_asked_for() -> None:
    """A view without counters is enough for the rest."""
    uncounted = msgspec.structs.replace(VIEW, counts=None)
    assert set(describe(uncounted, NAMES - COUNTED - {"All"}, CONTEXT)) == {*SETTINGS, *READ_ONLY} - COUNTED


def test_unknown_names_are_refused() -> None:
    """The first of them is named."""
    with pytest.raises(SqsError, match=r"Unknown Attribute Foo\."):
        check_names(["All", "Foo", "Bar"])
