"""One queue: figures, settings, addresses; purge and delete.

To confirm a purge or a deletion, the user types the queue's name, which is checked here.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.distribution import apply_timeout, timeout_look
from veilmq.console.feeds import figures, lease_look
from veilmq.console.listing import COLUMNS
from veilmq.console.queue_look import arn_of, look, movement, sources
from veilmq.console.rendering import path_of, plain_name
from veilmq.console.setting_rows import GROUPS, SettingRow
from veilmq.console.visit import HOME, Page, Visit
from veilmq.core.settings import QueueSettings

_DOCUMENTS = frozenset({"policy", "visibility_rules"})


class Told(NamedTuple):
    """A setting for display; ``is_document`` if it is long, ``queues`` if it names some."""

    label: str
    words: str
    is_document: bool
    queues: tuple[str, ...]


async def show(visit: Visit) -> Response:
    """Show the queue."""
    queue = await look(visit)
    return visit.page(
        "queue.html",
        queue=visit.queue,
        shown=queue,
        columns=COLUMNS[1:],
        figures=figures(await movement(visit, queue), visit.now_ms),
        groups=[(group.title, _told(group.rows, queue.settings)) for group in GROUPS],
        addresses=_addresses(queue.url, visit.queue, await arn_of(visit.asking, visit.queue)),
        sources=await sources(visit),
        timeline=await lease_look(visit, in_flight=queue.in_flight),
        past=await timeout_look(visit, timeout_s=queue.settings.visibility_timeout_s),
    )


def _told(rows: tuple[SettingRow, ...], settings: QueueSettings) -> list[Told]:
    """Return the settings that apply to the queue's type."""
    return [_tell(row, settings) for row in rows if row.fifo <= settings.fifo]


def _tell(row: SettingRow, settings: QueueSettings) -> Told:
    value = getattr(settings, row.setting)
    queues: tuple[str, ...] = ()
    if row.setting == "dead_letter_queue" and value:
        queues = (value,)
    elif row.setting == "redrive_sources":
        queues = value
    return Told(row.label, row.kind.words(value), row.setting in _DOCUMENTS and bool(value), queues)


def _addresses(url: str, queue: str, arn: str) -> list[tuple[str, str]]:
    """Return the queue's names and addresses by protocol; ``url`` is that of SQS."""
    endpoint = url.removesuffix(f"/{queue}")
    return [
        ("URL (SQS)", url),
        ("ARN", arn),
        ("Endpoint (SQS and SMQ)", endpoint),
        ("Name (SMQ)", plain_name(queue)),
        ("URL (SMQ)", f"{endpoint}/queues/{plain_name(queue)}"),
    ]


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
    """Show what a deletion would delete."""
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


_PATH = "/console/queues/{account}/{name}"

PAGES = (
    Page(_PATH, show, apply_timeout),
    Page(f"{_PATH}/purge", show_purge, purge),
    Page(f"{_PATH}/delete", show_delete, delete),
)
