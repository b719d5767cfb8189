"""The routes of publications: which command each makes, with which fields, and what it refuses."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.internals.wire.v1.asking import CONTEXT, QUEUE
from veilmq.core import limits
from veilmq.core.commands import NewMessage
from veilmq.core.publications import Abandon, ListWriters, Publish, Stage, WriterView
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.publications import ARROW_TYPE, PIECE_ROWS, BulkStage
from veilmq.wire.v1.request import ApiCall, RowRefused, read_request
from veilmq.wire.v1.routes import ROUTES, decode, route_key

STAGE = {"writer": "w", "batch": "0", "attempt": "a", "part": "0"}


def ask(
    method: str, verb: str, body: bytes = b"", *, query: dict[str, str] | None = None, kind: bytes = b""
) -> ApiCall:
    """Return what the codec makes of a request."""
    target = f"/v1/publications/{QUEUE}" + (f"/{verb}" if verb else "")
    if query:
        target += "?" + "&".join(f"{name}={value}" for name, value in query.items())
    request = read_request(method.encode(), target.encode(), {b"content-type": kind}, body)
    return decode(route_key(request), request, CONTEXT)


def post(verb: str, **fields: Any) -> ApiCall:
    """Return what the codec makes of a POST with JSON."""
    return ask("POST", verb, json.dumps(fields).encode())


def staged(call: ApiCall) -> Stage:
    """Return the command that staging comes to; raises what reading its body raises."""
    assert isinstance(call.command, BulkStage)
    assert call.command.queue == QUEUE
    return call.command.whole([message for piece in call.command.read() for message in piece])


def stage(body: bytes, **query: str) -> Stage:
    """Return the command of a request to stage JSON."""
    return staged(ask("POST", "stage", body, query=STAGE | query))


def refused(call: Any, *args: Any, **given: Any) -> str:
    """Return why a request is refused."""
    with pytest.raises(SqsError) as caught:
        call(*args, **given)
    assert caught.value.code.status == 400
    return caught.value.message


def test_stage_takes_json() -> None:
    body = json.dumps({"messages": [{"body": "x"}, {"body": "y", "delay_s": 5}]}).encode()
    messages = (NewMessage(body="x", size_bytes=1), NewMessage(body="y", size_bytes=1, delay_s=5))
    expected = Stage(queue=QUEUE, writer="w", batch=0, attempt="a", part=0, messages=messages)
    assert stage(body) == expected


def test_stage_takes_arrow() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["x"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    kind = ARROW_TYPE + b"; charset=binary"
    call = ask("POST", "stage", sink.getvalue().to_pybytes(), query=STAGE, kind=kind)
    assert staged(call) == Stage(
        queue=QUEUE, writer="w", batch=0, attempt="a", part=0, messages=(NewMessage(body="x", size_bytes=1),)
    )


def test_publish_abandon_and_list() -> None:
    assert post("publish", writer="w", batch=1, attempts=[["a", 2], ["b", 0]]).command == Publish(
        queue=QUEUE, writer="w", batch=1, attempts=(("a", 2), ("b", 0))
    )
    slow = post("publish", writer="w", batch=1, attempts=[], messages_per_s_max=7).command
    assert slow == Publish(queue=QUEUE, writer="w", batch=1, attempts=(), messages_per_s_max=7)
    assert post("abandon", writer="w", batch=1).command == Abandon(queue=QUEUE, writer="w", batch=1)
    listing = ask("GET", "")
    assert listing.command == ListWriters(queue=QUEUE)
    view = WriterView(writer="w", batch=None, messages=0, duplicates=0, staged=3, seen_at_ms=5)
    assert json.loads(listing.encode([view]).body)["writers"][0]["staged"] == 3


def test_all_need_the_right_to_send() -> None:
    rows = [route for route in ROUTES.values() if route.noun == b"publications"]
    assert {route.verb: route.permission for route in rows} == dict.fromkeys(
        (b"", b"stage", b"publish", b"abandon"), "SendMessage"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"writer": "a b"},
        {"writer": ""},
        {"writer": "w" * 129},
        {"batch": "-1"},
        {"batch": "x"},
        {"attempt": "a/b"},
        {"part": "-1"},
        {"part": str(2**31 + 1)},
        {"more": "1"},
    ],
)
def test_parameters_of_stage_are_checked(wrong: dict[str, str]) -> None:
    assert next(iter(wrong)) in refused(ask, "POST", "stage", b'{"messages": []}', query=STAGE | wrong)


@pytest.mark.parametrize("missing", list(STAGE))
def test_parameters_of_stage_are_needed(missing: str) -> None:
    query = {name: value for name, value in STAGE.items() if name != missing}
    assert missing in refused(ask, "POST", "stage", b'{"messages": []}', query=query)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"messages": [{}]}', b'{"messages": [{"body": 5}]}', b'{"messages": [{"body": "x", "id": "y"}]}'],
)
def test_the_messages_of_stage_are_checked(body: bytes) -> None:
    assert refused(stage, body)


def test_json_comes_in_pieces_and_a_row_is_counted_through_them() -> None:
    rows = [{"body": "x"}] * (PIECE_ROWS + 2)
    call = ask("POST", "stage", json.dumps({"messages": rows}).encode(), query=STAGE)
    assert isinstance(call.command, BulkStage)
    assert [len(piece) for piece in call.command.read()] == [PIECE_ROWS, 2]
    with pytest.raises(RowRefused) as caught:
        stage(json.dumps({"messages": [*rows, {"body": ""}]}).encode())
    assert caught.value.index == PIECE_ROWS + 2
    answer = call.encode(caught.value)
    assert (answer.status, json.loads(answer.body)["index"]) == (400, PIECE_ROWS + 2)


def test_attributes_are_counted_before_they_are_read() -> None:
    many = {f"k{n}": "AA" for n in range(11)}
    for row in ({"attributes": many}, {"attribute_types": many}):
        assert "[11] exceeds" in refused(stage, json.dumps({"messages": [{"body": "x", **row}]}).encode())


def test_numbers_are_bounded() -> None:
    many = {"messages": [{"body": "x"}] * (limits.STAGE_MESSAGES_MAX + 1)}
    assert "messages" in refused(stage, json.dumps(many).encode())
    long = {"messages": [{"body": "x" * (limits.STAGE_BYTES_MAX // 2 + 1)}] * 2}
    assert "too many for one call" in refused(stage, json.dumps(long).encode())
    attempts = [["a", 1]] * (limits.PUBLISH_ATTEMPTS_MAX + 1)
    assert "attempts" in refused(post, "publish", writer="w", batch=0, attempts=attempts)
    assert "messages_per_s_max" in refused(post, "publish", writer="w", batch=0, attempts=[], messages_per_s_max=0)
    assert "attempts" in refused(post, "publish", writer="w", batch=0)
