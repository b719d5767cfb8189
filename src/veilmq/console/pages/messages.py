"""The messages of a queue: inspect, receive, and act with receipts.

A change ends with a redirect, so that a reload does not repeat it. Received messages are shown among those in flight if
the inspection finds them, else from the receive's result. Receipts are passed from a page to its form, never in a URL.
A receipt may have ended when a button is pressed (the timeout has passed, the message was received again, or deleted):
that is one of ``OUTCOMES``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

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
from veilmq.console.rendering import path_of
from veilmq.console.visit import Page, Visit
from veilmq.core.limits import LEASE_S_MAX, SQS_BATCH_ENTRIES_MAX, SQS_RECEIVE_COUNT, VISIBILITY_TIMEOUT_S, Range
from veilmq.wire.v1.queues import ShownQueue

OUTCOMES: dict[str, str] = {
    "received": "Received",
    "extended": "Extended",
    "released": "Released",
    "deleted": "Deleted",
    "moved": "Moved",
    "duplicate": "Deleted here, as the other queue has had it already",
    "wall": f"Not extended, as it would be held for more than {LEASE_S_MAX:,} seconds since its receive",
    "long": "Not moved, as it is too long for the other queue",
    "held": "Not moved, as an earlier message of its group was not",
    "expired": "Nothing was done, as its timeout had ended meanwhile",
    "superseded": "Nothing was done, as somebody else has received it meanwhile",
    "earlier": "Done, although somebody else has received it meanwhile",
    "ended": "Nothing was done, as its timeout had ended or somebody else has received it meanwhile",
    "gone": "Nothing was done, as it is no longer in the queue",
    "invalid": "Nothing was done, as the receipt is not one of this queue",
}
"""The outcomes of a message, as texts followed by a count of messages."""

_COUNT_MAX = 1_000
_OF_CODES = {
    "MessageTooLong": "long",
    "GroupHeld": "held",
    "ReceiptInvalid": "invalid",
    "ReceiptHandleIsInvalid": "invalid",
}
_OF_WORDS = (  # for codes of SQS with several meanings
    ("beyond the limit", "wall"),
    ("handle has expired", "ended"),
    ("not available for visibility timeout change", "gone"),
)


async def hide(visit: Visit, receipts: Sequence[str], timeout_s: int) -> list[str]:
    """Change the timeout of messages, 0 to release them. Return an outcome each; raises ``Refused``."""
    fields = {"VisibilityTimeout": timeout_s}
    done = "extended" if timeout_s else "released"
    return await _each(visit, "ChangeMessageVisibilityBatch", receipts, fields, done=done)


async def delete(visit: Visit, receipts: Sequence[str]) -> list[str]:
    """Delete messages. Return an outcome each; raises ``Refused``."""
    return await _each(visit, "DeleteMessageBatch", receipts, {}, done="deleted")


async def move(visit: Visit, receipts: Sequence[str], target: str) -> list[str]:
    """Move messages to another queue, each in one transaction. Return an outcome each.

    Raises ``Unfit`` if ``target`` is invalid, and ``Refused``.
    """
    outcomes: list[str] = []
    for some in _batches(receipts):
        fields = {"entries": [{"receipt": receipt, "target": target} for receipt in some]}
        told = await visit.api("POST", f"/v1/queues/{quote(visit.queue, safe='/@')}/forward", fields=fields)
        outcomes += [_moved(entry) for entry in told["entries"]]
    return outcomes


def told(outcomes: Sequence[str]) -> str:
    """Return the counts of outcomes for a URL."""
    return ".".join(f"{outcome}-{count}" for outcome, count in Counter(outcomes).items())


def sentences(text: str) -> Iterator[str]:
    """Yield the output of ``told`` in words; invalid parts are ignored."""
    for part in text.split("."):
        outcome, _, count = part.partition("-")
        if outcome in OUTCOMES and count.isascii() and count.isdigit() and len(count) < len(str(_COUNT_MAX)):
            yield f"{OUTCOMES[outcome]}: {count}."


def _batches(receipts: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(receipts), SQS_BATCH_ENTRIES_MAX):
        yield receipts[at : at + SQS_BATCH_ENTRIES_MAX]


def _moved(entry: Mapping[str, Any]) -> str:
    code = entry.get("code")
    if code is None:
        return "duplicate" if entry["duplicate"] else "moved"
    if code == "ReceiptEnded":
        return str(entry["state"])
    if code in {"QueueNotFound", "DestinationRefused"}:
        raise Unfit(entry["message"])
    return _outcome(code, entry["message"], entry["status"])


async def _each(
    visit: Visit, action: str, receipts: Sequence[str], fields: Mapping[str, Any], *, done: str
) -> list[str]:
    """Return the outcome of each message: batch actions return more detail than single ones."""
    outcomes: list[str] = []
    for some in _batches(receipts):
        entries = [{"Id": str(place), "ReceiptHandle": receipt, **fields} for place, receipt in enumerate(some)]
        answer = await visit.sqs(action, {"QueueUrl": visit.queue_url, "Entries": entries})
        outcomes += [entry.get("VeilmqReceipt", done) for entry in answer.get("Successful", ())]
        outcomes += [_outcome(failed["Code"], failed["Message"], 503) for failed in answer.get("Failed", ())]
    return outcomes


def _outcome(code: str, message: str, status: int) -> str:
    known = _OF_CODES.get(code) or next((outcome for words, outcome in _OF_WORDS if words in message), None)
    if known is None:
        raise Refused(code, message, status)
    return known


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
    """Show the messages of the queue."""
    view = view_of(visit.query)
    return await _page(visit, view, await look_at(visit, view))


async def change(visit: Visit) -> Response:
    """Receive messages, or apply the chosen action to the selected ones."""
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
    came = told(["received"] * len(messages))
    if timeout_s == 0 or await _is_found(visit, view):
        return visit.go(_address(visit, view, came=came))
    return await _page(visit, view, Look(rows_of(messages, view), is_cut=False), came=came)


async def _is_found(visit: Visit, view: MessageView) -> bool:
    """Return whether an inspection finds the received messages with receipts; False if it fails."""
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
    view, came = replace(view, whole="", mine=left), told(outcomes)
    if {*known} - {*chosen}:
        with suppress(Refused):  # the action is done; the next page shows the error
            found = await look_at(visit, view, known=known)
            if found.hides_receipts:  # a redirect would lose the other receipts
                return await _page(visit, view, found, came=came)
    return visit.go(_address(visit, view, came=came))


async def _done(visit: Visit, filled: Filled, receipts: Sequence[str]) -> list[str]:
    """Run the chosen action if the form is valid; raises ``Unfit`` for an invalid target."""
    act = filled.text("do")
    timeout_s = filled.number("seconds", _EXTENSION) if act == "extend" else 0
    target = filled.queue("target") if act == "move" else ""
    if act not in {"extend", "release", "delete", "move"}:
        filled.problems["do"] = _NO_ACT
    if filled.problems:
        return []
    if act == "move":
        return await move(visit, receipts, target)
    if act == "delete":
        return await delete(visit, receipts)
    return await hide(visit, receipts, timeout_s or 0)


def _receipts(form: Mapping[str, str]) -> dict[str, str]:
    """Return the receipts of the form, by lease."""
    return {name.removeprefix(_RECEIPT): value for name, value in form.items() if name.startswith(_RECEIPT)}


def _chosen(form: Mapping[str, str]) -> list[str]:
    """Return the selected leases."""
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
        shown = None  # still report what was done
    return visit.page(
        "messages.html",
        status=said.status,
        queue=visit.queue,
        shown=shown,
        in_all=None if shown is None else _in_all(shown, view),
        view=view,
        found=found,
        came=list(sentences(visit.query.get("came", "") if came is None else came)),
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
    """Return the number of messages in the shown state, if it is counted."""
    counts = {"visible": shown.visible, IN_FLIGHT: shown.in_flight, "delayed": shown.delayed}
    return sum(counts.values()) if view.state == "all" else counts.get(view.state)


PAGES = (Page("/console/queues/{account}/{name}/messages", show, change),)
