"""The cost of operations and inspections does not depend on other messages.

Costs are steps of SQLite's virtual machine. Durations would depend on the machine, and a commit would hide a scan of a
hundred thousand rows; steps do neither.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.host import QUEUE, Host, hosting, message
from tests.store.test_claims import claim_whole, open_source
from veilmq.core.commands import Command, InspectLeases, InspectQueue, MessageState, Peek
from veilmq.store import inspection

DEAD = "000000000000/dead"
LONG_S = 40_000
FEW, MANY = 150, 900


def put(host: Host, count: int, groups: int = 0, delay_s: int | None = None, priority: int = 8) -> None:
    """Send messages, one per millisecond, so that no two of them are a run of the ready list."""
    for number in range(count):
        group = f"g{number % groups}" if groups else None
        host.put(message("m", group=group, dedup_id=f"{host.clock.now_ms()}", delay_s=delay_s, priority=priority))
        host.advance(1)


def hold(host: Host, count: int) -> None:
    for _ in range(0, count, 10):
        host.receive(10, timeout_s=LONG_S)


def let_return(host: Host, count: int = 10) -> None:
    for _ in range(0, count, 10):
        host.receive(10, timeout_s=1)
    host.advance(1_000)
    host.counts()  # counts the returned messages


def waiting(host: Host, count: int) -> None:
    host.create()
    put(host, count)


def some_returned(host: Host, count: int) -> None:
    waiting(host, count)
    let_return(host)


def returned_before_the_others(host: Host, count: int) -> None:
    waiting(host, 20)
    let_return(host, 20)
    put(host, count)


def all_returned(host: Host, count: int) -> None:
    waiting(host, count)
    let_return(host, count)


def all_returned_and_as_many_new(host: Host, count: int) -> None:
    all_returned(host, count)
    put(host, count)


def returned_beside_dead_letters(host: Host, count: int) -> None:
    host.create(queue=DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=3)
    put(host, count)
    let_return(host)


def in_flight(host: Host, count: int) -> None:
    waiting(host, count + 40)
    hold(host, count)


def delayed(host: Host, count: int) -> None:
    host.create()
    put(host, count, delay_s=900)
    put(host, 40)
    hold(host, 10)


def of_two_priorities(host: Host, count: int) -> None:
    host.create()
    put(host, count, priority=9)
    put(host, 20, priority=3)
    let_return(host)


def near_retention(host: Host, count: int) -> None:
    host.create(retention_s=60)
    put(host, 20)
    host.advance(59_000)
    put(host, count)


def fair_one_group(host: Host, count: int) -> None:
    host.create()
    put(host, count, groups=1)
    let_return(host)


def fair_as_many_groups(host: Host, count: int) -> None:
    host.create()
    put(host, count, groups=count)


def fair_noisy_groups(host: Host, count: int) -> None:
    host.create()
    put(host, 60 + count, groups=2)
    hold(host, 40)
    put(host, 3, groups=3)


def fair_beside_no_groups(host: Host, count: int) -> None:
    host.create()
    put(host, 1, groups=1)
    put(host, count)
    let_return(host)


def fifo_one_group(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, count, groups=1)
    put(host, 40, groups=40)


def fifo_as_many_groups(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, count, groups=count)


def fifo_some_returned(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, 2 * count, groups=count)
    let_return(host)


def fifo_all_returned(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, 2 * count, groups=count)
    let_return(host, count)


def fifo_blocked(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, 2 * count, groups=count)
    hold(host, 2 * count - 20)


def fifo_deleted(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, count, groups=count)
    for _ in range(0, count, 10):
        host.delete(*(each.receipt for each in host.receive(10)))
    put(host, 40, groups=40)


def fifo_delayed(host: Host, count: int) -> None:
    host.create(fifo=True)
    put(host, 40, groups=40)
    host.advance(900_000)
    put(host, count, groups=1)
    host.set_queue(delay_s=900)


def claimed_past_retention(host: Host, count: int, *, fifo: bool = False) -> None:
    host.create(fifo=fifo, retention_s=60)
    put(host, count + 40, groups=count + 40 if fifo else 0)
    open_source(host)
    claim_whole(host, 1, count)
    host.advance(60_000)
    put(host, 40 + count, groups=count + 40 if fifo else 0)


def fifo_claimed_past_retention(host: Host, count: int) -> None:
    claimed_past_retention(host, count, fifo=True)


STATES: tuple[Callable[[Host, int], None], ...] = (
    waiting, some_returned, returned_before_the_others, all_returned, all_returned_and_as_many_new,
    returned_beside_dead_letters, in_flight, delayed, of_two_priorities, near_retention,
    fair_one_group, fair_as_many_groups, fair_noisy_groups, fair_beside_no_groups,
    fifo_one_group, fifo_as_many_groups, fifo_some_returned, fifo_all_returned,
    fifo_blocked, fifo_deleted, fifo_delayed, claimed_past_retention, fifo_claimed_past_retention,
)  # fmt: skip


def measure(host: Host) -> dict[str, int]:
    """Return the steps of each operation; the first one finds the queue as it was created."""
    host.stop()
    new = message("new", group="new", dedup_id="new")
    taken = [each for _ in range(3) for each in host.receive(1, timeout_s=LONG_S)]
    return {
        "receive": host.steps(lambda: host.receive(1, timeout_s=LONG_S)),
        "receive ten": host.steps(lambda: host.receive(10, timeout_s=LONG_S)),
        "change": host.steps(lambda: host.change(taken[0].receipt, 50)),
        "release": host.steps(lambda: host.change(taken[1].receipt, 0)),
        "delete": host.steps(lambda: host.delete(taken[2].receipt)),
        "receive what was released": host.steps(lambda: host.receive(1, timeout_s=LONG_S)),
        "when the next is due": host.steps(host.due_ms),
        "peek": host.steps(lambda: host.do(Peek(queue=QUEUE, count=10))),
        "send": host.steps(lambda: host.put(new)),
    }


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_cost_of_an_operation_does_not_depend_on_other_messages(
    tmp_path: Path, state: Callable[[Host, int], None]
) -> None:
    measured: list[dict[str, int]] = []
    for count in (FEW, MANY):
        with hosting(tmp_path / str(count)) as host:
            state(host, count)
            measured.append(measure(host))
    few, many = measured
    assert {name: cost for name, cost in many.items() if cost > 1.2 * few[name] + 20} == {}


# Inspection.


SHOWN = 5
WHOLE, VISIBLE, IN_FLIGHT, DELAYED = (
    InspectQueue(queue=QUEUE, count=SHOWN, state=state) for state in (None, *MessageState)
)
LEASES = InspectLeases(queue=QUEUE, count=SHOWN)
PEEK = Peek(queue=QUEUE, count=SHOWN)
for_each_kind = pytest.mark.parametrize("kind", ["plain", "fair", "fifo"])


def send(host: Host, name: str, messages: int, *, kind: str, delay_s: int | None = None) -> None:
    names = [f"{name} {number}" for number in range(messages)]
    host.put(
        *(message(each, group=None if kind == "plain" else each, dedup_id=each, delay_s=delay_s) for each in names)
    )


def shown(host: Host, command: Command) -> list[str]:
    """Return the bodies that an inspection shows; leases have none."""
    found = host.do(command)
    return [getattr(each, "body", "") for each in (found.messages if isinstance(command, Peek) else found)]


@pytest.mark.parametrize("command", [
    WHOLE, VISIBLE, IN_FLIGHT, DELAYED, LEASES, PEEK,
], ids=["whole", "visible", "in-flight", "delayed", "leases", "peek"])  # fmt: skip
@for_each_kind
def test_the_cost_of_an_inspection_does_not_depend_on_other_messages(host: Host, command: Command, kind: str) -> None:
    def steps() -> int:
        host.counts()
        assert len(shown(host, command)) == SHOWN
        return host.steps(lambda: host.do(command))

    host.create(fifo=kind == "fifo")
    send(host, "first", 150, kind=kind)
    host.receive(20, timeout_s=600)
    send(host, "late", 20, kind=kind, delay_s=500)
    costs = [steps()]
    host.advance(1)
    send(host, "more", 400, kind=kind)
    send(host, "later", 200, kind=kind, delay_s=900)
    costs.append(steps())
    if command is not VISIBLE:
        host.receive(200, timeout_s=700)
        costs.append(steps())
    assert max(costs) <= 1.5 * costs[0]


@for_each_kind
def test_an_inspection_skips_a_limited_number_of_messages(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(inspection, "INSPECT_SCANNED_MAX", 7)
    host.create(fifo=kind == "fifo")
    send(host, "held", 1, kind=kind)
    host.receive(1, timeout_s=900)
    send(host, "held apart", 1, kind=kind)
    host.change(host.receive_one(timeout_s=900).receipt, 800)
    seen = []
    for name in ("some", "many"):
        send(host, name, 6, kind=kind, delay_s=500)
        seen.append([len(shown(host, command)) for command in (LEASES, IN_FLIGHT, VISIBLE)])
    assert seen == [[2, 2, 0], [0, 0, 0]]


@for_each_kind
def test_messages_that_the_janitor_has_not_deleted_yet_are_not_shown(host: Host, kind: str) -> None:
    """An inspection deletes no more of them than other commands do."""
    host.create(fifo=kind == "fifo", retention_s=60)
    for number in range(3):
        send(host, f"{number}", 1_000, kind=kind)
    host.receive(500, timeout_s=900)
    host.receive(500, timeout_s=0)
    host.advance(59_999)
    send(host, "fresh", SHOWN, kind=kind)
    host.clock.advance(1)  # without running the janitor
    for command in (WHOLE, VISIBLE, PEEK):
        assert shown(host, command) == [f"fresh {number}" for number in range(SHOWN)]
    assert host.do(IN_FLIGHT) == host.do(LEASES) == []


def test_a_dead_letter_that_cannot_move_for_lack_of_space_is_shown(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive delivers it again, too."""
    dead = f"{QUEUE}-dead"
    host.create(dead)
    host.create(dead_letter_queue=dead, receives_max=1)
    host.send("a")
    host.receive(1, timeout_s=0)
    assert shown(host, PEEK) == []
    space = host.engine._session.database
    monkeypatch.setattr(space, "low_disk_space", True)
    monkeypatch.setattr(space, "recheck_space", lambda: True)
    assert shown(host, PEEK) == ["a"]
    assert host.bodies(1) == ["a"]
