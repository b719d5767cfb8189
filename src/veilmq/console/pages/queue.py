"""One queue: figures, settings, addresses; purge and delete.

To confirm a purge or a deletion, the user types the queue's name, which is checked here.
"""

from functools import partial
from typing import NamedTuple

from starlette.responses import Response

from veilmq.console.api_client import ApiError
from veilmq.console.distribution import apply_timeout, timeout_section
from veilmq.console.fields import NO_ERRORS, FormErrors
from veilmq.console.live_queries import figures, lease_section
from veilmq.console.page_context import HOME, PageContext, PageRoute
from veilmq.console.pages.queues import COLUMNS
from veilmq.console.queue_queries import arn_of, dead_letter_sources, queue_rates, show_queue
from veilmq.console.rendering import path_of, plain_name
from veilmq.console.setting_rows import GROUPS, SettingRow
from veilmq.core.settings import QueueSettings

_DOCUMENTS = frozenset({"policy", "visibility_rules"})


class SettingText(NamedTuple):
    """A setting for display; ``is_document`` if it is long, ``queues`` if it names some."""

    label: str
    words: str
    is_document: bool
    queues: tuple[str, ...]


async def show(page: PageContext) -> Response:
    """Show the queue."""
    queue = await show_queue(page)
    return page.render(
        "queue.html",
        queue=page.queue,
        shown=queue,
        columns=COLUMNS[1:],
        figures=figures(await queue_rates(page, queue), page.now_ms),
        groups=[(group.title, _setting_texts(group.rows, queue.settings)) for group in GROUPS],
        addresses=_addresses(queue.url, page.queue, await arn_of(page.client, page.queue)),
        sources=await dead_letter_sources(page),
        timeline=await lease_section(page, in_flight=queue.in_flight),
        timeout=await timeout_section(page, timeout_s=queue.settings.visibility_timeout_s),
    )


def _setting_texts(rows: tuple[SettingRow, ...], settings: QueueSettings) -> list[SettingText]:
    return [_setting_text(row, settings) for row in rows if row.fifo <= settings.fifo]


def _setting_text(row: SettingRow, settings: QueueSettings) -> SettingText:
    value = getattr(settings, row.setting)
    queues: tuple[str, ...] = ()
    if row.setting == "dead_letter_queue" and value:
        queues = (value,)
    elif row.setting == "redrive_sources":
        queues = value
    return SettingText(row.label, row.kind.words(value), row.setting in _DOCUMENTS and bool(value), queues)


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


_ACTIONS = {"purge": ("PurgeQueue", "purged"), "delete": ("DeleteQueue", "deleted")}
"""Page → the action that it confirms, and the notice."""

_NOT_CONFIRMED = FormErrors(
    {"confirmation": "This is not the queue's name, so nothing was deleted. Type it as shown above."}
)


async def _confirm(verb: str, page: PageContext, errors: FormErrors = NO_ERRORS) -> Response:
    return page.render(
        f"queue_{verb}.html",
        errors=errors,
        queue=page.queue,
        shown=await show_queue(page),
        sources=await dead_letter_sources(page),
    )


async def _change(verb: str, page: PageContext) -> Response:
    if not page.is_confirmed:
        return await _confirm(verb, page, _NOT_CONFIRMED)
    action, done = _ACTIONS[verb]
    try:
        await page.sqs(action, {"QueueUrl": page.queue_url})
    except ApiError as error:
        if error.is_missing:
            raise
        return await _confirm(verb, page, FormErrors(general=error.message, status=error.status))
    return page.redirect(HOME if verb == "delete" else path_of(page.queue), done=done)


_PATH = "/console/queues/{account}/{name}"

PAGES = (
    PageRoute(_PATH, show, apply_timeout),
    *(PageRoute(f"{_PATH}/{verb}", partial(_confirm, verb), partial(_change, verb)) for verb in _ACTIONS),
)
