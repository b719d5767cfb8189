"""The failover proof: the primary fails under load, and its synchronous standby takes over.

One server of veilmq, whose URL names both databases, is never restarted. Shortly before the primary is killed, its
replication is held back, so that commits that do not wait for the standby are certainly undone. Afterwards every
acknowledged send must be there. With the durability `strict` no acknowledged delete or lease is undone either; with
`standard` the figures count them. `PROVE=whole` fails over three times, after a longer load.
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
KINDS = {  # text of a violation → its kind
    "is lost": "sends lost",
    "was delivered after its delete": "deletes undone",
    "was deleted and is still there": "deletes undone",
    "before its deadline": "leases undone",
    "with one receive count": "leases undone",
    "but counted": "leases undone",
}


class Producer:
    """A producer on a queue without consumers, and its acknowledged messages."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        caller.call("SendMessage", MessageBody=str(number))
        self.acknowledged.append(str(number))


class Pair:
    """A primary and a synchronous standby; a failed one is recreated from the other."""

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
        """Kill the primary while its standby lags, after `lag()`, and promote the standby."""
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
def test_a_failover_loses_no_send(
    pair: Pair, served: Served, durability: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load, producer = Load(), Producer()
    with (
        load.callers([served.port], seed=SEED) as busy,
        Callers([served.port], KEPT, [producer.produce] * 2, seed=SEED),
    ):
        gaps_s = fail_over_under_load(pair, busy, load, producer, durability)
    with closing(SqsCaller(served.port, Load.queue)) as caller:
        left = {*drain(caller, load)}
    with HttpQueueClient(served.endpoint) as client:
        kept = {message.body for message in drained(client, KEPT)}
    found = Counter(map(kind_of, load.ledger.settle(left)))
    found["sends lost"] += len(set(producer.acknowledged) - kept)
    with capsys.disabled():
        print(f"\n{figures(durability, load.ledger, producer, gaps_s, found)}")  # noqa: T201 - a proof shows its figures
    assert found["sends lost"] == 0
    assert found["other"] == 0
    if durability == "strict":
        assert found.total() == 0
    else:
        assert found.total() > 0, "the proof does not detect undone commits"


def fail_over_under_load(pair: Pair, busy: Callers, load: Load, producer: Producer, durability: str) -> list[float]:
    gaps_s = []
    time.sleep(BEFORE_S)
    busy.until(lambda: is_enough(load.ledger))
    for left in reversed(range(FAILOVERS)):
        began_s, more = now_s(), more_deletes_than_in_progress(load)
        pair.fail_over(partial(busy.until, (lambda: True) if durability == "strict" else more))
        await_more(producer)
        gaps_s.append(now_s() - began_s)
        time.sleep(AFTER_S)
        if left:
            pair.restore()
            time.sleep(BEFORE_S)
    return gaps_s


def is_enough(ledger: Ledger) -> bool:
    return min(ledger.totals()) > 20 * FAILOVERS


def more_deletes_than_in_progress(load: Load) -> Callable[[], bool]:
    """Return a condition: more deletes were answered since this call than were in progress."""
    wanted = load.ledger.totals()[-1] + 4  # one more than there are consumers
    return lambda: load.ledger.totals()[-1] >= wanted


def await_more(producer: Producer) -> None:
    """Return when more sends were acknowledged than requests in progress can explain."""
    before = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) >= before + 10, what="no request is answered after the failover")


def kind_of(violation: str) -> str:
    return next((kind for words, kind in KINDS.items() if words in violation), "other")


def figures(durability: str, ledger: Ledger, producer: Producer, gaps_s: list[float], found: Counter[str]) -> str:
    sends, leases, deletes = ledger.totals()
    sends += len(producer.acknowledged)
    gaps = ", ".join(f"{gap_s:.1f}" for gap_s in gaps_s)
    return (
        f"{durability}: {len(gaps_s)} failovers, unavailable for {gaps} s; of {sends} acknowledged sends"
        f" {found['sends lost']} were lost, of {deletes} deletes {found['deletes undone']} undone,"
        f" of {leases} leases {found['leases undone']}"
    )
