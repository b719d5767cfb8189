"""What the batches have in common; their errors are in test_errors."""

from typing import Any

import pytest

from tests.internals.wire.sqs.asking import SENT, answer, ask, entries, refusal
from veilmq.core.commands import Delete, Send
from veilmq.core.errors import MessageTooLong, ShuttingDown
from veilmq.core.results import ReceiptState, SentMessage
from veilmq.wire.sqs import errors

SENDS = entries(10, MessageBody="x")


@pytest.mark.parametrize("identifier", ["a", "A-z_09", "x" * 80])
def test_good_ids(identifier: str) -> None:
    """1 to 80 letters, digits, hyphens and underscores."""
    told = answer("DeleteMessageBatch", [ReceiptState.LIVE], Entries=[{"Id": identifier, "ReceiptHandle": "r"}])
    assert told == {"Successful": [{"Id": identifier}]}


@pytest.mark.parametrize("identifier", ["", "a b", "a:b", "é", "x" * 81, "a\n", "٣"])
def test_bad_ids(identifier: str) -> None:
    """Refuse the whole request."""
    error = refusal("DeleteMessageBatch", Entries=[{"Id": identifier, "ReceiptHandle": "r"}])
    assert error.code is errors.INVALID_ENTRY_ID


def test_ids_differ_in_case() -> None:
    """They are compared as they are."""
    batch = [{"Id": "a", "ReceiptHandle": "r"}, {"Id": "A", "ReceiptHandle": "r"}]
    told = answer("DeleteMessageBatch", [ReceiptState.LIVE, ReceiptState.SUPERSEDED], Entries=batch)
    assert told == {"Successful": [{"Id": "a"}, {"Id": "A"}]}


def test_ten_entries_are_allowed() -> None:
    """And keep their order, in the command and in the reply."""
    sent = [SentMessage(id=bytes([number] * 16)) for number in range(10)]
    told = answer("SendMessageBatch", sent, Entries=SENDS)
    assert [entry["Id"] for entry in told["Successful"]] == [f"e{number}" for number in range(10)]
    assert told["Successful"][3]["MessageId"] == "03030303-0303-0303-0303-030303030303"
    assert "Failed" not in told


def test_bad_entries_stay_here_and_good_ones_go_on() -> None:
    """Outcomes find their entries again, wherever the bad ones stood."""
    batch: list[dict[str, Any]] = entries(4, MessageBody="x")
    batch[0]["MessageBody"] = ""
    batch[2]["DelaySeconds"] = 901
    command = ask("SendMessageBatch", Entries=batch).command
    assert isinstance(command, Send)
    assert len(command.messages) == 2
    told = answer("SendMessageBatch", [MessageTooLong(1_024), SENT], Entries=batch)
    assert [entry["Id"] for entry in told["Failed"]] == ["e0", "e2", "e1"]
    assert [entry["Id"] for entry in told["Successful"]] == ["e3"]


def test_the_engine_is_asked_even_when_no_entry_is_good() -> None:
    """It alone knows whether the queue exists."""
    call = ask("DeleteMessageBatch", Entries=entries(2))
    assert call.command == Delete(queue="000000000000/orders", receipts=())
    told = answer("DeleteMessageBatch", [], Entries=entries(2))
    assert [entry["Code"] for entry in told["Failed"]] == ["MissingParameter"] * 2
    assert "Successful" not in told


def test_an_error_of_the_whole_command_is_one_of_the_whole_request() -> None:
    """No entry is reported then."""
    assert ask("SendMessageBatch", Entries=SENDS).encode(ShuttingDown()).status == 503
