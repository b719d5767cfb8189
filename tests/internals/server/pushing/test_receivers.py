"""How many pushes a receiver gets at once."""

from veilmq.server.pushes import PARALLEL_MAX, Receiver


def test_each_acceptance_doubles_and_each_failure_begins_anew() -> None:
    receiver = Receiver()
    seen = []
    for _ in range(6):
        seen.append(receiver.free)
        receiver.running += 1
        receiver.end(succeeded=True)
    assert seen == [1, 2, 4, 8, 16, 16] == [*seen[:5], PARALLEL_MAX]
    receiver.running += 3
    receiver.end(succeeded=False)
    assert (receiver.bound, receiver.running, receiver.free) == (1, 2, 0)
