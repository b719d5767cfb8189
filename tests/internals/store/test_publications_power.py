"""Power loss while a batch is staged, published and moved into its queue: all of it or none, each message once.

The disk is rebuilt as the power would have left it after each write of a workload (``power``), the store opened on it,
and the writer goes on as one does that does not know how far it came.
"""

import random
import shutil
from pathlib import Path

import pytest

from tests.internals.store.power import Change, Disk, record
from tests.store.host import QUEUE, RESTLESS, Host, hosting, message
from veilmq.core.claims import ListWriters, Publish, Stage
from veilmq.core.errors import QueueNotFound
from veilmq.store import publications

SEED = 20_240_229
TOTAL = 9
LONG = "x" * 9_000  # a few pages, so that a commit is several writes
BODIES = [f"{number} {LONG if number % 3 else ''}" for number in range(TOTAL)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two messages."""
    monkeypatch.setattr(publications, "PIECE_MESSAGES", 2)


def write(host: Host) -> None:
    for part in range(3):
        messages = tuple(message(body) for body in BODIES[3 * part : 3 * part + 3])
        host.do(Stage(queue=QUEUE, writer="w", batch=0, attempt="a", part=part, messages=messages))
    host.do(Stage(queue=QUEUE, writer="w", batch=0, attempt="b", part=0, messages=(message("never"),)))
    while host.do(Publish(queue=QUEUE, writer="w", batch=0, attempts=(("a", TOTAL),))).more:
        pass


def _work(host: Host) -> None:
    host.create()
    write(host)
    for _ in range(10):
        host.advance(10)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_a_writer_that_goes_on_after_a_power_loss_sends_its_batch_once(tmp_path: Path, *, torn: bool) -> None:
    recorded = record(_work, tmp_path / "recorded")
    disk, chance = Disk(), random.Random(SEED)
    found: set[tuple[int, bool]] = set()
    for number, entry in enumerate(recorded.entries):
        disk.play(entry)
        if not isinstance(entry, Change) or number % 3:
            continue
        folder = tmp_path / str(number)
        disk.lose_power(folder, torn=chance if torn else None)
        with hosting(folder, options=RESTLESS) as host:
            try:
                writers = host.do(ListWriters(queue=QUEUE))
            except QueueNotFound:
                continue
            entered = host.counts()[0]
            published = any(view.batch == 0 for view in writers)
            assert published or not entered
            found.add((entered, published))
            write(host)
            assert [received.body for received in host.receive(TOTAL + 1)] == BODIES
            host.check()
        shutil.rmtree(folder)
    assert {entered for entered, _ in found} >= {0, 2, TOTAL}
    assert {published for _, published in found} == {False, True}
