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
    told = vars(queue.get_attributes())
    return {name: told[name] for name in DEFAULTS}


def counts(queue: Queue) -> tuple[int, int, int]:
    """Return active, inactive and delayed messages, past the accessors that warn of their own end."""
    told = vars(queue.get_attributes())
    return told["_active_messages"], told["_inactive_messages"], told["_delay_messages"]


def refused(code: str) -> "pytest.RaisesExc[MNSServerException]":
    return pytest.RaisesExc(MNSServerException, check=lambda error: error.type == code)


def test_a_queue_is_made_with_the_defaults_of_smq(account: Account, server: RunningServer) -> None:
    queue = account.get_queue("jobs")
    assert queue.create(QueueMeta()) == f"{server.endpoint}/queues/jobs"
    assert settable(queue) == DEFAULTS
    told = queue.get_attributes()
    assert (told.queue_name, told.create_time, told.last_modify_time) == ("jobs", 1_700_000_000, 1_700_000_000)
    assert counts(queue) == (0, 0, 0)


def test_a_queue_is_found_when_what_is_said_of_it_is_so(account: Account) -> None:
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
    so_far = dict(DEFAULTS)
    for name, value in wanted.items():
        meta = QueueMeta()
        setattr(meta, name, value)
        queue.set_attributes(meta)
        so_far[name] = value
        assert settable(queue) == so_far
    told = queue.get_attributes()
    assert (told.create_time, told.last_modify_time) == (1_700_000_000, 1_700_000_005)


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


def test_a_deleted_queue_is_gone_with_its_messages_and_can_be_made_again_at_once(queue: Queue) -> None:
    """Deleting is how SMQ purges, so there is no pause; deleting what is gone is no error."""
    queue.send_message(Message("m"))
    queue.delete()
    queue.delete()
    with refused("QueueNotExist"):
        queue.get_attributes()
    queue.create(QueueMeta())
    assert counts(queue) == (0, 0, 0)


def test_queues_are_listed_a_page_at_a_time(account: Account, server: RunningServer) -> None:
    for name in ("b2", "a", "b1", "b3"):
        account.get_queue(name).create(QueueMeta())
    urls = {name: f"{server.endpoint}/queues/{name}" for name in ("a", "b1", "b2", "b3")}
    assert account.list_queue() == (list(urls.values()), "")
    page, marker = account.list_queue(prefix="b", ret_number=2)
    assert page == [urls["b1"], urls["b2"]]
    assert marker
    assert account.list_queue(prefix="b", ret_number=2, marker=marker) == ([urls["b3"]], "")
    assert account.list_queue(prefix="c") == ([], "")


def test_a_page_has_at_most_a_thousand_queues(account: Account) -> None:
    for asked in ({"ret_number": 1_001}, {"marker": "é"}):
        with refused("InvalidArgument"):
            account.list_queue(**asked)


def test_every_operation_names_a_queue_that_is_not_there(account: Account) -> None:
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


def test_an_account_keeps_its_logging_bucket(account: Account) -> None:
    assert account.get_attributes().logging_bucket == ""
    account.set_attributes(AccountMeta("bucket"))
    account.set_attributes(AccountMeta())
    assert account.get_attributes().logging_bucket == "bucket"
    account.open_service()


def test_the_sdk_finds_the_request_id_where_it_looks(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """In its debug mode it looks for the header case-sensitively, after every request."""
    with account_at(server) as account:
        account.set_debug(True)
        account.get_queue("jobs").create(QueueMeta())
    assert "RequestId: " in capsys.readouterr().out


def test_the_program_of_the_page_of_clients_reaches_the_server(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEILMQ_ENDPOINT", server.endpoint)
    account = runpy.run_path(str(HERE.parent / "python" / "smq_connect.py"))["smq"]
    assert account.list_queue() == ([], "")
    account.mns_client.close_connection()


# How long a message of SMQ is hidden, from whom, and which handle acts on it: to the millisecond.


TWELVE_HOURS_S = 43_200
RULES = json.dumps({"version": 1, "classes": [{"name": "all", "visibility_timeout_s": TWELVE_HOURS_S}], "default": 0})


@pytest.fixture
def other(server: RunningServer) -> Iterator[Queue]:
    with account_at(server) as account:
        yield account.get_queue("jobs")


def hidden_until(queue: Queue, server: RunningServer, at_ms: int) -> Message:
    """Return the message that nobody gets before that instant, and a receive gets at it."""
    server.advance(at_ms - server.clock.now_ms() - 1)
    with refused("MessageNotExist"):
        queue.receive_message_with_str_body()
    server.advance(1)
    return queue.receive_message_with_str_body()


@pytest.mark.parametrize("timeout_s", [1, TWELVE_HOURS_S])
def test_a_queue_hides_for_one_second_to_twelve_hours(account: Account, server: RunningServer, timeout_s: int) -> None:
    queue = account.get_queue("jobs")
    queue.create(QueueMeta(vis_timeout=timeout_s))
    queue.send_message(Message("m"))
    got = queue.receive_message()
    assert got.next_visible_time == server.clock.now_ms() + timeout_s * 1_000
    hidden_until(queue, server, got.next_visible_time)


@pytest.mark.parametrize("settings", [{"visibility_timeout_s": TWELVE_HOURS_S}, {"visibility_rules": RULES}], ids=list)
def test_the_twelve_hours_of_a_receive_that_waited_begin_when_it_is_answered(
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
def test_a_change_counts_from_its_own_instant(queue: Queue, server: RunningServer, timeout_s: int) -> None:
    queue.set_attributes(QueueMeta(vis_timeout=TWELVE_HOURS_S))
    queue.send_message(Message("m"))
    got = queue.receive_message()
    server.advance(seconds=20_000)
    changed = queue.change_message_visibility(got.receipt_handle, timeout_s)
    assert int(changed.next_visible_time) == server.clock.now_ms() + timeout_s * 1_000
    assert hidden_until(queue, server, int(changed.next_visible_time)).dequeue_count == 2


def test_a_change_by_0_or_43201_is_refused_and_changes_nothing(queue: Queue, server: RunningServer) -> None:
    """0 comes as far as the server, which releases nothing; the rest the SDK refuses itself."""
    queue.send_message(Message("m"))
    got = queue.receive_message()
    with refused("InvalidArgument"):
        queue.change_message_visibility(got.receipt_handle, 0)
    with pytest.raises(MNSClientParameterException):
        queue.change_message_visibility(got.receipt_handle, TWELVE_HOURS_S + 1)
    target = f"/queues/jobs/messages?ReceiptHandle={got.receipt_handle}&VisibilityTimeout={TWELVE_HOURS_S + 1}"
    assert smq_request(server, "PUT", target).code == "InvalidArgument"
    hidden_until(queue, server, got.next_visible_time)


def test_a_change_issues_a_handle_and_kills_the_one_before(queue: Queue) -> None:
    queue.send_message(Message("m"))
    old = queue.receive_message().receipt_handle
    new = queue.change_message_visibility(old, 60).receipt_handle
    assert new != old
    with refused("MessageNotExist"):
        queue.delete_message(old)
    with refused("MessageNotExist"):
        queue.change_message_visibility(old, 60)
    newer = queue.change_message_visibility(new, 60).receipt_handle
    with refused("MessageNotExist"):
        queue.delete_message(new)
    queue.delete_message(newer)
    with refused("MessageNotExist"):
        queue.delete_message(newer)


def test_a_handle_is_dead_at_the_instant_at_which_its_message_is_visible(queue: Queue, server: RunningServer) -> None:
    queue.batch_send_message([Message("a"), Message("b")])
    first, second = (each.receipt_handle for each in queue.batch_receive_message(2))
    server.advance(29_999)
    queue.delete_message(first)
    server.advance(1)
    with refused("MessageNotExist"):
        queue.delete_message(second)
    with refused("MessageNotExist"):
        queue.change_message_visibility(second, 1)
    assert counts(queue) == (1, 0, 0)


def test_lenient_handles_are_those_of_the_same_receive() -> None:
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


# The SDK's signatures, verified: every operation on queues with the right key, none with another.


@pytest.fixture
def verifying(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        yield running


@pytest.mark.parametrize("key", ["AKIDOWNER", "AKIDCAROL", "ASIDBOB"])
def test_every_operation_is_signed_as_the_server_reads_it(verifying: RunningServer, key: str) -> None:
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


def test_a_queue_of_one_protocol_is_the_other_ones_for_the_same_key(verifying: RunningServer) -> None:
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
def test_who_cannot_sign_is_refused(verifying: RunningServer, key: str, secret: str, token: str, code: str) -> None:
    with account_at(verifying, key, secret, token=token) as account, refused(code):
        account.list_queue()
