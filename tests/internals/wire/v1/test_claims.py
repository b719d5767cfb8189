"""The routes of claims, and bulk reads."""

import json
from typing import Any
from uuid import UUID

import pytest

from tests.internals.wire.v1.test_request import ID_TEXT, MIXED, QUEUE, get, message, post, refusal, refused
from veilmq.core import claims, limits
from veilmq.core.commands import Command
from veilmq.core.messages import Attribute
from veilmq.wire.v1.claims import BulkRead, Gathered, JsonWriter, answer

ID = "0190a1b2-c3d4-4e5f-8a9b-0123456789ab"
SOURCE = "s-1"

MADE: list[tuple[str, dict[str, Any], Command]] = [
    ("open", {}, claims.OpenSource(queue=QUEUE, source=SOURCE)),
    ("open", {"consumer": "jobs of søren", "takeover": True, "hold_s": 60, "lease_s": 5}, claims.OpenSource(queue=QUEUE,
        source=SOURCE, consumer="jobs of søren", takeover=True, hold_s=60, lease_s=5)),
    ("claim", {"epoch": 1, "number": 7, "messages_max": 5, "shard_messages": 2}, claims.Claim(queue=QUEUE,
        source=SOURCE, epoch=1, number=7, messages_max=5, shard_messages=2)),
    ("heartbeat", {"epoch": 2}, claims.Heartbeat(queue=QUEUE, source=SOURCE, epoch=2)),
    ("heartbeat", {"epoch": 2, "lease_s": 9, "hold_s": 90}, claims.Heartbeat(queue=QUEUE, source=SOURCE, epoch=2,
        lease_s=9, hold_s=90)),
    ("acknowledge", {"epoch": 2, "number": 0}, claims.AcknowledgeClaims(queue=QUEUE, source=SOURCE, epoch=2, number=0)),
    ("release", {"number": 3}, claims.ReleaseClaim(queue=QUEUE, source=SOURCE, number=3)),
    ("evict", {"number": 3, "message": ID}, claims.EvictMessage(queue=QUEUE, source=SOURCE, number=3,
        message=UUID(ID).bytes)),
    ("close", {}, claims.CloseSource(queue=QUEUE, source=SOURCE)),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "fields", "command"), MADE, ids=[f"{verb}{n}" for n, (verb, *_) in enumerate(MADE)])
def test_a_request_makes_its_command(verb: str, fields: dict[str, Any], command: Command) -> None:
    assert post(verb, source=SOURCE, **fields).command == command


def test_a_claim_may_wait() -> None:
    assert post("claim", source=SOURCE, epoch=1, number=1, wait_s=20).wait_s == 20
    assert post("claim", source=SOURCE, epoch=1, number=1).wait_s == 0


def test_a_list_has_no_fields() -> None:
    call = get()
    assert call.command == claims.ListSources(queue=QUEUE)
    view = claims.SourceView(
        source="s",
        consumer="",
        epoch=1,
        acknowledged=0,
        last=1,
        alive=True,
        lease_until_ms=1,
        hold_until_ms=2,
        claims=[claims.ClaimView(number=1, state=claims.ClaimState.OPEN, messages=2, shards=1, bound_at_ms=3)],
    )
    told = json.loads(call.encode([view]).body)
    assert told["sources"][0]["claims"] == [
        {"number": 1, "state": "open", "messages": 2, "shards": 1, "bound_at_ms": 3}
    ]


def test_a_read_names_its_place_in_the_query() -> None:
    call = get("read", "source=s-1&number=2&shard=3&cursor=u12&format=json")
    assert isinstance(call.command, BulkRead)
    assert call.command.first == claims.ReadClaim(queue=QUEUE, source="s-1", number=2, shard=3, cursor="u12")
    assert call.command.queue == QUEUE


def test_a_signature_in_the_query_is_no_parameter() -> None:
    call = get("read", "source=s&number=1&X-Amz-Signature=abc&X-Amz-Date=x")
    assert isinstance(call.command, BulkRead)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("open", {"source": ""}, "source: expected `str` matching regex"),
    ("open", {"source": "a b"}, "source: expected `str` matching regex"),
    ("open", {"source": "a\n"}, "source: expected `str` matching regex"),
    ("open", {"source": "é"}, "source: expected `str` matching regex"),
    ("open", {"source": "x" * 129}, "source: expected `str` matching regex"),
    ("open", {"source": 1}, "source: expected `str`, got `int`."),
    ("open", {"source": None}, "source: expected `str`, got `null`."),
    ("open", {"consumer": "\x00"}, "consumer: expected `str` matching regex"),
    ("open", {"takeover": 1}, "takeover: expected `bool`, got `int`."),
    ("open", {"hold_s": 59}, "hold_s: expected `int` >= 60."),
    ("open", {"hold_s": limits.CLAIM_HOLD_S.maximum + 1}, f"hold_s: expected `int` <= {limits.CLAIM_HOLD_S.maximum}."),
    ("open", {"lease_s": 4}, "lease_s: expected `int` >= 5."),
    ("open", {"lease_s": 3_601}, "lease_s: expected `int` <= 3600."),
    ("open", {"queue": "other"}, "object contains unknown field `queue`."),
    ("claim", {"number": 1}, "object missing required field `epoch`."),
    ("claim", {"epoch": 1}, "object missing required field `number`."),
    ("claim", {"epoch": -1, "number": 1}, "epoch: expected `int` >= 0."),
    ("claim", {"epoch": 1, "number": 0}, "number: expected `int` >= 1."),
    ("claim", {"epoch": 1, "number": 2**63}, "number: expected `int` <="),
    ("claim", {"epoch": 1, "number": 1.5}, "number: expected `int`, got `float`."),
    ("claim", {"epoch": 1, "number": "1"}, "number: expected `int`, got `str`."),
    ("claim", {"epoch": 1, "number": 1, "messages_max": 0}, "messages_max: expected `int` >= 1."),
    ("claim", {"epoch": 1, "number": 1, "messages_max": 1_000_001}, "messages_max: expected `int` <= 1000000."),
    ("claim", {"epoch": 1, "number": 1, "shard_messages": 0}, "shard_messages: expected `int` >= 1."),
    ("claim", {"epoch": 1, "number": 1, "wait_s": 21}, "wait_s: expected `int` <= 20."),
    ("heartbeat", {}, "object missing required field `epoch`."),
    ("acknowledge", {"epoch": 1, "number": -1}, "number: expected `int` >= 0."),
    ("release", {}, "object missing required field `number`."),
    ("evict", {"number": 1, "message": "x"}, "message: invalid UUID."),
    ("evict", {"number": 1}, "object missing required field `message`."),
    ("close", {"epoch": 1}, "object contains unknown field `epoch`."),
]


@pytest.mark.parametrize(("verb", "fields", "text"), WRONG, ids=[f"{w[0]}{n}" for n, w in enumerate(WRONG)])
def test_what_is_wrong_is_named(verb: str, fields: dict[str, Any], text: str) -> None:
    assert text in refused(verb, **{"source": SOURCE} | fields)


WRONG_READS = {
    "number=1": "missing required field `source`",
    "source=s": "missing required field `number`",
    "source=s&number=0": "number: expected `int` >= 1.",
    "source=s&number=1x": "number: expected `int`, got `str`.",
    "source=s&number=1&shard=-1": "shard: expected `int` >= 0.",
    "source=s&number=1&format=xml": "format: invalid enum value 'xml'.",
    "source=s&number=1&cursor=" + "x" * 65: "cursor: expected `str` of length <= 64.",
    "source=s&number=1&number=2": "The parameter 'number' has two values; give it once.",
    "source=s&number=1&epoch=1": "unknown field `epoch`",
    "source=%ff&number=1": "The query string must be UTF-8.",
}


@pytest.mark.parametrize("query", WRONG_READS, ids=str)
def test_what_is_wrong_in_a_query_is_named(query: str) -> None:
    error = refusal("GET", f"/v1/claims/{QUEUE}/read?{query}")
    assert error.code.query == "InvalidRequest"
    assert WRONG_READS[query] in error.message


def test_a_list_takes_nothing() -> None:
    assert "unknown field `source`" in refusal("GET", f"/v1/claims/{QUEUE}?source=s").message


# Messages of a claim as JSON, and the header that leads to the next ones.


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
    reply = answer(Gathered(b"body", b"text/x", "12-a"))
    assert reply.headers == b"Content-Type: text/x\r\nx-veilmq-cursor: 12-a\r\n"
    assert answer(Gathered(b"body", b"text/x", "")).headers == b"Content-Type: text/x\r\n"
