"""Set recommended timeouts that save enough, and record each change for undo.

A timeout changes only if the gain exceeds ``TuneOptions.gain_min`` and the confidence is medium or high, and by at most
``STEP_FACTOR`` a run, so that unstable estimates do not make timeouts unstable. A queue whose timeout has changed since
the statistics were computed is not changed.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from veilmq.client.messages import QueueStatus
from veilmq.client.sqs import QueueClient
from veilmq.pipeline.recommendation import Confidence, QueueFacts, Recommendation, facts_for, plain_name
from veilmq.wire.sqs.names import full_name

STEP_FACTOR = 3
"""A run changes a timeout by at most this factor; the next run continues from there."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One changed timeout: a line of the record. ``at_ms`` is since the epoch; costs are per message.

    ``undoes_ms`` is the ``at_ms`` of the change that this one reverts; 0 if it reverts none.
    """

    at_ms: int
    queue: str
    before_s: int
    after_s: int
    cost_before: float | None
    cost_after: float | None
    confidence: str
    reason: str
    undoes_ms: int = 0


def facts_of(client: QueueClient, queues: Iterable[str]) -> dict[str, QueueFacts]:
    """Return the settings of ``queues`` by plain name."""
    return {queue: _facts(client.show(queue)) for queue in queues}


def apply(
    client: QueueClient,
    recommendations: Iterable[Recommendation],
    *,
    record: Path,
    at_ms: int,
    explore: bool = False,
    dry_run: bool = False,
) -> list[Change]:
    """Set the recommended timeouts of whole queues; return the changes, and append them to ``record`` (JSON lines).

    With ``explore``, a queue whose timeouts are too short for any recommendation gets a longer one. With ``dry_run``,
    nothing is set or recorded. Queues of other accounts and deleted queues are skipped.
    """
    changes = []
    existing = frozenset(client.list_queues())
    for each in recommendations:
        target_s = _target_s(each, explore=explore)
        if each.key is not None or target_s is None or plain_name(each.queue) not in existing:
            continue
        if _timeout_s(client, each.queue) != each.current_s:
            continue
        changes.append(_change(each, target_s, at_ms))
        if not dry_run:
            _set(client, changes[-1], record)
    return changes


def undo(client: QueueClient, *, record: Path, at_ms: int) -> list[Change]:
    """Revert the last run in ``record`` that is not reverted yet; return the changes, and record them.

    A queue that was deleted, or whose timeout has changed since that run, is not changed.
    """
    changes: list[Change] = []
    lines = record.read_bytes().splitlines() if record.exists() else []
    recorded = [msgspec.json.decode(line, type=Change) for line in lines]
    reverted = {(each.queue, each.undoes_ms) for each in recorded}
    pending = [each for each in recorded if not each.undoes_ms and (each.queue, each.at_ms) not in reverted]
    last_ms = max((each.at_ms for each in pending), default=0)
    existing = frozenset(client.list_queues())
    for each in pending:
        if each.at_ms != last_ms or plain_name(each.queue) not in existing:
            continue
        if _timeout_s(client, each.queue) == each.after_s:
            changes.append(_undoing(each, at_ms))
            _set(client, changes[-1], record)
    return changes


def _facts(status: QueueStatus) -> QueueFacts:
    return QueueFacts(
        visibility_timeout_s=status.settings.visibility_timeout_s,
        receives_max=status.settings.receives_max,
        full_name=full_name(status.url),
    )


def _timeout_s(client: QueueClient, queue: str) -> int | None:
    """Return the timeout of ``queue``, a full name; ``None`` if it belongs to another account."""
    name = plain_name(queue)
    facts = facts_for({name: _facts(client.show(name))}, queue)
    return None if facts is None else facts.visibility_timeout_s


def _target_s(each: Recommendation, *, explore: bool) -> int | None:
    """Return the timeout to set, within one step: the recommended one, or with ``explore`` the one to try."""
    target_s = each.explore_s if explore else None
    if each.change and each.confidence in {Confidence.HIGH, Confidence.MEDIUM}:
        target_s = each.recommended_s
    if target_s is None:
        return None
    least, most = math.ceil(each.current_s / STEP_FACTOR), max(each.current_s, 1) * STEP_FACTOR
    return min(max(target_s, least), most)


def _change(each: Recommendation, after_s: int, at_ms: int) -> Change:
    return Change(
        at_ms=at_ms,
        queue=each.queue,
        before_s=each.current_s,
        after_s=after_s,
        cost_before=each.cost_current,
        cost_after=each.cost_recommended if after_s == each.recommended_s else None,
        confidence=each.confidence.value,
        reason=each.reason,
    )


def _undoing(change: Change, at_ms: int) -> Change:
    return Change(
        at_ms=at_ms,
        queue=change.queue,
        before_s=change.after_s,
        after_s=change.before_s,
        cost_before=change.cost_after,
        cost_after=change.cost_before,
        confidence=change.confidence,
        reason="undone",
        undoes_ms=change.at_ms,
    )


def _set(client: QueueClient, change: Change, record: Path) -> None:
    """Append the line, then set the timeout: every change is recorded, also if the process is killed in between."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("ab") as file:
        file.write(msgspec.json.encode(change) + b"\n")
    client.set(plain_name(change.queue), {"visibility_timeout_s": change.after_s})
