"""What looks and receives have the database read: no more than they show or give, whatever else the queue has."""

from collections.abc import Iterable
from uuid import uuid4

import pytest

from tests.internals.store.postgres.entries import entries_read
from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, hosting_postgres
from veilmq.core import commands
from veilmq.core.commands import InspectLeases, InspectQueue, MessageState
from veilmq.store import inspection

pytestmark = pytest.mark.usefixtures("new_tables")

SHOWN = 5
LEASES = InspectLeases(queue=QUEUE, count=SHOWN)
IN_FLIGHT = InspectQueue(queue=QUEUE, count=SHOWN, state=MessageState.IN_FLIGHT)


def send(host: PostgresHost, name: str, messages: int, *, fifo: bool, delay_s: int | None = None) -> None:
    names = [f"{name} {number}" for number in range(messages)]
    new = [message(each, group=each if fifo else None, dedup_id=each, delay_s=delay_s) for each in names]
    host.do(commands.Send(queue=QUEUE, messages=tuple(new)))


def looked(host: PostgresHost) -> int:
    before = entries_read(host)
    for command in (LEASES, IN_FLIGHT):
        for _ in range(5):
            assert len(host.do(command)) == SHOWN
    return entries_read(host) - before


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_look_costs_the_same_however_many_others_there_are(postgres_url: str, *, fifo: bool) -> None:
    with hosting_postgres(postgres_url) as host:
        host.create(fifo=fifo)
        send(host, "first", 60, fifo=fifo)
        host.receive(20, timeout_s=600)
        read = [looked(host)]
        send(host, "more", 1_000, fifo=fifo)
        send(host, "late", 500, fifo=fifo, delay_s=None if fifo else 900)
        host.receive(500, timeout_s=700)
        read.append(looked(host))
    assert read[1] < 2 * read[0]


def test_no_more_are_passed_over_than_a_look_may(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "INSPECT_SCANNED_MAX", 7)
    seen = []
    with hosting_postgres(postgres_url) as host:
        host.create()
        send(host, "held", 1, fifo=False)
        host.receive(1, timeout_s=900)
        for name in ("some", "many"):
            send(host, name, 10, fifo=False, delay_s=500)
            seen.append((len(host.do(LEASES)), len(host.do(IN_FLIGHT))))
    assert seen == [(1, 1), (0, 0)]


GROUPS_IN_VAIN = 1_000
RETENTION_S = 60


def test_groups_that_have_nothing_any_more_are_passed_over_a_thousand_at_a_time(postgres_url: str) -> None:
    """They are there until the janitor comes; the next receive goes on behind them."""
    with hosting_postgres(postgres_url) as host:
        host.create(fifo=True, retention_s=RETENTION_S)
        old = tuple(message("old", group=str(place), dedup_id=str(place)) for place in range(GROUPS_IN_VAIN))
        host.do(commands.Send(queue=QUEUE, messages=old))
        host.advance((RETENTION_S - 1) * 1_000)
        host.reopen()  # whose janitor comes a minute later
        host.do(commands.Send(queue=QUEUE, messages=(message("new", group="new", dedup_id="new"),)))
        host.advance(1_000)
        assert host.receive(10) == []
        assert host.rows("fifo_group") == 1
        assert [each.body for each in host.receive(10)] == ["new"]


def test_what_a_delay_hides_in_a_group_costs_no_more_than_a_hundred_messages_do(postgres_url: str) -> None:
    """So many are passed over, by a receive and by what says when the group gives its next message."""
    with hosting_postgres(postgres_url) as host:
        host.create(fifo=True)
        read = []
        for hidden in (200, 2_000):
            for start in range(0, hidden, 100):
                send_to(host, hidden, range(start, start + 100), delay_s=900)
            before = entries_read(host)
            for _ in range(5):
                send_to(host, hidden, [0])
                assert host.receive(10) == []
            read.append(entries_read(host) - before)
    assert 5 * read[1] < 6 * read[0]


def send_to(host: PostgresHost, group: int, bodies: Iterable[int], delay_s: int | None = None) -> None:
    new = [message(str(each), group=str(group), dedup_id=uuid4().hex, delay_s=delay_s) for each in bodies]
    host.do(commands.Send(queue=QUEUE, messages=tuple(new)))
