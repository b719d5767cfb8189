"""The event stream of an open page: ``?counts=a,b&leases=account/name&moves=account/name``."""

from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from veilmq.console.live import Live, LiveQuery, Stream, Subscriber, TooManyError
from veilmq.console.live_queries import NAMES_MAX, CountsQuery, LeasesQuery, MovesQuery
from veilmq.console.page_context import PageContext, PageRoute

EVENT_STREAM = "text/event-stream"

_NOTHING = "Name what is to be watched: counts=…, leases=… or moves=….\n"
_TOO_MANY = "Too many pages are open, or the server is about to stop; come again later.\n"


async def show(page: PageContext) -> Response:
    """Send changes while the page is open."""
    queries = _queries(page)
    if not queries:
        return PlainTextResponse(_NOTHING, status_code=400)
    if page.request.method == "HEAD":
        return Response(media_type=EVENT_STREAM)  # a stream has no length, and HEAD no body
    live = page.ports.live
    try:
        stream = live.open(_subscriber(page), queries)
    except TooManyError:
        return PlainTextResponse(_TOO_MANY, status_code=503)
    headers = {"connection": "close"}  # otherwise the connection would wait for a request when the server stops
    return StreamingResponse(_events(live, stream), media_type=EVENT_STREAM, headers=headers)


async def _events(live: Live, stream: Stream) -> AsyncIterator[bytes]:
    try:
        async for event in stream.events():
            yield event
    finally:
        live.close_stream(stream)


def _queries(page: PageContext) -> list[LiveQuery]:
    queries: list[LiveQuery] = []
    names = [name for name in page.query.get("counts", "").split(",") if name][:NAMES_MAX]
    if names:
        queries.append(CountsQuery(tuple(names)))
    if queue := page.query.get("leases"):
        queries.append(LeasesQuery(queue, own=queue.startswith(f"{page.account}/")))
    if queue := page.query.get("moves"):
        queries.append(MovesQuery(queue))
    return queries


def _subscriber(page: PageContext) -> Subscriber:
    """Return the subscriber; policies may depend on the address and the browser too."""

    def is_session_valid() -> bool:
        if page.accounts is None:
            return True
        session = page.sessions.of(page.request)
        return session is not None and page.accounts.caller_of(session.key_id) == page.caller

    arn = None if page.caller is None else page.caller.arn
    return Subscriber((arn, page.peer, page.program), page.client, is_session_valid)


PAGES = (PageRoute("/console/live", show),)
