"""What is published comes into lanes that have room, also where two subscriptions share the last place of one."""

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import NewMessage
from veilmq.core.topics import CreateTopic, PublishToTopic, Subscribe, Subscription

TOPIC = "000000000000/news"


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_two_subscriptions_of_a_queue_whose_lane_has_one_place(*, fifo: bool) -> None:
    store = Store(lane_sequences_max=1)
    store.create(fifo=fifo)
    store.run(CreateTopic(topic=TOPIC))
    for name in "ab":
        store.run(Subscribe(subscription=Subscription(topic=TOPIC, name=name, endpoint=QUEUE, queue=QUEUE)))
    new = NewMessage(body="x", size_bytes=1, group="g" if fifo else None)
    (published,) = store.run(PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda _: new))
    assert published.deliveries == 2
    rows = [lane.row() for lane in store.machine.catalog.queue(QUEUE).lanes]
    assert [(row.messages, row.direct_next - row.direct_floor) for row in rows] == [(1, 1), (1, 1)]
    store.close()
