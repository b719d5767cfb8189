"""Publications through the client, against a real server."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.client.scripted_server import ScriptedServer, reply
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Publications
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.core.claims import Published, Staged
from veilmq.testing import RunningServer
from veilmq.wire.v1.publications import OutgoingRow

MANY = 3_000


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """Give a server with the queue `jobs`."""
    with RunningServer(**place(request.param)) as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        yield running


@pytest.fixture
def jobs(server: RunningServer) -> Iterator[Publications]:
    """Give the publications of that queue."""
    with Publications(server.endpoint, "jobs") as publications:
        yield publications


def rows(*bodies: str) -> list[OutgoingRow]:
    """Return rows of these bodies."""
    return [OutgoingRow(body=body) for body in bodies]


def received(server: RunningServer) -> list[str]:
    """Return the bodies of ten messages."""
    with HttpQueueClient(server.endpoint) as client:
        return [message.body for message in client.receive("jobs", count=10, wait_s=0)]


def test_json_and_arrow_are_staged_and_published_in_order(server: RunningServer, jobs: Publications) -> None:
    assert jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("a1")) == Staged(messages=1)
    batch = pa.RecordBatch.from_pydict({"body": ["b1", "b2"]})
    assert jobs.stage_arrow("w", batch=0, attempt="b", part=0, messages=batch) == Staged(messages=2)
    assert jobs.stage_arrow("w", batch=0, attempt="b", part=0, messages=batch) == Staged(messages=2, again=True)
    assert jobs.publish("w", batch=0, attempts=[("b", 2), ("a", 1)]) == Published(messages=3)
    assert received(server) == ["b1", "b2", "a1"]
    assert jobs.publish("w", batch=0, attempts=[("b", 2), ("a", 1)]) == Published(messages=3, again=True)


def test_publish_returns_when_all_is_in_the_queue(server: RunningServer, jobs: Publications) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [str(number) for number in range(MANY)]})
    jobs.stage_arrow("w", batch=0, attempt="a", part=0, messages=batch)
    assert jobs.publish("w", batch=0, attempts=[("a", MANY)]) == Published(messages=MANY)
    with HttpQueueClient(server.endpoint) as client:
        assert client.show("jobs").visible == MANY


def test_a_slow_publication_is_waited_for(server: RunningServer, jobs: Publications) -> None:
    """20 messages at 20 a second, the first two at once: it takes nine tenths of a second at least."""
    jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abcdefghijklmnopqrst"))
    began_ms = server.clock.now_ms()
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(jobs.publish, "w", batch=0, attempts=[("a", 20)], messages_per_s_max=20)
        while not publishing.done():
            server.advance(10)
    assert publishing.result() == Published(messages=20)
    assert server.clock.now_ms() - began_ms >= 900


def test_abandoning_drops_what_is_staged(jobs: Publications) -> None:
    jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("a"))
    assert [(view.writer, view.staged) for view in jobs.writers()] == [("w", 1)]
    jobs.abandon("w", batch=0)
    assert [(view.writer, view.staged) for view in jobs.writers()] == [("w", 0)]


def test_refusals_tell_which_and_why(jobs: Publications) -> None:
    with pytest.raises(ClientError, match="Message 1 was refused") as caught:
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("x", "y" * 1_048_577))
    told = {name: caught.value.fields[name] for name in ("index", "why", "bytes_max")}
    assert told == {"index": 1, "why": "MessageTooLong", "bytes_max": 1_048_576}
    with pytest.raises(ClientError, match="Message 0 was refused") as caught:
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(""))
    assert (caught.value.code, caught.value.fields["index"]) == ("StageRefused", 0)
    with pytest.raises(ClientError) as caught:
        jobs.publish("w", batch=0, attempts=[("a", 1)])
    assert (caught.value.code, caught.value.status) == ("StageMissing", 409)


def test_an_answer_of_something_else_is_called_that() -> None:
    with ScriptedServer(reply(200, b"<html>")) as other, Publications(other.endpoint, "a/000000000000/jobs") as jobs:
        with pytest.raises(ClientError) as caught:
            jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("x"))
        assert caught.value.code == UNEXPECTED_REPLY
