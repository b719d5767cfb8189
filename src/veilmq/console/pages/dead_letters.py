"""Dead letters of a queue: its dead-letter queue, its source queues, and redrives; the redrives of the account."""

from starlette.responses import Response

from veilmq.console.api_client import ApiError
from veilmq.console.fields import NO_ERRORS, FormErrors, Number, SubmittedForm
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.queue_queries import Task, arn_of, browse, dead_letter_sources, show_queue, tasks_of
from veilmq.console.rendering import path_of, plain_name
from veilmq.core.limits import SQS_MOVES_PER_S

_RATE = Number(allowed=SQS_MOVES_PER_S, unit="messages per second", empty="no limit")


async def show(page: PageContext) -> Response:
    return await _page(page)


async def change(page: PageContext) -> Response:
    """Start a redrive, or cancel the running one."""
    try:
        return await (_cancel(page) if page.form.get("do") == "cancel" else _start(page))
    except ApiError as error:
        if error.is_missing:
            raise
        return await _page(page, FormErrors(general=error.message, status=error.status))


async def _start(page: PageContext) -> Response:
    filled = SubmittedForm(page.form)
    destination = filled.queue("destination") if filled.text("destination") else ""
    rate = filled.number("rate", _RATE)
    if filled.problems:
        return await _page(page, FormErrors(filled.problems))
    arn = await arn_of(page.client, page.queue)
    fields = {
        "SourceArn": arn,
        "DestinationArn": f"{arn.rpartition(':')[0]}:{destination}" if destination else None,
        "MaxNumberOfMessagesPerSecond": rate,
    }
    try:
        await page.sqs("StartMessageMoveTask", {name: value for name, value in fields.items() if value is not None})
    except ApiError as error:
        if "DestinationArn" not in error.message:
            raise
        return await _page(page, FormErrors({"destination": _destination_error(error)}))
    return page.redirect(f"{path_of(page.queue)}/dead-letters", done="move-started")


def _destination_error(error: ApiError) -> str:
    if error.code == "ResourceNotFoundException":
        return "There is no such queue in this account."
    return error.message.partition("Reason: ")[2] or error.message


async def _cancel(page: PageContext) -> Response:
    await page.sqs("CancelMessageMoveTask", {"TaskHandle": page.form.get("handle", "")})
    return page.redirect(f"{path_of(page.queue)}/dead-letters", done="move-cancelled")


async def _page(page: PageContext, errors: FormErrors = NO_ERRORS) -> Response:
    return page.render(
        "dead_letters.html",
        errors=errors,
        queue=page.queue,
        shown=await show_queue(page),
        sources=await dead_letter_sources(page),
        tasks=await tasks_of(page, page.queue),
        form=page.form,
        rate_hint=_RATE.hint,
    )


_PAGE_QUEUES = 200
_QUEUES_MAX = 1_000
_QUERIED_MAX = 50


async def show_moves(page: PageContext) -> Response:
    """Show the move tasks of the account's dead-letter queues, running ones first."""
    names, is_cut = await _dead_letter_queues(page)
    queried = names[:_QUERIED_MAX]
    tasks: list[Task] = []
    for name in queried:
        tasks += await tasks_of(page, f"{page.account}/{name}") or ()
    tasks.sort(key=lambda task: (task.handle is None, -task.started_at_ms))
    return page.render("moves.html", queue="", tasks=tasks, known=len(names), queried=len(queried), is_cut=is_cut)


async def _dead_letter_queues(page: PageContext) -> tuple[list[str], bool]:
    """Return the dead-letter queues of the account's queues, and whether there may be more."""
    named: set[str] = set()
    for first in range(0, _QUEUES_MAX, _PAGE_QUEUES):
        browsed = await browse(page.client, {"first": first, "count": _PAGE_QUEUES})
        named |= {plain_name(each.dead_letter_queue) for each in browsed.queues if each.dead_letter_queue}
        if first + _PAGE_QUEUES >= browsed.in_all:
            return sorted(named), False
    return sorted(named), True


PAGES = (
    PageRoute("/console/queues/{account}/{name}/dead-letters", show, change),
    PageRoute("/console/moves", show_moves),
)
