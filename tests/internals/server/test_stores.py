"""Opening the store that the settings name, exporting events from it, and serving while its database is down."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import urllib3
from botocore.exceptions import ClientError
from pyarrow import dataset

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.internals.server.test_admin import get
from tests.internals.store.known import unpack
from tests.proofs.served import starting_nodes
from tests.server.keys import client
from tests.store.postgres_host import END_OTHERS, execute, making_database, serving_from
from veilmq.cli import main
from veilmq.client import HttpQueueClient
from veilmq.core.errors import StoreUnavailable
from veilmq.core.settings import SettingValue
from veilmq.events import EventsError
from veilmq.events.exporter import Target
from veilmq.server.settings import ServerSettings, SettingError
from veilmq.store.port import STANDBY, UNREACHABLE, StoreError
from veilmq.store.sqlite.copying import Unfinished
from veilmq.testing import RunningServer, SystemClock

pytestmark = pytest.mark.slow

SECRET = "s3cret"


def test_a_data_folder_of_the_earlier_format_is_converted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the first start: receipts issued before it stay valid, and the old database file is kept."""
    data, known = unpack("small", tmp_path)
    for hidden in ("1", "0"):
        with RunningServer(data=data) as server:
            sqs = client(server.endpoint)
            queue = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
            counted = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
            assert counted["ApproximateNumberOfMessages"] == "1"
            assert counted["ApproximateNumberOfMessagesNotVisible"] == hidden
            (receipt,) = known.receipts["000000000000/jobs"]
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=receipt)
    assert sorted(each.name for each in data.glob("*.db*")) == ["store.db", "veilmq.db.before-store"]
    assert caplog.text.count("2 of 2 messages") == 1


def test_the_in_flight_limit_of_fifo_queues_is_that_of_the_setting() -> None:
    with RunningServer(fifo_in_flight_max=1) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders.fifo", {"fifo": True})
        for each in "ab":
            client.send("orders.fifo", each, group=each, dedup_id=each)
        assert [len(client.receive("orders.fifo", count=10)) for _ in range(2)] == [1, 0]


def test_an_interrupt_ends_a_copy_of_a_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Unfinished) -> None:
        signal.raise_signal(signal.SIGINT)

    with RunningServer(data=tmp_path / "store") as server:
        server.queue("orders")
    monkeypatch.setattr(Unfinished, "check", interrupted)
    assert main(["copy", "--from", str(tmp_path / "store"), "--to", str(tmp_path / "copy")]) == 130
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("databases", [1, 2])
def test_an_unreachable_database_is_an_error_without_the_password(databases: int) -> None:
    """All configured databases must be reachable, not just one of them."""
    urls = [f"postgresql://somebody:{SECRET}@127.0.0.1:1/queues{number}" for number in range(databases)]
    with pytest.raises(StoreError, match=r"somebody:\*\*\*@127\.0\.0\.1:1/queues\d cannot be used: ") as refused:
        RunningServer(store=",".join(urls)).__enter__()
    assert SECRET not in str(refused.value)


def test_a_missing_driver_is_an_error_with_the_install_command() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None; from veilmq.cli import main; "
        "sys.exit(main(['serve', '--store', 'postgresql://nowhere/x', '--port', '0', '--admin-port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"^veilmq: store \(--store\) needs the module asyncpg.*veilmq\[postgres\]'$", done.stderr, re.M)


def test_passwords_are_in_neither_log_nor_metrics(new_database: str, tmp_path: Path) -> None:
    with starting_nodes(new_database.replace(":@", f":{SECRET}@"), tmp_path) as start:
        node = start("--log-level", "debug")
        use(node.endpoint)
        assert "messages are kept in PostgreSQL, postgresql://" in node.log.read_text()
        with urllib.request.urlopen(node.admin_endpoint + "/metrics", timeout=60) as metrics:
            output = metrics.read().decode() + node.log.read_text()
    assert (SECRET in output, "***" in output) == (False, True)


def use(endpoint: str, settings: dict[str, SettingValue] | None = None) -> None:
    """Create a queue, send a message to it, receive and delete it."""
    client = HttpQueueClient(endpoint)
    client.create_queue("jobs", settings or {})
    client.send("jobs", "a")
    (received,) = client.receive("jobs")
    client.delete("jobs", received.receipt)
    client.close()


def flush(server: RunningServer) -> urllib3.BaseHTTPResponse:
    return urllib3.request("POST", f"{server.admin_endpoint}/events/flush")


def outcomes(folder: Path) -> list[str]:
    if not (folder / "receipt_closed").exists():
        return []
    found: list[str] = dataset.dataset(folder, partitioning="hive").to_table()["outcome"].to_pylist()
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(events_to=str(tmp_path / "events")) as running:
        yield running


def test_a_flush_that_takes_too_long_continues_in_the_background(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is 202, as the admin port limits the time of a request; the next flush waits for the same export."""
    began, may_end = threading.Event(), threading.Event()
    put = Target.put

    def slow(target: Target, folder: str, name: str, table: Any) -> None:
        began.set()
        may_end.wait(60)
        put(target, folder, name, table)

    monkeypatch.setattr(Target, "put", slow)
    monkeypatch.setattr("veilmq.server.admin.FLUSH_S_MAX", 0.01)
    use(server.endpoint)
    reply = flush(server)
    assert (reply.status, reply.json()) == (202, {"exported": 0, "waiting": 1, "dropped": 0})
    assert began.wait(60)
    may_end.set()
    monkeypatch.setattr("veilmq.server.admin.FLUSH_S_MAX", 30)
    reply = flush(server)
    assert (reply.status, reply.json()) == (200, {"exported": 1, "waiting": 0, "dropped": 0})
    assert outcomes(tmp_path / "events") == ["deleted"]


def test_a_failed_export_is_reported_and_counted(server: RunningServer, tmp_path: Path) -> None:
    use(server.endpoint)
    (tmp_path / "events" / "receipt_closed").write_text("in the way")
    reply = flush(server)
    assert reply.status == 503
    assert "Events cannot be exported to" in reply.data.decode()
    text = get(server, "/metrics")[1]
    assert "veilmq_event_export_failures_total 1.0" in text
    (tmp_path / "events" / "receipt_closed").unlink()


def test_each_event_is_exported_by_one_of_the_servers_on_a_database(postgres_url: str, tmp_path: Path) -> None:
    events = str(tmp_path / "events")
    with serving_from(postgres_url, events_to=events) as first:
        use(first.endpoint)
        with RunningServer(store=postgres_url, events_to=events, clock=first.clock) as second:
            assert flush(second).json() == {"exported": 1, "waiting": 0, "dropped": 0}
            assert outcomes(tmp_path / "events") == ["deleted"]
            assert flush(first).json() == {"exported": 1, "waiting": 0, "dropped": 0}
    assert outcomes(tmp_path / "events") == ["deleted"]


def test_a_missing_pyarrow_is_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "veilmq.events.exporter", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EventsError, match=r"pip install 'veilmq\[arrow\]'"), RunningServer(events_to=str(tmp_path)):
        pass


def test_an_events_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "x")
    with pytest.raises(EventsError, match=r"cannot be made: .*\."), RunningServer(events_to=folder):
        pass


UNSYNCED = {"fsync": "off"}


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    """A PostgreSQL server that tests stop and start again; each test uses its own queue."""
    with temporary_folder() as folder, PostgresServer(folder / "primary", settings=UNSYNCED) as server:
        yield server


def store_metrics(server: RunningServer) -> dict[str, float]:
    """Return the values of the metrics veilmq_store_*, keyed by name with labels."""
    lines = [line for line in get(server, "/metrics")[1].splitlines() if line.startswith("veilmq_store_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_readiness_follows_the_database(database: PostgresServer, tmp_path: Path) -> None:
    """While the database is down, requests get a retryable error; the server recovers by itself and keeps messages."""
    with RunningServer(store=database.url, clock=SystemClock(), events_to=str(tmp_path)) as server:
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
        reply = flush(server)
        assert (reply.status, reply.data.decode()) == (503, f"{StoreUnavailable()}\n")
        metrics = store_metrics(server)
        assert metrics["veilmq_store_reachable"] == 0
        assert metrics["veilmq_store_connection_failures_total"] > 0
        database.start()
        server.wait_until(lambda: get(server, "/health/ready") == (200, "ready\n"))
        assert store_metrics(server)["veilmq_store_reachable"] == 1
        assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "a"


@pytest.mark.parametrize("loss", ["the database", "connections", "the schema", "privileges", "writes"])
def test_a_server_whose_database_is_lost_is_not_ready(
    loss: str, database: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its requests get an error that clients retry, and its log has the database's reason, without tracebacks."""
    with making_database(database.url) as url, RunningServer(store=url, clock=SystemClock()) as server:
        queue, name = client(server).create_queue(QueueName="kept")["QueueUrl"], urlsplit(url).path[1:]
        if loss == "the database":
            asyncio.run(execute(database.url, f"DROP DATABASE {name} WITH (FORCE)"))
        elif loss == "connections":
            asyncio.run(execute(url, "SELECT 1"))  # this connection stays open
            asyncio.run(execute(database.url, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            asyncio.run(execute(url, END_OTHERS))
        elif loss == "the schema":
            asyncio.run(execute(url, "DROP SCHEMA mq CASCADE"))
        elif loss == "privileges":
            asyncio.run(execute(url, f"ALTER DATABASE {name} SET role = pg_monitor"))
            asyncio.run(execute(url, END_OTHERS))
        else:
            asyncio.run(execute(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
            asyncio.run(execute(url, END_OTHERS))
        reason = STANDBY if loss == "writes" else UNREACHABLE
        server.wait_until(lambda: get(server, "/health/ready") == (503, f"{reason}\n"))
        sqs = client(server)
        send = partial(sqs.send_message, QueueUrl=queue, MessageBody="b")
        for request in (send,) if loss == "writes" else (send, sqs.list_queues):  # a standby may be read
            with pytest.raises(ClientError) as refused:
                request()
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


SEND = urlencode({"Action": "SendMessage", "QueueUrl": "/000000000000/jobs", "MessageBody": "b"}).encode()
RawRequest = tuple[str, bytes | None, dict[str, str]]
QUERY: RawRequest = ("/", SEND, {"Content-Type": "application/x-www-form-urlencoded"})
SMQ: RawRequest = ("/queues/jobs/messages", None, {"x-mns-version": "2015-06-06"})
RECEIVER = "<Type>Receiver</Type><Code>ServiceUnavailable</Code>"


def send_raw(server: RunningServer, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
    method = "GET" if body is None else "POST"
    reply = urllib3.request(method, server.endpoint + path, body=body, headers=headers, retries=False)
    return reply.status, reply.data.decode()


def test_every_protocol_has_a_retryable_error_while_the_database_is_down(database: PostgresServer) -> None:
    """The failed requests have no effect, and later requests succeed."""
    with RunningServer(store=database.url, clock=SystemClock()) as server:
        client(server).create_queue(QueueName="jobs")
        database.kill()
        server.wait_until(lambda: get(server, "/health/ready")[0] == 503)
        for request, status, code in ((QUERY, 503, RECEIVER), (SMQ, 500, "<Code>InternalServerError</Code>")):
            refused = send_raw(server, *request)
            assert (refused[0], code in "".join(refused[1].split())) == (status, True), refused[1]
        database.start()
        server.wait_until(lambda: get(server, "/health/ready")[0] == 200)
        assert server.queue("jobs").counts.visible == 0
        assert [send_raw(server, *request)[0] for request in (QUERY, SMQ)] == [200, 200]


def test_a_server_on_a_standby_is_not_ready(database: PostgresServer) -> None:
    """It becomes ready when the standby is promoted. A server cannot be started on a standby."""
    with RunningServer(store=database.url, clock=SystemClock()) as server:
        standby = PostgresServer(database.folder.parent / "standby", port=database.port, settings=UNSYNCED)
        standby.make_standby(database)
        database.stop()
        with standby:
            server.wait_until(lambda: get(server, "/health/ready") == (503, f"{STANDBY}\n"))
            with pytest.raises(StoreError, match="is a standby, which accepts no writes: use the primary"):
                RunningServer(store=database.url).__enter__()
            standby.promote()
            server.wait_until(lambda: get(server, "/health/ready") == (200, "ready\n"))
    database.start()


def test_fewest_connections_create_a_queue(postgres_url: str) -> None:
    """One holds the place of the queue, the other one creates it."""
    with pytest.raises(SettingError, match="store_connections"):
        ServerSettings(store=postgres_url, store_connections=1)
    with serving_from(postgres_url, store_connections=2) as server:
        jobs = server.queue("jobs")
        assert client(server).send_message(QueueUrl=jobs.url, MessageBody="a")["MessageId"]


def test_store_metrics_on_postgres(server_on_postgres: RunningServer) -> None:
    jobs = server_on_postgres.queue("jobs")
    for body in "abc":
        client(server_on_postgres).send_message(QueueUrl=jobs.url, MessageBody=body)
    metrics = store_metrics(server_on_postgres)
    assert metrics['veilmq_store_commands_total{command="Send"}'] == 3
    assert metrics['veilmq_store_batch_duration_seconds_count{command="Send"}'] == 3
    assert metrics['veilmq_store_batch_duration_seconds_bucket{command="Send",le="+Inf"}'] == 3
    assert metrics["veilmq_store_reachable"] == 1
    assert 0 <= metrics["veilmq_store_connections_in_use"] <= metrics["veilmq_store_connections_open"]
    assert metrics["veilmq_store_connections_open"] <= metrics["veilmq_store_connections_max"]
    text = get(server_on_postgres, "/metrics")[1]
    assert 'veilmq_queue_messages_visible{queue="000000000000/jobs"} 3.0' in text
    assert "veilmq_queues 1.0" in text
