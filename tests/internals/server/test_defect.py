"""A defect of ours, as clients see it."""

from typing import Any

import pytest

from tests.clients.sqs_reference import Stage
from veilmq.core.commands import ListQueues
from veilmq.store.sqlite.batch import HANDLERS
from veilmq.testing import RunningServer


def test_a_defect_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is a failure of ours, and no more is said of it."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    handlers: dict[Any, Any] = HANDLERS
    monkeypatch.setitem(handlers, ListQueues, fail)
    with RunningServer() as server, Stage(server) as stage:
        reply = stage.ask("ListQueues")
    assert (reply.error, reply.status) == ("InternalFailure", 500)
    assert "secret" not in str(reply.body)
