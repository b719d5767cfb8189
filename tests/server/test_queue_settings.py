"""Settings of queues through a server: made under any name, seen by every protocol, and who may."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, written
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Settings
from veilmq.client.transport import SigningKey
from veilmq.testing import RunningServer

LONG = "long-" * 40 + "name"


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server whose clock the test moves."""
    with RunningServer(**place(request.param)) as running:
        yield running


@pytest.mark.parametrize("name", ["in-order", LONG, "in_order.fifo"])
def test_a_fifo_queue_has_any_name(server: RunningServer, name: str) -> None:
    """It is made, found again, set, shown over both doors, and keeps its order over SQS, too."""
    with Settings(server.endpoint, name) as settings, HttpQueueClient(server.endpoint) as queue:
        url = settings.create({"fifo": True, "delay_s": 0}, tags={"a": "b"})
        assert settings.create({"fifo": True}) == url == f"{server.endpoint}/000000000000/{name}"
        settings.set({"content_deduplication": True, "receives_per_s_max": 100})
        shown = settings.show()
        assert (shown.queue, shown.url, shown.visible) == (name, url, 0)
        assert (shown.settings.fifo, shown.settings.content_deduplication) == (True, True)
        assert shown.settings.tags == {"a": "b"}
        assert queue.show(name).settings.fifo
        assert queue.show(name).settings.receives_per_s_max == 100
        for body in ("first", "second", "first"):
            queue.send(name, body, group="g")
        assert [message.body for message in queue.receive(name, count=10)] == ["first", "second"]


def test_a_delay_of_a_week_is_kept(server: RunningServer) -> None:
    with Settings(server.endpoint, "slow") as settings, HttpQueueClient(server.endpoint) as queue:
        settings.create({"delay_s": 604_800, "retention_s": 1_209_600})
        queue.send("slow", "later")
        assert settings.show().delayed == queue.show("slow").delayed == 1
        assert queue.show("slow").settings == settings.show().settings
        server.advance(604_800_000)
        assert [message.body for message in queue.receive("slow")] == ["later"]


def test_dead_letters_go_to_a_queue_by_its_name(server: RunningServer) -> None:
    with Settings(server.endpoint, LONG) as dead, Settings(server.endpoint, "jobs") as jobs:
        dead.create()
        jobs.create({"dead_letter_queue": LONG, "receives_max": 1})
        with HttpQueueClient(server.endpoint) as queue:
            assert queue.show("jobs").settings.dead_letter_queue == f"000000000000/{LONG}"
            queue.send("jobs", "m")
            queue.receive("jobs", timeout_s=0)
            assert queue.receive("jobs") == []
            assert [message.body for message in queue.receive(LONG)] == ["m"]
        jobs.set({"dead_letter_queue": "", "receives_max": 0})
        assert jobs.show().settings.dead_letter_queue == ""


def test_what_cannot_be_is_said(server: RunningServer) -> None:
    with Settings(server.endpoint, "jobs") as settings:
        for call, code in (
            (settings.show, "QueueNotFound"),
            (lambda: settings.set({"delay_s": 1}), "QueueNotFound"),
            (lambda: settings.create({"delay_s": 604_801}), "InvalidRequest"),
            (lambda: settings.create({"content_deduplication": True}), "SettingsConflict"),
            (lambda: settings.create({"dead_letter_queue": "none", "receives_max": 1}), "DeadLetterQueueRefused"),
        ):
            with pytest.raises(ClientError) as caught:
                call()
            assert caught.value.code == code
        settings.create()
        with pytest.raises(ClientError) as caught:
            settings.create({"fifo": True})
        assert (caught.value.code, caught.value.fields["setting"]) == ("QueueExists", "fifo")
        with pytest.raises(ClientError, match="cannot be its own dead-letter queue") as caught:
            settings.set({"dead_letter_queue": "jobs", "receives_max": 1})
        assert caught.value.code == "DeadLetterQueueRefused"


def test_settings_are_their_owners(tmp_path: Path) -> None:
    """Others may read them by a policy; nobody makes a queue in another account."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        url = client(server).create_queue(QueueName="jobs")["QueueUrl"]

        def settings(key: str, queue: str) -> Settings:
            return Settings(server.endpoint, queue, key=SigningKey(id=key, secret=SECRETS[key], region=REGION))

        with settings("AKIDFRIEND", url) as foreign:
            for call in (foreign.show, foreign.create, lambda: foreign.set({"delay_s": 1})):
                with pytest.raises(ClientError) as caught:
                    call()
                assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
        with settings("AKIDFRIEND", "jobs") as own:
            assert own.create() == f"{server.endpoint}/{FRIEND}/jobs"
        with settings("AKIDCAROL", "jobs") as users:
            users.set({"delay_s": 1})
            assert users.show().url == f"{server.endpoint}/{OWNER}/jobs"
