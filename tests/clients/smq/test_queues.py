"""Queues of SMQ, through its official Python SDK."""

import json
import runpy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mns.account import Account, AccountMeta
from mns.mns_exception import MNSClientParameterException, MNSServerException
from mns.queue import Message, Queue, QueueMeta

from tests.clients.smq.conftest import HERE, account_at
from tests.clients.smq.raw import smq_request
from tests.server.keys import OWNER, REGION, SECRETS, TOKEN, client, written
from veilmq.testing import RunningServer

DEFAULTS = {
    "delay_seconds": 0,
    "logging_enabled": False,
    "maximum_message_size": 65_536,
    "message_retention_period": 345_600,
    "polling_wait_seconds": 0,
    "visibility_timeout": 30,
}


def settable(queue: Queue) -> dict[str, object]:
    attributes = vars(queue.get_attributes())
    return {name: attributes[name] for name in DEFAULTS}


def counts(queue: Queue) -> tuple[int, int, int]:
    """Return the numbers of active, inactive and delayed messages, without the SDK's deprecated accessors."""
    attributes = vars(queue.get_attributes())
    return attributes["_active_messages"], attributes["_inactive_messages"], attributes["_delay_messages"]


def raises_smq_error(code: str) -> "pytest.RaisesExc[MNSServerException]":
    return pytest.RaisesExc(MNSServerException, check=lambda error: error.type == code)


def test_new_queue_has_defaults_of_smq(account: Account, server: RunningServer) -> None:
    queue = account.get_queue("jobs")
    assert queue.create(QueueMeta()) == f"{server.endpoint}/queues/jobs"
    assert settable(queue) == DEFAULTS
    attributes = queue.get_attributes()
    assert (attributes.queue_name, attributes.create_time, attributes.last_modify_time) == (
        "jobs",
        1_700_000_000,
        1_700_000_000,
    )
    assert counts(queue) == (0, 0, 0)


def test_existing_queue_is_found_if_given_attributes_match(account: Account) -> None:
    queue = account.get_queue("jobs")
    made = queue.create(QueueMeta(vis_timeout=100, delay_sec=10))
    assert queue.create(QueueMeta()) == queue.create(QueueMeta(vis_timeout=100)) == made
    with raises_smq_error("QueueAlreadyExist"):
        queue.create(QueueMeta(vis_timeout=101))
    assert settable(queue) == DEFAULTS | {"visibility_timeout": 100, "delay_seconds": 10}


def test_attributes_are_changed_one_by_one(queue: Queue, server: RunningServer) -> None:
    server.advance(seconds=5)
    wanted = {
        "delay_seconds": 604_800,
        "logging_enabled": True,
        "maximum_message_size": 1_024,
        "message_retention_period": 60,
        "polling_wait_seconds": 30,
        "visibility_timeout": 43_200,
    }
    so_far = dict(DEFAULTS)
    for name, value in wanted.items():
        meta = QueueMeta()
        setattr(meta, name, value)
        queue.set_attributes(meta)
        so_far[name] = value
        assert settable(queue) == so_far
    attributes = queue.get_attributes()
    assert (attributes.create_time, attributes.last_modify_time) == (1_700_000_000, 1_700_000_005)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delay_seconds", 604_801),
        ("maximum_message_size", 1_023),
        ("maximum_message_size", 65_537),
        ("message_retention_period", 59),
        ("message_retention_period", 604_801),
        ("polling_wait_seconds", 31),
        ("visibility_timeout", 43_201),
    ],
)
def test_values_out_of_range_are_rejected(queue: Queue, name: str, value: int) -> None:
    meta = QueueMeta()
    setattr(meta, name, value)
    with raises_smq_error("InvalidArgument"):
        queue.set_attributes(meta)
    with raises_smq_error("InvalidArgument"):
        Queue("other", queue.mns_client).create(meta)
    assert settable(queue) == DEFAULTS


def test_deleted_queue_loses_messages_and_can_be_created_again_at_once(queue: Queue) -> None:
    """SMQ has no purge, so it can be created without a pause; deleting a missing queue is no error."""
    queue.send_message(Message("m"))
    queue.delete()
    queue.delete()
    with raises_smq_error("QueueNotExist"):
        queue.get_attributes()
    queue.create(QueueMeta())
    assert counts(queue) == (0, 0, 0)


def test_queues_are_listed_by_pages(account: Account, server: RunningServer) -> None:
    for name in ("b2", "a", "b1", "b3"):
        account.get_queue(name).create(QueueMeta())
    urls = {name: f"{server.endpoint}/queues/{name}" for name in ("a", "b1", "b2", "b3")}
    assert account.list_queue() == (list(urls.values()), "")
    page, marker = account.list_queue(prefix="b", ret_number=2)
    assert page == [urls["b1"], urls["b2"]]
    assert marker
    assert account.list_queue(prefix="b", ret_number=2, marker=marker) == ([urls["b3"]], "")
    assert account.list_queue(prefix="c") == ([], "")


def test_invalid_page_size_and_marker_are_rejected(account: Account) -> None:
    for arguments in ({"ret_number": 1_001}, {"marker": "é"}):
        with raises_smq_error("InvalidArgument"):
            account.list_queue(**arguments)


def test_every_operation_reports_missing_queue(account: Account) -> None:
    queue = account.get_queue("none")
    for operation in (
        queue.get_attributes,
        lambda: queue.set_attributes(QueueMeta(vis_timeout=1)),
        lambda: queue.send_message(Message("m")),
        lambda: queue.batch_send_message([Message("m")]),
        queue.receive_message,
        lambda: queue.receive_message(1),
        lambda: queue.batch_receive_message(2),
        queue.peek_message,
        lambda: queue.batch_peek_message(2),
        lambda: queue.delete_message("r"),
        lambda: queue.batch_delete_message(["r"]),
        lambda: queue.change_message_visibility("r", 1),
    ):
        with raises_smq_error("QueueNotExist"):
            operation()


def test_account_keeps_logging_bucket(account: Account) -> None:
    assert account.get_attributes().logging_bucket == ""
    account.set_attributes(AccountMeta("bucket"))
    account.set_attributes(AccountMeta())
    assert account.get_attributes().logging_bucket == "bucket"
    account.open_service()


def test_sdk_finds_request_id(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """In debug mode it looks up the header case-sensitively after every request."""
    with account_at(server) as account:
        account.set_debug(True)
        account.get_queue("jobs").create(QueueMeta())
    assert "RequestId: " in capsys.readouterr().out


def test_program_of_client_docs_reaches_server(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILMQ_ENDPOINT", server.endpoint)
    account = runpy.run_path(str(HERE.parent / "python" / "smq_connect.py"))["smq"]
    assert account.list_queue() == ([], "")
    account.mns_client.close_connection()


# How long a message of SMQ is hidden, to the millisecond, and which handles are valid.


TWELVE_HOURS_S = 43_200
RULES = json.dumps({"version": 1, "classes": [{"name": "all", "visibility_timeout_s": TWELVE_HOURS_S}], "default": 0})


@pytest.fixture
def other(server: RunningServer) -> Iterator[Queue]:
    with account_at(server) as account:
        yield account.get_queue("jobs")


def hidden_until(queue: Queue, server: RunningServer, at_ms: int) -> Message:
    """Check that a message is hidden until ``at_ms``, then receive and return it."""
    server.advance(at_ms - server.clock.now_ms() - 1)
    with raises_smq_error("MessageNotExist"):
        queue.receive_message_with_str_body()
    server.advance(1)
    return queue.receive_message_with_str_body()


@pytest.mark.parametrize("timeout_s", [1, TWELVE_HOURS_S])
def test_queue_hides_messages_for_its_timeout(account: Account, server: RunningServer, timeout_s: int) -> None:
    queue = account.get_queue("jobs")
    queue.create(QueueMeta(vis_timeout=timeout_s))
    queue.send_message(Message("m"))
    got = queue.receive_message()
    assert got.next_visible_time == server.clock.now_ms() + timeout_s * 1_000
    hidden_until(queue, server, got.next_visible_time)


@pytest.mark.parametrize("settings", [{"visibility_timeout_s": TWELVE_HOURS_S}, {"visibility_rules": RULES}], ids=list)
def test_timeout_of_long_poll_starts_with_its_reply(
    account: Account, other: Queue, server: RunningServer, settings: dict[str, Any]
) -> None:
    server.queue("jobs", **settings)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.receive_message, 30)
        server.wait_parked()
        server.advance(seconds=29)
        account.get_queue("jobs").send_message(Message("m"))
        assert waiting.result(60).next_visible_time == server.clock.now_ms() + TWELVE_HOURS_S * 1_000


@pytest.mark.parametrize("timeout_s", [1, TWELVE_HOURS_S])
def test_new_timeout_starts_with_the_change(queue: Queue, server: RunningServer, timeout_s: int) -> None:
    queue.set_attributes(QueueMeta(vis_timeout=TWELVE_HOURS_S))
    queue.send_message(Message("m"))
    got = queue.receive_message()
    server.advance(seconds=20_000)
    changed = queue.change_message_visibility(got.receipt_handle, timeout_s)
    assert int(changed.next_visible_time) == server.clock.now_ms() + timeout_s * 1_000
    assert hidden_until(queue, server, int(changed.next_visible_time)).dequeue_count == 2


def test_timeouts_of_0_and_43201_are_rejected(queue: Queue, server: RunningServer) -> None:
    """The SDK sends the 0, which the server rejects; it rejects 43,201 itself."""
    queue.send_message(Message("m"))
    got = queue.receive_message()
    with raises_smq_error("InvalidArgument"):
        queue.change_message_visibility(got.receipt_handle, 0)
    with pytest.raises(MNSClientParameterException):
        queue.change_message_visibility(got.receipt_handle, TWELVE_HOURS_S + 1)
    target = f"/queues/jobs/messages?ReceiptHandle={got.receipt_handle}&VisibilityTimeout={TWELVE_HOURS_S + 1}"
    assert smq_request(server, "PUT", target).code == "InvalidArgument"
    hidden_until(queue, server, got.next_visible_time)


def test_change_replaces_the_receipt_handle(queue: Queue) -> None:
    queue.send_message(Message("m"))
    old = queue.receive_message().receipt_handle
    new = queue.change_message_visibility(old, 60).receipt_handle
    assert new != old
    with raises_smq_error("MessageNotExist"):
        queue.delete_message(old)
    with raises_smq_error("MessageNotExist"):
        queue.change_message_visibility(old, 60)
    newer = queue.change_message_visibility(new, 60).receipt_handle
    with raises_smq_error("MessageNotExist"):
        queue.delete_message(new)
    queue.delete_message(newer)
    with raises_smq_error("MessageNotExist"):
        queue.delete_message(newer)


def test_handle_expires_when_message_becomes_visible(queue: Queue, server: RunningServer) -> None:
    queue.batch_send_message([Message("a"), Message("b")])
    first, second = (each.receipt_handle for each in queue.batch_receive_message(2))
    server.advance(29_999)
    queue.delete_message(first)
    server.advance(1)
    with raises_smq_error("MessageNotExist"):
        queue.delete_message(second)
    with raises_smq_error("MessageNotExist"):
        queue.change_message_visibility(second, 1)
    assert counts(queue) == (1, 0, 0)


def test_lenient_handles_work_until_the_next_receive() -> None:
    with RunningServer(smq_handles="lenient") as server, account_at(server) as account:
        queue = account.get_queue("jobs")
        queue.create(QueueMeta())
        queue.batch_send_message([Message("a"), Message("b")])
        first, second = (each.receipt_handle for each in queue.batch_receive_message(2))
        for handle in (first, second):
            queue.change_message_visibility(handle, 60)
        queue.delete_message(first)
        queue.change_message_visibility(second, 10)
        server.advance(seconds=10)
        queue.receive_message()
        with raises_smq_error("MessageNotExist"):
            queue.delete_message(second)
        assert counts(queue) == (0, 1, 0)


# Signatures of the SDK, on a server that verifies them.


@pytest.fixture
def verifying(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        yield running


@pytest.mark.parametrize("key", ["AKIDOWNER", "AKIDCAROL", "ASIDBOB"])
def test_server_verifies_signature_of_every_operation(verifying: RunningServer, key: str) -> None:
    with account_at(verifying, key, SECRETS[key], token=TOKEN if key == "ASIDBOB" else "") as account:
        queue = account.get_queue("jobs")
        assert queue.create(QueueMeta()) == f"{verifying.endpoint}/queues/jobs"
        queue.set_attributes(QueueMeta(vis_timeout=60))
        assert queue.get_attributes().visibility_timeout == 60
        assert account.list_queue(prefix="j", ret_number=1)[0] == [f"{verifying.endpoint}/queues/jobs"]
        queue.send_message(Message("one \u00e9"))
        queue.batch_send_message([Message("two"), Message("three")])
        assert queue.peek_message().message_body == "one \u00e9".encode()
        assert len(queue.batch_peek_message(16)) == 3
        first = queue.receive_message(wait_seconds=0)
        changed = queue.change_message_visibility(first.receipt_handle, 30)
        queue.delete_message(changed.receipt_handle)
        queue.batch_delete_message([each.receipt_handle for each in queue.batch_receive_message(16, wait_seconds=1)])
        queue.delete()


def test_same_key_reaches_same_queue_over_both_protocols(verifying: RunningServer) -> None:
    with account_at(verifying, "AKIDOWNER", SECRETS["AKIDOWNER"]) as account:
        queue = account.get_queue("jobs")
        client(verifying).create_queue(QueueName="jobs")
        queue.set_encoding(False)
        queue.send_message(Message("hello"))
        received = client(verifying).receive_message(QueueUrl=f"{verifying.endpoint}/{OWNER}/jobs")["Messages"]
        assert [message["Body"] for message in received] == ["hello"]


@pytest.mark.parametrize(
    ("key", "secret", "token", "code"),
    [
        ("AKIDOWNER", "another", "", "SignatureDoesNotMatch"),
        ("STRANGER", "any", "", "InvalidAccessKeyId"),
        ("ASIDBOB", SECRETS["ASIDBOB"], "", "InvalidAccessKeyId"),
        ("ASIDBOB", SECRETS["ASIDBOB"], "another", "InvalidAccessKeyId"),
    ],
)
def test_invalid_signatures_are_rejected(
    verifying: RunningServer, key: str, secret: str, token: str, code: str
) -> None:
    with account_at(verifying, key, secret, token=token) as account, raises_smq_error(code):
        account.list_queue()
