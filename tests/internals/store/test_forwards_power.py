"""Power loss in the middle of forwards: every message is in one queue, the one that its answer named.

The disk is rebuilt as the power would have left it after each write of a workload (``power``), and its rows are read.
"""

import random
from pathlib import Path

import pytest

from tests.internals.store.power import Log, check, counted, outages, record
from tests.internals.store.test_moves_power import LONG, SEED
from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.topics import Forward, Forwarded, ForwardEntry

FAST = "000000000000/fast"
SLOW = "000000000000/slow"
TOTAL = 12
AT_ONCE = 3


def work(host: Host) -> None:
    """Send, and forward three by three: of each three, two to one queue, one of them as a dead letter, and one away."""
    for name in (QUEUE, FAST, SLOW):
        host.do(commands.CreateQueue(queue=name))
    bodies = [f"{number} {LONG if number % 2 else ''}" for number in range(TOTAL)]
    host.do(commands.Send(queue=QUEUE, messages=tuple(message(body) for body in bodies)))
    for _ in range(TOTAL // AT_ONCE):
        got = host.receive(AT_ONCE)
        entries = tuple(
            ForwardEntry(receipt=each.receipt, target=target, reasons=reasons)
            for each, target, reasons in zip(got, (FAST, SLOW, FAST), (None, None, {"why": "no"}), strict=True)
        )
        answers = host.do(Forward(queue=QUEUE, entries=entries))
        assert all(isinstance(answer, Forwarded) for answer in answers)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return record(work, tmp_path_factory.mktemp("forwarding") / "store")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_no_message_is_lost_or_doubled_when_the_power_goes(recorded: Log, tmp_path: Path, *, torn: bool) -> None:
    """After every write: all or none of them are there, each once, and a command has moved all of its own or none."""
    seen: set[tuple[int, int, int]] = set()
    for number, folder in outages(recorded, tmp_path, torn=random.Random(SEED) if torn else None):
        found = counted(folder)
        assert found.total() in (0, TOTAL)
        seen.add((found[QUEUE], found[FAST], found[SLOW]))
        if number % 10 == 0 and found:
            check(folder)
    steps = {(TOTAL - AT_ONCE * done, 2 * done, done) for done in range(TOTAL // AT_ONCE + 1)}
    assert seen == steps | {(0, 0, 0)}
