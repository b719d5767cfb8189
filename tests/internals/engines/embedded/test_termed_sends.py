"""Sends on terms: all or none also where there is no room for all of their lanes, and nothing read in vain."""

from pathlib import Path

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store, rows_read
from veilmq.core.commands import NewMessage, Send, SendTerms, ShowQueue
from veilmq.core.errors import StoreFull
from veilmq.core.results import SentMessage
from veilmq.engines.embedded import positions

THREE = tuple(NewMessage(body=f"{priority}", size_bytes=1, priority=priority) for priority in (1, 2, 3))


@pytest.mark.parametrize(("together", "stored"), [(True, 0), (False, 2)], ids=["together", "each-alone"])
def test_when_there_is_a_lane_too_few(monkeypatch: pytest.MonkeyPatch, stored: int, *, together: bool) -> None:
    monkeypatch.setattr(positions, "LANES_MAX", 2)
    store = Store()
    store.create()
    (answer,) = store.run(Send(queue=QUEUE, messages=THREE, terms=SendTerms(together=together)))
    if together:
        assert isinstance(answer, StoreFull)
    else:
        assert [type(each) for each in answer] == [SentMessage, SentMessage, StoreFull]
    (view,) = store.run(ShowQueue(queue=QUEUE, counts=True))
    assert view.counts.visible == stored
    assert len(store.bodies(10)) == stored
    store.close()


def test_what_is_not_delayed_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only delayed messages have a lease to make a receipt of; after a start that of others would be read for."""
    store = Store(tmp_path)
    store.create(fifo=True)
    store.send_to("a")
    store.close()
    store = Store(tmp_path)
    looked = rows_read(monkeypatch, store, "lease_at")
    new = NewMessage(body="x", size_bytes=1, group="b", dedup_id="x")
    ((sent,),) = store.run(Send(queue=QUEUE, messages=(new,), terms=SendTerms(receipts=True)))
    assert (sent.receipt, looked) == (None, [])
    store.close()
