"""The examples of consumers print what they promise."""

import os
import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT, SRC
from veilmq.testing import RunningServer, SystemClock

PRINTED = {
    "consume_orders": """\
order 1: anchor, attempt 1
order 3: rope, attempt 1
order 2: ship, attempt 2
dead letter: 'no order at all', Undecodable
""",
    "consume_in_order": """\
ann: open, deposit, close
bob: open, deposit, close
cid: open, deposit, close
""",
    "consume_batches": """\
rows: [0, 1, 2, 3, 4, 5, 6]
loaded 7, dropped 3
""",
    "consume_once": """\
order 1: shipped
the worker was killed: True
order 2: shipped
order 3: shipped
left in the queue: 0
""",
    "consume_long_jobs": """\
The Veil: frames 0 to 3
The Veil: frames 4 to 7
The Veil: frames 8 to 9
rendered: {'The Veil': 10}
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name: str) -> None:
    """Against a server on the real clock, as its readers have one."""
    with RunningServer(clock=SystemClock()) as server:
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / f"{name}.py"],
            env={**os.environ, "VEILMQ_ENDPOINT": server.endpoint, "PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name].splitlines())
