"""Power loss in the middle of dead letters and of a move task: every message is in one place, and the count is right.

The disk is rebuilt as the power would have left it after each write of a workload (``power``), and its rows are read.
"""

import random
from pathlib import Path

import pytest

from tests.internals.store.power import Log, check, counted, outages, record, rows
from tests.store.host import QUEUE, Host, message
from veilmq.core import commands

SEED = 20_240_229
DEAD = "000000000000/dead"
BACK = "000000000000/back"
TOTAL = 12
LONG = "x" * 9_000  # a few pages, so that a commit is several writes


def work(host: Host) -> None:
    host.do(commands.CreateQueue(queue=DEAD))
    host.do(commands.CreateQueue(queue=BACK))
    host.do(commands.CreateQueue(queue=QUEUE, settings={"dead_letter_queue": DEAD, "receives_max": 1}))
    bodies = [f"{number} {LONG if number % 3 else ''}" for number in range(TOTAL)]
    host.do(commands.Send(queue=QUEUE, messages=tuple(message(body) for body in bodies)))
    host.receive(TOTAL, timeout_s=1)
    host.advance(1_000)
    host.receive(TOTAL)
    host.do(commands.StartMove(source=DEAD, destination=BACK, moves_per_s_max=1))
    for _ in range(TOTAL):
        host.advance(1_000)
    assert host.counts(BACK) == (TOTAL, 0, 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return record(work, tmp_path_factory.mktemp("moving") / "store")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_no_message_is_lost_doubled_or_miscounted_when_the_power_goes(
    recorded: Log, tmp_path: Path, *, torn: bool
) -> None:
    """After every write: all or none of them are there, each once, and the task counts those that have arrived."""
    seen: set[tuple[int, int, int]] = set()
    for number, folder in outages(recorded, tmp_path, torn=random.Random(SEED) if torn else None):
        found = counted(folder)
        assert found.total() in (0, TOTAL)
        assert found[BACK] == sum(moved for (moved,) in rows(folder, "SELECT moved FROM move"))
        seen.add((found[QUEUE], found[DEAD], found[BACK]))
        if number % 10 == 0 and found:
            check(folder)
    # Dying is one transaction, and each slice of the task is one.
    assert seen >= {(TOTAL, 0, 0)} | {(0, TOTAL - moved, moved) for moved in range(TOTAL)}
    assert all(0 in (source, dead) for source, dead, _ in seen)
