"""The Python SDK's signatures, verified: every operation on queues with the right key, none with another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mns.account import Account
from mns.mns_exception import MNSServerException
from mns.queue import Message, QueueMeta

from tests.server.keys import OWNER, REGION, SECRETS, TOKEN, client, written
from veilmq.testing import RunningServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        yield running


@contextmanager
def opened(server: RunningServer, key: str = "AKIDOWNER", *, secret: str = "", token: str = "") -> Iterator[Account]:
    account = Account(server.endpoint, key, secret or SECRETS[key], security_token=token)
    try:
        yield account
    finally:
        account.mns_client.close_connection()


def code(server: RunningServer, key: str = "AKIDOWNER", *, secret: str = "", token: str = "") -> str:
    with opened(server, key, secret=secret, token=token) as account, pytest.raises(MNSServerException) as caught:
        account.list_queue()
    return str(caught.value.type)


@pytest.mark.parametrize("key", ["AKIDOWNER", "AKIDCAROL", "ASIDBOB"])
def test_every_operation_is_signed_as_the_server_reads_it(server: RunningServer, key: str) -> None:
    with opened(server, key, token=TOKEN if key == "ASIDBOB" else "") as account:
        queue = account.get_queue("jobs")
        assert queue.create(QueueMeta()) == f"{server.endpoint}/queues/jobs"
        meta = QueueMeta()
        meta.set_visibilitytimeout(60)
        queue.set_attributes(meta)
        assert queue.get_attributes().visibility_timeout == 60
        assert account.list_queue(prefix="j", ret_number=1)[0] == [f"{server.endpoint}/queues/jobs"]
        queue.send_message(Message("one \u00e9"))
        queue.batch_send_message([Message("two"), Message("three")])
        assert queue.peek_message().message_body == "one \u00e9".encode()
        assert len(queue.batch_peek_message(16)) == 3
        first = queue.receive_message(wait_seconds=0)
        changed = queue.change_message_visibility(first.receipt_handle, 30)
        queue.delete_message(changed.receipt_handle)
        queue.batch_delete_message([each.receipt_handle for each in queue.batch_receive_message(16, wait_seconds=1)])
        queue.delete()


def test_a_queue_of_one_protocol_is_the_other_ones_for_the_same_key(server: RunningServer) -> None:
    with opened(server) as account:
        queue = account.get_queue("jobs")
        client(server).create_queue(QueueName="jobs")
        queue.set_encoding(False)
        queue.send_message(Message("hello"))
        received = client(server).receive_message(QueueUrl=f"{server.endpoint}/{OWNER}/jobs")["Messages"]
        assert [message["Body"] for message in received] == ["hello"]


def test_who_cannot_sign_is_refused(server: RunningServer) -> None:
    assert code(server, secret="another") == "SignatureDoesNotMatch"
    assert code(server, "STRANGER", secret="any") == "InvalidAccessKeyId"
    assert code(server, "ASIDBOB") == "InvalidAccessKeyId"
    assert code(server, "ASIDBOB", token="another") == "InvalidAccessKeyId"
