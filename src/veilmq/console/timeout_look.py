"""How long messages of a queue were held beside its timeout, and the timeout that was recommended, to be applied here.

It is applied as ``veilmq pipeline tune --apply`` would: to a queue that is still set as it was when the statistics were
made, and only where the gain is worth a change.
"""

from typing import NamedTuple

from starlette.responses import Response

from veilmq.console.distribution import Histogram, histogram
from veilmq.console.ports import Advice
from veilmq.console.queue_look import look as look_at_queue
from veilmq.console.rendering import path_of
from veilmq.console.visit import Visit
from veilmq.events import ProcessingTimes


class TimeoutLook(NamedTuple):
    """What ``parts/distribution.html`` is told; where there is no ``histogram`` or ``advice``, a sentence says why.

    ``obstacle`` says why the advice cannot be applied, empty where it can.
    """

    held: ProcessingTimes | None
    why_not: str
    histogram: Histogram | None
    advice: Advice | None
    no_advice: str
    obstacle: str


async def look(visit: Visit, *, timeout_s: int) -> TimeoutLook:
    """Return what is known of the queue that the path names, whose timeout is ``timeout_s``."""
    past = visit.ports.past
    held, advice = await past.held_times(visit.queue), await past.advice(visit.queue)
    known = None if isinstance(held, str) else held
    wanted = None if isinstance(advice, str) else advice
    return TimeoutLook(
        held=known,
        why_not=held if isinstance(held, str) else "",
        histogram=None
        if known is None
        else histogram(known, timeout_s=timeout_s, recommended_s=None if wanted is None else wanted.recommended_s),
        advice=wanted,
        no_advice=advice if isinstance(advice, str) else "",
        obstacle="" if wanted is None else _obstacle(wanted, timeout_s),
    )


async def apply(visit: Visit) -> Response:
    """Set the timeout that was recommended, if it is still what was on the page, and the queue too."""
    timeout_s = (await look_at_queue(visit)).settings.visibility_timeout_s
    advice = await visit.ports.past.advice(visit.queue)
    if isinstance(advice, str):
        return _refused(visit, advice)
    obstacle = _obstacle(advice, timeout_s)
    if not obstacle and visit.form.get("recommended_s") != str(advice.recommended_s):
        obstacle = "There is another recommendation by now; look at it on the page of the queue."
    if obstacle:
        return _refused(visit, obstacle)
    changes = {"VisibilityTimeout": str(advice.recommended_s)}
    await visit.sqs("SetQueueAttributes", {"QueueUrl": visit.queue_url, "Attributes": changes})
    return visit.go(path_of(visit.queue), done="timeout-applied")


def _obstacle(advice: Advice, timeout_s: int) -> str:
    if advice.recommended_s is None:
        return (
            "Nothing can be recommended yet." if advice.confidence == "none" else "No other timeout is surely better."
        )
    if timeout_s == advice.recommended_s:
        return "The queue has this timeout."
    if timeout_s != advice.current_s:
        return (
            f"The queue was changed since: its timeout is {timeout_s:,} s, and the statistics were made for "
            f"{advice.current_s:,} s. Run veilmq pipeline tune again."
        )
    return "" if advice.change else "The gain is too small to be worth a change."


def _refused(visit: Visit, message: str) -> Response:
    return visit.page("refused.html", status=409, title="Not applied", message=f"{message} Nothing was changed.")
