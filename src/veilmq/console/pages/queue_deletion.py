"""Purging and deleting a queue: what will be lost, and the queue's name typed to confirm, which is compared here."""

from collections.abc import Callable
from http import HTTPStatus

from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.page import HOME, Page
from veilmq.console.queue_look import look, sources
from veilmq.console.rendering import path_of
from veilmq.console.visit import Visit

_UNTYPED = "This is not the queue's name, so nothing was deleted. Type it as it is written above."


async def show_purge(visit: Visit) -> Response:
    """Show what a purge would delete."""
    return await _ask(visit, "queue_purge.html")


async def purge(visit: Visit) -> Response:
    """Delete all messages."""
    return await _confirmed(
        visit, "queue_purge.html", "PurgeQueue", lambda: visit.go(path_of(visit.queue), done="purged")
    )


async def show_delete(visit: Visit) -> Response:
    """Show what is lost with the queue."""
    return await _ask(visit, "queue_delete.html")


async def delete(visit: Visit) -> Response:
    """Delete the queue and all its messages."""
    return await _confirmed(visit, "queue_delete.html", "DeleteQueue", lambda: visit.go(HOME, done="deleted"))


async def _confirmed(visit: Visit, template: str, action: str, after: Callable[[], Response]) -> Response:
    if not visit.is_confirmed:
        return await _ask(visit, template, problem=_UNTYPED, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    try:
        await visit.sqs(action, {"QueueUrl": visit.queue_url})
    except Refused as refused:
        if refused.is_missing:
            raise
        return await _ask(visit, template, general=refused.message, status=refused.status)
    return after()


async def _ask(visit: Visit, template: str, *, problem: str = "", general: str = "", status: int = 200) -> Response:
    return visit.page(
        template,
        status=status,
        queue=visit.queue,
        shown=await look(visit),
        sources=await sources(visit),
        problem=problem,
        general=general,
    )


PAGES = (
    Page("/console/queues/{account}/{name}/purge", show_purge, purge),
    Page("/console/queues/{account}/{name}/delete", show_delete, delete),
)
