"""Claims: queues with sources and writers, what these hold, and changes of them.

They use the same routes as programs.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from veilmq.console.api_client import ApiError, api_path
from veilmq.console.fields import NO_ERRORS, FormErrors
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.queue_queries import queues_with_prefix
from veilmq.console.rendering import claims_path
from veilmq.core.claims import SourceView, WriterView

T = TypeVar("T")

_QUEUES_MAX = 200
_BATCH_QUEUES = 16
_NOT_CONFIRMED = FormErrors(
    {"confirmation": "This is not the queue's name, so nothing was changed. Type it as shown above."}
)
_NO_NUMBER = "This is not the number of a claim."
_MESSAGES_MAX = 50
_NUMBER_DIGITS_MAX = 18
_DONE = {"release": "claim-released", "evict": "evicted", "close": "source-closed"}
"""Change of a claim → its notice. To evict a message is to move it out of a claim to the dead-letter queue."""


class Readers(NamedTuple):
    """The sources and writers of a queue; ``is_hidden`` if the caller may see neither."""

    queue: str
    sources: list[SourceView]
    writers: list[WriterView]
    is_hidden: bool = False


async def readers(page: PageContext, queue: str) -> Readers:
    """Return the sources and writers of ``queue``; raises ``ApiError``, except for missing permissions."""
    sources = await _listed(page, api_path("claims", queue), "sources", SourceView)
    writers = await _listed(page, api_path("publications", queue), "writers", WriterView)
    return Readers(queue, sources or [], writers or [], is_hidden=sources is None and writers is None)


async def _listed(page: PageContext, path: str, member: str, kind: type[T]) -> list[T] | None:
    """Return a list of veilmq's API; ``None`` if the caller may not see it."""
    try:
        reply = await page.api("GET", path)
    except ApiError as error:
        if not error.is_denied:
            raise
        return None
    return msgspec.convert(reply[member], list[kind])  # type: ignore[valid-type]


async def show(page: PageContext) -> Response:
    """Show the queues with sources or writers, among those with a prefix."""
    search = page.query.get("search", "").strip()
    matching = await queues_with_prefix(page, search, count_max=_QUEUES_MAX)
    all_readers = await _readers_of(page, matching.queues)
    return page.render(
        "claims.html",
        read=[each for each in all_readers if each.sources or each.writers],
        hidden=sum(each.is_hidden for each in all_readers),
        inspected=len(matching.queues),
        has_more=matching.has_more,
        search=search,
        problem=matching.problem,
    )


async def _readers_of(page: PageContext, queues: list[str]) -> list[Readers]:
    all_readers: list[Readers] = []
    for first in range(0, len(queues), _BATCH_QUEUES):
        batch = queues[first : first + _BATCH_QUEUES]
        all_readers += await asyncio.gather(*(_readers_if_exists(page, queue) for queue in batch))
    return all_readers


async def _readers_if_exists(page: PageContext, queue: str) -> Readers:
    try:
        return await readers(page, queue)
    except ApiError as error:
        if not error.is_missing:
            raise
        return Readers(queue, [], [])  # deleted meanwhile


async def show_queue(page: PageContext) -> Response:
    """Show the sources, claims and writers of one queue."""
    return page.render("claims_queue.html", queue=page.queue, readers=await readers(page, page.queue))


async def _change(verb: str, page: PageContext) -> Response:
    if not page.is_confirmed:
        return await _confirm(verb, page, _NOT_CONFIRMED)
    fields: dict[str, Any] = {"source": page.form.get("source", "")}
    if verb != "close":
        fields["number"] = _number(page.form)
        if fields["number"] is None:
            return await _confirm(verb, page, FormErrors(general=_NO_NUMBER))
    if verb == "evict":
        fields["message"] = page.form.get("message", "")
    try:
        await page.api("POST", api_path("claims", page.queue, verb), fields=fields)
    except ApiError as error:
        if error.is_missing or error.is_denied:
            raise
        return await _confirm(verb, page, FormErrors(general=error.message, status=error.status))
    return page.redirect(claims_path(page.queue), done=_DONE[verb])


def _number(fields: Mapping[str, str]) -> int | None:
    text = fields.get("number", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX else None


async def _confirm(verb: str, page: PageContext, errors: FormErrors = NO_ERRORS) -> Response:
    fields = page.form or page.query
    name, number = fields.get("source", ""), _number(fields)
    sources = await _listed(page, api_path("claims", page.queue), "sources", SourceView)
    source = next((view for view in sources or () if view.source == name), None)
    messages: list[Mapping[str, Any]] = []
    if verb == "evict" and source is not None and number is not None:
        messages, why = await _messages(page, name, number)
        errors = errors._replace(general=errors.general or why)
    return page.render(
        f"claim_{verb}.html",
        errors=errors,
        queue=page.queue,
        verb=verb,
        name=name,
        number=fields.get("number", ""),
        source=source,
        messages=messages,
        message=fields.get("message", ""),
    )


async def _messages(page: PageContext, source: str, number: int) -> tuple[list[Mapping[str, Any]], str]:
    """Return the first messages of a claim, or why there are none."""
    try:
        reply = await page.api(
            "GET", api_path("claims", page.queue, "read"), query={"source": source, "number": number}
        )
    except ApiError as error:
        return [], error.message
    return reply["messages"][:_MESSAGES_MAX], ""


_PATH = "/console/claims/{account}/{name}"

PAGES = (
    PageRoute("/console/claims", show),
    PageRoute(_PATH, show_queue),
    *(PageRoute(f"{_PATH}/{verb}", partial(_confirm, verb), partial(_change, verb)) for verb in _DONE),
)
