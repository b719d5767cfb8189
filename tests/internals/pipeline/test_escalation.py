"""What classes of timeouts are good for: the same work, by the same workers, in one queue and in three.

Workers are simulated on the clock of a real server: each takes a message, is busy for as long as its work takes, and
deletes it then, late or not. Nobody waits.
"""

import heapq
import math
import random
from collections.abc import Sequence

import pytest

from veilmq.client import HttpQueueClient
from veilmq.core.properties import Attribute
from veilmq.core.routing import RoutingTable, TimeoutClass
from veilmq.core.settings import SettingValue
from veilmq.pipeline.route import create_queues
from veilmq.testing import RunningServer

WORKERS = 8
MESSAGES = 160
DEATHS = 4
RECEIVES_MAX = 5
MEDIANS_MS = {"short": 1_000, "middle": 20_000, "long": 400_000}
CLASSES = tuple(
    TimeoutClass(name=kind, visibility_timeout_s=median_ms * 3 // 1000, queue=kind)
    for kind, median_ms in MEDIANS_MS.items()
)
TABLE = RoutingTable(version=1, classes=CLASSES, keys={kind: index for index, kind in enumerate(MEDIANS_MS)}, default=2)


class Shift:
    """The workers at their `queues`, until nothing is left in them; counts what was received again."""

    def __init__(self, server: RunningServer, client: HttpQueueClient, queues: Sequence[str]) -> None:
        """Begin with everybody free; the first few will die over what they take."""
        self.redelivered = 0
        self._server, self._client, self._queues = server, client, queues
        self._now_ms, self._deaths = 0, DEATHS
        self._free = list(range(WORKERS))
        self._busy: list[tuple[int, int, str, str]] = []
        self._deadlines = [0]

    def work(self) -> None:
        """Go from one instant at which something happens to the next."""
        while self._left():
            self._free = [worker for worker in self._free if not self._take(worker)]
            due = [each[0] for each in self._busy[:1]] + [each for each in self._deadlines if each > self._now_ms]
            at_ms = min(due)
            self._server.advance(at_ms - self._now_ms)
            self._now_ms = at_ms
            while self._busy and self._busy[0][0] <= at_ms:
                _, worker, queue, receipt = heapq.heappop(self._busy)
                self._client.delete(queue, receipt)
                self._free.append(worker)

    def _left(self) -> int:
        return sum(status.visible + status.in_flight for status in map(self._client.show, self._queues))

    def _take(self, worker: int) -> bool:
        """Let a worker take a message, of its own queue first; a dead one takes it with it, and is replaced."""
        own = worker % len(self._queues)
        for queue in [*self._queues[own:], *self._queues[:own]]:
            for message in self._client.receive(queue):
                timeout_s = self._client.show(queue).settings.visibility_timeout_s
                self._deadlines.append(self._now_ms + timeout_s * 1000)
                self.redelivered += message.receive_count > 1
                if self._deaths:
                    self._deaths -= 1
                    return False
                done_ms = self._now_ms + int(message.body)
                heapq.heappush(self._busy, (done_ms, worker, queue, message.receipt))
                return True
        return False


def send(client: HttpQueueClient, queue_of: dict[str, str]) -> None:
    """Send work whose body is how long it takes, each kind to its queue."""
    chance = random.Random(7)
    for kind in chance.choices(list(MEDIANS_MS), [6, 3, 1], k=MESSAGES):
        took_ms = round(chance.lognormvariate(math.log(MEDIANS_MS[kind]), 0.5))
        client.send(queue_of[kind], str(took_ms), attributes={"Type": Attribute(type="String", text=kind)})


@pytest.mark.slow
def test_classes_repeat_less_than_one_queue_and_kill_nothing() -> None:
    """One timeout is too short for the long work: it is done again and again, and dies although nothing is wrong."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("dead")
        mortal: dict[str, SettingValue] = {"dead_letter_queue": "dead", "receives_max": RECEIVES_MAX}
        client.create_queue("one", {"visibility_timeout_s": 30, **mortal})
        send(client, dict.fromkeys(MEDIANS_MS, "one"))
        single = Shift(server, client, ["one"])
        single.work()
        dead = client.show("dead").visible

        create_queues(client, TABLE, receives_max=1)
        client.set("long", mortal)
        send(client, {kind: kind for kind in MEDIANS_MS})
        several = Shift(server, client, list(MEDIANS_MS))
        several.work()
        assert client.show("dead").visible == dead
        assert dead > 0
        assert DEATHS <= several.redelivered < single.redelivered / 2
