"""The audit log: which requests are changes, and the two lines of each, the first of which is on disk before it."""

import asyncio
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from veilmq.console.api_client import ApiReply, ApiRequest
from veilmq.console.audit import DONE, UNKNOWN, AuditEntry, Auditing, AuditLog, AuditLogError, abbreviated, change_of
from veilmq.wire.exchange import caller_named

OWN = "333333333333"
URL = "http://localhost/111111111111/orders"
CAROL = caller_named("111111111111", "carol")
DELETE_QUEUE = {b"x-amz-target": b"AmazonSQS.DeleteQueue"}
DELETE_MESSAGE = {b"x-amz-target": b"AmazonSQS.DeleteMessage"}


def entry(number: int, outcome: str = "asked") -> AuditEntry:
    what: dict[str, Any] = {
        "at_ms": number,
        "id": f"{number}",
        "who": "everyone",
        "peer": None,
        "what": "PurgeQueue",
        "queue": "a/b",
    }
    return AuditEntry(**what, after={}, outcome=outcome)


def written(audit: AuditLog, *entries: AuditEntry) -> list[AuditEntry]:
    """Write ``entries`` and return the last ten changes."""

    async def write() -> list[AuditEntry]:
        for each in entries:
            await audit.write(each)
        return await audit.last(10)

    return asyncio.run(write())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_changes_are_listed_once_newest_first(path: Path, kind: str) -> None:
    audit = AuditLog(path if kind == "file" else None)
    assert written(audit) == []
    lines = written(audit, entry(1), entry(1, DONE), entry(2), entry(3), entry(3, "AccessDenied"))
    assert [(line.id, line.outcome) for line in lines] == [("3", "AccessDenied"), ("2", "asked"), ("1", DONE)]
    if kind == "file":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "only the owner can read it"


def test_a_rotated_file_is_created_again(path: Path) -> None:
    audit = AuditLog(path)
    written(audit, entry(1))
    path.rename(path.with_suffix(".1"))
    assert [line.id for line in written(audit, entry(2))] == ["2"]


@pytest.mark.parametrize("torn", ["half a li\n", '{"at_ms":7,"id":"half a li'], ids=["foreign", "incomplete"])
def test_an_invalid_line_does_not_damage_others(path: Path, torn: str) -> None:
    audit = AuditLog(path)
    written(audit, entry(1))
    with path.open("a") as file:
        file.write(torn)
    assert [line.id for line in written(audit, entry(2), entry(3))] == ["3", "2", "1"]


@pytest.mark.parametrize("line", [b'{"id":"\xff"}', b'{"after":' * 100_000, b"\x00" * 100])
def test_an_unreadable_line_is_skipped(path: Path, line: bytes) -> None:
    path.write_bytes(line + b"\n")
    assert [line.id for line in written(AuditLog(path), entry(2))] == ["2"]


def test_a_log_that_cannot_be_written_raises(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "nowhere" / "audit.jsonl")
    with pytest.raises(AuditLogError, match=r"cannot be written \(No such file or directory\), so nothing was changed"):
        written(audit, entry(1))


# The lines of requests.


class FakeQueues:
    """Returns scripted replies by action, and records the actions."""

    def __init__(self, **replies: Any) -> None:
        """A reply is a result, or the code of an error."""
        self._replies = replies
        self.actions: list[str] = []

    async def __call__(self, request: ApiRequest) -> ApiReply:
        name = request.headers.get(b"x-amz-target", request.target.rpartition(b"/")[2]).decode().rpartition(".")[2]
        self.actions.append(name)
        reply = self._replies.get(name, {})
        if isinstance(reply, str):
            return ApiReply(403, b"", json.dumps({"__type": f"com.amazonaws.sqs#{reply}", "message": "No."}).encode())
        return ApiReply(200, b"", json.dumps(reply).encode())


def posted(
    body: bytes, headers: Mapping[bytes, bytes] = MappingProxyType({}), *, peer: str | None = None
) -> ApiRequest:
    """Return a request of carol, for the action of SQS in ``headers``."""
    return ApiRequest(b"POST", b"/", headers, body, CAROL, peer)


def lines_of(queues: FakeQueues, action: str, status: int = 200, **fields: Any) -> list[AuditEntry]:
    """Send a request of carol, and return the log."""
    request = posted(json.dumps({"QueueUrl": URL, **fields}).encode(), peer="127.0.0.1")
    if "/" in action:
        request = request._replace(target=f"/v1/{action}".encode(), body=json.dumps(fields).encode())
    else:
        request = request._replace(headers={b"x-amz-target": f"AmazonSQS.{action}".encode()})

    async def send() -> list[AuditEntry]:
        audit = AuditLog(None)
        assert (await Auditing(queues, audit, now_ms=lambda: 7)(request)).status == status
        return await audit.last(10)

    return asyncio.run(send())


@pytest.mark.parametrize("action", ["GetQueueAttributes", "ListQueues", "ListMessageMoveTasks"])
def test_reading_writes_no_line(action: str) -> None:
    assert lines_of(FakeQueues(), action) == []


FAILED = {"Successful": [{"Id": "1"}], "Failed": [{"Id": "2"}, {"Id": "3"}]}


@pytest.mark.parametrize(
    ("action", "replies", "status", "expected"),
    [
        ("PurgeQueue", {"GetQueueAttributes": "AccessDenied"}, 200, (None, DONE)),  # may purge but not read
        ("DeleteQueue", {"DeleteQueue": "AccessDenied"}, 403, ({}, "AccessDenied")),
        ("ReceiveMessage", {}, 200, (None, DONE)),
        ("DeleteMessageBatch", {"DeleteMessageBatch": FAILED}, 200, (None, "done, but for 2")),
    ],
)
def test_the_outcome_is_logged(action: str, replies: dict[str, Any], status: int, expected: tuple[Any, str]) -> None:
    (line,) = lines_of(FakeQueues(**replies), action, status)
    assert (line.what, line.before, line.outcome) == (action, *expected)


def test_a_change_that_cannot_be_logged_is_not_made(tmp_path: Path) -> None:
    queues = FakeQueues()
    auditing = Auditing(queues, AuditLog(tmp_path / "nowhere" / "log"), now_ms=lambda: 7)

    async def send() -> ApiReply:
        return await auditing(posted(b"{}", DELETE_MESSAGE)._replace(caller=None))

    reply = asyncio.run(send())
    assert (reply.status, json.loads(reply.body)["code"], queues.actions) == (503, "AuditLogUnavailable", [])


def test_a_cancelled_request_is_logged_as_unknown() -> None:
    """The change may have been made."""

    async def cancelled() -> list[AuditEntry]:
        begun, audit = asyncio.Event(), AuditLog(None)

        async def slow(request: ApiRequest) -> ApiReply:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        sending = asyncio.ensure_future(Auditing(slow, audit, now_ms=lambda: 7)(posted(b"{}", DELETE_MESSAGE)))
        await begun.wait()
        sending.cancel()
        await asyncio.wait({sending})
        assert sending.cancelled()
        return await audit.last(10)

    assert [line.outcome for line in asyncio.run(cancelled())] == [UNKNOWN]


def test_bodies_receipts_and_attributes_are_abbreviated() -> None:
    fields = {"Entries": [{"Id": "1", "MessageBody": "secret"}], "ReceiptHandle": "r" * 100, "Tags": {"a": "b"}}
    logged = abbreviated(fields)
    assert logged["Entries"] == [{"Id": "1", "MessageBody": "(6 characters)"}]
    assert (logged["ReceiptHandle"], logged["Tags"]) == ("r" * 16 + "…", {"a": "b"})
    logged = abbreviated({"messages": [{"body": "secret", "attributes": {"token": "secret"}, "group": "g"}]})
    assert logged["messages"] == [{"body": "(6 characters)", "attributes": {"token": "(6 characters)"}, "group": "g"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"Tags": {f"{number}": "x" * 2_000 for number in range(150)}},
        {"k" * 100_000: "v"},
        {"list": [["x"] * 1_000] * 1_000},
        json.loads('{"a":' * 400 + "1" + "}" * 400),
    ],
)
def test_lines_are_bounded(fields: dict[str, Any]) -> None:
    (line,) = lines_of(FakeQueues(), "TagQueue", **fields)
    assert len(json.dumps(line.after)) < 100_000


# Requests that are not known to only read are changes.


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        (b"GET", b"/v1/queues/-", DELETE_QUEUE),  # the header takes precedence over the path
        (b"GET", b"/v1/queues/-", {b"x-mns-version": b"2015-06-06"}),
        (b"GET", b"/?Action=DeleteQueue", {}),
        (b"DELETE", b"/queues/orders", {}),
        (b"HEAD", b"/v1/queues/-/orders/show", {}),
        (b"get", b"/v1/queues/-/orders/show", {}),
        (b"POST", b"/v1/queues/-/orders/show", {}),
        (b"POST", b"/v1/", {}),
        (b"POST", b"/v1/////", {}),
        (b"POST", b"/v1/\xff/\xfe", {}),
        (b"POST", b"", {b"x-amz-target": b""}),
        (b"POST", b"/", {b"x-amz-target": b"AmazonSQS.GetQueueUrl "}),
        (b"POST", b"/", {b"x-amz-target": b"\xff.GetQueueUrl"}),
    ],
)
def test_unknown_requests_are_changes(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> None:
    assert change_of(ApiRequest(method, target, headers, b"", None, None), account=OWN) is not None


@pytest.mark.parametrize(
    ("fields", "queue"),
    [
        ({"QueueUrl": URL}, "111111111111/orders"),
        ({"QueueUrl": "orders"}, f"{OWN}/orders"),
        ({"QueueUrl": f"{URL}?x=/222222222222/other"}, "111111111111/orders"),
        ({"QueueUrl": f"{URL}#/222222222222/other"}, "111111111111/orders"),
        ({"QueueUrl": f"{URL}/"}, "111111111111/orders"),
        ({"QueueUrl": "nothing of ours"}, None),
        ({"QueueUrl": 7}, None),
        ({"QueueName": "new"}, f"{OWN}/new"),
        ({"SourceArn": "arn:aws:sqs:us-east-1:111111111111:dead"}, "111111111111/dead"),
        ({}, None),
    ],
)
def test_the_queue_is_found_as_by_the_action(fields: dict[str, Any], queue: str | None) -> None:
    change = change_of(posted(json.dumps(fields).encode(), DELETE_QUEUE), account=OWN)
    assert change is not None
    assert change.queue == queue


@pytest.mark.parametrize("body", [b"\xff", b"[1]", b"[" * 100_000, b'{"a":' * 100_000, b"x" * 1_000])
def test_an_unreadable_body_is_logged_by_its_length(body: bytes) -> None:
    change = change_of(posted(body, DELETE_QUEUE), account=OWN)
    assert change is not None
    assert change.fields == {"unread": f"{len(body):,} bytes"}
