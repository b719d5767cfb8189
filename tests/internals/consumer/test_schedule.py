"""Which message is next: by arrival, and in ordered schedules one of each group at a time."""

from veilmq.client import ReceivedMessage
from veilmq.consumer.clock import SystemClock
from veilmq.consumer.context import Context, Delivery, LeaseView
from veilmq.consumer.intake import Schedule
from veilmq.consumer.leases import LeaseTable
from veilmq.consumer.renewal_policies import NServiceBusPolicy


def deliveries(*texts: str) -> list[Delivery]:
    """Return deliveries whose group is the first letter of their text, none for a digit."""
    table = LeaseTable(SystemClock())
    messages = [
        ReceivedMessage(
            id=text,
            receipt=text,
            body=text,
            attributes={},
            sent_at_ms=0,
            first_received_at_ms=0,
            receive_count=1,
            group=text[0] if text[0].isalpha() else None,
        )
        for text in texts
    ]
    leases = table.take(
        table.subscribe("q", NServiceBusPolicy()), messages, requested_at_s=0, answered_at_s=0, timeout_s=30
    )
    return [Delivery(lease, Context(lease.message, LeaseView(lease, table))) for lease in leases]


def filled(given: list[Delivery], *, ordered: bool = True) -> Schedule:
    """Return a schedule to which ``given`` were added."""
    schedule = Schedule(ordered=ordered)
    for delivery in given:
        schedule.add(delivery)
    return schedule


def bodies(given: list[Delivery]) -> list[str]:
    return [delivery.message.body for delivery in given]


def taken(schedule: Schedule) -> list[str]:
    """Take all that may begin now."""
    found = []
    while (delivery := schedule.next()) is not None:
        found.append(delivery.message.body)
    return found


def test_without_order_groups_mean_nothing() -> None:
    assert taken(filled(deliveries("a1", "a2", "b1"), ordered=False)) == ["a1", "a2", "b1"]


def test_one_of_each_group_may_begin() -> None:
    schedule = filled(deliveries("a1", "a2", "b1", "1"))
    assert len(schedule) == 4
    assert taken(schedule) == ["a1", "b1", "1"]
    assert len(schedule) == 1


def test_the_next_follows_when_the_one_before_is_done() -> None:
    given = deliveries("a1", "a2", "a3")
    schedule = filled(given)
    assert taken(schedule) == ["a1"]
    schedule.done(given[0])
    assert taken(schedule) == ["a2"]
    schedule.done(given[1])
    assert taken(schedule) == ["a3"]
    schedule.done(given[2])
    schedule.add(deliveries("a4")[0])
    assert taken(schedule) == ["a4"], "the group begins anew"


def test_a_failure_hands_back_the_rest_once() -> None:
    given = deliveries("a1", "a2", "a3", "b1")
    schedule = filled(given)
    taken(schedule)
    assert bodies(schedule.failed(given[0])) == ["a2", "a3"]
    assert schedule.failed(given[0]) == []
    assert len(schedule) == 0


def test_one_that_waits_is_taken_out_with_what_is_behind_it() -> None:
    given = deliveries("a1", "a2", "a3", "a4")
    schedule = filled(given)
    taken(schedule)
    assert bodies(schedule.remove(given[2])) == ["a4"]
    assert len(schedule) == 1
    schedule.done(given[0])
    assert taken(schedule) == ["a2"]


def test_one_that_could_begin_is_taken_out_with_its_group() -> None:
    given = deliveries("a1", "a2")
    schedule = filled(given)
    assert bodies(schedule.remove(given[0])) == ["a2"]
    assert taken(schedule) == []
    assert schedule.remove(given[0]) == []


def test_draining_leaves_the_group_of_a_running_message_closed() -> None:
    given = deliveries("a1", "a2", "b1", "b2")
    schedule = filled(given)
    schedule.next()
    assert bodies(schedule.drain()) == ["b1", "a2", "b2"]
    assert len(schedule) == 0
    schedule.add(deliveries("a3")[0])
    assert taken(schedule) == [], "a1 is not done"
