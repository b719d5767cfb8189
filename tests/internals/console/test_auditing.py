"""What the audit log is told of a request, whoever asks."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from veilmq.console.asking import Answer, Asked
from veilmq.console.audit import DONE, UNKNOWN, AuditEntry, AuditLog
from veilmq.console.auditing import Auditing, shown
from veilmq.wire.exchange import caller_named

URL = "http://localhost/111111111111/orders"
CAROL = caller_named("111111111111", "carol")


class Queues:
    """Queues that answer each action with what is written down for it, and keep what they were asked."""

    def __init__(self, **answers: Any) -> None:
        """``answers`` are by action; an error is its code."""
        self._answers = answers
        self.asked: list[str] = []

    async def __call__(self, asked: Asked) -> Answer:
        """Answer."""
        name = asked.headers.get(b"x-amz-target", asked.target.rpartition(b"/")[2]).decode().rpartition(".")[2]
        self.asked.append(name)
        answer = self._answers.get(name, {})
        if isinstance(answer, str):
            return Answer(403, b"", json.dumps({"__type": f"com.amazonaws.sqs#{answer}", "message": "No."}).encode())
        return Answer(200, b"", json.dumps(answer).encode())


def posted(body: bytes, headers: Mapping[bytes, bytes] = MappingProxyType({}), *, peer: str | None = None) -> Asked:
    return Asked(b"POST", b"/", headers, body, CAROL, peer)


def asked(audit: AuditLog, queues: Queues, action: str, **fields: Any) -> tuple[int, list[AuditEntry]]:
    request = posted(json.dumps(fields).encode(), peer="127.0.0.1")
    if "/" in action:
        request = request._replace(target=f"/v1/{action}".encode())
    else:
        request = request._replace(headers={b"x-amz-target": f"AmazonSQS.{action}".encode()})

    async def ask() -> tuple[int, list[AuditEntry]]:
        auditing = Auditing(queues, audit, now_ms=lambda: 7)
        answer = await auditing(request)
        return answer.status, await audit.last(10)

    return asyncio.run(ask())


def test_a_change_is_told_with_what_was_before() -> None:
    queues = Queues(GetQueueAttributes={"Attributes": {"VisibilityTimeout": "30", "DelaySeconds": "0"}})
    status, lines = asked(
        AuditLog(None), queues, "SetQueueAttributes", QueueUrl=URL, Attributes={"VisibilityTimeout": "45"}
    )
    assert status == 200
    (line,) = lines
    assert (line.who, line.peer, line.at_ms, line.outcome) == (CAROL.arn, "127.0.0.1", 7, DONE)
    assert (line.what, line.queue) == ("SetQueueAttributes", "111111111111/orders")
    assert line.before == {"VisibilityTimeout": "30"}
    assert line.after["Attributes"] == {"VisibilityTimeout": "45"}


def test_our_own_api_is_told_of_too() -> None:
    queues = Queues(show={"settings": {"visibility_timeout_s": 30, "delay_s": 0}})
    _, lines = asked(AuditLog(None), queues, "queues/111111111111/orders/set", visibility_timeout_s=45)
    (line,) = lines
    assert (line.what, line.queue) == ("queues/set", "111111111111/orders")
    assert (line.before, line.after) == ({"visibility_timeout_s": 30}, {"visibility_timeout_s": 45})


def test_who_may_not_see_changes_without_a_before() -> None:
    _, lines = asked(AuditLog(None), Queues(GetQueueAttributes="AccessDenied"), "PurgeQueue", QueueUrl=URL)
    assert [(line.before, line.outcome) for line in lines] == [(None, DONE)]


def test_a_refusal_is_told_by_its_code() -> None:
    _, lines = asked(AuditLog(None), Queues(DeleteQueue="AccessDenied"), "DeleteQueue", QueueUrl=URL)
    assert [line.outcome for line in lines] == ["AccessDenied"]


@pytest.mark.parametrize("action", ["GetQueueAttributes", "ListQueues", "ListMessageMoveTasks"])
def test_reading_leaves_no_line(action: str) -> None:
    _, lines = asked(AuditLog(None), Queues(), action, QueueUrl=URL)
    assert lines == []


def test_receiving_is_a_change() -> None:
    _, lines = asked(AuditLog(None), Queues(), "ReceiveMessage", QueueUrl=URL)
    assert [line.what for line in lines] == ["ReceiveMessage"]


def test_nothing_is_changed_that_cannot_be_written_down(tmp_path: Path) -> None:
    queues = Queues()

    async def ask() -> Any:
        auditing = Auditing(queues, AuditLog(tmp_path / "nowhere" / "log"), now_ms=lambda: 7)
        headers = {b"x-amz-target": b"AmazonSQS.DeleteMessage"}
        return await auditing(posted(b"{}", headers)._replace(caller=None))

    answer = asyncio.run(ask())
    assert answer.status == 503
    assert json.loads(answer.body)["code"] == "AuditLogUnavailable"
    assert queues.asked == []


@pytest.mark.parametrize("wrong", [1, "x", ["a"], [["a"]], [{}], None, True])
def test_attributes_that_are_none_are_refused_by_the_queues(wrong: Any) -> None:
    queues = Queues(GetQueueAttributes={"Attributes": {"DelaySeconds": "0"}}, SetQueueAttributes="InvalidAttribute")
    _, lines = asked(AuditLog(None), queues, "SetQueueAttributes", QueueUrl=URL, Attributes=wrong)
    assert [line.outcome for line in lines] == ["InvalidAttribute"]


def test_who_does_not_wait_leaves_a_line_that_says_so() -> None:
    """It may have been done: the log must not say for ever that it is under way."""

    async def gone() -> list[AuditEntry]:
        begun, audit = asyncio.Event(), AuditLog(None)

        async def slow(request: Asked) -> Answer:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        headers = {b"x-amz-target": b"AmazonSQS.DeleteMessage"}
        auditing = Auditing(slow, audit, now_ms=lambda: 7)
        asking = asyncio.ensure_future(auditing(posted(b"{}", headers)))
        await begun.wait()
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        return await audit.last(10)

    assert [line.outcome for line in asyncio.run(gone())] == [UNKNOWN]


def test_bodies_and_receipts_are_not_told() -> None:
    told = shown({"Entries": [{"Id": "1", "MessageBody": "secret"}], "ReceiptHandle": "r" * 100, "Tags": {"a": "b"}})
    assert told["Entries"] == [{"Id": "1", "MessageBody": "(6 characters)"}]
    assert told["ReceiptHandle"] == "r" * 16 + "…"
    assert told["Tags"] == {"a": "b"}


def test_attributes_of_messages_are_not_told_by_our_own_api_either() -> None:
    told = shown({"messages": [{"body": "secret", "attributes": {"token": "secret"}, "group": "g"}]})
    assert told["messages"] == [{"body": "(6 characters)", "attributes": {"token": "(6 characters)"}, "group": "g"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"Tags": {f"{number}": "x" * 2_000 for number in range(150)}},
        {"k" * 100_000: "v"},
        {"list": [["x"] * 1_000] * 1_000},
        json.loads('{"a":' * 400 + "1" + "}" * 400),
    ],
)
def test_no_line_is_for_ever_so_long(fields: dict[str, Any]) -> None:
    _, (line,) = asked(AuditLog(None), Queues(), "TagQueue", QueueUrl=URL, **fields)
    assert len(json.dumps(line.after)) < 100_000


def test_a_batch_tells_how_many_of_it_failed() -> None:
    queues = Queues(DeleteMessageBatch={"Successful": [{"Id": "1"}], "Failed": [{"Id": "2"}, {"Id": "3"}]})
    _, (line,) = asked(AuditLog(None), queues, "DeleteMessageBatch", QueueUrl=URL)
    assert line.outcome == "done, but for 2"
