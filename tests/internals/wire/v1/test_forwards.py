"""The route of forwards: the command that it makes, what it refuses, and what it answers."""

import json
from typing import Any

import pytest

from tests.internals.wire.v1.asking import QUEUE, refusal, send
from veilmq.core.errors import DestinationRefused, ReceiptEnded, TooManyTags, VeilmqError
from veilmq.core.forwards import Forward, Forwarded, ForwardEntry
from veilmq.core.results import ReceiptState
from veilmq.wire.v1.request import ApiCall

TARGET = f"/v1/queues/{QUEUE}/forward"
ID = bytes(range(16))


def post(*entries: Any) -> ApiCall:
    """Return what the codec makes of a request with these entries."""
    return send("POST", TARGET, json.dumps({"entries": entries}).encode())


def told(*results: Forwarded | VeilmqError) -> Any:
    """Return the entries of the answer to results."""
    reply = post().encode(list(results))
    assert (reply.status, reply.code) == (200, "OK")
    return json.loads(reply.body)["entries"]


def test_targets_are_of_the_account_of_the_intake_unless_they_say() -> None:
    call = post({"receipt": "r", "target": "fast.fifo"}, {"receipt": "s", "target": "222222222222/slow"})
    assert call.command == Forward(
        queue=QUEUE,
        entries=(
            ForwardEntry(receipt="r", target="000000000000/fast.fifo"),
            ForwardEntry(receipt="s", target="222222222222/slow"),
        ),
    )


def test_no_entries_ask_whether_it_can() -> None:
    assert post().command == Forward(queue=QUEUE, entries=())
    assert told() == []


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "entries"),
        ({"entries": [{"receipt": "r"}]}, "entries[0]"),
        ({"entries": [{"receipt": 1, "target": "q"}]}, "entries[0].receipt"),
        ({"entries": [{"receipt": "r", "target": "http://h/1/q"}]}, "entries[0].target"),
        ({"entries": [{"receipt": "r", "target": "12/q"}]}, "entries[0].target"),
        ({"entries": [{"receipt": "r", "target": "q", "more": 1}]}, "entries[0]"),
        ({"entries": [{"receipt": "r", "target": "q"}] * 11}, "entries"),
    ],
    ids=["no-entries", "no-target", "number", "url", "account", "unknown", "too-many"],
)
def test_what_does_not_fit_is_refused(body: Any, place: str) -> None:
    error = refusal("POST", TARGET, json.dumps(body).encode())
    assert error.code.query == "InvalidRequest"
    assert place in error.message


def test_answers_are_in_the_order_of_the_entries() -> None:
    first, second, third, fourth = told(
        Forwarded(id=ID),
        ReceiptEnded(ReceiptState.GONE),
        Forwarded(id=ID, sequence=7, duplicate=True),
        DestinationRefused("a/q", "It is another."),
    )
    assert first == {"id": "00010203-0405-0607-0809-0a0b0c0d0e0f", "sequence_number": None, "duplicate": False}
    assert (second["code"], second["status"], second["state"]) == ("ReceiptEnded", 410, "gone")
    assert (third["sequence_number"][-3:], third["duplicate"]) == ("007", True)
    assert fourth == {"code": "DestinationRefused", "message": "It is another.", "status": 400, "queue": "a/q"}


def test_a_defect_says_no_more_than_that() -> None:
    (entry,) = told(TooManyTags(1))
    assert (entry["code"], entry["status"]) == ("InternalError", 500)
