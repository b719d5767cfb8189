"""The janitor on SQLite: retention and purges delete, in slices, and drained space goes back to the disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import Receive
from veilmq.core.limits import SECOND_MS
from veilmq.store.cold import Sweep

TABLES = ("message", "ready", "visibility", "ordered", "ordered_run", "message_group", "fair_group", "claimed")
"""Those that have rows for messages."""


@pytest.fixture
def host(host: Host) -> Host:
    host.stop()
    return host


def slices(host: Host) -> int:
    """Sweep; return in how many slices."""
    count = 1
    while host.do(Sweep()) < SECOND_MS:
        count += 1
        assert count < 1_000
    return count


def rows(host: Host) -> dict[str, int]:
    return {table: count for table in TABLES if (count := host.rows(table))}


def filled(host: Host, kind: str, count: int, queue: str = QUEUE) -> None:
    """Create a queue and send so many messages; `fifo` and `fair` ones to two groups."""
    host.create(queue, fifo=kind == "fifo", retention_s=60)
    for start in range(0, count, 100):
        numbers = range(start, min(start + 100, count))
        groups = {number: None if kind == "standard" else f"g{number % 2}" for number in numbers}
        host.put(*(message(f"{each}", group=group, dedup_id=f"{each}") for each, group in groups.items()), queue=queue)


@pytest.mark.parametrize("kind", ["standard", "fair", "fifo"])
@pytest.mark.parametrize("ending", ["retention", "purge", "drop"])
def test_what_is_out_of_reach_is_deleted_in_slices(host: Host, kind: str, ending: str) -> None:
    """Received, delayed and claimed messages too, after a restart too; nothing is left of groups and runs either."""
    filled(host, kind, 2_500)
    host.receive(10, timeout_s=1_000)
    if kind != "fifo":
        host.send("delayed", delay_s=900)
    host.do(OpenSource(queue=QUEUE, source="s"))
    host.do(Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=10))
    claimed = 0 if ending != "retention" else 10
    if ending == "retention":
        host.in_loop(lambda: host.clock.advance(60_000))
    else:
        getattr(host, ending)()
    host.reopen()
    host.stop()
    assert slices(host) <= 8, "a thousand rows each, and groups"
    assert rows(host).pop("message", 0) <= claimed
    if not claimed:
        assert rows(host) == {}


def test_many_purges_are_swept_in_a_few_slices(host: Host) -> None:
    host.create()
    for _ in range(300):
        host.send("x")
        host.purge()
    assert slices(host) <= 10
    assert (rows(host), host.rows("part")) == ({}, 1)


def test_drained_space_goes_back_to_the_disk(tmp_path: Path, host: Host) -> None:
    """But for what is kept for the next messages: 16 MiB of 60 MB."""
    host.create()
    for _ in range(60):
        host.send(*["x" * 100_000] * 10)
    host.purge()
    slices(host)
    assert (tmp_path / "store" / "store.db").stat().st_size < 20_000_000


def test_what_is_remembered_is_forgotten_when_it_is_over(tmp_path: Path) -> None:
    remembered = ("accepted", "attempt", "pause")
    options = replace(RESTLESS, purge_pause_s=60, queue_name_pause_s=120)
    with hosting(tmp_path / "store", options=options) as host:
        host.stop()
        host.create("000000000000/gone")
        host.drop("000000000000/gone")
        filled(host, "fifo", 10)
        host.do(Receive(queue=QUEUE, count=3, attempt_id="x"))
        host.purge()
        seen = []
        for wait_ms in (59_999, 1, 60_000, 179_999, 1):
            host.in_loop(lambda wait_ms=wait_ms: host.clock.advance(wait_ms))  # type: ignore[misc]
            slices(host)
            seen.append([host.rows(table) for table in remembered])
        assert seen == [[1, 1, 2], [1, 1, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]]
        assert host.do(commands.ShowQueue(queue=QUEUE)).queue == QUEUE


def test_what_is_remembered_is_forgotten_as_fast_as_it_comes(tmp_path: Path) -> None:
    """A full slice is followed by another at once: otherwise a minute may bring no more than one slice has."""
    with hosting(tmp_path / "store", options=RESTLESS) as host:
        host.stop()
        host.create(fifo=True)
        for number in range(1_100):
            host.put(message("x", group="g", dedup_id=f"{number}"))
            host.do(Receive(queue=QUEUE, attempt_id=f"{number}"))
        host.in_loop(lambda: host.clock.advance(300_000))
        slices(host)
        assert (host.rows("accepted"), host.rows("attempt")) == (0, 0)
