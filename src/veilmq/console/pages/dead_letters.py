"""Dead letters of a queue: its dead-letter queue, the queues that use it as theirs, and redrives."""

from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.fields import NOTHING_SAID, Filled, Number, Said
from veilmq.console.move_tasks import arn_beside, tasks_of
from veilmq.console.queue_look import arn_of, look, sources
from veilmq.console.rendering import path_of
from veilmq.console.visit import Page, Visit
from veilmq.core.limits import SQS_MOVES_PER_S

_RATE = Number(allowed=SQS_MOVES_PER_S, unit="messages a second", empty="as fast as it goes")


async def show(visit: Visit) -> Response:
    """Show the page."""
    return await _page(visit)


async def change(visit: Visit) -> Response:
    """Start a redrive, or cancel the running one."""
    try:
        return await (_cancel(visit) if visit.form.get("do") == "cancel" else _start(visit))
    except Refused as refused:
        if refused.is_missing:
            raise
        return await _page(visit, Said(general=refused.message, status=refused.status))


async def _start(visit: Visit) -> Response:
    filled = Filled(visit.form)
    destination = filled.queue("destination") if filled.text("destination") else ""
    rate = filled.number("rate", _RATE)
    if filled.problems:
        return await _page(visit, Said(filled.problems))
    arn = await arn_of(visit.asking, visit.queue)
    told = {
        "SourceArn": arn,
        "DestinationArn": arn_beside(arn, destination) if destination else None,
        "MaxNumberOfMessagesPerSecond": rate,
    }
    try:
        await visit.sqs("StartMessageMoveTask", {name: value for name, value in told.items() if value is not None})
    except Refused as refused:
        if "DestinationArn" not in refused.message:
            raise
        return await _page(visit, Said({"destination": _of_destination(refused)}))
    return visit.go(f"{path_of(visit.queue)}/dead-letters", done="move-started")


def _of_destination(refused: Refused) -> str:
    if refused.code == "ResourceNotFoundException":
        return "There is no such queue in this account."
    return refused.message.partition("Reason: ")[2] or refused.message


async def _cancel(visit: Visit) -> Response:
    await visit.sqs("CancelMessageMoveTask", {"TaskHandle": visit.form.get("handle", "")})
    return visit.go(f"{path_of(visit.queue)}/dead-letters", done="move-cancelled")


async def _page(visit: Visit, said: Said = NOTHING_SAID) -> Response:
    return visit.page(
        "dead_letters.html",
        status=said.status,
        queue=visit.queue,
        shown=await look(visit),
        sources=await sources(visit),
        tasks=await tasks_of(visit, visit.queue),
        form=visit.form,
        problems=said.problems,
        general=said.general,
        rate_hint=_RATE.hint,
    )


PAGES = (Page("/console/queues/{account}/{name}/dead-letters", show, change),)
