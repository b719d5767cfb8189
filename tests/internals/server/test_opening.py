"""From the settings to an open store, and what is said where there is none to be had."""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.internals.store.known import unpack
from tests.proofs.served import StartNode, starting_nodes
from tests.server.keys import client
from veilmq.store.port import StoreError
from veilmq.testing import RunningServer

SECRET = "s3cret"


def cycle(endpoint: str) -> list[Any]:
    """Send, receive and delete a message; return the bodies of what is received, and of what is left."""
    sqs = client(endpoint)
    queue = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    left = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    return [message["Body"], left["ApproximateNumberOfMessages"], left["ApproximateNumberOfMessagesNotVisible"]]


def test_a_node_on_postgresql_serves(start_node: StartNode) -> None:
    """Real clients, real sockets, a real database; a second node sees what the first was told."""
    first = start_node()
    assert cycle(first.endpoint) == ["a", "0", "0"]
    second = start_node()
    assert [url.rpartition("/")[2] for url in client(second.endpoint).list_queues()["QueueUrls"]] == ["jobs"]
    assert "messages are kept in PostgreSQL, postgresql://" in first.log.read_text()


def test_a_folder_of_the_engine_before_is_converted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the first start; receipts given before act after it, and the old database stays."""
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


def test_the_clock_of_a_test_moves_the_database(server_on_postgres: RunningServer) -> None:
    """Nothing is visible again before the timeout, everything at it."""
    sqs = client(server_on_postgres.endpoint)
    queue = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    assert len(sqs.receive_message(QueueUrl=queue)["Messages"]) == 1
    server_on_postgres.advance(seconds=30, ms=-1)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    server_on_postgres.advance(1)
    assert len(sqs.receive_message(QueueUrl=queue)["Messages"]) == 1


def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    """It says which, and why."""
    url = f"postgresql://somebody:{SECRET}@127.0.0.1:1/queues"
    with pytest.raises(StoreError, match=r"somebody:\*\*\*@127\.0\.0\.1:1/queues cannot be used: ") as refused:
        RunningServer(store=url).__enter__()
    assert SECRET not in str(refused.value)


def test_none_of_several_databases_is_passed_over() -> None:
    """Nobody serves from those alone that can be reached; and no password is told."""
    with pytest.raises(StoreError) as refused:
        RunningServer(store=f"postgresql://u:{SECRET}@127.0.0.1:1/x,postgresql://u:{SECRET}@127.0.0.1:1/y").__enter__()
    assert SECRET not in str(refused.value)


def test_a_missing_driver_is_named_with_the_way_to_get_it() -> None:
    """One line, exit code 1."""
    code = (
        "import sys; sys.modules['asyncpg'] = None; from veilmq.cli import main; "
        "sys.exit(main(['serve', '--store', 'postgresql://nowhere/x', '--port', '0', '--admin-port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"^veilmq: store \(--store\) needs the module asyncpg.*veilmq\[postgres\]'$", done.stderr, re.M)


def test_no_password_is_told(new_database: str, tmp_path: Path) -> None:
    """Neither in what a person is told, nor in what is logged, nor among the metrics."""
    with starting_nodes(new_database.replace(":@", f":{SECRET}@"), tmp_path) as start:
        node = start("--log-level", "debug")
        assert cycle(node.endpoint) == ["a", "0", "0"]
        with urllib.request.urlopen(node.admin_endpoint + "/metrics", timeout=60) as metrics:
            told = metrics.read().decode() + node.log.read_text()
    assert (SECRET in told, "***" in told) == (False, True)
