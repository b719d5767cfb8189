"""The event stream of an open page over a real socket: counts, leases and moves, and permissions."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import msgspec
import pytest
import urllib3

from tests.console.visitor import Visitor
from tests.server.keys import OWNER, REGION, client, set_policy, written
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

PATIENCE_S = 60.0


class EventStream:
    """The events of an open page."""

    def __init__(self, server: RunningServer, *, cookies: dict[str, str] | None = None, **query: str) -> None:
        self._http = urllib3.PoolManager()
        cookie = "; ".join(f"{name}={value}" for name, value in (cookies or {}).items())
        self.reply = self._http.request(
            "GET",
            f"{server.admin_endpoint}/console/live?{urlencode(query)}",
            headers={"Cookie": cookie},
            preload_content=False,
            redirect=False,
            timeout=PATIENCE_S,
        )
        self._lines = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.reply.close()
        self._http.clear()

    def _read(self) -> Iterator[str]:
        rest = b""
        for chunk in self.reply.stream():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode() for line in lines)

    def next(self, event: str) -> dict[str, Any]:
        for line in self._lines:
            if line == f"event: {event}":
                data: dict[str, Any] = msgspec.json.decode(next(self._lines).removeprefix("data: "))
                return data
        raise AssertionError(f"the stream ended before an event {event}")

    @property
    def is_ended(self) -> bool:
        return not list(self._lines)[1:]


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    with RunningServer(**store_settings(request.param)) as running:
        yield running


def test_the_stream_of_a_list_has_the_changed_counts_of_its_queues(
    server: RunningServer, queues: HttpQueueClient
) -> None:
    for name in ("a", "b", "c"):
        queues.create_queue(name)
    with EventStream(server, counts="a,b,none") as page:
        first = page.next("counts")
        assert (first["whole"], set(first["set"]), first["set"]["a"]["visible"]) == (True, {"a", "b"}, "0")
        server.advance(1_000)
        assert page.next("counts")["set"]["a"]["sent"] == "0.0", "rates need two counts"
        queues.send("b", "m")
        queues.send("c", "m")
        server.advance(1_000)
        changed = page.next("counts")["set"]
        assert (changed.keys(), changed["b"]["visible"]) == ({"b"}, "1")
        queues.delete_queue("a")
        server.advance(1_000)
        assert page.next("counts")["removed"] == ["a"]
        assert page.reply.headers["content-type"].startswith("text/event-stream")
        assert "default-src 'none'" in page.reply.headers["content-security-policy"]


def test_the_stream_of_a_queue_has_renewed_and_expired_leases(server: RunningServer, queues: HttpQueueClient) -> None:
    queues.create_queue("jobs", {"visibility_timeout_s": 30})
    for body in ("m", "n"):
        queues.send("jobs", body)
    with EventStream(server, leases="000000000000/jobs") as page:
        assert page.next("leases")["set"] == {}
        (held,) = queues.receive("jobs")
        server.advance(1_000)
        ((key, bar),) = page.next("leases")["set"].items()
        assert key.startswith(held.id)
        assert 'class="bar held"' in bar
        queues.change_visibility("jobs", held.receipt, 60)
        server.advance(1_000)
        renewed = page.next("leases")
        assert 'class="renewal"' in renewed["set"][key]
        assert renewed["figures"]["in_flight"] == "1"
        for _ in range(59):
            server.advance(1_000)
        while key not in (last := page.next("leases"))["set"] or "expired" not in last["set"][key]:
            pass
        assert last["figures"]["visible"] == "2"


def endings(data: dict[str, Any]) -> list[str]:
    """Return the states of the changed bars of ended leases."""
    return sorted(word for bar in data["set"].values() for word in ("deleted", "returned") if f'"bar {word}"' in bar)


def test_the_stream_distinguishes_deleted_and_returned_messages(server: RunningServer, queues: HttpQueueClient) -> None:
    """Purged messages are deleted, though no delete is counted."""
    queues.create_queue("jobs")
    for body in ("m", "n", "o"):
        queues.send("jobs", body)
    with EventStream(server, leases="000000000000/jobs") as page:
        page.next("leases")
        first, second, _ = queues.receive("jobs", count=3)
        server.advance(1_000)
        assert len(page.next("leases")["set"]) == 3
        queues.delete("jobs", first.receipt)
        queues.change_visibility("jobs", second.receipt, 0)
        server.advance(1_000)
        assert endings(page.next("leases")) == ["deleted", "returned"]
        queues.purge("jobs")
        server.advance(1_000)
        assert endings(page.next("leases")) == ["deleted"]


def test_the_stream_has_the_progress_of_moves(server: RunningServer, queues: HttpQueueClient) -> None:
    queues.create_queue("dead")
    queues.create_queue("jobs", {"visibility_timeout_s": 1, "dead_letter_queue": "dead", "receives_max": 1})
    for _ in range(5):
        queues.send("jobs", "m")
    queues.receive("jobs", count=5)
    server.advance(1_000)
    queues.receive("jobs", count=5)
    with EventStream(server, moves="000000000000/dead") as page:
        assert page.next("moves")["set"] == {}
        queues.start_move("dead", moves_per_s_max=1)
        for _ in range(6):
            server.advance(1_000)
        server.wait_until(lambda: queues.moves("dead")[0].status == "completed")
        server.advance(1_000)
        while next(iter(page.next("moves")["set"].values()), ["", 0]) != ["COMPLETED", 5]:
            pass


def test_a_stream_without_a_subject_is_a_bad_request(server: RunningServer) -> None:
    assert Visitor(server).get("/console/live").status == 400


def test_shutdown_ends_open_streams(server: RunningServer, queues: HttpQueueClient) -> None:
    queues.create_queue("a")
    with EventStream(server, counts="a") as page:
        page.next("counts")
        server.stop()
        assert page.is_ended


def test_permissions_are_checked_for_every_event(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        owner = client(server)
        url = owner.create_queue(QueueName="jobs")["QueueUrl"]
        owner.send_message(QueueUrl=url, MessageBody="m")
        carol = Visitor(server, key="AKIDCAROL")
        friend = Visitor(server, key="AKIDFRIEND")
        with EventStream(server, cookies=friend.cookies, leases=f"{OWNER}/jobs") as page:
            assert "AccessDenied" not in page.next("end")["reason"]
            assert page.is_ended
        with EventStream(server, cookies=carol.cookies, leases=f"{OWNER}/jobs") as page:
            assert page.next("leases")["figures"]["visible"] == "1"
            arn = f"arn:aws:iam::{OWNER}:user/carol"
            denial = {"Effect": "Deny", "Principal": {"AWS": arn}, "Action": "sqs:*"}
            set_policy(owner, url, {**denial, "Resource": f"arn:aws:sqs:{REGION}:{OWNER}:jobs"})
            server.advance(1_000)
            assert page.next("end")["reason"]
            assert page.is_ended
        with EventStream(server, leases=f"{OWNER}/jobs") as page:
            assert page.reply.status == 303


def test_a_removed_key_ends_its_streams(tmp_path: Path) -> None:
    keys = written(tmp_path / "keys.toml")
    with RunningServer(credentials=keys, region=REGION) as server:
        client(server).create_queue(QueueName="jobs")
        carol = Visitor(server, key="AKIDCAROL")
        with EventStream(server, cookies=carol.cookies, counts="jobs") as page:
            page.next("counts")
            text = keys.read_text(encoding="utf-8")
            keys.write_text(text.replace("AKIDCAROL", "AKIDANOTHER"), encoding="utf-8")
            server.reload()
            server.advance(1_000)
            assert "sign in" in page.next("end")["reason"]
            assert page.is_ended
