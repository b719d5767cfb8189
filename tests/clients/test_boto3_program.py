"""The same program, tests/clients/python/sdk.py, with today's boto3 and with one that speaks the Query protocol."""

import sys
from collections.abc import Callable

import pytest

from tests.clients.program import ACTIONS, Program, answers, packages, python
from tests.conftest import EVERYTHING
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


@pytest.mark.parametrize(
    ("kind", "start", "protocol"),
    [
        pytest.param("verifying_server", _today, "json", id="verifying_server-json"),
        pytest.param("server", _older, "query", id="server-query"),
        pytest.param("server", _today, "json", id="server-json", marks=EVERYTHING),
        pytest.param("verifying_server", _older, "query", id="verifying_server-query", marks=EVERYTHING),
    ],
)
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
