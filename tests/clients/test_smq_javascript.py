"""@alicloud/mns, the SDK of SMQ for JavaScript, as a client: javascript/smq.mjs, every operation on queues."""

import pytest

from tests.clients.program import JAVASCRIPT, Program, answers, node
from veilmq.testing import RunningServer

STEPS = [
    "queues",
    "attributes",
    "message",
    "visibility",
    "delay",
    "priorities",
    "batches",
    "longPoll",
    "errors",
    "end",
]


@pytest.mark.parametrize("kind", ["server", "verifying_server"])
@pytest.mark.usefixtures("veilmq_settings")
def test_every_queue_operation(request: pytest.FixtureRequest, kind: str) -> None:
    server: RunningServer = request.getfixturevalue(kind)
    with Program(node(str(JAVASCRIPT / "smq.mjs")), endpoint=server.endpoint) as program:
        reports = program.reports(answers(server))
    assert reports == [{"step": step} for step in STEPS]
