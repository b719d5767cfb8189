"""Queues of SMQ with its official Python SDK: attributes, listings, visibility, receipt handles and signatures."""

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
    found = vars(queue.get_attributes())
    return {name: found[name] for name in DEFAULTS}


def counts(queue: Queue) -> tuple[int, int, int]:
    """Return active, inactive and delayed messages, without the deprecated properties."""
    found = vars(queue.get_attributes())
    return found["_active_messages"], found["_inactive_messages"], found["_delay_messages"]


def refused(code: str) -> "pytest.RaisesExc[MNSServerException]":
    """Expect the SDK's exception with this code."""
    return pytest.RaisesExc(MNSServerException, check=lambda error: error.type == code)


def test_a_new_queue_has_the_defaults_of_smq(account: Account, server: RunningServer) -> None:
    queue = account.get_queue("jobs")
    assert queue.create(QueueMeta()) == f"{server.endpoint}/queues/jobs"
    assert settable(queue) == DEFAULTS
    found = queue.get_attributes()
    assert (found.queue_name, found.create_time, found.last_modify_time) == ("jobs", 1_700_000_000, 1_700_000_000)
    assert counts(queue) == (0, 0, 0)


def test_creating_a_queue_again_requires_equal_attributes(account: Account) -> None:
    queue = account.get_queue("jobs")
    made = queue.create(QueueMeta(vis_timeout=100, delay_sec=10))
    assert queue.create(QueueMeta()) == queue.create(QueueMeta(vis_timeout=100)) == made
    with refused("QueueAlreadyExist"):
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
    expected = dict(DEFAULTS)
    for name, value in wanted.items():
        meta = QueueMeta()
        setattr(meta, name, value)
        queue.set_attributes(meta)
        expected[name] = value
        assert settable(queue) == expected
    found = queue.get_attributes()
    assert (found.create_time, found.last_modify_time) == (1_700_000_000, 1_700_000_005)


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
def test_values_out_of_range_are_refused(queue: Queue, name: str, value: int) -> None:
    meta = QueueMeta()
    setattr(meta, name, value)
    with refused("InvalidArgument"):
        queue.set_attributes(meta)
    with refused("InvalidArgument"):
        Queue("other", queue.mns_client).create(meta)
    assert settable(queue) == DEFAULTS


def test_a_deleted_queue_can_be_created_again_at_once(queue: Queue) -> None:
    """Deletion is the purge of SMQ. Deleting a missing queue is not an error."""
    queue.send_message(Message("m"))
    queue.delete()
    queue.delete()
    with refused("QueueNotExist"):
        queue.get_attributes()
    queue.create(QueueMeta())
    assert counts(queue) == (0, 0, 0)


def test_queues_are_listed_in_pages(account: Account, server: RunningServer) -> None:
    for name in ("b2", "a", "b1", "b3"):
        account.get_queue(name).create(QueueMeta())
    urls = {name: f"{server.endpoint}/queues/{name}" for name in ("a", "b1", "b2", "b3")}
    assert account.list_queue() == (list(urls.values()), "")
    page, marker = account.list_queue(prefix="b", ret_number=2)
    assert page == [urls["b1"], urls["b2"]]
    assert marker
    assert account.list_queue(prefix="b", ret_number=2, marker=marker) == ([urls["b3"]], "")
    assert account.list_queue(prefix="c") == ([], "")
    for invalid in ({"ret_number": 1_001}, {"marker": "é"}):
        with refused("InvalidArgument"):
            account.list_queue(**invalid)


def test_every_operation_on_a_missing_queue_is_an_error(account: Account) -> None:
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
        with refused("QueueNotExist"):
            operation()


def test_an_account_has_a_logging_bucket(account: Account) -> None:
    assert account.get_attributes().logging_bucket == ""
    account.set_attributes(AccountMeta("bucket"))
    account.set_attributes(AccountMeta())
    assert account.get_attributes().logging_bucket == "bucket"
    account.open_service()


def test_the_debug_mode_of_the_sdk_finds_the_request_id(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It compares the name of the header case-sensitively."""
    with account_at(server) as account:
        account.set_debug(True)
        account.get_queue("jobs").create(QueueMeta())
    assert "RequestId: " in capsys.readouterr().out


def test_the_program_of_the_documentation_connects(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILMQ_ENDPOINT", server.endpoint)
    account = runpy.run_path(str(HERE.parent / "python" / "smq_connect.py"))["smq"]
    assert account.list_queue() == ([], "")
    account.mns_client.close_connection()


# Visibility timeouts and receipt handles.


TWELVE_HOURS_S = 43_200
RULES = json.dumps({"version": 1, "classes": [{"name": "all", "visibility_timeout_s": TWELVE_HOURS_S}], "default": 0})


@pytest.fixture
def other(server: RunningServer) -> Iterator[Queue]:
    with account_at(server) as account:
        yield account.get_queue("jobs")


def hidden_until(queue: Queue, server: RunningServer, at_ms: int) -> Message:
    """Assert that the message becomes visible exactly at that instant; return it."""
    server.advance(at_ms - server.clock.now_ms() - 1)
    with refused("MessageNotExist"):
        queue.receive_message_with_str_body()
    server.advance(1)
    return queue.receive_message_with_str_body()


@pytest.mark.parametrize("timeout_s", [1, TWELVE_HOURS_S])
def test_the_visibility_timeout_of_a_queue_is_one_second_to_twelve_hours(
    account: Account, server: RunningServer, timeout_s: int
) -> None:
    queue = account.get_queue("jobs")
    queue.create(QueueMeta(vis_timeout=timeout_s))
    queue.send_message(Message("m"))
    got = queue.receive_message()
    assert got.next_visible_time == server.clock.now_ms() + timeout_s * 1_000
    hidden_until(queue, server, got.next_visible_time)


@pytest.mark.parametrize("settings", [{"visibility_timeout_s": TWELVE_HOURS_S}, {"visibility_rules": RULES}], ids=list)
def test_the_timeout_of_a_long_poll_starts_at_its_reply(
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
def test_a_changed_timeout_starts_at_the_change(queue: Queue, server: RunningServer, timeout_s: int) -> None:
    queue.set_attributes(QueueMeta(vis_timeout=TWELVE_HOURS_S))
    queue.send_message(Message("m"))
    got = queue.receive_message()
    server.advance(seconds=20_000)
    changed = queue.change_message_visibility(got.receipt_handle, timeout_s)
    assert int(changed.next_visible_time) == server.clock.now_ms() + timeout_s * 1_000
    assert hidden_until(queue, server, int(changed.next_visible_time)).dequeue_count == 2


def test_a_changed_timeout_must_be_one_second_to_twelve_hours(queue: Queue, server: RunningServer) -> None:
    """The SDK sends 0, and refuses larger values itself."""
    queue.send_message(Message("m"))
    got = queue.receive_message()
    with refused("InvalidArgument"):
        queue.change_message_visibility(got.receipt_handle, 0)
    with pytest.raises(MNSClientParameterException):
        queue.change_message_visibility(got.receipt_handle, TWELVE_HOURS_S + 1)
    target = f"/queues/jobs/messages?ReceiptHandle={got.receipt_handle}&VisibilityTimeout={TWELVE_HOURS_S + 1}"
    assert smq_request(server, "PUT", target).code == "InvalidArgument"
    hidden_until(queue, server, got.next_visible_time)


def test_a_change_returns_a_new_handle_and_invalidates_the_old_one(queue: Queue) -> None:
    queue.send_message(Message("m"))
    old = queue.receive_message().receipt_handle
    new = queue.change_message_visibility(old, 60).receipt_handle
    assert new != old
    check_invalid(queue, old)
    newer = queue.change_message_visibility(new, 60).receipt_handle
    check_invalid(queue, new)
    queue.delete_message(newer)
    check_invalid(queue, newer)


def check_invalid(queue: Queue, handle: str) -> None:
    with refused("MessageNotExist"):
        queue.delete_message(handle)
    with refused("MessageNotExist"):
        queue.change_message_visibility(handle, 10)


def test_a_handle_becomes_invalid_when_its_message_becomes_visible(queue: Queue, server: RunningServer) -> None:
    queue.batch_send_message([Message("a"), Message("b")])
    first, second = (each.receipt_handle for each in queue.batch_receive_message(2))
    server.advance(29_999)
    queue.delete_message(first)
    server.advance(1)
    check_invalid(queue, second)
    assert counts(queue) == (1, 0, 0)


def test_lenient_handles_remain_valid_after_changes_of_the_same_receive() -> None:
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
        with refused("MessageNotExist"):
            queue.delete_message(second)
        assert counts(queue) == (0, 1, 0)


# Signatures of the SDK.


@pytest.fixture
def verifying(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        yield running


@pytest.mark.parametrize("key", ["AKIDOWNER", "AKIDCAROL", "ASIDBOB"])
def test_every_operation_works_with_a_verified_signature(verifying: RunningServer, key: str) -> None:
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


def test_a_key_uses_the_same_queues_over_both_protocols(verifying: RunningServer) -> None:
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
def test_an_invalid_signature_is_refused(
    verifying: RunningServer, key: str, secret: str, token: str, code: str
) -> None:
    with account_at(verifying, key, secret, token=token) as account, refused(code):
        account.list_queue()
