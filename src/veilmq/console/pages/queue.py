"""One queue: its figures, what it is set to in words, and where to reach it."""

from typing import NamedTuple

from starlette.responses import Response

from veilmq.console.distribution import apply_timeout, timeout_look
from veilmq.console.feeds import figures, lease_look
from veilmq.console.listing import COLUMNS
from veilmq.console.page import Page
from veilmq.console.queue_look import arn_of, look, movement, sources
from veilmq.console.rendering import plain_name
from veilmq.console.setting_rows import GROUPS, SettingRow
from veilmq.console.visit import Visit
from veilmq.core.settings import QueueSettings

_DOCUMENTS = frozenset({"policy", "visibility_rules"})


class Told(NamedTuple):
    """A setting in words; ``is_document`` where they are many, ``queues`` where it names some."""

    label: str
    words: str
    is_document: bool
    queues: tuple[str, ...]


async def show(visit: Visit) -> Response:
    """Show the queue that the path names."""
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
    """Return settings in words, those of FIFO queues only for one."""
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
    """Return where the queue is, by each protocol; ``url`` is that of SQS."""
    endpoint = url.removesuffix(f"/{queue}")
    return [
        ("URL (SQS)", url),
        ("ARN", arn),
        ("Endpoint (SQS and SMQ)", endpoint),
        ("Name (SMQ)", plain_name(queue)),
        ("URL (SMQ)", f"{endpoint}/queues/{plain_name(queue)}"),
    ]


PAGES = (Page("/console/queues/{account}/{name}", show, apply_timeout),)
