"""Settings and health in the console: what is of the whole server, without a secret, for its own account."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.visitor import Visitor
from tests.server.keys import OWNER, SECRETS, written
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.server.console import shown_settings
from veilmq.server.settings import SETTINGS, ServerSettings
from veilmq.store.port import FULL
from veilmq.testing import RunningServer

CAROL = ("AKIDCAROL", SECRETS["AKIDCAROL"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    path = written(folder / "credentials.toml")
    with RunningServer(data=folder / "data", credentials=path, account=OWNER, drain_s_max=3) as running:
        yield running


@pytest.fixture(scope="module")
def root(server: RunningServer) -> Iterator[Visitor]:
    """The server's own account."""
    with Visitor(server, key=("AKIDOWNER", SECRETS["AKIDOWNER"])) as visitor:
        yield visitor


def test_every_setting_is_there_with_its_value(root: Visitor) -> None:
    seen = root.get("/console/settings")
    assert seen.status == 200
    for row in SETTINGS:
        assert f"{row.flag} " in seen.text
        assert row.description in seen.text
    assert "--drain-s-max 3 20 " in seen.text
    assert "--memory false false " in seen.text


@pytest.mark.parametrize("key", [CAROL, ("AKIDFRIEND", SECRETS["AKIDFRIEND"])])
def test_settings_are_for_the_servers_own_account(server: RunningServer, key: tuple[str, str]) -> None:
    with Visitor(server, key=key) as visitor:
        seen = visitor.get("/console/settings")
        assert seen.status == 403
        assert "only its own account sees it" in seen.text
        assert "--drain-s-max" not in seen.text


def test_passwords_and_keys_are_stars() -> None:
    settings = ServerSettings(
        data=None,
        store="postgresql://mq:hunter2@db/x?sslpassword=hunter3",
        events_to="s3://AKID:hunter4@bucket/x?secret_key=hunter5&region=eu",
    )
    told = {each.name: each.value for each in shown_settings(settings)}
    assert "hunter" not in str(told)
    assert told["store"].startswith("postgresql://mq:***@db/x")
    assert "region=eu" in told["events_to"]
    assert told["memory"] == "false"


def test_health_says_that_a_server_is_ready(server: RunningServer, root: Visitor) -> None:
    server.advance(seconds=90)
    seen = root.get("/console/health")
    assert "Ready: requests are answered." in seen.text
    assert "Running for 1 min 30 s" in seen.text
    assert "Messages are kept in /" in seen.text
    assert "Nothing is exported" in seen.text
    assert 'href="/metrics"' in seen.html


def test_where_messages_are_is_for_the_servers_own_account(server: RunningServer) -> None:
    with Visitor(server, key=CAROL) as visitor:
        seen = visitor.get("/console/health").text
        assert "Ready: requests are answered." in seen
        assert "Messages are kept" not in seen


def test_health_says_what_is_in_the_way(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path, free_space_reserve_bytes=2**50) as running, Visitor(running) as visitor:
        seen = visitor.get("/console/health")
        assert FULL in seen.text
        assert "Ready" not in seen.text


def test_health_counts_what_waits_to_be_exported(tmp_path: Path) -> None:
    with RunningServer(events_to=str(tmp_path / "events")) as running, Visitor(running) as visitor:
        assert "Recorded 0 Waiting 0 Dropped 0 Failed exports 0" in visitor.get("/console/health").text


def test_the_pages_are_there_on_a_database_too(server_on_postgres: RunningServer) -> None:
    with HttpQueueClient(server_on_postgres.endpoint) as client, Visitor(server_on_postgres) as visitor:
        client.create_queue("jobs")
        client.send("jobs", "a1")
        with Claims(server_on_postgres.endpoint, client.queue_url("jobs")) as claims:
            claims.open("s-1", consumer="daily report")
            claims.claim("s-1", epoch=1, number=1, messages_max=2)
        health = visitor.get("/console/health").text
        assert "Ready: requests are answered." in health
        assert "Queues 1 " in health
        assert "onnections to the database" in health
        assert "daily report s-1 alive 1 1" in visitor.get("/console/claims").text
        assert "a1" in visitor.get("/console/claims/000000000000/jobs/evict?source=s-1&number=1").text
