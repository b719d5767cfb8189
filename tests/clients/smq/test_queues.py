"""Queues of SMQ, through its official Python SDK."""

import runpy

import pytest
from mns.account import Account, AccountMeta
from mns.mns_exception import MNSServerException
from mns.queue import Message, Queue, QueueMeta

from tests.clients.smq.conftest import HERE, account_at
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
    """Return the attributes of a queue that can be set."""
    told = vars(queue.get_attributes())
    return {name: told[name] for name in DEFAULTS}


def counts(queue: Queue) -> tuple[int, int, int]:
    """Return active, inactive and delayed messages, past the accessors that warn of their own end."""
    told = vars(queue.get_attributes())
    return told["_active_messages"], told["_inactive_messages"], told["_delay_messages"]


def refused(code: str) -> "pytest.RaisesExc[MNSServerException]":
    """Expect the SDK's exception with that code."""
    return pytest.RaisesExc(MNSServerException, check=lambda error: error.type == code)


def test_a_queue_is_made_with_the_defaults_of_smq(account: Account, server: RunningServer) -> None:
    """Its URL is under the address that was asked; the times are in seconds, of the server's clock."""
    queue = account.get_queue("jobs")
    assert queue.create(QueueMeta()) == f"{server.endpoint}/queues/jobs"
    assert settable(queue) == DEFAULTS
    told = queue.get_attributes()
    assert (told.queue_name, told.create_time, told.last_modify_time) == ("jobs", 1_700_000_000, 1_700_000_000)
    assert counts(queue) == (0, 0, 0)


def test_a_queue_is_found_when_what_is_said_of_it_is_so(account: Account) -> None:
    """Attributes that are left out do not count; another value is another queue."""
    queue = account.get_queue("jobs")
    made = queue.create(QueueMeta(vis_timeout=100, delay_sec=10))
    assert queue.create(QueueMeta()) == queue.create(QueueMeta(vis_timeout=100)) == made
    with refused("QueueAlreadyExist"):
        queue.create(QueueMeta(vis_timeout=101))
    assert settable(queue) == DEFAULTS | {"visibility_timeout": 100, "delay_seconds": 10}


def test_attributes_are_changed_one_by_one(queue: Queue, server: RunningServer) -> None:
    """All six of them; what is left out stays."""
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
    """Neither a new queue nor one that is there takes them."""
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


def test_counters_follow_messages(queue: Queue) -> None:
    """Active, inactive, delayed."""
    queue.batch_send_message([Message("a"), Message("b"), Message("c", 60)])
    assert counts(queue) == (2, 0, 1)
    queue.receive_message()
    assert counts(queue) == (1, 1, 1)


def test_queues_are_listed_a_page_at_a_time(account: Account, server: RunningServer) -> None:
    """By name, with a marker while there are more; a prefix narrows the list."""
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
    """More are refused, and so is a marker that no page named."""
    for asked in ({"ret_number": 1_001}, {"marker": "é"}):
        with refused("InvalidArgument"):
            account.list_queue(**asked)


@pytest.mark.parametrize(
    ("name", "code"),
    [("under_score", "InvalidQueueName"), ("-a", "InvalidQueueName"), ("a" * 257, "QueueNameLengthError")],
)
def test_names_that_no_queue_can_have_are_refused(account: Account, name: str, code: str) -> None:
    """256 characters are enough."""
    with refused(code):
        account.get_queue(name).create(QueueMeta())
    longest = account.get_queue("1" + "a" * 255)
    longest.create(QueueMeta())
    assert longest.get_attributes().queue_name == longest.queue_name


def test_every_operation_names_a_queue_that_is_not_there(account: Account) -> None:
    """But for those that make it, and that delete it."""
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
    """It is empty at first, and stays where none is named; opening the service needs nothing."""
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
    """As it stands there."""
    monkeypatch.setenv("VEILMQ_ENDPOINT", server.endpoint)
    account = runpy.run_path(str(HERE.parent / "python" / "smq_connect.py"))["smq"]
    assert account.list_queue() == ([], "")
    account.mns_client.close_connection()
