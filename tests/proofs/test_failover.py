"""The failover proof: the primary loses its power under load, its synchronous standby takes over, clients go on.

One server of veilmq, whose URL names both databases, is never restarted. For the last moment before the power goes, the
primary sends its standby nothing any more, so what does not wait for the standby is undone for certain. Afterwards
every acknowledged send is there. With the durability `strict` no acknowledged delete and no lease was undone either;
with `standard` the figures tell how many were. `PROVE=whole` does it three times, after a longer load.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder, url_of
from tests.client.traffic import drained
from tests.conftest import EVERYTHING
from tests.proofs.ledger import Ledger, SqsCaller
from tests.proofs.loads import TIMEOUT_S, Callers, Load, drain, now_s
from tests.proofs.served import Served, wait_until
from veilmq.client import HttpQueueClient

WHOLE = os.environ.get("PROVE") == "whole"
BEFORE_S, AFTER_S = (20.0, 10.0) if WHOLE else (1.0, 0.5)
HELD_BACK_S = 0.3
FAILOVERS = 3 if WHOLE else 1
SEED = 20_261_122
KEPT = "kept"

KINDS = {
    "is lost": "sends lost",
    "came back after its delete": "deletes undone",
    "was deleted and is still there": "deletes undone",
    "before its deadline": "leases undone",
    "with one receive count": "leases undone",
    "but counted": "leases undone",
}
"""What the ledger says, and what was undone then."""


class Keeping:
    """A producer on a queue that nobody receives from, and what was acknowledged to it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        caller.call("SendMessage", MessageBody=str(number))
        self.told.append(str(number))


class Pair:
    """A primary and a synchronous standby, each made anew from the other when it has failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self.primary = self._next()
        self.standby = self._next()

    def _next(self, port: int | None = None) -> PostgresServer:
        self._made += 1
        return PostgresServer(self._folder / f"pg{self._made}", port=port)

    @property
    def url(self) -> str:
        return url_of(self.primary, self.standby)

    def begin(self) -> None:
        self.primary.make()
        self.primary.start()
        self._follow()

    def _follow(self) -> None:
        self.standby.make_standby(self.primary)
        self.standby.start()
        self.primary.wait_for(self.standby)

    def fail_over(self, lag: Callable[[], object]) -> None:
        """Take the power from the primary while its standby lags, after `lag()`, and have the standby take over."""
        self.primary.hold_back()
        time.sleep(HELD_BACK_S)
        lag()
        self.primary.kill()
        self.standby.promote()

    def restore(self) -> None:
        failed = self.primary
        self.primary, self.standby = self.standby, self._next(failed.port)
        self._follow()

    def stop(self) -> None:
        self.standby.stop()
        self.primary.stop()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with temporary_folder() as folder:
        servers = Pair(folder)
        try:
            servers.begin()
            yield servers
        finally:
            servers.stop()


@pytest.fixture
def served(pair: Pair, tmp_path: Path, durability: str) -> Iterator[Served]:
    with Served("--store", pair.url, "--durability", durability, log=tmp_path / "served.log") as server:
        with closing(SqsCaller(server.port, KEPT)) as maker:
            for queue in (Load.queue, KEPT):
                maker.call("CreateQueue", QueueName=queue, Attributes={"VisibilityTimeout": str(TIMEOUT_S)})
        yield server


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["strict", pytest.param("standard", marks=EVERYTHING)])
def test_failover(pair: Pair, served: Served, durability: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing acknowledged is lost, and who asks is served again without anybody's help."""
    load, keeping = Load(), Keeping()
    with load.callers([served.port], seed=SEED) as busy, Callers([served.port], KEPT, [keeping.produce] * 2, seed=SEED):
        gaps_s = fail_over_under_load(pair, busy, load, keeping, durability)
    with closing(SqsCaller(served.port, Load.queue)) as caller:
        left = {*drain(caller, load)}
    with HttpQueueClient(served.endpoint) as client:
        kept = {message.body for message in drained(client, KEPT)}
    found = Counter(map(kind_of, load.ledger.settle(left)))
    found["sends lost"] += len(set(keeping.told) - kept)
    with capsys.disabled():
        print(f"\n{figures(durability, load.ledger, keeping, gaps_s, found)}")  # noqa: T201 - a proof shows its figures
    assert found["sends lost"] == 0
    assert found["other"] == 0
    if durability == "strict":
        assert found.total() == 0
    else:
        assert found.total() > 0, "the proof sees nothing of what is undone"


def fail_over_under_load(pair: Pair, busy: Callers, load: Load, keeping: Keeping, durability: str) -> list[float]:
    gaps_s = []
    time.sleep(BEFORE_S)
    busy.until(lambda: is_enough(load.ledger))
    for left in reversed(range(FAILOVERS)):
        began_s, more = now_s(), more_is_deleted(load)
        pair.fail_over(partial(busy.until, (lambda: True) if durability == "strict" else more))
        await_more(keeping)
        gaps_s.append(now_s() - began_s)
        time.sleep(AFTER_S)
        if left:
            pair.restore()
            time.sleep(BEFORE_S)
    return gaps_s


def is_enough(ledger: Ledger) -> bool:
    return min(ledger.told()) > 20 * FAILOVERS


def more_is_deleted(load: Load) -> Callable[[], bool]:
    """Return what tells whether more deletes were answered, since this call, than were under way."""
    wanted = load.ledger.told()[-1] + 4  # one more than there are consumers
    return lambda: load.ledger.told()[-1] >= wanted


def await_more(keeping: Keeping) -> None:
    """Return when more was acknowledged than a request that was under way can explain."""
    before = len(keeping.told)
    wait_until(lambda: len(keeping.told) >= before + 10, what="nobody is served after the failover")


def kind_of(violation: str) -> str:
    return next((kind for words, kind in KINDS.items() if words in violation), "other")


def figures(durability: str, ledger: Ledger, keeping: Keeping, gaps_s: list[float], found: Counter[str]) -> str:
    sends, leases, deletes = ledger.told()
    sends += len(keeping.told)
    gaps = ", ".join(f"{gap_s:.1f}" for gap_s in gaps_s)
    return (
        f"{durability}: {len(gaps_s)} failovers, nobody served for {gaps} s; of {sends} acknowledged sends"
        f" {found['sends lost']} were lost, of {deletes} deletes {found['deletes undone']} undone,"
        f" of {leases} leases {found['leases undone']}"
    )
