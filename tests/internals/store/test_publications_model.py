"""Publications compared with a naive model at random, with restarts: each batch once, in order, without unnamed stages.

The model is a list of what the queue must contain in the end, in the order of publications and of the stages named in
each. In a standard queue without receivers, messages are in the order in which they were published, so the messages of
a writer in the queue are always a prefix of its list.
"""

from collections import defaultdict
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.store.host import QUEUE, message
from tests.store.model_frame import ModelFrame, run_model
from tests.store.postgres_host import PostgresHost
from veilmq.core import commands
from veilmq.core.claims import Abandon, ListWriters, Publish, Stage
from veilmq.core.errors import StageMissing
from veilmq.store import publications

WRITERS = st.sampled_from(("w", "x"))
ATTEMPTS = st.sampled_from(("a", "b", "c"))
BATCHES = st.integers(0, 4)
PARTS = st.integers(0, 2)
_DELIVERED = "SELECT body FROM mq.msg JOIN mq.part USING (qp) WHERE NOT retired ORDER BY seq"
SLICES = 50

Key = tuple[str, int]
Parts = dict[int, list[str]]


class PublicationsAndModel(ModelFrame):
    """Each rule runs on both, and compares the results."""

    times_ms = st.sampled_from((0, 1, 10, 10, 30, 1_000))

    def __init__(self) -> None:
        super().__init__()
        self.staged: defaultdict[Key, dict[str, Parts]] = defaultdict(dict)
        self.published: dict[str, int] = {}
        self.expected: defaultdict[str, list[str]] = defaultdict(list)
        self.purged: defaultdict[str, int] = defaultdict(int)

    @initialize()
    def open(self) -> None:
        self.open_host()
        self.live.create()

    @rule(writer=WRITERS, batch=BATCHES, attempt=ATTEMPTS, part=PARTS, count=st.integers(0, 7))
    def stage(self, writer: str, batch: int, attempt: str, part: int, count: int) -> None:
        bodies = [f"{writer}{self.bodies + number}" for number in range(count)]
        self.bodies += count
        result = self.live.do(
            Stage(
                queue=QUEUE,
                writer=writer,
                batch=batch,
                attempt=attempt,
                part=part,
                messages=tuple(message(body) for body in bodies),
            )
        )
        if batch <= self.published.get(writer, -1):
            assert (result.messages, result.again) == (0, True)
            return
        parts = self.staged[writer, batch].setdefault(attempt, {})
        assert result.again == bool(parts.get(part))
        if not parts.get(part):
            parts[part] = bodies
        assert result.messages == sum(map(len, parts.values()))

    @rule(writer=WRITERS, batch=BATCHES, named=st.lists(ATTEMPTS, unique=True, max_size=3), with_error=st.booleans())
    def publish(self, writer: str, batch: int, named: list[str], *, with_error: bool) -> None:
        attempts = self.staged[writer, batch]
        counts = {name: sum(map(len, attempts.get(name, {}).values())) for name in named}
        if with_error and named:
            counts[named[-1]] += 1
        command = Publish(queue=QUEUE, writer=writer, batch=batch, attempts=tuple(counts.items()))
        again = batch <= self.published.get(writer, -1)
        if with_error and named and not again:
            with pytest.raises(StageMissing):
                self.live.do(command)
            return
        assert self.live.do(command).again == again
        if not again:
            self.published[writer] = batch
            for name in named:
                parts = attempts.get(name, {})
                self.expected[writer] += [body for part in sorted(parts) for body in parts[part]]
            for key in [key for key in self.staged if key[0] == writer and key[1] <= batch]:
                del self.staged[key]

    @rule(writer=WRITERS, batch=BATCHES)
    def abandon(self, writer: str, batch: int) -> None:
        self.live.do(Abandon(queue=QUEUE, writer=writer, batch=batch))
        self.staged.pop((writer, batch), None)

    @rule()
    def purge(self) -> None:
        """Delete the messages in the queue and of pending publications, but not unpublished stages."""
        self.live.do(commands.PurgeQueue(queue=QUEUE))
        for writer in self.expected:
            self.purged[writer] = len(self.expected[writer])

    @rule()
    def settle(self) -> None:
        for _ in range(SLICES):
            self.live.advance(10)
        delivered = self.delivered()
        for writer, bodies in self.expected.items():
            assert delivered[writer] == bodies[self.purged[writer] :]

    def delivered(self) -> dict[str, list[str]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        if self.url is not None:
            for body in cast(PostgresHost, self.live).values(_DELIVERED):
                found[body[0]].append(body)
            return found
        for received in self.live.receive(100_000, timeout_s=0):  # does not change their order
            found[received.body[0]].append(received.body)
        return found

    def compare(self) -> None:
        """Assert that each writer's messages are a prefix of its list, and that the writers' views are right."""
        before, delivered, after = self.live.counts(), self.delivered(), self.live.counts()
        while before != after:  # a slice was published meanwhile
            before, delivered, after = after, self.delivered(), self.live.counts()
        for writer, bodies in self.expected.items():
            bodies_left = bodies[self.purged[writer] :]
            assert delivered[writer] == bodies_left[: len(delivered[writer])]
        assert after == (sum(map(len, delivered.values())), 0, 0)
        for view in self.live.do(ListWriters(queue=QUEUE)):
            assert view.batch == self.published.get(view.writer)
            stages = [
                parts
                for (writer, _), attempts in self.staged.items()
                if writer == view.writer
                for parts in attempts.values()
            ]
            assert view.staged == sum(len(bodies) for parts in stages for bodies in parts.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_publications_agree_with_the_model(monkeypatch: pytest.MonkeyPatch, model_url: str | None) -> None:
    monkeypatch.setattr(publications, "PIECE_MESSAGES", 2)
    run_model(PublicationsAndModel, examples=25, steps=30, url=model_url, url_examples=6)
