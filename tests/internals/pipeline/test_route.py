"""Routing tables, and the benefit of classes: the same work by the same workers in one queue and in three.

Workers are simulated on the clock of a real server: each receives a message, works for the time in it, and deletes it,
late or not.
"""

import heapq
import math
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.internals.pipeline.made_counts import key_with, lognormal, renewed
from veilmq.client import HttpQueueClient
from veilmq.core.messages import Attribute
from veilmq.core.settings import RoutingTable, SettingValue, TimeoutClass
from veilmq.pipeline.cells import ReceiptCounts
from veilmq.pipeline.estimate import estimates
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.route import _counts_of_queue, _written, create_queues, routing_table_of
from veilmq.pipeline.session import PipelineFailed
from veilmq.testing import RunningServer

OPTIONS = TuneOptions()


def table_of(count: int, **firsts: ReceiptCounts) -> tuple[dict[str, int], tuple[int, ...], int]:
    """Return the keys, the timeouts and the default of a table with at most ``count`` classes."""
    _, found = estimates([key_with(first, key=key) for key, first in firsts.items()], options=OPTIONS)
    table = routing_table_of(found, count, OPTIONS)
    assert table is not None
    return table.keys, tuple(each.visibility_timeout_s for each in table.classes), table.default


def test_keys_share_a_class_with_their_neighbours() -> None:
    """Unlisted keys belong to the longest class."""
    keys, timeouts_s, default = table_of(
        2,
        fast=lognormal(0.5, 3000, crash_rate=0.003),
        faster=lognormal(0.3, 3000, crash_rate=0.003),
        slow=lognormal(10.0, 3000, crash_rate=0.003),
    )
    assert keys == {"fast": 0, "faster": 0, "slow": 1}
    assert timeouts_s[0] < timeouts_s[1]
    assert default == 1


def test_keys_whose_work_never_ended_and_unlisted_keys_get_a_longer_class() -> None:
    """Its timeout is four times the longest so far."""
    stuck = lognormal(300.0, 3000, finishing=False)
    keys, timeouts_s, default = table_of(1, fast=lognormal(0.5, 3000, crash_rate=0.003), stuck=stuck)
    assert keys == {"fast": 0, "stuck": 1}
    assert timeouts_s[0] < 20
    assert timeouts_s[1] in range(118, 122)
    assert default == 1


def test_keys_of_renewing_consumers_get_the_first_class_with_time_for_three_renewals() -> None:
    """With renewals every 20 s this is one minute, although the work takes five."""
    keys, timeouts_s, _ = table_of(
        3, fast=lognormal(0.5, 3000, crash_rate=0.003), slow=lognormal(100.0, 3000, crash_rate=0.003), kept=renewed(20)
    )
    index = keys["kept"]
    assert timeouts_s[index] >= 59
    assert index == 0 or timeouts_s[index - 1] < 60


def test_messages_without_a_key_belong_to_the_default_class() -> None:
    assert estimates([key_with(ReceiptCounts(), key="")], options=OPTIONS)[1].keys() == {""}
    _, found = estimates([key_with(lognormal(1.0, 1000), key="")], options=OPTIONS)
    table = routing_table_of(found, 2, OPTIONS)
    assert table is not None
    assert table.keys == {}


@pytest.mark.parametrize(
    "first", [ReceiptCounts(), lognormal(300.0, 50, finishing=False)], ids=["nothing", "too-little"]
)
def test_without_enough_data_there_is_no_table(first: ReceiptCounts) -> None:
    _, found = estimates([key_with(first)], options=OPTIONS)
    assert routing_table_of(found, 2, OPTIONS) is None


def test_a_table_gets_a_new_version_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "routes.json"
    short = RoutingTable(version=1, classes=(TimeoutClass(name="x", visibility_timeout_s=1, queue="x"),), default=0)
    longer = msgspec.structs.replace(short, classes=(TimeoutClass(name="x", visibility_timeout_s=2, queue="x"),))
    assert [_written(path, each).version for each in (short, short, longer, longer)] == [1, 1, 2, 2]
    assert msgspec.json.decode(path.read_bytes(), type=RoutingTable) == msgspec.structs.replace(longer, version=2)
    assert [each.name for each in path.parent.iterdir()] == ["routes.json"]


def test_the_error_of_a_table_that_cannot_be_written_has_the_path(tmp_path: Path) -> None:
    """The command line prints it."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory") as raised:
        _written(tmp_path / "file" / "folder" / "routes.json", RoutingTable(version=1, classes=(), default=0))
    assert raised.value.filename == str(tmp_path / "file" / "folder")


def test_a_queue_may_be_named_without_its_account_unless_several_have_it() -> None:
    one, two, other = (key_with(ReceiptCounts(), queue=queue) for queue in ("1/jobs", "2/jobs", "1/other"))
    assert _counts_of_queue([one, other], "jobs") == [one]
    assert _counts_of_queue([one, two, other], "2/jobs") == [two]
    with pytest.raises(PipelineFailed, match="Several accounts have a queue jobs: name one of 1/jobs, 2/jobs"):
        _counts_of_queue([one, two, other], "jobs")


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
    """Simulated workers that empty ``queues``; counts redeliveries."""

    def __init__(self, server: RunningServer, client: HttpQueueClient, queues: Sequence[str]) -> None:
        self.redelivered = 0
        self._server, self._client, self._queues = server, client, queues
        self._now_ms, self._deaths = 0, DEATHS
        self._free = list(range(WORKERS))
        self._busy: list[tuple[int, int, str, str]] = []
        self._deadlines = [0]

    def work(self) -> None:
        """Advance from one due instant to the next until the queues are empty."""
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
        """Let a worker receive a message, from its own queue first; a worker that dies with one is replaced."""
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
    """Send work, each kind to its queue; the body is the duration."""
    chance = random.Random(7)
    for kind in chance.choices(list(MEDIANS_MS), [6, 3, 1], k=MESSAGES):
        took_ms = round(chance.lognormvariate(math.log(MEDIANS_MS[kind]), 0.5))
        client.send(queue_of[kind], str(took_ms), attributes={"Type": Attribute(type="String", text=kind)})


@pytest.mark.slow
def test_classes_cause_fewer_redeliveries_than_one_queue_and_no_false_dead_letters() -> None:
    """The timeout of the one queue is too short for the long work."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("dead")
        dead_letters: dict[str, SettingValue] = {"dead_letter_queue": "dead", "receives_max": RECEIVES_MAX}
        client.create_queue("one", {"visibility_timeout_s": 30, **dead_letters})
        send(client, dict.fromkeys(MEDIANS_MS, "one"))
        single = Shift(server, client, ["one"])
        single.work()
        dead = client.show("dead").visible

        create_queues(client, TABLE, receives_max=1)
        client.set("long", dead_letters)
        send(client, {kind: kind for kind in MEDIANS_MS})
        several = Shift(server, client, list(MEDIANS_MS))
        several.work()
        assert client.show("dead").visible == dead
        assert dead > 0
        assert DEATHS <= several.redelivered < single.redelivered / 2
