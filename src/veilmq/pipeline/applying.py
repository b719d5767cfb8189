"""Applying: set on a queue what was recommended for it, when it is worth it, and keep a record of each change.

Hysteresis: a timeout is changed only for a gain above the limit (``TuneOptions.gain_min``), so that estimates that
wander do not make queues wander. A queue that somebody else has changed since the statistics were made is left alone.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from veilmq.client.port import QueueClient
from veilmq.client.status import QueueStatus
from veilmq.pipeline.recommendation import QueueFacts, Recommendation, facts_for, plain_name
from veilmq.wire.sqs.names import full_name


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One timeout that was changed: a line of the record. ``at_ms`` is since the epoch, costs are for each message."""

    at_ms: int
    queue: str
    before_s: int
    after_s: int
    cost_before: float | None
    cost_after: float | None
    confidence: str
    reason: str


def facts_of(client: QueueClient, queues: Iterable[str]) -> dict[str, QueueFacts]:
    """Ask each of ``queues`` what it is set to; the answers are by plain names."""
    return {queue: _facts(client.show(queue)) for queue in queues}


def apply(
    client: QueueClient, found: Iterable[Recommendation], *, record: Path, at_ms: int, explore: bool = False
) -> list[Change]:
    """Set the recommended timeouts of whole queues; return what was changed, and append it to ``record`` (JSON lines).

    With ``explore`` a queue about which nothing can be said, because nothing was seen for long enough, gets the longer
    timeout that would show more. Queues of other accounts, and those that are gone, are passed over.
    """
    changes = []
    present = frozenset(client.list_queues())
    for each in found:
        wanted_s = _wanted_s(each, explore=explore)
        name = plain_name(each.queue)
        if each.key is not None or wanted_s is None or name not in present:
            continue
        facts = facts_for({name: _facts(client.show(name))}, each.queue)
        if facts is None or facts.visibility_timeout_s != each.current_s:
            continue
        client.set(name, {"visibility_timeout_s": wanted_s})
        changes.append(_change(each, wanted_s, at_ms))
        _append(record, changes[-1])
    return changes


def _facts(status: QueueStatus) -> QueueFacts:
    """Return what a queue is set to; its URL ends in its full name."""
    return QueueFacts(
        visibility_timeout_s=status.settings.visibility_timeout_s,
        receives_max=status.settings.receives_max,
        full_name=full_name(status.url),
    )


def _wanted_s(each: Recommendation, *, explore: bool) -> int | None:
    if each.change:
        return each.recommended_s
    return each.explore_s if explore else None


def _change(each: Recommendation, after_s: int, at_ms: int) -> Change:
    return Change(
        at_ms=at_ms,
        queue=each.queue,
        before_s=each.current_s,
        after_s=after_s,
        cost_before=each.cost_current,
        cost_after=each.cost_recommended,
        confidence=each.confidence.value,
        reason=each.reason,
    )


def _append(record: Path, change: Change) -> None:
    """Write the line at once: what was changed must be known also when the next change fails."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("ab") as file:
        file.write(msgspec.json.encode(change) + b"\n")
