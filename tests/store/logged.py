"""What tests of the event log share: a host whose queues are logged, and a look at the events that are there."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.store.host import RESTLESS, Host, hosting
from veilmq.core.messages import Attribute, Properties, encode_properties
from veilmq.core.receipts import (
    CountEvents,
    EventCounts,
    EventPage,
    PlanExport,
    ReadEvents,
    ReceiptClosed,
    decode_events,
)
from veilmq.store.sqlite.database import EngineOptions

LOGGED = replace(RESTLESS, event_log="closed")


@contextlib.contextmanager
def logging_to(folder: Path | None, options: EngineOptions = LOGGED) -> Iterator[Host]:
    """Keep a host open for a while whose queues are logged."""
    with hosting(folder, options=options) as host:
        yield host


def events_of(host: Host) -> list[ReceiptClosed]:
    """Return all events that the store has not forgotten, in order; the range that is planned stays planned."""
    return [event for _, event in numbered(host)]


def numbered(host: Host) -> list[tuple[int, ReceiptClosed]]:
    """Return the same with the number of each; asserts that there is no gap."""
    counts: EventCounts = host.do(CountEvents())
    page: EventPage = host.do(ReadEvents(first=counts.exported + 1, last=counts.recorded, bytes_max=1 << 30))
    found = [(n, event) for first, batch in page.batches for n, event in enumerate(decode_events(batch), first)]
    assert [n for n, _ in found] == list(range(counts.exported + 1, counts.recorded + 1))
    return found


def outcomes(host: Host) -> list[tuple[str, int]]:
    """Return outcome and time held of each event."""
    return [(event.outcome.value, event.held_ms) for event in events_of(host)]


def check_conservation(events: list[ReceiptClosed]) -> Counter[tuple[str, bytes, int]]:
    """Assert what holds of the events of each receipt; return the receipts that have ended.

    One end, at most one correction and one move away, in that order.
    """
    of_receipt: dict[tuple[str, bytes, int], list[str]] = {}
    for event in events:
        of_receipt.setdefault((event.queue, event.message_id, event.receipt), []).append(event.outcome.value)
        assert event.held_ms == event.closed_at_ms - event.received_at_ms >= 0
    allowed = {
        ("deleted",),
        ("deleted_by_earlier",),
        ("expired",),
        ("nacked",),
        ("expired", "late_deleted"),
        ("expired", "dead_lettered"),
        ("expired", "dead_lettered", "late_deleted"),
        ("expired", "late_deleted", "dead_lettered"),  # of a FIFO queue, which refuses the late delete
        ("nacked", "dead_lettered"),
    }
    wrong = {receipt: ends for receipt, ends in of_receipt.items() if tuple(ends) not in allowed}
    assert not wrong, wrong
    return Counter(of_receipt)


def with_type(kind: str) -> bytes:
    """Return encoded properties with the routing attribute."""
    return encode_properties(Properties(attributes={"Type": Attribute(type="String", text=kind)}))


def plan(host: Host, events_max: int = 1_000) -> tuple[int, int]:
    """Return the range that is to be exported next."""
    planned = host.do(PlanExport(events_max=events_max))
    return planned.first, planned.last
