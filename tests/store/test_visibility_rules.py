"""A queue's visibility rules: which timeout each message has where a receive names none."""

import json
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.errors import ReceiptState, SettingsConflict

TWELVE_HOURS_S = 43_200
RULES = json.dumps(
    {
        "version": 1,
        "classes": [
            {"name": "short", "visibility_timeout_s": 5},
            {"name": "middle", "visibility_timeout_s": 60},
            {"name": "long", "visibility_timeout_s": TWELVE_HOURS_S},
        ],
        "keys": {"quick": 0, "slow": 1},
        "default": 2,
    }
)
TIMEOUTS_MS = {"quick": 5_000, "slow": 60_000, None: TWELVE_HOURS_S * 1_000}


def send(host: Host, *kinds: str | None, group: str | None = None) -> None:
    """Send messages of these kinds, which are their bodies; in a FIFO queue each has a group of its own, or `group`."""
    fifo = host.do(commands.ShowQueue(queue=QUEUE)).settings.fifo
    messages = tuple(
        message(str(kind), kind=kind, group=group or (str(kind) if fifo else None), dedup_id=f"{group}{number}")
        for number, kind in enumerate(kinds)
    )
    assert all(
        isinstance(each, commands.SentMessage) for each in host.do(commands.Send(queue=QUEUE, messages=messages))
    )


def held_ms(host: Host, messages: list[commands.ReceivedMessage]) -> dict[str, int]:
    """Return for how long each message, by its body, is hidden from now on, as the answer says."""
    return {each.body: each.visible_at_ms - host.clock.now_ms() for each in messages}


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def ruled(request: pytest.FixtureRequest, host: Host) -> Host:
    """Return an engine with a queue that has rules."""
    host.create(visibility_rules=RULES, fifo=request.param)
    return host


def test_each_message_is_hidden_for_the_timeout_of_its_class(ruled: Host) -> None:
    """In one answer; each is visible again exactly then."""
    send(ruled, "quick", "slow", None)
    first = ruled.receive(10)
    assert held_ms(ruled, first) == {str(kind): time_ms for kind, time_ms in TIMEOUTS_MS.items()}
    assert ruled.due_ms() == ruled.clock.now_ms() + 5_000
    ruled.advance(4_999)
    assert ruled.receive(10) == []
    ruled.advance(1)
    (again,) = ruled.receive(10)
    assert again.body == "quick"
    ruled.delete(again.receipt)
    ruled.advance(54_999)
    assert ruled.receive(10) == []
    ruled.advance(1)
    assert ruled.receive_one().body == "slow"


def test_a_message_received_in_vain_is_of_a_higher_class(ruled: Host) -> None:
    """One for each time, up to the highest one; a release counts, too."""
    send(ruled, "quick")
    for time_ms in (5_000, 60_000, TWELVE_HOURS_S * 1_000, TWELVE_HOURS_S * 1_000):
        (received,) = ruled.receive()
        assert held_ms(ruled, [received]) == {"quick": time_ms}
        assert ruled.change(received.receipt, 0).state is ReceiptState.LIVE


def test_a_receive_that_names_a_timeout_has_that(ruled: Host) -> None:
    """For all messages; even no time at all."""
    send(ruled, "quick", "slow")
    assert held_ms(ruled, ruled.receive(10, timeout_s=0)) == {"quick": 0, "slow": 0}
    assert held_ms(ruled, ruled.receive(10, timeout_s=7)) == {"quick": 7_000, "slow": 7_000}


def test_no_lease_is_longer_than_twelve_hours_from_the_request(ruled: Host) -> None:
    """After a long poll that is less than the class has."""
    send(ruled, "slow", None)
    requested_at_ms = ruled.clock.now_ms() - 20_000
    received = ruled.do(commands.Receive(queue=QUEUE, count=10, requested_at_ms=requested_at_ms)).messages
    assert held_ms(ruled, received) == {"slow": 60_000, "None": TWELVE_HOURS_S * 1_000 - 20_000}


def test_other_rules_count_from_the_next_receive_on(ruled: Host) -> None:
    """Messages in flight keep their deadlines; without rules the queue's timeout is in force again."""
    send(ruled, "quick", "slow")
    (first,) = ruled.receive()
    ruled.do(commands.SetQueue(queue=QUEUE, settings={"visibility_rules": ""}))
    (second,) = ruled.receive()
    assert held_ms(ruled, [first, second]) == {"quick": 5_000, "slow": 30_000}


def test_rules_survive_a_restart(kept: Host) -> None:
    """They are settings like all others."""
    kept.create(visibility_rules=RULES)
    send(kept, "quick")
    kept.reopen()
    assert held_ms(kept, kept.receive()) == {"quick": 5_000}


def test_text_that_is_no_routing_table_is_refused(host: Host) -> None:
    """Whichever protocol it came by."""
    with pytest.raises(SettingsConflict) as refused:
        host.create(visibility_rules="{}")
    assert refused.value.setting == "visibility_rules"


def test_messages_of_a_group_of_a_standard_queue(host: Host) -> None:
    """Have their own timeouts, too."""
    host.create(visibility_rules=RULES)
    send(host, "quick", "slow", group="g")
    assert held_ms(host, host.receive(10)) == {"quick": 5_000, "slow": 60_000}
    host.advance(5_000)
    assert held_ms(host, host.receive(10)) == {"quick": 60_000}


def test_a_group_waits_for_the_last_of_its_messages(host: Host) -> None:
    """Whichever class the others are of; the order is restored then."""
    host.create(visibility_rules=RULES, fifo=True)
    send(host, "slow", "quick", group="g")
    assert [each.body for each in host.receive(10)] == ["slow", "quick"]
    host.advance(5_000)
    assert host.receive(10) == []
    assert host.due_ms() == host.clock.now_ms() + 55_000
    host.advance(55_000)
    assert [each.body for each in host.receive(10)] == ["slow", "quick"]


def test_an_attempt_is_repeated_with_the_timeout_of_each_message(kept: Host) -> None:
    """The receipts are the same byte for byte, also after a restart, and the class is that of the first time."""
    kept.create(visibility_rules=RULES, fifo=True)
    send(kept, "quick", "slow", None)
    first = _attempt(kept)
    kept.advance(4_999)
    kept.reopen()
    again = _attempt(kept)
    assert [each.receipt for each in again] == [each.receipt for each in first]
    assert held_ms(kept, again) == {"quick": 5_000, "slow": 60_000, "None": TWELVE_HOURS_S * 1_000 - 4_999}
    assert [each.receipt for each in _attempt(kept)] == [each.receipt for each in first]
    assert held_ms(kept, _attempt(kept, timeout_s=7)) == {"quick": 7_000, "slow": 7_000, "None": 7_000}
    kept.advance(7_000)
    assert [each.receipt for each in _attempt(kept)] != [each.receipt for each in first]


def _attempt(host: Host, timeout_s: int | None = None) -> Any:
    return host.do(commands.Receive(queue=QUEUE, count=10, timeout_s=timeout_s, attempt_id="a")).messages


def test_a_dead_letter_begins_anew(host: Host) -> None:
    """Its queue's rules do not know how often it was received before."""
    host.create("000000000000/dead", visibility_rules=RULES)
    host.create(visibility_rules=RULES, dead_letter_queue="000000000000/dead", receives_max=1)
    send(host, "quick")
    host.receive()
    host.advance(5_000)
    assert host.receive() == []
    (received,) = host.receive(queue="000000000000/dead")
    assert held_ms(host, [received]) == {"quick": 5_000}
    assert received.receive_count == 2
