"""What a look costs: by what it shows, whatever else the queue has."""

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import Command, NewMessage, Send
from veilmq.core.looks import LookAtLeases, LookAtQueue, MessageState
from veilmq.core.properties import Properties, encode
from veilmq.engines.embedded import looks

SHOWN = 5
VISIBLE, IN_FLIGHT, DELAYED = (LookAtQueue(queue=QUEUE, count=SHOWN, state=state) for state in MessageState)
LEASES = LookAtLeases(queue=QUEUE, count=SHOWN)


def send(store: Store, messages: int, *, fifo: bool, delay_s: int = 0) -> None:
    """Send messages, in a FIFO queue each of a group of its own."""
    names = [f"{store.sent + number}" for number in range(messages)]
    store.sent += messages
    new = [
        NewMessage(body=name, size_bytes=9, delay_s=delay_s, group=name if fifo else None, dedup_id=name)
        for name in names
    ]
    store.run(Send(queue=QUEUE, messages=tuple(new)))


def steps(store: Store, command: Command) -> int:
    """Return how many steps SQLite makes for a look."""
    made = 0

    def count() -> bool:
        nonlocal made
        made += 1
        return False

    connection = store.journal.begin()
    store.journal.roll_back()
    connection.set_progress_handler(count, 1)
    (shown,) = store.run(command)
    connection.set_progress_handler(None)
    assert len(shown) == SHOWN
    return made


@pytest.mark.parametrize("command", [LEASES, IN_FLIGHT, VISIBLE, DELAYED], ids=["leases", "held", "waiting", "delayed"])
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_look_costs_the_same_however_many_others_there_are(command: Command, *, fifo: bool) -> None:
    """In the same state, or in another one."""
    store = Store()
    store.create(fifo=fifo)
    send(store, 60, fifo=fifo)
    store.receive(20, timeout_s=600)
    send(store, 20, fifo=fifo, delay_s=500)
    costs = [steps(store, command)]
    store.now_ms += 1
    send(store, 400, fifo=fifo)
    send(store, 200, fifo=fifo, delay_s=900)
    costs.append(steps(store, command))
    if command is not VISIBLE:
        store.receive(200, timeout_s=700)
        costs.append(steps(store, command))
    assert max(costs) <= 1.5 * costs[0]
    store.close()


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_no_more_are_passed_over_than_a_look_may(monkeypatch: pytest.MonkeyPatch, *, fifo: bool) -> None:
    """What is behind them is not seen."""
    monkeypatch.setattr(looks, "LOOKED_AT_MAX", 7)
    store = Store()
    store.create(fifo=fifo)
    send(store, 1, fifo=fifo)
    store.receive(1, timeout_s=900)
    seen = []
    for _ in range(2):
        send(store, 6, fifo=fifo, delay_s=500)
        ((leases,), (held,)) = store.run(LEASES), store.run(IN_FLIGHT)
        seen.append((len(leases), len(held)))
    assert seen == [(1, 1), (0, 0)]
    store.close()


def grouped() -> Store:
    """Return a store with three long messages of groups in flight."""
    store = Store()
    store.create(fifo=True)
    for name in "abc":
        properties = encode(Properties(group=name))
        new = NewMessage(body="x" * 1_000, size_bytes=1_000, group=name, dedup_id=name, properties=properties)
        store.run(Send(queue=QUEUE, messages=(new,)))
    store.receive(3)
    return store


def groups(store: Store) -> list[str | None]:
    """Return the groups that a look at leases shows."""
    return [each.group for each in store.run(LookAtLeases(queue=QUEUE))[0]]


def test_no_more_names_of_groups_are_read_than_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand behind the bodies. The next look goes on, and reads none twice."""
    monkeypatch.setattr(looks, "_READ_BYTES_MAX", 1_500)
    store = grouped()
    assert [groups(store), groups(store)] == [["a", "b", None], ["a", "b", "c"]]
    store.close()


def test_a_name_that_was_forgotten_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not many are kept."""
    monkeypatch.setattr(looks, "_NAMES_MAX", 1)
    store = grouped()
    assert [groups(store), groups(store)] == [["a", "b", "c"]] * 2
    store.close()
