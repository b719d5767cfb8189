"""Commands that a defect breaks: what the batch that is undone leaves."""

from typing import Any

import pytest

from tests.store.host import QUEUE, hosting
from tests.store.logged import logging_to, outcomes
from tests.store.test_waking import Watcher, send_grouped
from veilmq.core import commands
from veilmq.core.errors import InternalError
from veilmq.engines.embedded.lane import Lane


def fail(*_: Any) -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("fifo", [False, True])
def test_a_send_wakes_after_a_batch_was_undone(monkeypatch: pytest.MonkeyPatch, *, fifo: bool) -> None:
    """The watch stays, though the queue in memory is another one, which no command has received from yet."""
    with hosting(None) as host:
        host.create(fifo=fifo)
        watcher = Watcher(host)
        with monkeypatch.context() as defect:
            defect.setattr(Lane, "_added", fail)
            with pytest.raises(InternalError):
                send_grouped(host, "a", fifo=fifo)
        watcher.woken_ms.clear()
        send_grouped(host, "b", fifo=fifo)
        assert watcher.woken_ms == [host.clock.now_ms()]


def test_a_command_that_fails_leaves_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    with logging_to(None) as host:
        host.create()
        host.send("a")
        receipt = host.receive_one().receipt
        with monkeypatch.context() as defect:
            defect.setattr(Lane, "remove", fail)
            host.do_together(commands.Delete(queue=QUEUE, receipts=(receipt,)))
        assert outcomes(host) == []
        host.delete(receipt)
        assert outcomes(host) == [("deleted", 0)]
