"""What a receive of a FIFO queue may look at, so that it always comes to an end."""

from tests.store.host import QUEUE, message
from tests.store.postgres_host import hosting_postgres
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
