"""How often messages were received that had been received before: a counter of the engine that is open."""

from tests.store.host import QUEUE, Host
from veilmq.core import commands


def redelivered(host: Host) -> int:
    """Return what the queue says."""
    times: int = host.do(commands.ShowQueue(queue=QUEUE, counts=True)).counts.redelivered
    return times


def test_every_receive_but_the_first_counts(host: Host) -> None:
    """Of each message; also after a purge, and whichever messages are left."""
    host.create()
    host.send("a", "b")
    host.receive(2, timeout_s=0)
    assert redelivered(host) == 0
    host.receive(2, timeout_s=0)
    (first,) = host.receive(1)
    host.delete(first.receipt)
    assert redelivered(host) == 3
    host.do(commands.PurgeQueue(queue=QUEUE))
    assert redelivered(host) == 3


def test_another_queue_of_the_name_begins_anew(host: Host) -> None:
    """With none."""
    host.create()
    host.send("a")
    host.receive(1, timeout_s=0)
    host.receive(1, timeout_s=0)
    host.do(commands.DeleteQueue(queue=QUEUE))
    host.create()
    assert redelivered(host) == 0
