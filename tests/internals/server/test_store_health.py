"""Health and metrics of a server whose database comes and goes."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from botocore.exceptions import ClientError

from tests.internals.server.test_admin import get
from tests.server.keys import client
from veilmq.store.port import STANDBY, UNREACHABLE, StoreError
from veilmq.testing import RunningServer, SystemClock
from veilmq.testing.postgres_server import PostgresServer, temporary_folder

pytestmark = pytest.mark.slow

UNSYNCED = {"fsync": "off"}


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    """Run a server of PostgreSQL that a test may stop, and starts again; each has a queue of its own."""
    with temporary_folder() as folder, PostgresServer(folder / "primary", settings=UNSYNCED) as server:
        yield server


def figures(server: RunningServer) -> dict[str, float]:
    """Return the metrics of the store by name and labels."""
    lines = [line for line in get(server, "/metrics")[1].splitlines() if line.startswith("veilmq_store_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_server_is_ready_while_its_database_is(database: PostgresServer) -> None:
    """It says why it is not, refuses with what clients retry, and goes on by itself; what was sent is there."""
    with RunningServer(store=database.url, clock=SystemClock()) as server:
        sqs = client(server)
        queue = sqs.create_queue(QueueName="kept")["QueueUrl"]
        sqs.send_message(QueueUrl=queue, MessageBody="a")
        assert get(server, "/health/ready") == (200, "ready\n")
        database.stop()
        server.wait_until(lambda: get(server, "/health/ready") == (503, f"{UNREACHABLE}\n"))
        assert get(server, "/health/live")[0] == 200
        with pytest.raises(ClientError) as refused:
            sqs.send_message(QueueUrl=queue, MessageBody="b")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
        told = figures(server)
        assert told["veilmq_store_reachable"] == 0
        assert told["veilmq_store_connection_failures_total"] > 0
        database.start()
        server.wait_until(lambda: get(server, "/health/ready") == (200, "ready\n"))
        assert figures(server)["veilmq_store_reachable"] == 1
        assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "a"


SEND = urlencode({"Action": "SendMessage", "QueueUrl": "/000000000000/jobs", "MessageBody": "b"}).encode()
Asked = tuple[str, bytes | None, dict[str, str]]
QUERY: Asked = ("/", SEND, {})
SMQ: Asked = ("/queues/jobs/messages", None, {"x-mns-version": "2015-06-06"})
RECEIVER = "<Type>Receiver</Type><Code>ServiceUnavailable</Code>"


def asked(server: RunningServer, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    request = urllib.request.Request(server.endpoint + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_every_protocol_says_that_it_may_be_tried_again(database: PostgresServer) -> None:
    """In its own words, and nothing is kept of what was refused; then it is served."""
    with RunningServer(store=database.url, clock=SystemClock()) as server:
        client(server).create_queue(QueueName="jobs")
        database.kill()
        server.wait_until(lambda: get(server, "/health/ready")[0] == 503)
        for request, status, code in ((QUERY, 503, RECEIVER), (SMQ, 500, "<Code>InternalServerError</Code>")):
            refused = asked(server, *request)
            assert (refused[0], code in "".join(refused[1].split())) == (status, True), refused[1]
        database.start()
        server.wait_until(lambda: get(server, "/health/ready")[0] == 200)
        assert server.queue("jobs").counts.visible == 0
        assert [asked(server, *request)[0] for request in (QUERY, SMQ)] == [200, 200]


def test_a_server_that_finds_a_standby_is_not_ready(database: PostgresServer) -> None:
    """Nothing can be kept there until it is promoted; a server that is started meanwhile says so."""
    with RunningServer(store=database.url, clock=SystemClock()) as server:
        standby = PostgresServer(database.folder.parent / "standby", port=database.port, settings=UNSYNCED)
        standby.make_standby(database)
        database.stop()
        with standby:
            server.wait_until(lambda: get(server, "/health/ready") == (503, f"{STANDBY}\n"))
            with pytest.raises(StoreError, match="is a standby, which keeps nothing: name the primary"):
                RunningServer(store=database.url).__enter__()
            standby.promote()
            server.wait_until(lambda: get(server, "/health/ready") == (200, "ready\n"))
    database.start()


def test_the_metrics_tell_how_the_database_does(server_on_postgres: RunningServer) -> None:
    """Connections, how many commands it was asked, how long they took; and the counts of queues as of any store."""
    jobs = server_on_postgres.queue("jobs")
    for body in "abc":
        client(server_on_postgres).send_message(QueueUrl=jobs.url, MessageBody=body)
    told = figures(server_on_postgres)
    assert told['veilmq_store_commands_total{command="Send"}'] == 3
    assert told['veilmq_store_turn_duration_seconds_count{command="Send"}'] == 3
    assert told['veilmq_store_turn_duration_seconds_bucket{command="Send",le="+Inf"}'] == 3
    assert told["veilmq_store_reachable"] == 1
    assert 0 <= told["veilmq_store_connections_in_use"] <= told["veilmq_store_connections_open"]
    assert told["veilmq_store_connections_open"] <= told["veilmq_store_connections_max"]
    text = get(server_on_postgres, "/metrics")[1]
    assert 'veilmq_queue_messages_visible{queue="000000000000/jobs"} 3.0' in text
    assert "veilmq_queues 1.0" in text
