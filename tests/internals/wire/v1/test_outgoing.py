"""Messages to be staged: the rules of SendMessage, and which row broke one."""

from typing import Any

import pytest

from veilmq.core import properties
from veilmq.core.commands import NewMessage
from veilmq.core.properties import Attribute, Properties
from veilmq.wire.exchange import SENDER_ID, caller_named
from veilmq.wire.v1.publications import Outgoing, OutgoingRow
from veilmq.wire.v1.request import RowRefused

STANDARD = Outgoing(queue="000000000000/jobs", caller=None)
FIFO = Outgoing(queue="000000000000/jobs.fifo", caller=None)
ALICE = caller_named("000000000000", "alice")


def made(outgoing: Outgoing = STANDARD, **fields: Any) -> NewMessage:
    """Return the message of one row."""
    (message,) = outgoing.from_rows([OutgoingRow(**{"body": "b", **fields})])
    return message


def refused(outgoing: Outgoing = STANDARD, **fields: Any) -> str:
    """Return why a row is refused, behind one that is not."""
    with pytest.raises(RowRefused) as caught:
        outgoing.from_rows([OutgoingRow(body="good"), OutgoingRow(**{"body": "b", **fields})])
    assert caught.value.index == 1
    assert str(caught.value).startswith("Message 1 was refused, and nothing staged: ")
    return caught.value.reason.message


def test_a_body_is_a_message() -> None:
    assert made(body="ä") == NewMessage(body="ä", size_bytes=2)
    assert STANDARD.from_bodies(["a", "ä"]) == STANDARD.from_rows([OutgoingRow(body="a"), OutgoingRow(body="ä")])
    assert STANDARD.from_bodies(["a", "bc"]) == STANDARD.from_rows([OutgoingRow(body="a"), OutgoingRow(body="bc")])
    assert STANDARD.from_bodies([]) == ()


def test_attributes_have_types_and_count_towards_the_size() -> None:
    message = made(attributes={"a": "x", "n": "12", "d": "AQI="}, attribute_types={"n": "Number", "d": "Binary.raw"})
    kept = properties.decode(message.properties)
    assert kept.attributes == {
        "a": Attribute("String", "x"),
        "n": Attribute("Number", "12"),
        "d": Attribute("Binary.raw", None, b"\x01\x02"),
    }
    assert message.size_bytes == len("b" + "aStringx" + "nNumber12" + "dBinary.raw") + 2


def test_group_and_deduplication_id_are_kept_for_the_receiver() -> None:
    message = made(FIFO, group="g", dedup_id="d", delay_s=0)
    assert (message.group, message.dedup_id, message.delay_s) == ("g", "d", None)
    assert properties.decode(message.properties) == Properties(group="g", dedup_id="d")


def test_who_sent_is_kept() -> None:
    signed = Outgoing(queue="000000000000/jobs", caller=ALICE)
    assert signed.from_bodies(["a"])[0].properties == ALICE.sent
    kept = properties.decode(made(signed, group="g").properties)
    assert kept.system == {SENDER_ID: ALICE.sender}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"body": ""}, "no body"),
        ({"body": "\x00"}, "#x0"),
        ({"delay_s": -1}, "delay_s must be 0 to 604800"),
        ({"delay_s": 604_801}, "delay_s must be"),
        ({"dedup_id": "d"}, "no FIFO queue"),
        ({"group": "not ascii: ä"}, "MessageGroupId"),
        ({"attributes": {"AWS.x": "y"}}, "AWS.x"),
        ({"attributes": {"n": "twelve"}, "attribute_types": {"n": "Number"}}, "'n'"),
        ({"attributes": {"d": "!"}, "attribute_types": {"d": "Binary"}}, "must be Base64"),
        ({"attributes": {"d": "ä"}, "attribute_types": {"d": "Binary"}}, "must be Base64"),
        ({"attributes": {}, "attribute_types": {"d": "Binary"}}, "which attributes has not"),
        ({"attributes": {str(n): "x" for n in range(11)}}, "attributes"),
    ],
)
def test_what_cannot_be_sent_is_told_with_its_row(fields: dict[str, Any], words: str) -> None:
    assert words in refused(**fields)


def test_a_fifo_queue_has_one_delay() -> None:
    assert "delay_s must be 0" in refused(FIFO, delay_s=3)


@pytest.mark.parametrize("bodies", [["a", ""], ["a", "\x01"], ["ä", "\ufffe"]])
def test_a_bad_body_among_bodies_is_told_with_its_row(bodies: list[str]) -> None:
    with pytest.raises(RowRefused) as caught:
        STANDARD.from_bodies(bodies)
    assert caught.value.index == 1
