"""The listing of an account's queues, over a real socket, and who sees what in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from tests.server.keys import OWNER, REGION, SECRETS, client, set_policy, written
from veilmq.client import HttpQueueClient
from veilmq.client.transport import SigningKey, Transport
from veilmq.testing import RunningServer


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server whose clock the test moves."""
    with RunningServer(**place(request.param)) as running:
        yield running


def listed(server: RunningServer, *, path: str = "-", key: Any = None, **query: Any) -> tuple[int, Any]:
    """Return the status and the answer."""
    transport = Transport(server.endpoint, key=key)
    try:
        answer = transport.request("GET", f"/v1/queues/{path}?{urlencode(query)}", headers={}, body=b"", wait_s=0)
    finally:
        transport.close()
    return answer.status, msgspec.json.decode(answer.data)


def test_queues_are_listed_with_what_is_in_them(server: RunningServer) -> None:
    """Rates need two looks; a FIFO queue and a dead-letter queue are told as what they are."""
    server.queue("dead")
    server.queue("jobs.fifo", fifo=True)
    server.queue("jobs", dead_letter_queue="dead", receives_max=3)
    _, first = listed(server)
    assert [queue["name"] for queue in first["queues"]] == ["dead", "jobs", "jobs.fifo"]
    assert (first["in_all"], first["queues"][1]["dead_letter_queue"]) == (3, "000000000000/dead")
    assert [queue["fifo"] for queue in first["queues"]] == [False, False, True]
    server.advance(1_000)  # a count within the second would stand in the place of the first one
    with HttpQueueClient(server.endpoint) as queue:
        for _ in range(10):
            queue.send("jobs", "m")
        queue.receive("jobs")
        server.advance(1_000)
        status, found = listed(server, names="jobs,none,jobs")
    (jobs,) = found["queues"]
    assert status == 200
    assert (jobs["visible"], jobs["in_flight"], jobs["sent_per_s"], jobs["received_per_s"]) == (9, 1, 5.0, 0.5)
    seen = [visible for _, visible in jobs["history"]]
    assert (seen[0], seen[-1]) == (0, 9)


def test_a_page_is_sorted_and_searched_as_asked(server: RunningServer) -> None:
    for name in ("a", "b", "c", "other"):
        server.queue(name)
    with HttpQueueClient(server.endpoint) as queue:
        queue.send("b", "m")
    _, found = listed(server, sort="visible", descending="true", first=0, count=2)
    assert ([queue["name"] for queue in found["queues"]], found["in_all"]) == (["b", "a"], 4)
    _, found = listed(server, search="OTH")
    assert ([queue["name"] for queue in found["queues"]], found["in_all"]) == (["other"], 1)


def test_what_cannot_be_asked_is_said(server: RunningServer) -> None:
    for query in ({"sort": "size"}, {"count": "0"}, {"count": "201"}, {"first": "-1"}, {"what": "1"}):
        status, told = listed(server, **query)
        assert (status, told["code"]) == (400, "InvalidRequest")
    status, told = listed(server, names=",".join(f"q{number}" for number in range(201)))
    assert (status, told["code"]) == (400, "InvalidRequest")
    status, told = listed(server, path="111111111111")
    assert (status, told["code"]) == (403, "AccessDenied")


def test_what_a_policy_denies_is_a_name(tmp_path: Path) -> None:
    """As in every listing; the owner sees it all, and who is of another account sees his own queues."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        owner = client(server)
        url = owner.create_queue(QueueName="jobs")["QueueUrl"]
        owner.create_queue(QueueName="open")
        carol = f"arn:aws:iam::{OWNER}:user/carol"
        denial = {"Effect": "Deny", "Principal": {"AWS": carol}, "Action": "sqs:GetQueueAttributes"}
        set_policy(owner, url, {**denial, "Resource": f"arn:aws:sqs:{REGION}:{OWNER}:jobs"})

        def seen(key: str, **query: Any) -> dict[str, int | None]:
            signing = SigningKey(id=key, secret=SECRETS[key], region=REGION)
            _, found = listed(server, key=signing, **query)
            return {queue["name"]: queue["visible"] for queue in found["queues"]}

        assert seen("AKIDOWNER") == {"jobs": 0, "open": 0}
        assert seen("AKIDCAROL") == {"jobs": None, "open": 0}
        assert seen("AKIDCAROL", names="jobs") == {"jobs": None}
        assert list(seen("AKIDCAROL", sort="visible")) == ["open", "jobs"]
        assert seen("AKIDFRIEND") == {}
