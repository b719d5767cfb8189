"""Power loss in the middle of publications: every queue has a message, or none has.

The disk is rebuilt as the power would have left it after each write of a workload (``power``), and its rows are read.
"""

import random
from pathlib import Path

import pytest

from tests.internals.store.power import Log, check, counted, outages, record
from tests.internals.store.test_moves_power import LONG, SEED
from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.messages import NewMessage
from veilmq.core.topics import CreateTopic, Notification, PublishToTopic, Subscribe, Subscription, push_queue

TOPIC = "000000000000/news"
COPIES = "000000000000/copies"
PUSHED = push_queue(TOPIC, "pushed")
PUBLICATIONS = 6


def work(host: Host) -> None:
    for name in (QUEUE, COPIES):
        host.do(commands.CreateQueue(queue=name))
    host.do(CreateTopic(topic=TOPIC))
    for name, queue in (("first", QUEUE), ("second", COPIES)):
        host.do(Subscribe(subscription=Subscription(topic=TOPIC, name=name, endpoint=queue, queue=queue)))
    host.do(Subscribe(subscription=Subscription(topic=TOPIC, name="pushed", endpoint="u", push_url="u")))
    for number in range(PUBLICATIONS):

        def make(notification: Notification, number: int = number) -> NewMessage:
            return message(f"{number} {notification.subscription.name} {LONG if number % 2 else ''}")

        assert host.do(PublishToTopic(topic=TOPIC, size_bytes=1, make=make)).deliveries == 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return record(work, tmp_path_factory.mktemp("topics") / "store")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("torn", [pytest.param(False, id="dropped"), pytest.param(True, id="torn")])
def test_a_publication_is_whole_or_not_there_when_the_power_goes(recorded: Log, tmp_path: Path, *, torn: bool) -> None:
    """After every write all three queues have the same number of messages, and each number is seen once at least."""
    seen: set[int] = set()
    for number, folder in outages(recorded, tmp_path, torn=random.Random(SEED) if torn else None):
        found = counted(folder)
        assert found[QUEUE] == found[COPIES] == found[PUSHED]
        seen.add(found[QUEUE])
        if number % 10 == 0 and found:
            check(folder)
    assert seen == set(range(PUBLICATIONS + 1))
