"""The same program, tests/clients/python/sdk.py, with today's boto3 and with one that speaks the Query protocol."""

import sys
from collections.abc import Callable

import pytest

from tests.clients.program import ACTIONS, Program, answers, packages, python
from veilmq.testing import RunningServer

PROGRAM = "tests.clients.python.sdk"
STEPS = [
    "queues",
    "message",
    "delay",
    "attributes",
    "batches",
    "long_poll",
    "errors",
    "resource",
    "tags",
    "dead_letters",
    "move_tasks",
    "permissions",
    "fifo",
    "end",
]


def _today(server: RunningServer) -> Program:
    return Program([sys.executable, "-m", PROGRAM], endpoint=server.endpoint)


def _older(server: RunningServer) -> Program:
    return Program(python(PROGRAM), endpoint=server.endpoint, **packages("boto3_query"))


@pytest.mark.parametrize(("start", "protocol"), [(_today, "json"), (_older, "query")], ids=["json", "query"])
@pytest.mark.parametrize("kind", ["server", "verifying_server"])
@pytest.mark.usefixtures("veilmq_settings")
def test_every_action(
    request: pytest.FixtureRequest, kind: str, start: Callable[[RunningServer], Program], protocol: str
) -> None:
    server: RunningServer = request.getfixturevalue(kind)
    with start(server) as program:
        *steps, last = program.reports(answers(server))
    assert steps == [{"step": step} for step in STEPS]
    assert last["protocol"] == protocol
    assert set(last["actions"]) == ACTIONS
