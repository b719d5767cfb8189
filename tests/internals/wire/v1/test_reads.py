"""Messages of a claim as JSON, and the header that leads to the next ones."""

import json

from tests.internals.wire.v1.claimed import ID_TEXT, MIXED, message
from veilmq.core.properties import Attribute
from veilmq.wire.v1.claims import Gathered, JsonWriter, answer


def test_a_message_is_told_with_all_that_it_has() -> None:
    writer = JsonWriter("jobs.fifo")
    writer.add([message("hé", sequence=5, attributes=MIXED, group="g", system={"X": Attribute("String", "no")})])
    assert json.loads(writer.finish()) == {
        "messages": [
            {
                "id": ID_TEXT,
                "body": "hé",
                "attributes": {"type": "order", "price": "17", "raw": "AP8="},
                "attribute_types": {"price": "Number.int", "raw": "Binary"},
                "group": "g",
                "sent_at_ms": 1_700_000_000_001,
                "received_at_ms": 1_700_000_000_999,
                "receive_count": 2,
                "sequence_number": "10000000000000000005",
                "queue": "jobs.fifo",
            }
        ]
    }


def test_what_a_message_has_not_is_null() -> None:
    writer = JsonWriter("jobs")
    writer.add([message()])
    told = json.loads(writer.finish())["messages"][0]
    assert (told["attributes"], told["attribute_types"], told["group"], told["sequence_number"]) == (
        {},
        None,
        None,
        None,
    )


def test_plain_attributes_have_no_types() -> None:
    writer = JsonWriter("jobs")
    writer.add([message(attributes={"type": Attribute("String", "order")})])
    told = json.loads(writer.finish())["messages"][0]
    assert (told["attributes"], told["attribute_types"]) == ({"type": "order"}, None)


def test_pieces_follow_each_other() -> None:
    """Also where one of them is empty; the size is that of what is there."""
    writer = JsonWriter("jobs")
    assert writer.size_bytes == 0
    for piece in (["a", "b"], [], ["c"]):
        writer.add([message(body) for body in piece])
    size_bytes = writer.size_bytes
    body = writer.finish()
    assert [told["body"] for told in json.loads(body)["messages"]] == ["a", "b", "c"]
    assert 0 < size_bytes <= len(body)


def test_nothing_is_an_empty_list() -> None:
    assert JsonWriter("jobs").finish() == b'{"messages":[]}'


def test_the_cursor_is_a_header() -> None:
    """And there is none after the last."""
    reply = answer(Gathered(b"body", b"text/x", "12-a"))
    assert reply.headers == b"Content-Type: text/x\r\nx-veilmq-cursor: 12-a\r\n"
    assert answer(Gathered(b"body", b"text/x", "")).headers == b"Content-Type: text/x\r\n"
