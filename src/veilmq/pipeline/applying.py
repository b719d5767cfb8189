"""Applying: set on a queue what was recommended for it, when it is worth it, and keep a record of each change.

Hysteresis: a timeout is changed only for a gain above the limit (``TuneOptions.gain_min``), so that estimates that
wander do not make queues wander. A queue that somebody else has changed since the statistics were made is left alone.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from veilmq.client.port import QueueClient
from veilmq.pipeline.recommendation import QueueFacts, Recommendation


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
    """Ask each of ``queues`` what it is set to."""
    facts = {}
    for queue in queues:
        settings = client.show(queue).settings
        facts[queue] = QueueFacts(
            visibility_timeout_s=settings.visibility_timeout_s, receives_max=settings.receives_max
        )
    return facts


def apply(
    client: QueueClient, found: Iterable[Recommendation], *, record: Path, at_ms: int, explore: bool = False
) -> list[Change]:
    """Set the recommended timeouts of whole queues; return what was changed, and append it to ``record`` (JSON lines).

    With ``explore`` a queue about which nothing can be said, because nothing was seen for long enough, gets the longer
    timeout that would show more.
    """
    changes = []
    for each in found:
        wanted_s = _wanted_s(each, explore=explore)
        if each.key is not None or wanted_s is None:
            continue
        if client.show(each.queue).settings.visibility_timeout_s != each.current_s:
            continue
        client.set(each.queue, {"visibility_timeout_s": wanted_s})
        changes.append(_change(each, wanted_s, at_ms))
        _append(record, changes[-1])
    return changes


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
