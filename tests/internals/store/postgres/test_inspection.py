"""What a look has the database read: by what it shows, whatever else the queue has."""

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
    """Send messages, in a FIFO queue each of a group of its own."""
    names = [f"{name} {number}" for number in range(messages)]
    new = [message(each, group=each if fifo else None, dedup_id=each, delay_s=delay_s) for each in names]
    host.do(commands.Send(queue=QUEUE, messages=tuple(new)))


def looked(host: PostgresHost) -> int:
    """Return how many entries of indexes some looks read."""
    before = entries_read(host)
    for command in (LEASES, IN_FLIGHT):
        for _ in range(5):
            assert len(host.do(command)) == SHOWN
    return entries_read(host) - before


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_look_costs_the_same_however_many_others_there_are(postgres_url: str, *, fifo: bool) -> None:
    """In flight, waiting or delayed."""
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
    """What is behind them is not seen."""
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
