"""Send a message; the form keeps its input until the message is stored."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from veilmq.console.api_client import ApiError
from veilmq.console.fields import NO_ERRORS, SECONDS, FormErrors, Number, SubmittedForm, plain
from veilmq.console.message_list import show_queue_if_allowed
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.rendering import path_of
from veilmq.core.limits import (
    SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
    SQS_DELAY_S,
    SQS_GROUP_ID_CHARACTERS_MAX,
    SQS_MESSAGE_ATTRIBUTES_MAX,
)
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import AttributeValue, read_attributes

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
HINT = (
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


async def show(page: PageContext) -> Response:
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
        if error.is_missing:
            raise
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
        shown=await show_queue_if_allowed(page),
        form=page.form,
        rows=rows,
        types=TYPES,
        attributes_hint=HINT,
        group_max=SQS_GROUP_ID_CHARACTERS_MAX,
        deduplication_id_max=SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
        delay_hint=_DELAY.hint,
    )


PAGES = (PageRoute("/console/queues/{account}/{name}/messages/send", show, send),)
