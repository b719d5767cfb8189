"""boto3 as a program: tests/clients/python/sdk.py, every action."""

import sys
from collections.abc import Callable

import pytest

from tests.clients.program import Program, answers
from veilmq.testing import RunningServer
from veilmq.wire.sqs.actions import ACTIONS

PROGRAM = "tests.clients.python.sdk"
STEPS = ["queues", "message", "delay", "attributes", "batches", "long_poll", "errors", "resource", "end"]


def _today(server: RunningServer) -> Program:
    return Program([sys.executable, "-m", PROGRAM], endpoint=server.endpoint)


@pytest.mark.parametrize(("start", "protocol"), [(_today, "json")], ids=["json"])
def test_every_action(server: RunningServer, start: Callable[[RunningServer], Program], protocol: str) -> None:
    with start(server) as program:
        *steps, last = program.reports(answers(server))
    assert steps == [{"step": step} for step in STEPS]
    assert last["protocol"] == protocol
    assert set(last["actions"]) == set(ACTIONS)
