"""The page of the audit log."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.audit import ASKED, DONE, AuditEntry
from veilmq.console.visit import Page, Visit

_READ_MAX = 2_000
_SHOWN_MAX = 200
_VALUE_CHARACTERS_MAX = 200
_ELSEWHERE = frozenset({"QueueUrl", "QueueName", "queue"})  # shown in the queue column


class Line(NamedTuple):
    """One change: ``changed`` has rows of a name, the previous value (``None`` if unknown) and the new one.

    The new value is ``None`` for values that were deleted, as with the queue.
    """

    entry: AuditEntry
    changed: list[tuple[str, str | None, str | None]]
    is_done: bool
    is_open: bool


async def show(visit: Visit) -> Response:
    """Show the last changes, newest first."""
    log = visit.ports.audit
    queue, who = visit.query.get("queue", "").strip(), visit.query.get("who", "").strip()
    seen = [entry for entry in await log.last(_READ_MAX) if _may_see(visit, entry)]
    found = [entry for entry in seen if _fits(entry, queue=queue, who=who)]
    shown = await _as_far_as_seen(visit, found[:_SHOWN_MAX])
    return visit.page(
        "audit.html",
        lines=[_line(entry) for entry in shown],
        found=len(found),
        queue=queue,
        who=who,
        is_kept=log.path is not None,
        is_operator=visit.is_operator,
    )


def _may_see(visit: Visit, entry: AuditEntry) -> bool:
    """Return whether a change is of the caller's account, or the caller's own.

    A change without a queue, such as the cancellation of a move task, belongs to the account that made it.
    """
    if visit.is_operator:
        return True
    if entry.queue is None:
        return entry.who.startswith(f"arn:aws:iam::{visit.account}:")
    mine = visit.caller is not None and entry.who == visit.caller.arn
    return mine or entry.queue.startswith(f"{visit.account}/")


async def _as_far_as_seen(visit: Visit, entries: Sequence[AuditEntry]) -> Sequence[AuditEntry]:
    """Hide the values of queues whose settings the caller may not see, except in the caller's own changes."""
    caller = visit.caller
    if caller is None or caller.is_root:
        return entries
    others = [entry for entry in entries if entry.who != caller.arn]
    hidden = {queue for queue in {entry.queue for entry in others} if queue and await _is_hidden(visit, queue)}
    return [
        msgspec.structs.replace(entry, before=None, after={})
        if entry.queue in hidden and entry.who != caller.arn
        else entry
        for entry in entries
    ]


async def _is_hidden(visit: Visit, queue: str) -> bool:
    asked = {"QueueUrl": f"http://localhost/{quote(queue, safe='/@')}", "AttributeNames": ["QueueArn"]}
    try:
        await visit.sqs("GetQueueAttributes", asked)
    except Refused as refused:
        return refused.is_denied
    return False


def _fits(entry: AuditEntry, *, queue: str, who: str) -> bool:
    return queue.lower() in (entry.queue or "").lower() and who.lower() in entry.who.lower()


def _line(entry: AuditEntry) -> Line:
    after, before = _leaves(entry.after), _leaves(entry.before or {})
    rows: list[tuple[str, str | None, str | None]]
    rows = [(name, before.pop(name.rpartition(".")[2], before.pop(name, None)), value) for name, value in after.items()]
    rows += [(name, value, None) for name, value in before.items()]
    return Line(entry, rows, is_done=entry.outcome.startswith(DONE), is_open=entry.outcome == ASKED)


def _leaves(fields: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of fields by name; nested ones by both names."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if not prefix and name in _ELSEWHERE:
            continue
        if isinstance(value, Mapping):
            found |= _leaves(value, f"{prefix}{name}.")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[prefix + name] = text[:_VALUE_CHARACTERS_MAX] + "…" * (len(text) > _VALUE_CHARACTERS_MAX)
    return found


PAGES = (Page("/console/audit", show),)
