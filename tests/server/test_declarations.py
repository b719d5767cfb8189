"""Queues and topics that a server creates at startup."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import command
from tests.cli.test_processes import serving
from tests.server.keys import OWNER, REGION, SECRETS, written
from veilmq.client import HttpQueueClient
from veilmq.client.topics import Topics
from veilmq.client.transport import SigningKey, Transport
from veilmq.testing import RunningServer, SystemClock

FIRST = """
[queues.jobs]
visibility_timeout_s = 60
dead_letter_queue = "failed"
tags = { team = "shop" }

[queues.failed]

[topics.news.subscriptions.to-jobs]
queue = "jobs"
"""
SECOND = FIRST.replace("60", "90").replace("shop", "post") + "[queues.third]\n"


def declared(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def counted(caplog: pytest.LogCaptureFixture) -> str:
    (last,) = [record.getMessage() for record in caplog.records if "declared queues and topics" in record.getMessage()]
    caplog.clear()
    return last.partition(": ")[2]


@pytest.mark.parametrize("store", ["folder", "postgres"])
def test_a_server_creates_and_updates_declared_queues_at_startup(
    store: str, store_settings: Callable[[str], dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps messages, undeclared settings and undeclared queues."""
    caplog.set_level(logging.INFO, "veilmq.server.declarations")
    where = store_settings(store)
    file = declared(tmp_path / "queues.toml", FIRST)
    with RunningServer(**where, queues_file=file) as server, HttpQueueClient(server.endpoint) as client:
        assert client.list_queues() == ["failed", "jobs"]
        assert counted(caplog) == "4 created, 0 changed, 0 deleted, 0 unchanged"
        assert Topics(Transport(server.endpoint)).names("news") == ["to-jobs"]
        client.send("jobs", "kept")
        client.set("jobs", {"retention_s": 600})
        client.create_queue("by-hand")
    with RunningServer(**where, queues_file=file):
        assert counted(caplog) == "0 created, 0 changed, 0 deleted, 4 unchanged"
    declared(file, SECOND)
    with RunningServer(**where, queues_file=file) as server, HttpQueueClient(server.endpoint) as client:
        assert "declared queue third: created" in caplog.messages
        assert counted(caplog) == "1 created, 1 changed, 0 deleted, 3 unchanged"
        settings = client.show("jobs").settings
        assert (settings.visibility_timeout_s, settings.retention_s) == (90, 600)
        assert client.tags("jobs") == {"team": "post"}
        assert client.list_queues() == ["by-hand", "failed", "jobs", "third"]
        assert [message.body for message in client.receive("jobs")] == ["kept"]


def test_servers_on_one_database_may_start_concurrently(new_database: str, tmp_path: Path) -> None:
    text = "".join(f'[queues.q{n}]\ndelay_s = {n}\ndead_letter_queue = "failed"\n' for n in range(20))
    file = declared(tmp_path / "queues.toml", f"{FIRST}{text}")
    with RunningServer(store=new_database, clock=SystemClock()):
        pass  # the schema is made

    def start(_: int) -> list[str]:
        where: dict[str, Any] = {"store": new_database, "clock": SystemClock(), "queues_file": file}
        with RunningServer(**where) as server, HttpQueueClient(server.endpoint) as client:
            return client.dead_letter_sources("failed")

    with ThreadPoolExecutor(3) as starting:
        for found in starting.map(start, range(3)):
            assert found == sorted(["jobs", *(f"q{n}" for n in range(20))])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[queues.a]\ndelay_s = -1", r"^queues_file = '.*queues.toml': queues.a: delay_s: must be 0 to 604800.$"),
        ('[queues.a]\n[queues.b]\ndead_letter_queue = "c"', "queue b: The dead-letter queue c does not exist"),
        ('[queues.a]\n[topics.t.subscriptions.s]\nurl = "http://127.0.0.1/"', "subscription t/s: .*push_allow"),
    ],
    ids=["file", "plan", "server"],
)
def test_invalid_declarations_prevent_the_start(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words), RunningServer(queues_file=declared(tmp_path / "queues.toml", text)):
        pass


def test_a_server_reads_a_configuration_file_of_elasticmq(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = declared(tmp_path / "elasticmq.conf", "aws { region = x }\nqueues { jobs { delay = 5 s, copyTo = audit } }")
    with RunningServer(queues_file=file) as server, HttpQueueClient(server.endpoint) as client:
        assert client.show("jobs").settings.delay_s == 5
    copied, region = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert copied.startswith(f"{file}: queues.jobs: copyTo = audit has no effect; ")
    assert region.startswith(f"{file}: aws: has no effect; ")


def test_declared_queues_belong_to_the_servers_account(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"credentials": written(tmp_path / "keys.toml"), "region": REGION}
    settings["queues_file"] = declared(tmp_path / "queues.toml", FIRST)
    with RunningServer(**settings, account=OWNER) as server:
        key = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region=REGION)
        with HttpQueueClient(server.endpoint, key=key) as client:
            assert client.queue_url("jobs").endswith(f"/{OWNER}/jobs")
        assert Topics(Transport(server.endpoint), key=key).names() == ["news"]
    words = "account = '000000000000': it has declared queues but no key in the credentials file"
    with pytest.raises(ValueError, match=words), RunningServer(**settings):
        pass


def test_the_settings_file_may_declare_queues(tmp_path: Path) -> None:
    """`veilmq apply` reads the same veilmq.toml."""
    declared(tmp_path / "veilmq.toml", f"port = 0\nadmin_port = 0\nmemory = true\n{FIRST}")
    with serving(cwd=tmp_path) as (_, endpoint), HttpQueueClient(endpoint) as client:
        assert client.list_queues() == ["failed", "jobs"]
        done = command("apply", str(tmp_path / "veilmq.toml"), "--dry-run", VEILMQ_ENDPOINT=endpoint)
        assert (done.returncode, done.stdout) == (0, "Would be: 0 created, 0 changed, 0 deleted, 4 unchanged\n")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('queues_file = "other.toml"\n[queues.a]', 2, "the file has the table queues too; keep one of them"),
        ("[queue.a]", 2, "unknown setting"),
        ("[queues.a]\nvisibilty_timeout_s = 3", 1, "queues.a: unknown attribute visibilty_timeout_s; did you mean"),
    ],
)
def test_an_invalid_settings_file_is_an_error(text: str, code: int, words: str, tmp_path: Path) -> None:
    file = declared(tmp_path / "veilmq.toml", text)
    done = command("serve", "--config", str(file), "--memory")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
