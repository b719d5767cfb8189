"""Sending a message: what was typed stays in the form until the message is stored."""

from typing import Any

from starlette.responses import Response

from veilmq.console import attribute_rows
from veilmq.console.asking import Refused
from veilmq.console.attribute_rows import AttributeRow
from veilmq.console.field_kinds import SECONDS, Number
from veilmq.console.filled import NOTHING_SAID, Filled, Said
from veilmq.console.message_look import look_if_allowed
from veilmq.console.page import Page
from veilmq.console.rendering import path_of
from veilmq.console.visit import Visit
from veilmq.core.limits import SQS_DEDUPLICATION_ID_CHARACTERS_MAX, SQS_DELAY_S, SQS_GROUP_ID_CHARACTERS_MAX

_DELAY = Number(allowed=SQS_DELAY_S, unit=SECONDS, empty="the queue's own delay")
_FIELDS = (  # what an answer of SQS says, and the field that it is about; the first that fits
    ("MessageDeduplicationId", "deduplication_id"),
    ("ContentBasedDeduplication", "deduplication_id"),
    ("MessageGroupId", "group"),
    ("DelaySeconds", "delay"),
    ("MessageBody", "body"),
    ("message body", "body"),
    ("Message must be shorter", "body"),
)
_NO_GROUP = "A message of a FIFO queue needs a group."


async def show(visit: Visit) -> Response:
    """Show an empty form."""
    return await _form(visit, attribute_rows.empty_rows())


async def send(visit: Visit) -> Response:
    """Store the message, or show the form again with what is wrong."""
    filled = Filled(visit.form)
    rows = attribute_rows.filled_rows(visit.form)
    message = _message(filled, rows)
    if filled.problems or any(row.problem for row in rows):
        return await _form(visit, rows, Said(filled.problems))
    try:
        await visit.sqs("SendMessage", {"QueueUrl": visit.queue_url, **message})
    except Refused as refused:
        if refused.is_missing:
            raise
        field = next((field for words, field in _FIELDS if words in refused.message), "")
        problems = {field: refused.message} if field else {}
        return await _form(visit, rows, Said(problems, "" if field else refused.message, refused.status))
    return visit.go(f"{path_of(visit.queue)}/messages", done="sent")


def _message(filled: Filled, rows: list[AttributeRow]) -> dict[str, Any]:
    """Return what is sent; fields that are empty are left out."""
    body = filled.lines("body")
    if not body:
        filled.problems["body"] = "A message has a body, be it a space."
    problem_free = [row for row in rows if not row.problem]
    told = {
        "MessageBody": body,
        "MessageGroupId": filled.text("group"),
        "MessageDeduplicationId": filled.text("deduplication_id"),
        "DelaySeconds": filled.number("delay", _DELAY),
        "MessageAttributes": attribute_rows.attributes_of(problem_free),
    }
    return {name: value for name, value in told.items() if value not in (None, "", {})}


async def _form(visit: Visit, rows: list[AttributeRow], said: Said = NOTHING_SAID) -> Response:
    return visit.page(
        "message_send.html",
        status=said.status,
        queue=visit.queue,
        shown=await look_if_allowed(visit),
        form=visit.form,
        rows=rows,
        types=attribute_rows.TYPES,
        attributes_hint=attribute_rows.HINT,
        group_max=SQS_GROUP_ID_CHARACTERS_MAX,
        deduplication_id_max=SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
        delay_hint=_DELAY.hint,
        problems=said.problems,
        general=said.general,
    )


PAGES = (Page("/console/queues/{account}/{name}/messages/send", show, send),)
