"""`veilmq queue …` against a real server."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Veilmq
from veilmq.client import HttpQueueClient
from veilmq.core.settings import QueueSettings, read_table
from veilmq.testing import RunningServer

Terminal = Callable[[str], object]

ALL_SETTINGS = {
    "--visibility-timeout": ("60", "visibility_timeout_s"),
    "--delay": ("5", "delay_s"),
    "--retention": ("3600", "retention_s"),
    "--receive-wait": ("20", "receive_wait_s"),
    "--message-bytes-max": ("2048", "message_bytes_max"),
    "--in-flight-max": ("7", "in_flight_max"),
}


def test_create_prints_the_url(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    url = f"{server.endpoint}/000000000000/orders"
    assert veilmq("queue", "create", "orders").out == f"{url}\n"
    assert json.loads(veilmq("queue", "create", "orders", "--json").out) == {"queue": "orders", "url": url}
    assert client.list_queues() == ["orders"]
    assert client.show("orders").settings == QueueSettings()


@pytest.mark.parametrize("option", ALL_SETTINGS)
def test_create_and_set_take_every_setting(option: str, client: HttpQueueClient, veilmq: Veilmq) -> None:
    value, field = ALL_SETTINGS[option]
    expected = QueueSettings().changed({field: int(value)})
    assert veilmq("queue", "create", "made", option, value).code == 0
    assert client.show("made").settings == expected
    client.create_queue("changed")
    veilmq("queue", "set", "changed", option, value).prints("Changed changed.\n")
    assert client.show("changed").settings == expected


def test_a_queue_has_its_own_in_flight_limit(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("orders", {"in_flight_max": 1_000_000})
    assert "in flight max       1000000" in veilmq("queue", "show", "orders").out.splitlines()
    for wrong in ("0", "1000001", "-1", "x"):
        result = veilmq("queue", "set", "orders", f"--in-flight-max={wrong}")
        result.fails(2, "Must be a whole number from 1 to 1000000, or ''.")
    assert veilmq("queue", "set", "orders", "--in-flight-max", "").out == "Changed orders.\n"
    assert client.show("orders").settings == QueueSettings()
    assert "in flight max" not in veilmq("queue", "show", "orders").out


def test_visibility_rules_are_read_from_a_file(client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path) -> None:
    classes = [{"name": "short", "visibility_timeout_s": 5}, {"name": "long", "visibility_timeout_s": 900}]
    table = {"version": 1, "classes": classes, "keys": {"mail": 0, "video": 1}, "default": 1}
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(table, indent=2))
    client.create_queue("orders")
    veilmq("queue", "set", "orders", "--visibility-rules", str(rules)).prints("Changed orders.\n")
    assert read_table(client.show("orders").settings.visibility_rules) == read_table(rules.read_bytes())
    shown = "visibility rules    2 keys of Type; short 5 s, long 900 s"
    assert shown in veilmq("queue", "show", "orders").out.splitlines()
    assert veilmq("queue", "set", "orders", "--visibility-rules", "").out == "Changed orders.\n"
    assert client.show("orders").settings == QueueSettings()
    rules.write_text(json.dumps(table | {"default": 7}))
    error = f"--visibility-rules {rules}: The default is 7, and the classes are 0 to 1."
    veilmq("queue", "create", "other", "--visibility-rules", str(rules)).fails(2, error)
    veilmq("queue", "set", "orders", "--visibility-rules", "none").fails(2, "none: No such file or directory.")


def test_a_queue_has_its_own_event_log(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("orders")
    assert veilmq("queue", "set", "orders", "--event-log", "closed").out == "Changed orders.\n"
    assert client.show("orders").settings == QueueSettings(event_log="closed")
    assert "event log           closed" in veilmq("queue", "show", "orders").out.splitlines()
    veilmq("queue", "set", "orders", "--event-log", "")
    assert client.show("orders").settings == QueueSettings()
    assert veilmq("queue", "set", "orders", "--event-log", "on").code == 2


def test_create_and_set_take_the_settings_of_a_fifo_queue(client: HttpQueueClient, veilmq: Veilmq) -> None:
    result = veilmq("queue", "create", "a.fifo", "--fifo", "--content-deduplication", "--tag", "team=a", "--tag", "x=")
    assert result.code == 0
    assert client.show("a.fifo").settings == QueueSettings(fifo=True, content_deduplication=True)
    assert client.tags("a.fifo") == {"team": "a", "x": ""}
    veilmq("queue", "set", "a.fifo", "--deduplication-scope", "group", "--throughput-limit", "group")
    veilmq("queue", "set", "a.fifo", "--no-content-deduplication")
    changed = QueueSettings(fifo=True, deduplication_scope="group", throughput_limit="group")
    assert client.show("a.fifo").settings == changed
    policy = '{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue"}}'
    assert veilmq("queue", "set", "a.fifo", "--policy", policy).code == 0
    shown = veilmq("queue", "show", "a.fifo").out
    for line in (
        f"policy               {policy}",
        "fifo                 yes",
        "deduplication        by id",
        "deduplication scope  group",
    ):
        assert line in shown.splitlines()


def test_create_and_set_take_a_dead_letter_queue(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("dead")
    assert veilmq("queue", "create", "jobs", "--dead-letter-queue", "dead").code == 0
    assert client.show("jobs").settings == QueueSettings(dead_letter_queue="000000000000/dead", receives_max=10)
    assert client.dead_letter_sources("dead") == ["jobs"]
    veilmq("queue", "set", "jobs", "--dead-letter-queue", "dead", "--receives-max", "3")
    assert "dead-letter queue   dead after 3 receives" in veilmq("queue", "show", "jobs").out
    veilmq("queue", "set", "dead", "--redrive-permission", "listed", "--redrive-source", "jobs")
    assert "takes dead letters of  jobs" in veilmq("queue", "show", "dead").out
    veilmq("queue", "set", "jobs", "--dead-letter-queue", "")
    assert client.show("jobs").settings == QueueSettings()


def test_create_takes_encryption_settings_and_set_a_policy(client: HttpQueueClient, veilmq: Veilmq) -> None:
    veilmq("queue", "create", "a", "--no-managed-encryption", "--kms-key", "k", "--kms-data-key-reuse", "60")
    assert client.show("a").settings == QueueSettings(managed_encryption=False, kms_key="k", kms_data_key_reuse_s=60)
    assert "kms key             k" in veilmq("queue", "show", "a").out
    veilmq("queue", "set", "a", "--policy", "no policy").fails(1, "(InvalidAttributeValue)")


def test_tag_adds_removes_and_prints_tags(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("orders", tags={"owner": "x"})
    assert veilmq("queue", "tag", "orders", "b=2", "a=1", "--remove", "owner").out == "a=1\nb=2\n"
    assert json.loads(veilmq("queue", "tag", "orders", "--json").out) == {"a": "1", "b": "2"}
    veilmq("queue", "tag", "orders", "=1").fails(2)


@pytest.fixture
def dead_letters(client: HttpQueueClient) -> None:
    """A queue `jobs`, and three of its messages in the dead-letter queue `dead`."""
    client.create_queue("dead")
    client.create_queue("jobs", {"dead_letter_queue": "dead", "receives_max": 1})
    for _ in range(3):
        client.send("jobs", "m")
    for _ in range(2):
        client.receive("jobs", count=10, timeout_s=0)


@pytest.mark.usefixtures("dead_letters")
def test_redrive_moves_dead_letters(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    assert veilmq("queue", "redrives", "dead").out == ""
    veilmq("queue", "redrive", "dead", "--rate", "1").prints("Moving the messages of dead to where they came from.\n")
    (move,) = json.loads(veilmq("queue", "redrives", "dead", "--json").out)
    assert (move["status"], move["moves_per_s_max"], move["messages_to_move"]) == ("running", 1, 3)
    assert "Only one active task" in veilmq("queue", "redrive", "dead").err
    assert veilmq("queue", "cancel-redrive", "dead").out.startswith("Cancelled; ")
    veilmq("queue", "cancel-redrive", "dead").fails(1, "veilmq: N")
    veilmq("queue", "redrive", "dead", "--to", "jobs").prints("Moving the messages of dead to jobs.\n")
    server.advance(1_000)
    assert veilmq("queue", "redrives", "dead").out.splitlines()[0] == "status   completed"
    assert (client.show("dead").visible, client.show("jobs").visible) == (0, 3)


def test_errors_about_existing_and_missing_queues_have_a_remedy(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("orders")
    remedy = "(QueueNameExists) `veilmq queue show` prints its settings"
    veilmq("queue", "create", "orders", "--delay", "1").fails(1, remedy)
    veilmq("queue", "show", "nowhere").fails(1, "(QueueDoesNotExist) `veilmq queue list`")


def test_list_prints_names(client: HttpQueueClient, veilmq: Veilmq) -> None:
    assert veilmq("queue", "list").out == ""
    assert veilmq("queue", "list", "--json").out == "[]\n"
    for name in ("b", "a1", "a2"):
        client.create_queue(name)
    assert veilmq("queue", "list").out == "a1\na2\nb\n"
    assert veilmq("queue", "list", "--prefix", "a", "--json").out == '["a1","a2"]\n'


def test_show_prints_aligned_lines(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("orders", {"delay_s": 7})
    client.send("orders", "a", delay_s=0)
    client.send("orders", "b")
    assert veilmq("queue", "show", "orders").out == (
        "queue               orders\n"
        f"url                 {server.endpoint}/000000000000/orders\n"
        "visible             1\n"
        "in flight           0\n"
        "delayed             1\n"
        "visibility timeout  30 s\n"
        "delay               7 s\n"
        "retention           345600 s\n"
        "receive wait        0 s\n"
        "message bytes max   1048576\n"
        "created             2023-11-14 22:13:20 UTC\n"
        "modified            2023-11-14 22:13:20 UTC\n"
    )


def test_show_prints_json_with_the_names_of_veilmq(
    server: RunningServer, client: HttpQueueClient, veilmq: Veilmq
) -> None:
    client.create_queue("orders", tags={"team": "a"})
    shown = json.loads(veilmq("queue", "show", "orders", "--json").out)
    settings = msgspec.to_builtins(QueueSettings(), builtin_types=()) | {"redrive_sources": []}
    assert shown == {
        "queue": "orders",
        "url": f"{server.endpoint}/000000000000/orders",
        "settings": {name: value for name, value in settings.items() if name not in {"tags", "purges"}},
        "visible": 0,
        "in_flight": 0,
        "delayed": 0,
        "created_at_ms": server.clock.now_ms(),
        "modified_at_ms": server.clock.now_ms(),
    }


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: keyboard.write(text.encode())


@pytest.mark.parametrize(("verb", "left"), [("purge", ["orders"]), ("delete", [])], ids=["purge", "delete"])
class TestConfirmation:
    @pytest.fixture(autouse=True)
    def one_message(self, client: HttpQueueClient) -> None:
        client.create_queue("orders")
        client.send("orders", "precious")

    def test_yes_confirms(self, verb: str, left: list[str], client: HttpQueueClient, veilmq: Veilmq) -> None:
        veilmq("queue", verb, "orders", "--yes").prints(f"{verb.capitalize()}d orders.\n")
        assert client.list_queues() == left
        assert left == [] or client.show("orders").visible == 0

    @pytest.mark.parametrize("text", ["y\n", "YES\n"], ids=["y", "yes"])
    def test_a_user_confirms_at_the_terminal(
        self, verb: str, left: list[str], text: str, client: HttpQueueClient, veilmq: Veilmq, terminal: Terminal
    ) -> None:
        terminal(text)
        result = veilmq("queue", verb, "orders")
        assert result.code == 0
        assert "orders" in result.err
        assert result.err.endswith("? [y/N] ")
        assert client.list_queues() == left

    @pytest.mark.parametrize("text", ["n\n", "\n", "\x04"], ids=["n", "enter", "end-of-input"])
    def test_any_other_reply_cancels(
        self, verb: str, left: list[str], text: str, client: HttpQueueClient, veilmq: Veilmq, terminal: Terminal
    ) -> None:
        terminal(text)
        result = veilmq("queue", verb, "orders")
        assert result.code == 1
        assert result.err.endswith("veilmq: Nothing was done.\n")
        assert client.show("orders").visible == 1, left

    def test_without_a_terminal_the_yes_option_is_required(
        self, verb: str, left: list[str], client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
        veilmq("queue", verb, "orders").fails(2, "add --yes")
        assert client.show("orders").visible == 1, left


@pytest.mark.usefixtures("server")
def test_the_error_of_an_invalid_queue_name_contains_it(veilmq: Veilmq) -> None:
    """The server's text of this error lacks a subject; those of other errors have one."""
    veilmq("queue", "create", "a/b").fails(
        1,
        "veilmq: The queue name 'a/b' is invalid: Can only include alphanumeric characters, hyphens, or underscores. "
        "1 to 80 in length. (InvalidParameterValueException)\n",
    )
    assert "The queue name" not in veilmq("queue", "create", "").err
    veilmq("queue", "create", "a.fifo").fails(1, "1 to 80 in length. A FIFO queue needs --fifo. (Inv")
    veilmq("queue", "create", "a b.fifo", "--fifo").fails(1, "1 to 80 in length. (Inv")


def test_smq_name_allows_the_queue_names_of_smq(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    url = f"{server.endpoint}/000000000000/in-order"
    assert veilmq("queue", "create", "in-order", "--fifo", "--smq-name", "--tag", "a=b").out == f"{url}\n"
    assert veilmq("queue", "set", "in-order", "--content-deduplication", "--receives-per-s-max", "7").code == 0
    settings = client.show("in-order").settings
    assert (settings.fifo, settings.content_deduplication, settings.receives_per_s_max) == (True, True, 7)
    assert client.tags("in-order") == {"a": "b"}
    shown = veilmq("queue", "show", "in-order").out
    assert "fifo                 yes" in shown
    assert "receives per second  7 at most" in shown
    assert veilmq("queue", "create", "x" * 200, "--smq-name").code == 0
    assert json.loads(veilmq("queue", "show", "x" * 200, "--json").out)["queue"] == "x" * 200
    for listed in (["listed", "--redrive-source", "x" * 200], ["all"]):  # the second removes the source
        permission = ["--redrive-permission", *listed]
        assert veilmq("queue", "set", "in-order", "--content-deduplication", *permission).code == 0
        assert len(client.show("in-order").settings.redrive_sources) == len(listed) // 2
    assert veilmq("queue", "create", "dead", "--fifo", "--smq-name").code == 0
    for dead, receives in (("dead", 10), ("", 0)):
        assert veilmq("queue", "set", "in-order", "--content-deduplication", "--dead-letter-queue", dead).code == 0
        assert client.show("in-order").settings.receives_max == receives


def test_queue_names_are_those_of_sqs_by_default(client: HttpQueueClient, veilmq: Veilmq) -> None:
    veilmq("queue", "create", "in-order", "--fifo").fails(1, "must end with .fifo")
    veilmq("queue", "create", "a b", "--smq-name").fails(1, "There is no such route.")
    assert client.list_queues() == []


def test_set_takes_the_settings_of_smq(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("jobs")
    assert veilmq("queue", "set", "jobs", "--smq-base64", "--operations-logged").code == 0
    settings = client.show("jobs").settings
    assert (settings.smq_base64, settings.operations_logged) == (True, True)
    shown = veilmq("queue", "show", "jobs").out
    assert "bodies over smq" in shown
    assert veilmq("queue", "set", "jobs", "--no-smq-base64", "--no-operations-logged").code == 0
    assert client.show("jobs").settings == QueueSettings()


@pytest.mark.usefixtures("dead_letters")
def test_changes_print_one_line_of_json(client: HttpQueueClient, veilmq: Veilmq) -> None:
    def printed(*arguments: str) -> Any:
        result = veilmq("queue", *arguments, "--json")
        assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
        return json.loads(result.out)

    assert printed("set", "jobs", "--delay", "5") == {"queue": "jobs", "changed": {"delay_s": 5}}
    moved = printed("redrive", "dead", "--rate", "1")
    assert (moved["queue"], moved["to"]) == ("dead", None)
    assert moved["handle"] in [move.handle for move in client.moves("dead")]
    assert printed("cancel-redrive", "dead")["queue"] == "dead"
    assert printed("purge", "jobs", "--yes") == {"queue": "jobs", "purged": True}
    assert printed("delete", "jobs", "--yes") == {"queue": "jobs", "deleted": True}
