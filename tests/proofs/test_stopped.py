"""A worker process that is stopped for longer than its leases, by SIGSTOP, and continued: it notices by itself.

Its clock is the machine's, so the stop takes real seconds; `make prove-stopped` takes the forty of a real one.
"""

import os
import sys
import time

import pytest

from tests.clients.program import Program
from tests.tidy.tree import SRC
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.testing import RunningServer

WHOLE = os.environ.get("PROVE") == "whole"
LEASE_S, STOPPED_S = (30, 40.0) if WHOLE else (3, 3.5)
THEIRS_S = 600


@pytest.mark.timeout(180)
def test_a_worker_that_was_stopped_keeps_what_nobody_took_and_lets_go_of_the_rest() -> None:
    """Both are in doubt; the one that another took meanwhile is lost and left to him, the other one is done."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        queue = server.queue("work", visibility_timeout_s=LEASE_S)
        client.send_batch("work", [NewMessage(body=body) for body in ("a", "b")])
        program = Program(
            [sys.executable, "-m", "tests.proofs.stopped_worker"],
            endpoint=server.endpoint,
            PYTHONPATH=str(SRC),
            LEASE_S=str(LEASE_S),
        )
        with program:
            assert {program.expect("event", "begun")["body"] for _ in "ab"} == {"a", "b"}
            with program.stopped():
                server.advance(seconds=STOPPED_S)
                time.sleep(STOPPED_S)
                (taken,) = client.receive("work", timeout_s=THEIRS_S, wait_s=0)
            reports = [program.hear() for _ in range(5)]
            server.wait_until(lambda: len(queue.messages()) == 1)
        kept = {"a": "b", "b": "a"}[taken.body]
        told = {(report["event"], report["body"]) for report in reports if report is not None}
        assert told == {
            ("suspect", "a"),
            ("suspect", "b"),
            ("lost", taken.body),
            ("cancelled", taken.body),
            ("done", kept),
        }
        (left,) = queue.in_flight
        assert left.body == taken.body
        assert left.receive_count == 2
        assert left.visible_at_ms == server.clock.now_ms() + THEIRS_S * 1_000
