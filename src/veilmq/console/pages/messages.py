"""The messages of a queue: looked at without receiving them, received, and what their receipts allow.

A change ends with a redirect to what there is then, so that a reload changes nothing. What was received is found among
the messages in flight, if the page has it; else it is shown as it came. A receipt goes from a page into its form, never
into an address.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from starlette.responses import Response

from veilmq.console import receipt_actions
from veilmq.console.asking import Refused
from veilmq.console.fields import NOTHING_SAID, SECONDS, Filled, Number, Said, Unfit
from veilmq.console.message_look import (
    ASKED,
    BODIES,
    COUNTS,
    IN_FLIGHT,
    STATES,
    Look,
    MessageView,
    leases_of,
    look_at,
    look_if_allowed,
    rows_of,
    view_of,
)
from veilmq.console.page import Page
from veilmq.console.rendering import path_of
from veilmq.console.visit import Visit
from veilmq.core.limits import SQS_RECEIVE_COUNT, VISIBILITY_TIMEOUT_S, Range
from veilmq.wire.v1.queues import ShownQueue

_COUNT = Number(allowed=SQS_RECEIVE_COUNT, unit="messages")
_TIMEOUT = Number(allowed=VISIBILITY_TIMEOUT_S, unit=SECONDS, empty="the queue's own visibility timeout")
_EXTENSION = Number(
    allowed=Range(minimum=1, maximum=VISIBILITY_TIMEOUT_S.maximum, default=VISIBILITY_TIMEOUT_S.default),
    unit=SECONDS,
)
_CHOSEN = "chosen."
_RECEIPT = "receipt."
_NONE_CHOSEN = "Tick the messages first."
_UNCONFIRMED = "You did not receive all of these here: confirm that you take them from whoever holds them."
_NO_ACT = "Choose what to do with them."


async def show(visit: Visit) -> Response:
    """Show what is in the queue."""
    view = view_of(visit.query)
    return await _page(visit, view, await look_at(visit, view))


async def change(visit: Visit) -> Response:
    """Receive, or do with what was ticked what was chosen."""
    try:
        return await (_receive(visit) if visit.form.get("do") == "receive" else _act(visit))
    except Refused as refused:
        if refused.is_missing:
            raise
        return await _again(visit, Said(general=refused.message, status=refused.status))


async def _receive(visit: Visit) -> Response:
    filled = Filled(visit.form)
    count, timeout_s = filled.number("count", _COUNT), filled.number("timeout", _TIMEOUT)
    if filled.problems:
        return await _again(visit, Said(filled.problems))
    asked = {"QueueUrl": visit.queue_url, "MaxNumberOfMessages": count, "WaitTimeSeconds": 0, **ASKED}
    if timeout_s is not None:
        asked["VisibilityTimeout"] = timeout_s
    messages = (await visit.sqs("ReceiveMessage", asked)).get("Messages", ())
    view = view_of(visit.query)
    if not messages:
        return visit.go(_address(visit, view), done="nothing-received")
    view = replace(view, state=IN_FLIGHT, whole="", mine=leases_of(messages))
    came = receipt_actions.told(["received"] * len(messages))
    if timeout_s == 0 or await _is_found(visit, view):
        return visit.go(_address(visit, view, came=came))
    return await _page(visit, view, Look(rows_of(messages, view), is_cut=False), came=came)


async def _is_found(visit: Visit, view: MessageView) -> bool:
    """Tell whether a look finds what was received, with receipts; it is lost to nobody where there is no answer."""
    try:
        found = await look_at(visit, view)
    except Refused:
        return False
    return not (found.missing or found.hides_receipts)


async def _act(visit: Visit) -> Response:
    view, filled = view_of(visit.query), Filled(visit.form)
    known = _receipts(visit.form)
    chosen = [lease for lease in _chosen(visit.form) if lease in known]
    if not chosen:
        filled.problems["chosen"] = _NONE_CHOSEN
    if not visit.form.get("confirmed") and {*chosen} - {*view.mine}:
        filled.problems["confirmed"] = _UNCONFIRMED
    outcomes: list[str] = []
    try:
        outcomes = await _done(visit, filled, [known[lease] for lease in chosen])
    except Unfit as unfit:
        filled.problems["target"] = str(unfit)
    if filled.problems:
        return await _again(visit, Said(filled.problems))
    left = view.mine if visit.form.get("do") == "extend" else tuple(each for each in view.mine if each not in chosen)
    view, came = replace(view, whole="", mine=left), receipt_actions.told(outcomes)
    if {*known} - {*chosen}:
        with suppress(Refused):  # what was done is done; the page that is shown next says what is in the way
            found = await look_at(visit, view, known=known)
            if found.hides_receipts:  # a redirect would lose those of the others
                return await _page(visit, view, found, came=came)
    return visit.go(_address(visit, view, came=came))


async def _done(visit: Visit, filled: Filled, receipts: Sequence[str]) -> list[str]:
    """Do what was chosen, unless there is anything wrong with the form; raises ``Unfit`` for the target."""
    act = filled.text("do")
    timeout_s = filled.number("seconds", _EXTENSION) if act == "extend" else 0
    target = filled.queue("target") if act == "move" else ""
    if act not in {"extend", "release", "delete", "move"}:
        filled.problems["do"] = _NO_ACT
    if filled.problems:
        return []
    if act == "move":
        return await receipt_actions.move(visit, receipts, target)
    if act == "delete":
        return await receipt_actions.delete(visit, receipts)
    return await receipt_actions.hide(visit, receipts, timeout_s or 0)


def _receipts(form: Mapping[str, str]) -> dict[str, str]:
    """Return the receipts that the form has brought back, by lease."""
    return {name.removeprefix(_RECEIPT): value for name, value in form.items() if name.startswith(_RECEIPT)}


def _chosen(form: Mapping[str, str]) -> list[str]:
    """Return the leases that were ticked."""
    return [name.removeprefix(_CHOSEN) for name in form if name.startswith(_CHOSEN)][: max(COUNTS)]


def _address(visit: Visit, view: MessageView, *, came: str = "") -> str:
    query = "&".join(part for part in (view.query, f"came={came}" if came else "") if part)
    return f"{path_of(visit.queue)}/messages" + (f"?{query}" if query else "")


async def _again(visit: Visit, said: Said) -> Response:
    view = view_of(visit.query)
    return await _page(visit, view, await look_at(visit, view, known=_receipts(visit.form)), said=said)


async def _page(
    visit: Visit, view: MessageView, found: Look, *, said: Said = NOTHING_SAID, came: str | None = None
) -> Response:
    try:
        shown = await look_if_allowed(visit)
    except Refused:
        if came is None:
            raise
        shown = None  # what was done is told all the same
    return visit.page(
        "messages.html",
        status=said.status,
        queue=visit.queue,
        shown=shown,
        in_all=None if shown is None else _in_all(shown, view),
        view=view,
        found=found,
        came=list(receipt_actions.sentences(visit.query.get("came", "") if came is None else came)),
        states=STATES,
        counts=COUNTS,
        bodies=BODIES,
        form=visit.form,
        chosen=_chosen(visit.form) if said.problems else [],
        problems=said.problems,
        general=said.general,
        count_hint=_COUNT.hint,
        timeout_hint=_TIMEOUT.hint,
        extension_hint=_EXTENSION.hint,
    )


def _in_all(shown: ShownQueue, view: MessageView) -> int | None:
    """Return how many messages are in the state that is looked at; ``None`` where nobody counts those."""
    counts = {"visible": shown.visible, IN_FLIGHT: shown.in_flight, "delayed": shown.delayed}
    return sum(counts.values()) if view.state == "all" else counts.get(view.state)


PAGES = (Page("/console/queues/{account}/{name}/messages", show, change),)
