"""The page of the audit log."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from veilmq.console.api_client import ApiError
from veilmq.console.audit import ASKED, DONE, AuditEntry
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.queue_queries import url_of

_READ_MAX = 2_000
_SHOWN_MAX = 200
_VALUE_CHARACTERS_MAX = 200
_QUEUE_FIELDS = frozenset({"QueueUrl", "QueueName", "queue"})  # shown in the queue column


class Line(NamedTuple):
    """One change: ``changed`` has rows of a name, the previous value (``None`` if unknown) and the new one.

    The new value is ``None`` for values that were deleted, as with the queue.
    """

    entry: AuditEntry
    changed: list[tuple[str, str | None, str | None]]
    is_done: bool
    is_open: bool


async def show(page: PageContext) -> Response:
    """Show the last changes, newest first."""
    log = page.ports.audit
    queue, who = page.query.get("queue", "").strip(), page.query.get("who", "").strip()
    visible = [entry for entry in await log.last(_READ_MAX) if _may_see(page, entry)]
    matching = [entry for entry in visible if _matches(entry, queue=queue, who=who)]
    shown = await _hide_values(page, matching[:_SHOWN_MAX])
    return page.render(
        "audit.html",
        lines=[_line(entry) for entry in shown],
        matches=len(matching),
        queue=queue,
        who=who,
        is_kept=log.path is not None,
        is_operator=page.is_operator,
    )


def _may_see(page: PageContext, entry: AuditEntry) -> bool:
    """Return whether a change is of the caller's account, or the caller's own.

    A change without a queue, such as the cancellation of a move task, belongs to the account that made it.
    """
    if page.is_operator:
        return True
    if entry.queue is None:
        return entry.who.startswith(f"arn:aws:iam::{page.account}:")
    mine = page.caller is not None and entry.who == page.caller.arn
    return mine or entry.queue.startswith(f"{page.account}/")


async def _hide_values(page: PageContext, entries: Sequence[AuditEntry]) -> Sequence[AuditEntry]:
    """Hide the values of queues whose settings the caller may not see, except in the caller's own changes."""
    caller = page.caller
    if caller is None or caller.is_root:
        return entries
    others = [entry for entry in entries if entry.who != caller.arn]
    hidden = {queue for queue in {entry.queue for entry in others} if queue and await _is_hidden(page, queue)}
    return [
        msgspec.structs.replace(entry, before=None, after={})
        if entry.queue in hidden and entry.who != caller.arn
        else entry
        for entry in entries
    ]


async def _is_hidden(page: PageContext, queue: str) -> bool:
    fields = {"QueueUrl": url_of(queue), "AttributeNames": ["QueueArn"]}
    try:
        await page.sqs("GetQueueAttributes", fields)
    except ApiError as error:
        return error.is_denied
    return False


def _matches(entry: AuditEntry, *, queue: str, who: str) -> bool:
    return queue.lower() in (entry.queue or "").lower() and who.lower() in entry.who.lower()


def _line(entry: AuditEntry) -> Line:
    after, before = _leaves(entry.after), _leaves(entry.before or {})
    rows: list[tuple[str, str | None, str | None]]
    rows = [(name, before.pop(name.rpartition(".")[2], before.pop(name, None)), value) for name, value in after.items()]
    rows += [(name, value, None) for name, value in before.items()]
    return Line(entry, rows, is_done=entry.outcome.startswith(DONE), is_open=entry.outcome == ASKED)


def _leaves(fields: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of fields by name; nested ones by both names."""
    leaves: dict[str, str] = {}
    for name, value in fields.items():
        if not prefix and name in _QUEUE_FIELDS:
            continue
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            leaves[prefix + name] = text[:_VALUE_CHARACTERS_MAX] + "…" * (len(text) > _VALUE_CHARACTERS_MAX)
    return leaves


PAGES = (PageRoute("/console/audit", show),)
