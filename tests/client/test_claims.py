"""The clients of claims and publications, against a running server and against scripted replies."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.client.scripted_server import ScriptedServer, reply
from tests.store.postgres_host import emptied
from veilmq.client import ClientError, HttpQueueClient, NewMessage
from veilmq.client.api import Claims, Forwards, Publications
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.core.claims import Acknowledged, Bound, ClaimState, Published, Staged
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.v1.arrow import SCHEMA
from veilmq.wire.v1.publications import OutgoingRow

BOUND = reply(200, b'{"number": 1, "messages": 2, "shards": 1}')
URL = "http://h/000000000000/jobs"


@pytest.fixture(scope="module", params=["memory", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """Run a server with a virtual clock."""
    place = emptied(request.getfixturevalue("postgres_url")) if request.param == "postgres" else {}
    with RunningServer(**place) as running:
        yield running


@pytest.fixture
def queues(server: RunningServer) -> Iterator[HttpQueueClient]:
    with HttpQueueClient(server.endpoint) as client:
        for name in client.list_queues():
            client.delete_queue(name)
        server.advance(60_000)
        client.create_queue("dead")
        client.create_queue("jobs", {"dead_letter_queue": "dead", "receives_max": 5})
        yield client


@pytest.fixture
def claims(server: RunningServer, queues: HttpQueueClient) -> Iterator[Claims]:
    with Claims(server.endpoint, "jobs") as client:
        yield client


def test_every_call(queues: HttpQueueClient, claims: Claims) -> None:
    for body in ("a", "b", "c"):
        queues.send("jobs", body, attributes={"n": Attribute("Number", "1")}, group="g")
    view = claims.open("s", consumer="c", hold_s=600, lease_s=60)
    assert (view.source, view.consumer, view.epoch, view.ready) == ("s", "c", 1, 3)
    assert claims.claim("s", epoch=1, number=1, messages_max=2, shard_messages=5) == Bound(
        number=1, messages=2, shards=1
    )
    (batch,) = claims.read("s", number=1)
    assert batch.schema.equals(SCHEMA)
    assert batch["body"].to_pylist() == ["a", "b"]
    assert batch["attributes"].to_pylist() == [[("n", "1")]] * 2
    assert claims.heartbeat("s", epoch=1).claims[0].state is ClaimState.OPEN
    assert claims.evict("s", number=1, message=batch["id"][0].as_py()).claims[0].messages == 1
    assert claims.acknowledge("s", epoch=1, number=1) == Acknowledged(acknowledged=1, lost=[])
    assert claims.claim("s", epoch=1, number=2, messages_max=2).messages == 1
    assert claims.release("s", number=2).claims[0].state is ClaimState.RELEASED
    assert [source.source for source in claims.sources()] == ["s"]
    claims.close_source("s")
    assert claims.sources() == []


def test_a_read_continues_over_several_replies(queues: HttpQueueClient, claims: Claims) -> None:
    """In the order of the queue."""
    for first in range(10):
        queues.send("jobs", f"{first}" * 1_000_000)
    claims.open("s")
    claims.claim("s", epoch=1, number=1, messages_max=100)
    batches = list(claims.read("s", number=1))
    assert [body[0] for batch in batches for body in batch["body"].to_pylist()] == list("0123456789")


def test_a_shard_without_messages_has_no_batches(queues: HttpQueueClient, claims: Claims) -> None:
    queues.send("jobs", "a")
    claims.open("s")
    claims.claim("s", epoch=1, number=1, messages_max=1)
    (batch,) = claims.read("s", number=1)
    claims.evict("s", number=1, message=batch["id"][0].as_py())
    assert list(claims.read("s", number=1)) == []


def test_a_claim_is_bounded_by_bytes(queues: HttpQueueClient, claims: Claims) -> None:
    for body in ("a", "b", "c"):
        queues.send("jobs", body * 1_000_000)
    claims.open("s")
    assert claims.claim("s", epoch=1, number=1, messages_max=10, bytes_max=2_097_152).messages == 2
    assert claims.claim("s", epoch=1, number=2, messages_max=10).messages == 1


def test_an_unknown_shard_is_an_error(queues: HttpQueueClient, claims: Claims) -> None:
    queues.send("jobs", "a")
    claims.open("s")
    claims.claim("s", epoch=1, number=1, messages_max=1)
    with pytest.raises(ClientError, match="no shard 1; its shards are 0 to 0"):
        list(claims.read("s", number=1, shard=1))


def test_a_queue_url_needs_no_lookup(server: RunningServer, queues: HttpQueueClient) -> None:
    with Claims(server.endpoint, queues.queue_url("jobs")) as claims:
        assert claims.open("s").epoch == 1


def test_an_error_has_the_name_of_its_class(claims: Claims) -> None:
    with pytest.raises(ClientError, match="open it first") as caught:
        claims.heartbeat("s", epoch=1)
    assert (caught.value.code, caught.value.status) == ("SourceNotFound", 404)


def test_a_missing_queue_has_the_code_of_sqs_by_name_and_ours_by_url(server: RunningServer) -> None:
    """The name is looked up with GetQueueUrl."""
    with Claims(server.endpoint, "none") as claims, pytest.raises(ClientError) as caught:
        claims.sources()
    assert caught.value.code == "QueueDoesNotExist"
    with (
        Claims(server.endpoint, f"{server.endpoint}/000000000000/none") as claims,
        pytest.raises(ClientError) as caught,
    ):
        claims.sources()
    assert caught.value.code == "QueueNotFound"


@pytest.mark.parametrize("response", [reply(404, b"<html>"), reply(404, b'{"x": 1}'), reply(200, b"{}")], ids=repr)
def test_a_reply_of_another_service_is_unexpected(response: bytes) -> None:
    scripted = ScriptedServer(response)
    with scripted, Claims(scripted.endpoint, URL) as claims, pytest.raises(ClientError) as caught:
        claims.claim("s", epoch=1, number=1, messages_max=5)
    assert caught.value.code == UNEXPECTED_REPLY


@pytest.mark.parametrize("entries", [
    b'[{"code": "ReceiptEnded"}]', b'[{"code": "ReceiptEnded", "message": "It ended.", "status": "no"}]', b"[{}]",
    b"[]", b'[{"id": "a"}, {"id": "b"}]', b'["a"]',
])  # fmt: skip
def test_a_malformed_result_of_a_forward_is_unexpected(entries: bytes) -> None:
    response = reply(200, b'{"entries": %b}' % entries)
    with ScriptedServer(response, response) as scripted, Forwards(scripted.endpoint, URL) as jobs:
        for call in (lambda: jobs.forward([("r", "done")]), lambda: jobs.dead_letter("r", "dead", {})):
            with pytest.raises(ClientError, match="not that of a queue server") as caught:
                call()
            assert caught.value.code == UNEXPECTED_REPLY


def test_invalid_arrow_is_unexpected() -> None:
    """No exception of pyarrow is raised."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, SCHEMA):
        pass
    truncated = stream.getvalue().to_pybytes()[:100]
    for body in (b"", b"<html>", truncated):
        with ScriptedServer(reply(200, body)) as other, Claims(other.endpoint, "a/000000000000/jobs") as claims:
            with pytest.raises(ClientError) as caught:
                list(claims.read("s", number=1))
            assert caught.value.code == UNEXPECTED_REPLY


def test_an_endpoint_may_have_a_path() -> None:
    """Paths of requests are below it."""
    with ScriptedServer(BOUND) as scripted, Claims(scripted.endpoint + "/queues/", URL) as claims:
        claims.claim("s", epoch=1, number=1, messages_max=5)
    assert scripted.requests[0].startswith(b"POST /queues/v1/claims/000000000000/jobs/claim HTTP/1.1\r\n")


def test_threads_can_share_a_client(queues: HttpQueueClient, claims: Claims) -> None:
    """They share one pool of connections."""
    for first in range(0, 400, 10):
        queues.send_batch("jobs", [NewMessage(body=str(first + n)) for n in range(10)])
    claims.open("s")
    bound = claims.claim("s", epoch=1, number=1, messages_max=400, shard_messages=100)
    with ThreadPoolExecutor(4) as threads:
        shards = list(threads.map(lambda shard: list(claims.read("s", number=1, shard=shard)), range(bound.shards)))
    table = pa.Table.from_batches([batch for shard in shards for batch in shard])
    assert sorted(map(int, table["body"].to_pylist())) == list(range(400))


# Publications.


MANY = 3_000


@pytest.fixture(params=["memory", "postgres"])
def publishing(
    request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]
) -> Iterator[RunningServer]:
    """Run a server with the queue `jobs`."""
    with RunningServer(**store_settings(request.param)) as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        yield running


@pytest.fixture
def jobs(publishing: RunningServer) -> Iterator[Publications]:
    with Publications(publishing.endpoint, "jobs") as publications:
        yield publications


def rows(*bodies: str) -> list[OutgoingRow]:
    return [OutgoingRow(body=body) for body in bodies]


def received(server: RunningServer) -> list[str]:
    """Receive ten messages and return their bodies."""
    with HttpQueueClient(server.endpoint) as client:
        return [message.body for message in client.receive("jobs", count=10, wait_s=0)]


def test_json_and_arrow_are_staged_and_published_in_order(publishing: RunningServer, jobs: Publications) -> None:
    assert jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("a1")) == Staged(messages=1)
    batch = pa.RecordBatch.from_pydict({"body": ["b1", "b2"]})
    assert jobs.stage_arrow("w", batch=0, attempt="b", part=0, messages=batch) == Staged(messages=2)
    assert jobs.stage_arrow("w", batch=0, attempt="b", part=0, messages=batch) == Staged(messages=2, again=True)
    assert jobs.publish("w", batch=0, attempts=[("b", 2), ("a", 1)]) == Published(messages=3)
    assert received(publishing) == ["b1", "b2", "a1"]
    assert jobs.publish("w", batch=0, attempts=[("b", 2), ("a", 1)]) == Published(messages=3, again=True)


def test_publish_returns_when_all_messages_are_in_the_queue(publishing: RunningServer, jobs: Publications) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [str(number) for number in range(MANY)]})
    jobs.stage_arrow("w", batch=0, attempt="a", part=0, messages=batch)
    assert jobs.publish("w", batch=0, attempts=[("a", MANY)]) == Published(messages=MANY)
    with HttpQueueClient(publishing.endpoint) as client:
        assert client.show("jobs").visible == MANY


def test_publish_waits_for_a_rate_limited_publication(publishing: RunningServer, jobs: Publications) -> None:
    """20 messages at 20 a second, the first two immediately: at least nine tenths of a second."""
    jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abcdefghijklmnopqrst"))
    began_ms = publishing.clock.now_ms()
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(jobs.publish, "w", batch=0, attempts=[("a", 20)], messages_per_s_max=20)
        while not slow.done():
            publishing.advance(10)
    assert slow.result() == Published(messages=20)
    assert publishing.clock.now_ms() - began_ms >= 900


def test_abandon_deletes_staged_messages(jobs: Publications) -> None:
    jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("a"))
    assert [(view.writer, view.staged) for view in jobs.writers()] == [("w", 1)]
    jobs.abandon("w", batch=0)
    assert [(view.writer, view.staged) for view in jobs.writers()] == [("w", 0)]


def test_an_error_of_staging_names_the_message_and_the_reason(jobs: Publications) -> None:
    with pytest.raises(ClientError, match="Message 1 was refused") as caught:
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("x", "y" * 1_048_577))
    fields = {name: caught.value.fields[name] for name in ("index", "why", "bytes_max")}
    assert fields == {"index": 1, "why": "MessageTooLong", "bytes_max": 1_048_576}
    with pytest.raises(ClientError, match="Message 0 was refused") as caught:
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(""))
    assert (caught.value.code, caught.value.fields["index"]) == ("StageRefused", 0)
    with pytest.raises(ClientError) as caught:
        jobs.publish("w", batch=0, attempts=[("a", 1)])
    assert (caught.value.code, caught.value.status) == ("StageMissing", 409)


def test_a_reply_of_another_service_to_stage_is_unexpected() -> None:
    with ScriptedServer(reply(200, b"<html>")) as other, Publications(other.endpoint, "a/000000000000/jobs") as jobs:
        with pytest.raises(ClientError) as caught:
            jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("x"))
        assert caught.value.code == UNEXPECTED_REPLY
