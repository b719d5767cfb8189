"""A defect of ours, as clients see it."""

from typing import Any

import pytest

from tests.clients.sqs_stage import Stage
from veilmq.core.commands import ListQueues
from veilmq.testing import RunningServer


def test_a_defect_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is a failure of ours, and no more is said of it."""

    def fail(command: Any, now_ms: int) -> None:
        raise ZeroDivisionError("secret")

    with RunningServer() as server, Stage(server) as stage:
        engine: Any = server.bound.engine
        handlers: dict[Any, Any] = engine._machine.handlers
        monkeypatch.setitem(handlers, ListQueues, fail)
        monkeypatch.setattr(type(engine._machine), "reload", lambda machine: None)  # it would make them anew
        reply = stage.ask("ListQueues")
    assert (reply.error, reply.status) == ("InternalFailure", 500)
    assert "secret" not in str(reply.body)
