"""Floods by unauthenticated clients: their cost to other clients in memory and time.

The server requires credentials; each flood and each measured client is a process. `make prove-overload` (`PROVE=whole`)
runs at full size with strict limits. The small form has the same limits of memory; its latencies have a margin of ten,
because CI runs other tests on the same two cores.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import EVERYTHING
from tests.proofs.flooding import BODY_BYTES
from tests.proofs.forking import Forked
from tests.proofs.served import ServedFolder
from tests.server.http_host import held_bytes, wait_until
from tests.server.keys import OWNER, client, signed_action, written

WHOLE = os.environ.get("PROVE") == "whole"
SECONDS = 15.0 if WHOLE else 1.5
MARGIN = 1 if WHOLE else 10
MANY = 150
FEW = 8
OTHERS_MS_MAX = 250 * MARGIN
HEALTH_MS_MAX = 100 * MARGIN
GROWTH_BYTES_MAX = 256_000_000
UNREAD_BYTES_MAX = 128_000_000 if WHOLE else 160_000_000
REGION = "us-east-1"
PATIENCE_S = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.serial]


@dataclass
class Running:
    process: Forked

    def figures(self) -> dict[str, float]:
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, "the client failed"
        found: dict[str, float] = json.loads(output)
        return found


@dataclass
class Target:
    """A server, and files with the requests that clients send it."""

    served: ServedFolder
    folder: Path

    def request(self, name: str, action: str, members: dict[str, Any]) -> Path:
        """Write a signed request to a file; its signature is valid for a quarter of an hour."""
        path = self.folder / name
        path.write_bytes(signed_action(self.served.endpoint, action, region=REGION, **members))
        return path

    def page(self, path: str) -> Path:
        file = self.folder / path.replace("/", "-")
        file.write_bytes(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.served.admin_port}\r\n\r\n".encode())
        return file

    def start(
        self, kind: str, *files: Path, connections: int = 1, admin: bool = False, seconds: float = SECONDS
    ) -> Running:
        port = self.served.admin_port if admin else self.served.port
        arguments = [kind, str(port), str(seconds), str(connections), *map(str, files)]
        command = [sys.executable, "-m", "tests.proofs.flooding", *arguments]
        return Running(Forked(command, stdout=subprocess.PIPE, text=True))

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.served.pid).memory_info().rss)

    def highest_rss_bytes(self, running: Running) -> int:
        highest = self.rss_bytes()
        while running.process.poll() is None:
            highest = max(highest, self.rss_bytes())
            time.sleep(0.02)
        return highest

    def url(self, queue: str) -> str:
        return f"{self.served.endpoint}/{OWNER}/{queue}"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with ServedFolder(tmp_path / "data", "--credentials", str(written(tmp_path / "keys.toml"))) as served:
        sqs = client(served.endpoint, region_name=REGION)
        for queue in ("small", "large"):
            sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": "0"})
        yield Target(served, tmp_path)


def show(line: str) -> None:
    sys.stdout.write(line + "\n")


def large_batch(target: Target) -> Path:
    entries = [{"Id": str(number), "MessageBody": "x" * 100_000} for number in range(10)]
    return target.request("batch", "SendMessageBatch", {"QueueUrl": target.url("large"), "Entries": entries})


def probe_health(target: Target) -> Running:
    return target.start("probe", *map(target.page, ("/health/live", "/health/ready", "/metrics")), admin=True)


def probe_requests(target: Target) -> Running:
    url = target.url("small")
    small = [
        target.request("send", "SendMessage", {"QueueUrl": url, "MessageBody": "small"}),
        target.request("count", "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]}),
    ]
    return target.start("probe", *small)


def check_served(others: Running, health: Running, disk: Running) -> None:
    """Assert that other clients were answered in time; the longest sync of the disk does not count."""
    small, pages, sync = others.figures(), health.figures(), disk.figures()
    show(f"  others: {small}\n  health and metrics: {pages}\n  a sync of one page: {sync}")
    assert small["failed"] == pages["failed"] == 0
    assert small["longest_ms"] <= OTHERS_MS_MAX
    assert pages["longest_ms"] - sync["longest_ms"] <= HEALTH_MS_MAX


@pytest.mark.parametrize("kind", ["unsigned", pytest.param("wrong", marks=EVERYTHING)])
def test_large_bodies_of_few_unauthenticated_clients_delay_no_other_client(target: Target, kind: str) -> None:
    flood = target.start(kind, connections=FEW, seconds=SECONDS)
    others, health, disk = probe_requests(target), probe_health(target), target.start("disk", target.folder)
    show(f"\neight unauthenticated clients, {kind}")
    check_served(others, health, disk)
    show(f"  bodies of the flood: {flood.figures()['count']:.0f}")


@pytest.mark.parametrize("kind", ["unsigned", pytest.param("wrong", marks=EVERYTHING)])
def test_large_bodies_of_many_unauthenticated_clients_use_little_memory(target: Target, kind: str) -> None:
    """An authenticated client keeps at least half of its rate, with the key that the flood names."""
    batch = large_batch(target)
    usual = target.start("repeat", batch).figures()
    before = target.rss_bytes()
    flood = target.start(kind, connections=MANY, seconds=SECONDS + 2)
    if kind == "wrong":
        wait_until(lambda: held_bytes(target.served.admin_endpoint)["unverified_bodies"] >= BODY_BYTES)
    newcomer, steady, pages = target.start("anew", batch), target.start("repeat", batch), probe_health(target)
    disk = target.start("disk", target.folder)
    growth = target.highest_rss_bytes(flood) - before
    figures, new, health, sync = steady.figures(), newcomer.figures(), pages.figures(), disk.figures()
    show(f"\n{MANY} clients, {kind}: memory + {growth / 1e6:.0f} MB, bodies {flood.figures()['count']:.0f}")
    show(f"  batches of 1 MB: {figures['count']:.0f} beside them, {usual['count']:.0f} usually")
    show(f"  on a new connection each: {new}")
    show(f"  health and metrics: {health}\n  a sync of one page: {sync}")
    assert growth <= GROWTH_BYTES_MAX
    assert figures["failed"] == new["failed"] == health["failed"] == 0
    assert figures["count"] >= usual["count"] / 2 / MARGIN
    assert health["longest_ms"] - sync["longest_ms"] <= HEALTH_MS_MAX


def test_unread_replies_use_little_memory(target: Target) -> None:
    figures = target.start("repeat", large_batch(target), seconds=0.5).figures()
    assert figures["failed"] == 0
    receive = {"QueueUrl": target.url("large"), "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
    request = target.request("receive", "ReceiveMessage", receive)
    before = target.rss_bytes()
    flood = target.start("unread", request, connections=64)
    others, health, disk = probe_requests(target), probe_health(target), target.start("disk", target.folder)
    growth = target.highest_rss_bytes(flood) - before
    show(f"\n64 clients that do not read: memory + {growth / 1e6:.0f} MB, receives {flood.figures()['count']:.0f}")
    check_served(others, health, disk)
    assert growth <= UNREAD_BYTES_MAX
