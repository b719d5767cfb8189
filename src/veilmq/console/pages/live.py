"""The event stream of an open page: ``?counts=a,b&leases=account/name&moves=account/name``."""

from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from veilmq.console.feeds import NAMES_MAX, CountsOf, LeasesOf, MovesOf
from veilmq.console.live import Live, Question, Reader, Stream, TooManyError
from veilmq.console.visit import Page, Visit

EVENT_STREAM = "text/event-stream"

_NOTHING = "Name what is to be watched: counts=…, leases=… or moves=….\n"
_TOO_MANY = "Too many pages are open, or the server is about to stop; come again later.\n"


async def show(visit: Visit) -> Response:
    """Send changes while the page is open."""
    questions = _questions(visit)
    if not questions:
        return PlainTextResponse(_NOTHING, status_code=400)
    if visit.request.method == "HEAD":
        return Response(media_type=EVENT_STREAM)  # a stream has no length, and HEAD no body
    live = visit.ports.live
    try:
        stream = live.open(_reader(visit), questions)
    except TooManyError:
        return PlainTextResponse(_TOO_MANY, status_code=503)
    ends_with_it = {"connection": "close"}  # otherwise the connection would wait for a request when the server stops
    return StreamingResponse(_events(live, stream), media_type=EVENT_STREAM, headers=ends_with_it)


async def _events(live: Live, stream: Stream) -> AsyncIterator[bytes]:
    try:
        async for event in stream.events():
            yield event
    finally:
        live.leave(stream)


def _questions(visit: Visit) -> list[Question]:
    questions: list[Question] = []
    names = [name for name in visit.query.get("counts", "").split(",") if name][:NAMES_MAX]
    if names:
        questions.append(CountsOf(tuple(names)))
    if queue := visit.query.get("leases"):
        questions.append(LeasesOf(queue, own=queue.startswith(f"{visit.account}/")))
    if queue := visit.query.get("moves"):
        questions.append(MovesOf(queue))
    return questions


def _reader(visit: Visit) -> Reader:
    """Return the reader; policies may depend on the address and the browser too."""

    def is_there() -> bool:
        if visit.accounts is None:
            return True
        session = visit.sessions.of(visit.request)
        return session is not None and visit.accounts.caller_of(session.key_id) == visit.caller

    arn = None if visit.caller is None else visit.caller.arn
    return Reader((arn, visit.peer, visit.program), visit.asking, is_there)


PAGES = (Page("/console/live", show),)
