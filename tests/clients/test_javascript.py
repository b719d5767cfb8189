"""The AWS SDK for JavaScript v3 as a client: tests/clients/javascript/sdk.mjs, every action."""

import pytest

from tests.clients.program import ACTIONS, JAVASCRIPT, Program, answers, node
from veilmq.testing import RunningServer

STEPS = [
    "queues",
    "message",
    "delay",
    "attributes",
    "batches",
    "longPoll",
    "errors",
    "tags",
    "deadLetters",
    "moveTasks",
    "permissions",
    "fifo",
    "end",
]


@pytest.mark.parametrize("kind", ["server", "verifying_server"])
@pytest.mark.usefixtures("veilmq_settings")
def test_every_action(request: pytest.FixtureRequest, kind: str) -> None:
    server: RunningServer = request.getfixturevalue(kind)
    with Program(node(str(JAVASCRIPT / "sdk.mjs")), endpoint=server.endpoint) as program:
        *steps, last = program.reports(answers(server))
    assert steps == [{"step": step} for step in STEPS]
    assert set(last["actions"]) == ACTIONS
