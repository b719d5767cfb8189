"""The messages of a queue: inspect, receive, act with receipts, and send.

A change ends with a redirect, so that a reload does not repeat it. Received messages are shown among those in flight if
the inspection finds them, else from the receive's result. Receipts are passed from a page to its form, never in a URL.
A receipt may have ended when a button is pressed (the timeout has passed, the message was received again, or deleted):
that is one of ``OUTCOMES``. The form of a message keeps its input until the message is stored.
"""

from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.responses import Response

from veilmq.console.api_client import ApiError, api_path
from veilmq.console.fields import NO_ERRORS, SECONDS, FormErrors, InvalidField, Number, SubmittedForm, plain
from veilmq.console.message_list import (
    BODIES,
    COUNTS,
    IN_FLIGHT,
    RECEIVE_FIELDS,
    STATES,
    MessageList,
    MessageView,
    leases_of,
    list_messages,
    read_view,
    rows_of,
    show_queue_if_allowed,
)
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.rendering import path_of
from veilmq.core.limits import (
    LEASE_S_MAX,
    SQS_BATCH_ENTRIES_MAX,
    SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
    SQS_DELAY_S,
    SQS_GROUP_ID_CHARACTERS_MAX,
    SQS_MESSAGE_ATTRIBUTES_MAX,
    SQS_RECEIVE_COUNT,
    VISIBILITY_TIMEOUT_S,
    Range,
)
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import AttributeValue, read_attributes
from veilmq.wire.v1.queues import ShownQueue

OUTCOMES: dict[str, str] = {
    "received": "Received",
    "extended": "Extended",
    "released": "Released",
    "deleted": "Deleted",
    "moved": "Moved",
    "duplicate": "Deleted here: already in the other queue",
    "wall": f"Not extended: the lease would last more than {LEASE_S_MAX:,} seconds since the receive",
    "long": "Not moved: too long for the other queue",
    "held": "Not moved: an earlier message of the group was not moved",
    "expired": "Not changed: the timeout has ended",
    "superseded": "Not changed: received again meanwhile",
    "earlier": "Done, although received again meanwhile",
    "ended": "Not changed: the timeout has ended, or received again meanwhile",
    "gone": "Not changed: no longer in the queue",
    "invalid": "Not changed: the receipt is not of this queue",
    "failed": "Not changed, or the outcome is unknown",
}
"""The outcomes of a message, as texts followed by a count of messages."""

_COUNT_MAX = 1_000
_CODES = {
    "MessageTooLong": "long",
    "GroupHeld": "held",
    "ReceiptInvalid": "invalid",
    "ReceiptHandleIsInvalid": "invalid",
}
_PHRASES = (  # for codes of SQS with several meanings
    ("beyond the limit", "wall"),
    ("handle has expired", "ended"),
    ("not available for visibility timeout change", "gone"),
)


async def hide(page: PageContext, receipts: Sequence[str], timeout_s: int) -> list[str]:
    """Hide messages for ``timeout_s`` from now; 0 releases them. Return an outcome each; raises ``ApiError``."""
    fields, done = {"VisibilityTimeout": timeout_s}, "extended" if timeout_s else "released"
    return await _each(page, "ChangeMessageVisibilityBatch", receipts, fields, done=done)


async def delete(page: PageContext, receipts: Sequence[str]) -> list[str]:
    """Delete messages. Return an outcome each; raises ``ApiError``."""
    return await _each(page, "DeleteMessageBatch", receipts, {}, done="deleted")


async def move(page: PageContext, receipts: Sequence[str], target: str) -> list[str]:
    """Move messages to another queue, each in one transaction. Return an outcome each.

    Raises ``InvalidField`` if ``target`` is invalid, and ``ApiError``.
    """

    async def send(batch: Sequence[str]) -> list[str]:
        fields = {"entries": [{"receipt": receipt, "target": target} for receipt in batch]}
        reply = await page.api("POST", api_path("queues", page.queue, "forward"), fields=fields)
        return [_moved(entry) for entry in reply["entries"]]

    return await _in_batches(receipts, send)


def outcome_counts(outcomes: Sequence[str]) -> str:
    """Return the counts of outcomes for a URL."""
    return ".".join(f"{outcome}-{count}" for outcome, count in Counter(outcomes).items())


def outcome_sentences(text: str) -> Iterator[str]:
    """Yield the output of ``outcome_counts`` in words; invalid parts are ignored."""
    for part in text.split("."):
        outcome, _, count = part.partition("-")
        if outcome in OUTCOMES and count.isascii() and count.isdigit() and len(count) < len(str(_COUNT_MAX)):
            yield f"{OUTCOMES[outcome]}: {count}."


async def _in_batches(receipts: Sequence[str], send: Callable[[Sequence[str]], Awaitable[list[str]]]) -> list[str]:
    """Return the outcomes of all batches; raises the error of the first one, and counts messages after a later one."""
    outcomes: list[str] = []
    for at in range(0, len(receipts), SQS_BATCH_ENTRIES_MAX):
        try:
            outcomes += await send(receipts[at : at + SQS_BATCH_ENTRIES_MAX])
        except (ApiError, InvalidField):
            if not outcomes:
                raise
            return outcomes + ["failed"] * (len(receipts) - at)
    return outcomes


def _moved(entry: Mapping[str, Any]) -> str:
    code = entry.get("code")
    if code is None:
        return "duplicate" if entry["duplicate"] else "moved"
    if code == "ReceiptEnded":
        return str(entry["state"])
    if code in {"QueueNotFound", "DestinationRefused"}:
        raise InvalidField(entry["message"])
    return _outcome(code, entry["message"], entry["status"])


async def _each(
    page: PageContext, action: str, receipts: Sequence[str], fields: Mapping[str, Any], *, done: str
) -> list[str]:
    """Return the outcome of each message: batch actions return more detail than single ones."""

    async def send(batch: Sequence[str]) -> list[str]:
        entries = [{"Id": str(index), "ReceiptHandle": receipt, **fields} for index, receipt in enumerate(batch)]
        reply = await page.sqs(action, {"QueueUrl": page.queue_url, "Entries": entries})
        outcomes = [entry.get("VeilmqReceipt", done) for entry in reply.get("Successful", ())]
        return outcomes + [_outcome(failed["Code"], failed["Message"], 503) for failed in reply.get("Failed", ())]

    return await _in_batches(receipts, send)


def _outcome(code: str, message: str, status: int) -> str:
    known = next((outcome for words, outcome in _PHRASES if words in message), None) or _CODES.get(code)
    if known is None:
        raise ApiError(code, message, status)
    return known


_COUNT = Number(allowed=SQS_RECEIVE_COUNT, unit="messages")
_TIMEOUT = Number(allowed=VISIBILITY_TIMEOUT_S, unit=SECONDS, empty="the queue's visibility timeout")
_EXTENSION = Number(
    allowed=Range(minimum=1, maximum=VISIBILITY_TIMEOUT_S.maximum, default=VISIBILITY_TIMEOUT_S.default),
    unit=SECONDS,
)
_CHOSEN = "chosen."
_RECEIPT = "receipt."
_NONE_SELECTED = "Select messages first."
_NOT_CONFIRMED = "Some of these are held by others: confirm that you want to act on them."
_NO_ACTION = "Choose an action."


async def show(page: PageContext) -> Response:
    """Show the messages of the queue."""
    view = read_view(page.query)
    return await _page(page, view, await list_messages(page, view))


async def change(page: PageContext) -> Response:
    """Receive messages, or apply the chosen action to the selected ones."""
    try:
        return await (_receive(page) if page.form.get("do") == "receive" else _apply(page))
    except ApiError as error:
        if error.is_missing:
            raise
        return await _show_errors(page, FormErrors(general=error.message, status=error.status))


async def _receive(page: PageContext) -> Response:
    filled = SubmittedForm(page.form)
    count, timeout_s = filled.number("count", _COUNT), filled.number("timeout", _TIMEOUT)
    if filled.problems:
        return await _show_errors(page, FormErrors(filled.problems))
    fields = {"QueueUrl": page.queue_url, "MaxNumberOfMessages": count, "WaitTimeSeconds": 0, **RECEIVE_FIELDS}
    if timeout_s is not None:
        fields["VisibilityTimeout"] = timeout_s
    messages = (await page.sqs("ReceiveMessage", fields)).get("Messages", ())
    view = read_view(page.query)
    if not messages:
        return page.redirect(_address(page, view), done="nothing-received")
    view = replace(view, state=IN_FLIGHT, whole="", mine=leases_of(messages))
    results = outcome_counts(["received"] * len(messages))
    if timeout_s == 0 or await _is_listed(page, view):
        return page.redirect(_address(page, view, results=results))
    return await _page(page, view, MessageList(rows_of(messages, view), is_cut=False), results=results)


async def _is_listed(page: PageContext, view: MessageView) -> bool:
    """Return whether an inspection finds the received messages with receipts; False if it fails, so none is lost."""
    try:
        listed = await list_messages(page, view)
    except ApiError:
        return False
    return not (listed.missing or listed.hides_receipts)


async def _apply(page: PageContext) -> Response:
    view, filled = read_view(page.query), SubmittedForm(page.form)
    known = _receipts(page.form)
    chosen = [lease for lease in _chosen(page.form) if lease in known]
    if not chosen:
        filled.problems["chosen"] = _NONE_SELECTED
    if not page.form.get("confirmed") and {*chosen} - {*view.mine}:
        filled.problems["confirmed"] = _NOT_CONFIRMED
    outcomes: list[str] = []
    try:
        outcomes = await _run_action(page, filled, [known[lease] for lease in chosen])
    except InvalidField as error:
        filled.problems["target"] = str(error)
    if filled.problems:
        return await _show_errors(page, FormErrors(filled.problems))
    remaining = (
        view.mine if page.form.get("do") == "extend" else tuple(each for each in view.mine if each not in chosen)
    )
    view, results = replace(view, whole="", mine=remaining), outcome_counts(outcomes)
    if {*known} - {*chosen}:
        with suppress(ApiError):  # the action is done; the next page shows the error
            listed = await list_messages(page, view, known=known)
            if listed.hides_receipts:  # a redirect would lose the other receipts
                return await _page(page, view, listed, results=results)
    return page.redirect(_address(page, view, results=results))


async def _run_action(page: PageContext, filled: SubmittedForm, receipts: Sequence[str]) -> list[str]:
    """Run the chosen action if the form is valid; raises ``InvalidField`` for an invalid target."""
    action = filled.text("do")
    timeout_s = filled.number("seconds", _EXTENSION) if action == "extend" else 0
    target = filled.queue("target") if action == "move" else ""
    if action not in {"extend", "release", "delete", "move"}:
        filled.problems["do"] = _NO_ACTION
    if filled.problems:
        return []
    if action == "move":
        return await move(page, receipts, target)
    if action == "delete":
        return await delete(page, receipts)
    return await hide(page, receipts, timeout_s or 0)


def _receipts(form: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_RECEIPT): value for name, value in form.items() if name.startswith(_RECEIPT)}


def _chosen(form: Mapping[str, str]) -> list[str]:
    return [name.removeprefix(_CHOSEN) for name in form if name.startswith(_CHOSEN)][: max(COUNTS)]


def _address(page: PageContext, view: MessageView, *, results: str = "") -> str:
    query = "&".join(part for part in (view.query, f"results={results}" if results else "") if part)
    return f"{path_of(page.queue)}/messages" + (f"?{query}" if query else "")


async def _show_errors(page: PageContext, errors: FormErrors) -> Response:
    view = read_view(page.query)
    return await _page(page, view, await list_messages(page, view, known=_receipts(page.form)), errors=errors)


async def _page(
    page: PageContext,
    view: MessageView,
    listed: MessageList,
    *,
    errors: FormErrors = NO_ERRORS,
    results: str | None = None,
) -> Response:
    shown = await show_queue_if_allowed(page, is_needed=results is None)  # still report what was done
    return page.render(
        "messages.html",
        errors=errors,
        queue=page.queue,
        shown=shown,
        in_all=None if shown is None else _in_all(shown, view),
        view=view,
        listed=listed,
        results=list(outcome_sentences(page.query.get("results", "") if results is None else results)),
        states=STATES,
        counts=COUNTS,
        bodies=BODIES,
        form=page.form,
        chosen=_chosen(page.form) if errors.problems else [],
        count_hint=_COUNT.hint,
        timeout_hint=_TIMEOUT.hint,
        extension_hint=_EXTENSION.hint,
    )


def _in_all(shown: ShownQueue, view: MessageView) -> int | None:
    """Return the number of messages in the shown state, if it is counted."""
    counts = {"visible": shown.visible, IN_FLIGHT: shown.in_flight, "delayed": shown.delayed}
    return sum(counts.values()) if view.state == "all" else counts.get(view.state)


_DELAY = Number(allowed=SQS_DELAY_S, unit=SECONDS, empty="the queue's delay")
_FIELDS = (  # part of an error of SQS, and the field that it is about; the first match counts
    ("MessageDeduplicationId", "deduplication_id"),
    ("ContentBasedDeduplication", "deduplication_id"),
    ("MessageGroupId", "group"),
    ("DelaySeconds", "delay"),
    ("MessageBody", "body"),
    ("message body", "body"),
    ("Message must be shorter", "body"),
)
_NO_GROUP = "Messages of FIFO queues require a group."

TYPES = ("String", "Number", "Binary")
ATTRIBUTES_HINT = (
    f"Up to {SQS_MESSAGE_ATTRIBUTES_MAX}. Rows without a name are ignored. A type may have a suffix after a "
    "period, such as Number.float. Binary values are base64-encoded."
)

_NO_BASE64 = "This is not valid base64, which the type Binary requires."


class AttributeRow(NamedTuple):
    """A row of the form, and its error."""

    name: str = ""
    type: str = TYPES[0]
    value: str = ""
    problem: str = ""


def filled_rows(form: Mapping[str, str]) -> list[AttributeRow]:
    """Return the rows as typed, each with its error."""
    rows = [_row(form, number) for number in range(SQS_MESSAGE_ATTRIBUTES_MAX)]
    names = [row.name for row in rows if row.name]
    return [row._replace(problem=_problem(row, names)) for row in rows]


def _row(form: Mapping[str, str], number: int) -> AttributeRow:
    def field(part: str) -> str:
        return plain(form.get(f"attribute.{number}.{part}", ""))

    return AttributeRow(field("name").strip(), field("type").strip() or TYPES[0], field("value"))


def _problem(row: AttributeRow, names: list[str]) -> str:
    if not row.name:
        return "Enter a name or delete the value." if row.value else ""
    if names.count(row.name) > 1:
        return "Another row has this name; keep one of them."
    try:
        read_attributes({row.name: _attribute(row)})
    except ValueError:
        return _NO_BASE64
    except SqsError as error:
        return error.message
    return ""


def _attribute(row: AttributeRow) -> AttributeValue:
    if row.type.partition(".")[0] == "Binary":
        return AttributeValue(data_type=row.type, binary_value=b64decode(row.value.strip(), validate=True))
    return AttributeValue(data_type=row.type, string_value=row.value)


async def show_send(page: PageContext) -> Response:
    return await _form(page, [AttributeRow()] * SQS_MESSAGE_ATTRIBUTES_MAX)


async def send(page: PageContext) -> Response:
    """Send the message, or show the form with errors."""
    filled = SubmittedForm(page.form)
    rows = filled_rows(page.form)
    message = _message(filled, rows)
    if filled.problems or any(row.problem for row in rows):
        return await _form(page, rows, FormErrors(filled.problems))
    try:
        await page.sqs("SendMessage", {"QueueUrl": page.queue_url, **message})
    except ApiError as error:
        field = next((field for words, field in _FIELDS if words in error.message), "")
        problems = {field: error.message} if field else {}
        return await _form(page, rows, FormErrors(problems, "" if field else error.message, error.status))
    return page.redirect(f"{path_of(page.queue)}/messages", done="sent")


def _message(filled: SubmittedForm, rows: list[AttributeRow]) -> dict[str, Any]:
    body = filled.lines("body")
    if not body:
        filled.problems["body"] = "The body must not be empty."
    fields = {
        "MessageBody": body,
        "MessageGroupId": filled.text("group"),
        "MessageDeduplicationId": filled.text("deduplication_id"),
        "DelaySeconds": filled.number("delay", _DELAY),
        "MessageAttributes": {row.name: _attribute(row) for row in rows if row.name and not row.problem},
    }
    return {name: value for name, value in fields.items() if value not in (None, "", {})}


async def _form(page: PageContext, rows: list[AttributeRow], errors: FormErrors = NO_ERRORS) -> Response:
    return page.render(
        "message_send.html",
        errors=errors,
        queue=page.queue,
        shown=await show_queue_if_allowed(page, is_needed=errors is NO_ERRORS),  # the input stays in any case
        form=page.form,
        rows=rows,
        types=TYPES,
        attributes_hint=ATTRIBUTES_HINT,
        group_max=SQS_GROUP_ID_CHARACTERS_MAX,
        deduplication_id_max=SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
        delay_hint=_DELAY.hint,
    )


_PATH = "/console/queues/{account}/{name}/messages"

PAGES = (PageRoute(_PATH, show, change), PageRoute(f"{_PATH}/send", show_send, send))
