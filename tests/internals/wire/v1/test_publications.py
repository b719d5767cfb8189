"""Publications, staged messages and forwards."""

import json
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.internals.wire.v1.test_claims import FULL, stream
from tests.internals.wire.v1.test_request import ID, QUEUE, decode_error, send
from veilmq.core import limits
from veilmq.core.claims import Stage
from veilmq.core.errors import ReceiptEnded, ReceiptState, TooManyTags
from veilmq.core.messages import Attribute, NewMessage, Properties, decode_properties, encode_properties
from veilmq.core.topics import Forward, Forwarded, ForwardEntry
from veilmq.wire.exchange import id_text
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.publications import SLICE_ROWS, BulkStage, Outgoing, OutgoingRow
from veilmq.wire.v1.request import ApiCall, RowRefused

STAGE = {"writer": "w", "batch": "0", "attempt": "a", "part": "0"}


def request_of(method: str, verb: str, body: bytes = b"", *, query: dict[str, str], kind: bytes = b"") -> ApiCall:
    target = f"/v1/publications/{QUEUE}/{verb}?" + "&".join(f"{name}={value}" for name, value in query.items())
    return send(method, target, body, kind)


def post(verb: str, **fields: Any) -> ApiCall:
    return send("POST", f"/v1/publications/{QUEUE}/{verb}", json.dumps(fields).encode())


def stage_command(call: ApiCall) -> Stage:
    """Decode the messages of a call and return its command."""
    assert isinstance(call.command, BulkStage)
    assert call.command.queue == QUEUE
    return call.command.with_messages([message for part in call.command.read() for message in part])


def stage(body: bytes, **query: str) -> Stage:
    return stage_command(request_of("POST", "stage", body, query=STAGE | query))


def error_message(call: Any, *args: Any, **given: Any) -> str:
    with pytest.raises(SqsError) as caught:
        call(*args, **given)
    assert caught.value.code.status == 400
    return caught.value.message


@pytest.mark.parametrize("wrong", [
    {"writer": "a b"}, {"writer": ""}, {"writer": "w" * 129}, {"batch": "-1"}, {"batch": "x"}, {"attempt": "a/b"},
    {"part": "-1"}, {"part": str(2**31 + 1)}, {"more": "1"}, *({name: None} for name in STAGE),
], ids=str)  # fmt: skip
def test_parameters_of_stage_are_checked(wrong: dict[str, str | None]) -> None:
    """`None` omits the parameter."""
    query = {name: value for name, value in (STAGE | wrong).items() if value is not None}
    assert next(iter(wrong)) in error_message(request_of, "POST", "stage", b'{"messages": []}', query=query)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"messages": [{}]}', b'{"messages": [{"body": 5}]}', b'{"messages": [{"body": "x", "id": "y"}]}'],
)
def test_the_messages_of_stage_are_checked(body: bytes) -> None:
    assert error_message(stage, body)


def test_json_is_decoded_in_slices() -> None:
    rows = [{"body": "x"}] * (SLICE_ROWS + 2)
    call = request_of("POST", "stage", json.dumps({"messages": rows}).encode(), query=STAGE)
    assert isinstance(call.command, BulkStage)
    assert [len(part) for part in call.command.read()] == [SLICE_ROWS, 2]
    with pytest.raises(RowRefused) as caught:
        stage(json.dumps({"messages": [*rows, {"body": ""}]}).encode())
    assert caught.value.index == SLICE_ROWS + 2
    reply = call.encode(caught.value)
    assert (reply.status, json.loads(reply.body)["index"]) == (400, SLICE_ROWS + 2)


def test_a_message_has_as_many_attributes_as_one_of_smq() -> None:
    """Spark forwards those of SMQ, too. They are counted before they are decoded."""
    many = {f"k{n}": "AA" for n in range(51)}
    refused = json.dumps({"messages": [{"body": "x", "attributes": many, "attribute_types": {"k0": "Binary"}}]})
    assert "[51] exceeds the allowed maximum [50]" in error_message(stage, refused.encode())
    del many["k50"]
    (staged,) = stage(json.dumps({"messages": [{"body": "x", "attributes": many}]}).encode()).messages
    assert len(decode_properties(staged.properties).attributes) == 50


def test_limits_of_publications() -> None:
    many = {"messages": [{"body": "x"}] * (limits.STAGE_MESSAGES_MAX + 1)}
    assert "messages" in error_message(stage, json.dumps(many).encode())
    most = [{"body": "x" * (limits.STAGE_BYTES_MAX // 2)}] * 2
    assert len(stage(json.dumps({"messages": most}).encode()).messages) == 2
    assert "too many for one call" in error_message(stage, json.dumps({"messages": [*most, {"body": "x"}]}).encode())
    attempts = [["a", 1]] * (limits.PUBLISH_ATTEMPTS_MAX + 1)
    assert "attempts" in error_message(post, "publish", writer="w", batch=0, attempts=attempts)
    assert "messages_per_s_max" in error_message(
        post, "publish", writer="w", batch=0, attempts=[], messages_per_s_max=0
    )
    assert "attempts" in error_message(post, "publish", writer="w", batch=0)


# Messages to stage: the rules of SendMessage.

OUTGOING = Outgoing(None)


def row_error(**fields: Any) -> str:
    with pytest.raises(RowRefused) as caught:
        OUTGOING.from_rows([OutgoingRow(body="good"), OutgoingRow(**{"body": "b", **fields})])
    assert caught.value.index == 1
    assert str(caught.value).startswith("Message 1 was refused, and nothing staged: ")
    return caught.value.reason.message


ROWS: list[dict[str, Any]] = [
    {"body": "ä", "attributes": {"n": "12", "d": "AQI=", **dict.fromkeys("abcefghi", "é")},
     "attribute_types": {"n": "Number", "d": "Binary.raw"}, "group": "g", "dedup_id": "d", "delay_s": 7},
    {"body": "ä", "delay_s": 8},
]  # fmt: skip
SENDER = {"SenderId": Attribute("String", "000000000000")}
PLAIN = encode_properties(Properties(system=SENDER))
TYPED = {"n": Attribute("Number", "12"), "d": Attribute("Binary.raw", data=b"\1\2")}
ATTRIBUTES = TYPED | dict.fromkeys("abcefghi", Attribute("String", "é"))
PROPERTIES = encode_properties(Properties(attributes=ATTRIBUTES, system=SENDER, group="g", dedup_id="d"))
SIZE = len("änNumber12dBinary.raw".encode()) + 2 + 8 * len("aStringé".encode())
MESSAGES = (
    NewMessage(body="ä", size_bytes=SIZE, properties=PROPERTIES, delay_s=7, group="g", dedup_id="d"),
    NewMessage(body="ä", size_bytes=2, properties=PLAIN, delay_s=8),
)


@pytest.mark.parametrize("kind", ["application/json", "Application/vnd.apache.arrow.stream; x=y"])
def test_staged_messages_have_every_field(kind: str) -> None:
    """A stream with only bodies in ASCII takes a shorter path."""
    plain = tuple(NewMessage(body=body, size_bytes=1, properties=PLAIN) for body in "bc")
    for rows, messages in (ROWS, MESSAGES), ([{"body": "b"}, {"body": "c"}], plain):
        body = json.dumps({"messages": rows}).encode()
        if kind != "application/json":
            body = stream(pa.RecordBatch.from_pylist(rows, schema=FULL))
        query = {"writer": "w", "batch": "1", "attempt": "a", "part": "2"}
        command = stage_command(request_of("POST", "stage", body, query=query, kind=kind.encode()))
        assert command == Stage(queue=QUEUE, writer="w", batch=1, attempt="a", part=2, messages=messages)


@pytest.mark.parametrize(("fields", "words"), [
    ({"body": ""}, "no body"), ({"body": "\x00"}, "#x0"), ({"delay_s": -1}, "delay_s must be 0 to 604800"),
    ({"delay_s": 604_801}, "delay_s must be"), ({"dedup_id": "d e"}, "MessageDeduplicationId"),
    ({"group": "not ascii: ä"}, "MessageGroupId"), ({"attributes": {"AWS.x": "y"}}, "AWS.x"),
    ({"attributes": {"n": "twelve"}, "attribute_types": {"n": "Number"}}, "'n'"),
    ({"attributes": {"d": "!"}, "attribute_types": {"d": "Binary"}}, "must be Base64"),
    ({"attributes": {"d": "ä"}, "attribute_types": {"d": "Binary"}}, "must be Base64"),
    ({"attributes": {}, "attribute_types": {"d": "Binary"}}, "which is not in attributes"),
    ({"attributes": {str(n): "x" for n in range(51)}}, "attributes"),
])  # fmt: skip
def test_errors_of_rows_have_their_index(fields: dict[str, Any], words: str) -> None:
    assert words in row_error(**fields)


@pytest.mark.parametrize("bodies", [["a", ""], ["a", "\x01"], ["ä", "\ufffe"]])
def test_an_invalid_body_has_its_index(bodies: list[str]) -> None:
    with pytest.raises(RowRefused) as caught:
        OUTGOING.from_bodies(bodies)
    assert caught.value.index == 1


# Forwards.

TARGET = f"/v1/queues/{QUEUE}/forward"


def test_a_forward_has_full_names_and_replies_in_order() -> None:
    """A target is in the account and region of the intake by default; the server's own region may be named."""
    here, there = "000000000000@eu-west-1", "222222222222@eu-west-1"
    entries = {
        "fast.fifo": f"{here}/fast.fifo",
        "222222222222/slow": "222222222222/slow",
        "222222222222@us-east-1/slow": "222222222222/slow",
        f"{there}/slow": f"{there}/slow",
    }
    reasons = {"veilmq-reason": "é", f"veilmq-{'x' * 50}": "x" * 2_000}
    fields = [{"receipt": target, "target": target, "reasons": reasons} for target in entries]
    del fields[0]["reasons"]
    call = send("POST", f"/v1/queues/{here}/jobs/forward", json.dumps({"entries": fields}).encode())
    forwards = [ForwardEntry(receipt=given, target=name, reasons=reasons) for given, name in entries.items()]
    forwards[0] = replace(forwards[0], reasons=None)
    assert call.command == Forward(queue=f"{here}/jobs", entries=tuple(forwards))
    results = [Forwarded(id=ID, sequence=5, duplicate=True), Forwarded(id=ID), ReceiptEnded(ReceiptState.GONE)]
    reply = call.encode([*results, TooManyTags(1)])
    found = json.loads(reply.body)["entries"]
    assert all(each.pop("message") for each in found[2:])
    assert (reply.status, reply.code, found) == (200, "OK", [
        {"id": id_text(ID), "sequence_number": "10000000000000000005", "duplicate": True},
        {"id": id_text(ID), "sequence_number": None, "duplicate": False},
        {"code": "ReceiptEnded", "status": 410, "state": "gone"},
        {"code": "InternalError", "status": 500},
    ])  # fmt: skip


@pytest.mark.parametrize(("body", "place"), [
    ({}, "entries"), ({"entries": [{"receipt": "r"}]}, "entries[0]"),
    ({"entries": [{"receipt": 1, "target": "q"}]}, "entries[0].receipt"),
    ({"entries": [{"receipt": "r", "target": "http://h/1/q"}]}, "entries[0].target"),
    ({"entries": [{"receipt": "r", "target": "12/q"}]}, "entries[0].target"),
    ({"entries": [{"receipt": "r", "target": "q", "more": 1}]}, "entries[0]"),
    ({"entries": [{"receipt": "r", "target": "q"}] * 11}, "entries"),
    *(({"entries": [{"receipt": "r", "target": "q", "reasons": reasons}]}, "entries[0].reasons") for reasons in (
        {"x": "y"}, {f"veilmq-{'x' * 51}": "y"}, {"veilmq-x": ""}, {"veilmq-x": "y" * 2_001}, {"veilmq-x": "\0"}
    )),
], ids=[
    "no-entries", "no-target", "number", "url", "account", "unknown", "too-many",
    "reason", "long-name", "empty", "long", "control",
])  # fmt: skip
def test_invalid_entries_are_refused(body: Any, place: str) -> None:
    error = decode_error("POST", TARGET, json.dumps(body).encode())
    assert error.code.query == "InvalidRequest"
    assert place in error.message
