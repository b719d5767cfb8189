"""What a look costs in the store on SQLite: by what it shows, whatever else the queue has."""

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import Command, InspectLeases, InspectQueue, MessageState, Peek
from veilmq.store import inspection

SHOWN = 5
WHOLE, VISIBLE, IN_FLIGHT, DELAYED = (
    InspectQueue(queue=QUEUE, count=SHOWN, state=state) for state in (None, *MessageState)
)
LEASES = InspectLeases(queue=QUEUE, count=SHOWN)
PEEK = Peek(queue=QUEUE, count=SHOWN)
KINDS = pytest.mark.parametrize("kind", ["plain", "fair", "fifo"])


def send(host: Host, name: str, messages: int, *, kind: str, delay_s: int | None = None) -> None:
    names = [f"{name} {number}" for number in range(messages)]
    host.put(
        *(message(each, group=None if kind == "plain" else each, dedup_id=each, delay_s=delay_s) for each in names)
    )


def shown(host: Host, command: Command) -> list[str]:
    """Return the bodies that a look shows; leases have none."""
    found = host.do(command)
    return [getattr(each, "body", "") for each in (found.messages if isinstance(command, Peek) else found)]


@pytest.mark.parametrize("command", [
    WHOLE, VISIBLE, IN_FLIGHT, DELAYED, LEASES, PEEK,
], ids=["whole", "visible", "in-flight", "delayed", "leases", "peek"])  # fmt: skip
@KINDS
def test_a_look_costs_the_same_however_many_others_there_are(host: Host, command: Command, kind: str) -> None:
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


@KINDS
def test_no_more_are_passed_over_than_a_look_may(host: Host, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
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


@KINDS
def test_what_the_janitor_has_not_deleted_yet_is_not_shown(host: Host, kind: str) -> None:
    """A look deletes no more of it than any other command."""
    host.create(fifo=kind == "fifo", retention_s=60)
    for number in range(3):
        send(host, f"{number}", 1_000, kind=kind)
    host.receive(500, timeout_s=900)
    host.receive(500, timeout_s=0)
    host.advance(59_999)
    send(host, "fresh", SHOWN, kind=kind)
    host.clock.advance(1)  # the janitor is not there yet
    for command in (WHOLE, VISIBLE, PEEK):
        assert shown(host, command) == [f"fresh {number}" for number in range(SHOWN)]
    assert host.do(IN_FLIGHT) == host.do(LEASES) == []


def test_a_dead_letter_for_which_there_is_no_room_is_shown(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a receive gives it out once more."""
    dead = f"{QUEUE}-dead"
    host.create(dead)
    host.create(dead_letter_queue=dead, receives_max=1)
    host.send("a")
    host.receive(1, timeout_s=0)
    assert shown(host, PEEK) == []
    space = host.engine._session.database
    monkeypatch.setattr(space, "is_short", True)
    monkeypatch.setattr(space, "recheck_room", lambda: True)
    assert shown(host, PEEK) == ["a"]
    assert host.bodies(1) == ["a"]
