"""The audit log: what a request may change, two lines a change, and that they are on the disk before it is made."""

import asyncio
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from veilmq.console.asking import Answer, Asked
from veilmq.console.audit import DONE, UNKNOWN, AuditEntry, Auditing, AuditLog, AuditLogError, shown
from veilmq.console.changes import change_of
from veilmq.wire.exchange import caller_named

OWN = "333333333333"
URL = "http://localhost/111111111111/orders"
CAROL = caller_named("111111111111", "carol")
DELETE_QUEUE = {b"x-amz-target": b"AmazonSQS.DeleteQueue"}
DELETE_MESSAGE = {b"x-amz-target": b"AmazonSQS.DeleteMessage"}


def entry(number: int, outcome: str = "asked") -> AuditEntry:
    """Return a line of the change ``number``."""
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
    """Write and return the last ten changes."""

    async def write() -> list[AuditEntry]:
        for each in entries:
            await audit.write(each)
        return await audit.last(10)

    return asyncio.run(write())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_the_newest_comes_first_and_a_change_once(path: Path, kind: str) -> None:
    audit = AuditLog(path if kind == "file" else None)
    assert written(audit) == []
    lines = written(audit, entry(1), entry(1, DONE), entry(2), entry(3), entry(3, "AccessDenied"))
    assert [(line.id, line.outcome) for line in lines] == [("3", "AccessDenied"), ("2", "asked"), ("1", DONE)]
    if kind == "file":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "only the owner reads it"


def test_a_file_that_was_rotated_away_begins_anew(path: Path) -> None:
    audit = AuditLog(path)
    written(audit, entry(1))
    path.rename(path.with_suffix(".1"))
    assert [line.id for line in written(audit, entry(2))] == ["2"]


@pytest.mark.parametrize("torn", ["half a li\n", '{"at_ms":7,"id":"half a li'], ids=["of another", "without its end"])
def test_a_line_that_is_none_takes_no_other_with_it(path: Path, torn: str) -> None:
    audit = AuditLog(path)
    written(audit, entry(1))
    with path.open("a") as file:
        file.write(torn)
    assert [line.id for line in written(audit, entry(2), entry(3))] == ["3", "2", "1"]


@pytest.mark.parametrize("line", [b'{"id":"\xff"}', b'{"after":' * 100_000, b"\x00" * 100])
def test_a_line_that_no_log_has_hides_no_other(path: Path, line: bytes) -> None:
    path.write_bytes(line + b"\n")
    assert [line.id for line in written(AuditLog(path), entry(2))] == ["2"]


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "nowhere" / "audit.jsonl")
    with pytest.raises(AuditLogError, match=r"cannot be written \(No such file or directory\), so nothing was changed"):
        written(audit, entry(1))


# What the log is told of a request, whoever asks.


class Queues:
    """Queues that answer each action with what is written down for it, and keep what they were asked."""

    def __init__(self, **answers: Any) -> None:
        """``answers`` are by action; an error is its code."""
        self._answers = answers
        self.asked: list[str] = []

    async def __call__(self, asked: Asked) -> Answer:
        name = asked.headers.get(b"x-amz-target", asked.target.rpartition(b"/")[2]).decode().rpartition(".")[2]
        self.asked.append(name)
        answer = self._answers.get(name, {})
        if isinstance(answer, str):
            return Answer(403, b"", json.dumps({"__type": f"com.amazonaws.sqs#{answer}", "message": "No."}).encode())
        return Answer(200, b"", json.dumps(answer).encode())


def posted(body: bytes, headers: Mapping[bytes, bytes] = MappingProxyType({}), *, peer: str | None = None) -> Asked:
    """Return a request of carol's, for an action of SQS that ``headers`` name."""
    return Asked(b"POST", b"/", headers, body, CAROL, peer)


def lines_of(queues: Queues, action: str, status: int = 200, **fields: Any) -> list[AuditEntry]:
    """Ask as carol, and return the log."""
    request = posted(json.dumps({"QueueUrl": URL, **fields}).encode(), peer="127.0.0.1")
    if "/" in action:
        request = request._replace(target=f"/v1/{action}".encode(), body=json.dumps(fields).encode())
    else:
        request = request._replace(headers={b"x-amz-target": f"AmazonSQS.{action}".encode()})

    async def ask() -> list[AuditEntry]:
        audit = AuditLog(None)
        assert (await Auditing(queues, audit, now_ms=lambda: 7)(request)).status == status
        return await audit.last(10)

    return asyncio.run(ask())


@pytest.mark.parametrize("action", ["GetQueueAttributes", "ListQueues", "ListMessageMoveTasks"])
def test_reading_leaves_no_line(action: str) -> None:
    assert lines_of(Queues(), action) == []


FAILED = {"Successful": [{"Id": "1"}], "Failed": [{"Id": "2"}, {"Id": "3"}]}


@pytest.mark.parametrize(
    ("action", "answers", "status", "told"),
    [
        ("PurgeQueue", {"GetQueueAttributes": "AccessDenied"}, 200, (None, DONE)),  # who may not see it changes it
        ("DeleteQueue", {"DeleteQueue": "AccessDenied"}, 403, ({}, "AccessDenied")),
        ("ReceiveMessage", {}, 200, (None, DONE)),
        ("DeleteMessageBatch", {"DeleteMessageBatch": FAILED}, 200, (None, "done, but for 2")),
    ],
)
def test_an_outcome_is_told(action: str, answers: dict[str, Any], status: int, told: tuple[Any, str]) -> None:
    (line,) = lines_of(Queues(**answers), action, status)
    assert (line.what, line.before, line.outcome) == (action, *told)


def test_nothing_is_changed_that_cannot_be_written_down(tmp_path: Path) -> None:
    queues = Queues()
    auditing = Auditing(queues, AuditLog(tmp_path / "nowhere" / "log"), now_ms=lambda: 7)

    async def ask() -> Answer:
        return await auditing(posted(b"{}", DELETE_MESSAGE)._replace(caller=None))

    answer = asyncio.run(ask())
    assert (answer.status, json.loads(answer.body)["code"], queues.asked) == (503, "AuditLogUnavailable", [])


def test_who_does_not_wait_leaves_a_line_that_says_so() -> None:
    """It may have been done: the log must not say for ever that it is under way."""

    async def gone() -> list[AuditEntry]:
        begun, audit = asyncio.Event(), AuditLog(None)

        async def slow(request: Asked) -> Answer:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        asking = asyncio.ensure_future(Auditing(slow, audit, now_ms=lambda: 7)(posted(b"{}", DELETE_MESSAGE)))
        await begun.wait()
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        return await audit.last(10)

    assert [line.outcome for line in asyncio.run(gone())] == [UNKNOWN]


def test_bodies_receipts_and_attributes_are_not_told() -> None:
    told = shown({"Entries": [{"Id": "1", "MessageBody": "secret"}], "ReceiptHandle": "r" * 100, "Tags": {"a": "b"}})
    assert told["Entries"] == [{"Id": "1", "MessageBody": "(6 characters)"}]
    assert (told["ReceiptHandle"], told["Tags"]) == ("r" * 16 + "…", {"a": "b"})
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
    (line,) = lines_of(Queues(), "TagQueue", **fields)
    assert len(json.dumps(line.after)) < 100_000


# What a request may change is read off it, and one that is not known to only read is a change.


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        (b"GET", b"/v1/queues/-", DELETE_QUEUE),  # the header decides, not the path
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
def test_what_is_not_known_to_only_read_is_a_change(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> None:
    assert change_of(Asked(method, target, headers, b"", None, None), account=OWN) is not None


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
def test_the_queue_is_the_one_that_the_action_finds(fields: dict[str, Any], queue: str | None) -> None:
    change = change_of(posted(json.dumps(fields).encode(), DELETE_QUEUE), account=OWN)
    assert change is not None
    assert change.queue == queue


@pytest.mark.parametrize("body", [b"\xff", b"[1]", b"[" * 100_000, b'{"a":' * 100_000, b"x" * 1_000])
def test_what_cannot_be_read_is_told_by_its_length(body: bytes) -> None:
    change = change_of(posted(body, DELETE_QUEUE), account=OWN)
    assert change is not None
    assert change.fields == {"unread": f"{len(body):,} bytes"}
