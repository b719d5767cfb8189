"""Claims outlive SIGKILL: a real server process with open claims is killed in mid-work, and started again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proofs.served import ServedFolder
from veilmq.client import ClientError, HttpQueueClient, NewMessage
from veilmq.client.claims import Claims
from veilmq.core.claims import ClaimState, SourceView

pytestmark = pytest.mark.slow

MESSAGES = 500


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedFolder]:
    """A server process with a queue of messages."""
    folder = ServedFolder(tmp_path / "store")
    folder.start()
    try:
        with HttpQueueClient(endpoint(folder)) as queues:
            queues.create_queue("jobs")
            for first in range(0, MESSAGES, 10):
                sent = queues.send_batch("jobs", [NewMessage(body=f"m{first + n}") for n in range(10)])
                assert not any(isinstance(each, ClientError) for each in sent)
        yield folder
    finally:
        folder.stop()


def endpoint(served: ServedFolder) -> str:
    """Return where it listens, now and after it was started again."""
    return f"http://127.0.0.1:{served.port}"


def bodies(claims: Claims, number: int, shards: int) -> list[list[str]]:
    """Return what each shard of a claim has."""
    return [
        [body for batch in claims.read("s", number=number, shard=shard) for body in batch["body"].to_pylist()]
        for shard in range(shards)
    ]


def standing(view: SourceView) -> tuple[object, ...]:
    """Return what of a source does not depend on when one looks."""
    return view.source, view.consumer, view.epoch, view.acknowledged, view.last, view.hold_until_ms, view.claims


def test_claims_are_as_they_were(served: ServedFolder) -> None:
    """Membership, lease, hold and counters; nobody else gets what is claimed; and then it goes on."""
    with Claims(endpoint(served), "jobs") as claims, HttpQueueClient(endpoint(served)) as queues:
        epoch = claims.open("s", consumer="c", hold_s=3_600).epoch
        first = claims.claim("s", epoch=epoch, number=1, messages_max=300, shard_messages=100)
        second = claims.claim("s", epoch=epoch, number=2, messages_max=100)
        assert (first.messages, first.shards, second.messages) == (300, 3, 100)
        had = bodies(claims, 1, 3), bodies(claims, 2, 1)
        (before,) = claims.sources()
        counts = queues.show("jobs")

        served.kill()
        served.start()

        (after,) = claims.sources()
        assert standing(after) == standing(before)
        assert (after.alive, after.lease_until_ms) == (True, before.lease_until_ms)
        assert (bodies(claims, 1, 3), bodies(claims, 2, 1)) == had
        now = queues.show("jobs")
        assert (now.visible, now.in_flight) == (counts.visible, counts.in_flight) == (100, 400)
        again = claims.claim("s", epoch=epoch, number=2, messages_max=100)
        assert (again.again, again.messages) == (True, 100)
        rest = [message.body for _ in range(20) for message in queues.receive("jobs", count=10)]
        claimed = {body for shards in had for shard in shards for body in shard}
        assert len(rest) == 100
        assert claimed.isdisjoint(rest)
        assert claimed | set(rest) == {f"m{n}" for n in range(MESSAGES)}


def test_an_acknowledged_claim_stays_acknowledged(served: ServedFolder) -> None:
    """What was answered has happened: its messages are gone, and those of the next claim are not."""
    with Claims(endpoint(served), "jobs") as claims, HttpQueueClient(endpoint(served)) as queues:
        epoch = claims.open("s").epoch
        for number in (1, 2):
            claims.claim("s", epoch=epoch, number=number, messages_max=200)
        claims.acknowledge("s", epoch=epoch, number=1)

        served.kill()
        served.start()

        with pytest.raises(ClientError) as caught:
            list(claims.read("s", number=1))
        assert caught.value.code == "ClaimAcknowledged"
        (view,) = claims.sources()
        assert [(claim.number, claim.state, claim.messages) for claim in view.claims] == [(2, ClaimState.OPEN, 200)]
        assert queues.show("jobs").in_flight == 200
        claims.acknowledge("s", epoch=epoch, number=2)
        status = queues.show("jobs")
        assert (status.visible, status.in_flight) == (100, 0)
