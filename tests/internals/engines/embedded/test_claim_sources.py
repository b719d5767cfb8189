"""Sources by themselves: no step comes, so only the commands see what time has done."""

from pathlib import Path
from typing import Any

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core import claims
from veilmq.core.claims import ClaimState
from veilmq.core.commands import Command
from veilmq.core.errors import ClaimLost
from veilmq.engines.embedded.claims import ClaimStep

HOUR_MS = 3_600_000


def held() -> Store:
    """Return a store with a source that holds one claim, of two messages."""
    store = Store()
    store.create()
    store.send("a", "b")
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    store.run(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=2))
    return store


def beat(store: Store) -> claims.SourceView:
    """Send a heartbeat; return what it answers."""
    view: Any
    (view,) = store.run(claims.Heartbeat(queue=QUEUE, source="s", epoch=1))
    assert isinstance(view, claims.SourceView)
    return view


def test_a_hold_ends_at_its_instant_and_not_before() -> None:
    store = held()
    store.now_ms += HOUR_MS - 1
    assert [each.state for each in beat(store).claims] == [ClaimState.OPEN]
    store.now_ms += HOUR_MS
    assert [each.state for each in beat(store).claims] == [ClaimState.LOST]
    assert beat(store).ready == 2
    store.close()


@pytest.mark.parametrize(
    "command",
    [
        claims.ReadClaim(queue=QUEUE, source="s", number=1),
        claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=2),
        claims.ReleaseClaim(queue=QUEUE, source="s", number=1),
        claims.EvictMessage(queue=QUEUE, source="s", number=1, message=bytes(16)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_each_command_sees_the_end_of_a_hold_by_itself(command: Command) -> None:
    store = held()
    store.now_ms += HOUR_MS
    (answer,) = store.run(command)
    assert isinstance(answer, ClaimLost)
    store.close()


def test_who_acknowledges_and_who_lists_sees_the_end_of_a_hold_by_himself() -> None:
    store = held()
    store.now_ms += HOUR_MS
    ((view,),) = store.run(claims.ListSources(queue=QUEUE))
    assert [each.state for each in view.claims] == [ClaimState.LOST]
    store = held()
    store.now_ms += HOUR_MS
    answers = store.run(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1))
    assert answers == [claims.Acknowledged(acknowledged=1, lost=[1])]
    store.close()


def test_who_looks_is_told_when() -> None:
    """When a hold ends, or a source without claims is forgotten; a heartbeat since then is seen by the next look."""
    store = held()
    begun_ms = store.now_ms
    sources = store.machine.claims._sources
    queues = {queue.number: queue for queue in store.machine.catalog.queues()}
    assert sources.look_ms == begun_ms + HOUR_MS
    store.now_ms += 1_000
    beat(store)
    sources.look(queues, begun_ms + HOUR_MS)
    assert sources.look_ms == store.now_ms + HOUR_MS
    sources.look(queues, store.now_ms + HOUR_MS)
    assert sources.look_ms == store.now_ms + 14 * 24 * HOUR_MS
    sources.look(queues, sources.look_ms)
    assert sources.of(store.machine.catalog.queue(QUEUE)) == []
    store.close()


def test_an_acknowledged_claim_without_messages_is_forgotten_after_a_start(tmp_path: Path) -> None:
    """It had no slice yet: there is nothing of it but its row."""
    store = Store(tmp_path / "store")
    store.create("000000000000/dead")
    store.create(dead_letter_queue="000000000000/dead", receives_max=5)
    store.send("a", "b")
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    for number in (1, 2):
        store.run(claims.Claim(queue=QUEUE, source="s", epoch=1, number=number, messages_max=1))
    page: Any
    (page,) = store.run(claims.ReadClaim(queue=QUEUE, source="s", number=2))
    store.run(claims.EvictMessage(queue=QUEUE, source="s", number=2, message=page.messages[0].id))
    store.run(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=2))
    assert len(store.journal.rows("all_claims")) == 1
    store.machine.reload()
    store.run(ClaimStep())
    assert store.journal.rows("all_claims") == []
    store.close()


def test_what_is_acknowledged_takes_no_place_of_the_limit_of_claimed_messages() -> None:
    """It is being deleted, whoever does the next slice."""
    store = Store(claimed_max=20, claim_slice_rows=10)
    store.create()
    store.send(*(str(number) for number in range(40)))
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    bind = [claims.Claim(queue=QUEUE, source="s", epoch=1, number=number, messages_max=30) for number in (1, 2)]
    assert [bound.messages for bound in store.run(bind[0])] == [20]
    store.run(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1))
    counters = store.machine.catalog.queue(QUEUE).lanes[0].counters
    assert (counters.claimed, counters.doomed) == (10, 10)
    assert [bound.messages for bound in store.run(bind[1])] == [20]
    store.close()


def test_what_was_released_comes_back_although_its_claim_was_acknowledged_since() -> None:
    """And although the process ended in between."""
    store = Store(claim_slice_rows=10)
    store.create()
    store.send(*(str(number) for number in range(20)))
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    store.run(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=20))
    view: Any
    (view,) = store.run(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
    assert 0 < view.ready < 20
    store.run(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1))
    store.machine.reload()
    for _ in range(10):
        store.run(ClaimStep())
    assert beat(store).ready == 20
    assert store.journal.rows("all_claims") == []
    store.close()
