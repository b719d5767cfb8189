"""Claims: queues with sources and writers, what these hold, and changes of them.

They use the same routes as programs.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.queue_look import named
from veilmq.console.rendering import claims_path
from veilmq.console.visit import Page, Visit
from veilmq.core.claims import SourceView, WriterView

_QUEUES_MAX = 200
_ASKED_TOGETHER = 16
_UNTYPED = "This is not the queue's name, so nothing was changed. Type it as it is written above."
_NO_NUMBER = "This is no number of a claim."
_MESSAGES_MAX = 50
_BODY_CHARACTERS_MAX = 200
_NUMBER_DIGITS_MAX = 18


class Readers(NamedTuple):
    """The sources and writers of a queue; ``is_hidden`` if the caller may see neither."""

    queue: str
    sources: list[SourceView]
    writers: list[WriterView]
    is_hidden: bool = False


async def readers(visit: Visit, queue: str) -> Readers:
    """Return the sources and writers of ``queue``; raises ``Refused``, except for missing permissions."""
    sources = await _listed(visit, f"/v1/claims/{quote(queue, safe='/@')}", "sources")
    writers = await _listed(visit, f"/v1/publications/{quote(queue, safe='/@')}", "writers")
    return Readers(
        queue,
        msgspec.convert(sources or [], list[SourceView]),
        msgspec.convert(writers or [], list[WriterView]),
        is_hidden=sources is None and writers is None,
    )


async def source_of(visit: Visit, name: str) -> SourceView | None:
    """Return the source ``name`` of the page's queue, if it exists."""
    sources = await _listed(visit, f"/v1/claims/{quote(visit.queue, safe='/@')}", "sources")
    found = msgspec.convert(sources or [], list[SourceView])
    return next((source for source in found if source.source == name), None)


async def _listed(visit: Visit, path: str, member: str) -> list[Any] | None:
    """Return a list of veilmq's API; ``None`` if the caller may not see it."""
    try:
        answer = await visit.api("GET", path)
    except Refused as refused:
        if not refused.is_denied:
            raise
        return None
    found: list[Any] = answer[member]
    return found


async def show(visit: Visit) -> Response:
    """Show the queues with sources or writers, among those with a prefix."""
    search = visit.query.get("search", "").strip()
    found = await named(visit, search, count_max=_QUEUES_MAX)
    looked = await _look(visit, found.queues)
    return visit.page(
        "claims.html",
        read=[each for each in looked if each.sources or each.writers],
        hidden=sum(each.is_hidden for each in looked),
        looked_at=len(found.queues),
        has_more=found.has_more,
        search=search,
        problem=found.problem,
    )


async def _look(visit: Visit, queues: list[str]) -> list[Readers]:
    found: list[Readers] = []
    for first in range(0, len(queues), _ASKED_TOGETHER):
        together = queues[first : first + _ASKED_TOGETHER]
        found += await asyncio.gather(*(_if_there(visit, queue) for queue in together))
    return found


async def _if_there(visit: Visit, queue: str) -> Readers:
    try:
        return await readers(visit, queue)
    except Refused as refused:
        if not refused.is_missing:
            raise
        return Readers(queue, [], [])  # deleted meanwhile


async def show_queue(visit: Visit) -> Response:
    """Show the sources, claims and writers of one queue."""
    return visit.page("claims_queue.html", queue=visit.queue, found=await readers(visit, visit.queue))


class ClaimedMessage(NamedTuple):
    """A message of a claim, with the beginning of its body."""

    id: str
    body: str
    receive_count: int


async def show_release(visit: Visit) -> Response:
    """Show the claim to release."""
    return await _ask(visit, "release", visit.query)


async def release(visit: Visit) -> Response:
    """Release a claim."""
    return await _change(visit, "release", needs_number=True, done="claim-released")


async def show_evict(visit: Visit) -> Response:
    """Show the messages of a claim, to evict one."""
    return await _ask(visit, "evict", visit.query)


async def evict(visit: Visit) -> Response:
    """Move a message out of a claim, to the dead-letter queue."""
    return await _change(visit, "evict", needs_number=True, done="evicted", message=visit.form.get("message", ""))


async def show_close(visit: Visit) -> Response:
    """Show the source to close."""
    return await _ask(visit, "close", visit.query)


async def close(visit: Visit) -> Response:
    """Release all claims of a source and delete it."""
    return await _change(visit, "close", needs_number=False, done="source-closed")


async def _change(visit: Visit, verb: str, *, needs_number: bool, done: str, **fields: Any) -> Response:
    if not visit.is_confirmed:
        return await _ask(visit, verb, visit.form, problem=_UNTYPED, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    told: dict[str, Any] = {"source": visit.form.get("source", ""), **fields}
    if needs_number:
        number = _number(visit.form)
        if number is None:
            return await _ask(visit, verb, visit.form, general=_NO_NUMBER, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        told["number"] = number
    try:
        await visit.api("POST", f"/v1/claims/{quote(visit.queue, safe='/@')}/{verb}", fields=told)
    except Refused as refused:
        if refused.is_missing or refused.is_denied:
            raise
        return await _ask(visit, verb, visit.form, general=refused.message, status=refused.status)
    return visit.go(claims_path(visit.queue), done=done)


def _number(fields: Mapping[str, str]) -> int | None:
    text = fields.get("number", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX else None


async def _ask(
    visit: Visit,
    verb: str,
    fields: Mapping[str, str],
    *,
    problem: str = "",
    general: str = "",
    status: int = 200,
) -> Response:
    name, number = fields.get("source", ""), _number(fields)
    source = await source_of(visit, name)
    messages: list[ClaimedMessage] = []
    if verb == "evict" and source is not None and number is not None:
        messages, why = await _messages(visit, name, number)
        general = general or why
    return visit.page(
        f"claim_{verb}.html",
        status=status,
        queue=visit.queue,
        verb=verb,
        name=name,
        number=number,
        source=source,
        messages=messages,
        message=fields.get("message", ""),
        problem=problem,
        general=general,
    )


async def _messages(visit: Visit, source: str, number: int) -> tuple[list[ClaimedMessage], str]:
    """Return the first messages of a claim, or why there are none."""
    try:
        found = await visit.api(
            "GET", f"/v1/claims/{quote(visit.queue, safe='/@')}/read", query={"source": source, "number": number}
        )
    except Refused as refused:
        return [], refused.message
    rows = found["messages"][:_MESSAGES_MAX]
    return [ClaimedMessage(row["id"], row["body"][:_BODY_CHARACTERS_MAX], row["receive_count"]) for row in rows], ""


_PATH = "/console/claims/{account}/{name}"

PAGES = (
    Page("/console/claims", show),
    Page(_PATH, show_queue),
    Page(f"{_PATH}/release", show_release, release),
    Page(f"{_PATH}/evict", show_evict, evict),
    Page(f"{_PATH}/close", show_close, close),
)
