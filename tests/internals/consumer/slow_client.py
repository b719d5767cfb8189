"""A client whose renewals take virtual time: what the network costs a lease, without waiting for it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.consumer.simulation import TimedBench
from veilmq.client import HttpQueueClient, Unreachable
from veilmq.client.messages import ClientError, Hidden
from veilmq.core.commands import VisibilityChange

PATIENCE_S = 0.05
"""Real seconds for an answer that never comes."""
BUSY_S = 60
"""And for one that comes, however busy the machine is: the caller's patience is one in virtual seconds."""


@dataclass
class SlowClient:
    """The real client of a bench; calls with a patience move its clock by as long as they took, or were waited for.

    ``answers_after_s`` is how long a scripted ``late_answer`` takes; with ``plain`` the server is one that says no more
    in its answers than Amazon SQS does.
    """

    bench: TimedBench
    client: HttpQueueClient
    answers_after_s: float = 0.0
    plain: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> Sequence[ClientError | Hidden | None]:
        """Make the changes of a release as ever; those of renewals take their time."""
        if patience_s is None:
            return self.client.change_visibility_batch(queue, changes)
        answers = self._late(queue, changes) if self.answers_after_s else self._given_up(queue, changes, patience_s)
        return [None if self.plain and isinstance(answer, Hidden) else answer for answer in answers]

    def _given_up(
        self, queue: str, changes: Sequence[VisibilityChange], patience_s: float
    ) -> Sequence[ClientError | Hidden | None]:
        lost = bool(self.bench.server.faults.left)
        try:
            return self.client.change_visibility_batch(queue, changes, patience_s=PATIENCE_S if lost else BUSY_S)
        except Unreachable:
            self._pass(patience_s)
            raise

    def _late(self, queue: str, changes: Sequence[VisibilityChange]) -> Sequence[ClientError | Hidden | None]:
        server = self.bench.server
        before = len(server.faults.happened)
        with ThreadPoolExecutor(1) as calls:
            answer = calls.submit(self.client.change_visibility_batch, queue, changes)
            server.wait_until(lambda: len(server.faults.happened) > before)
            self._pass(self.answers_after_s)
            self.answers_after_s = 0.0
            return answer.result()

    def _pass(self, seconds: float) -> None:
        self.bench.clock.set(self.bench.clock.now_s() + seconds)
