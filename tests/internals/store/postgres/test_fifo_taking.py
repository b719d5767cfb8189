"""What a receive of a FIFO queue may look at, so that it always comes to an end."""

from collections.abc import Iterable
from uuid import uuid4

from tests.internals.store.postgres.entries import entries_read
from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, hosting_postgres
from veilmq.core import commands

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
                send(host, hidden, range(start, start + 100), delay_s=900)
            before = entries_read(host)
            for _ in range(5):
                send(host, hidden, [0])
                assert host.receive(10) == []
            read.append(entries_read(host) - before)
    assert 5 * read[1] < 6 * read[0]


def send(host: PostgresHost, group: int, bodies: Iterable[int], delay_s: int | None = None) -> None:
    """Send messages to a group."""
    new = [message(str(each), group=str(group), dedup_id=uuid4().hex, delay_s=delay_s) for each in bodies]
    host.do(commands.Send(queue=QUEUE, messages=tuple(new)))
