"""Create a queue, and edit its settings and tags: a form with errors changes nothing.

Only fields that the user changed are sent, so that concurrent changes of other fields are kept: the form sends back the
value that each field had when it was shown (``was.``). A field that was also changed by another user is an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from veilmq.console import setting_rows
from veilmq.console.api_client import ApiError, api_path
from veilmq.console.fields import NO_ERRORS, FormErrors, InvalidField, SubmittedForm, plain
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.queue_queries import show_queue
from veilmq.console.rendering import path_of
from veilmq.console.setting_rows import GROUPS, ROWS, SettingGroup, SettingRow
from veilmq.core.limits import SQS_TAG_KEY_CHARACTERS_MAX, SQS_TAG_VALUE_CHARACTERS_MAX, SQS_TAGS_MAX
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.queues import read_tags
from veilmq.wire.v1.queues import ShownQueue

WAS = "was."
"""Prefix of the names of fields with previous values."""

NAME = "name"
TAGS = "tags"

_FIELD_OF_CODE = {
    "QueueExists": NAME,
    "QueueDeletedRecently": NAME,
    "DeadLetterQueueRefused": "dead_letter_queue",
    "InvalidAttributeValue": "policy",  # the only setting whose syntax another protocol defines
    "InvalidParameterValue": TAGS,
}


class FilledForm(NamedTuple):
    """``changes`` by setting; ``texts`` is what the fields show next; ``problems`` by field."""

    changes: dict[str, SettingValue]
    texts: dict[str, str]
    problems: dict[str, str]


def shown_rows(settings: QueueSettings) -> list[SettingRow]:
    """Return the rows that a queue with these settings can change."""
    return [row for row in ROWS.values() if row.fifo <= settings.fifo and not row.fixed]


def texts_of(settings: QueueSettings, rows: Iterable[SettingRow]) -> dict[str, str]:
    return {row.setting: plain(row.kind.write(getattr(settings, row.setting))) for row in rows}


def filled(form: Mapping[str, str], now: QueueSettings, rows: Iterable[SettingRow]) -> FilledForm:
    """Compare ``form`` with ``now``, the current settings. Missing fields count as unchanged."""
    result = FilledForm(changes={}, texts=texts_of(now, rows), problems={})
    for row in rows:
        current = result.texts[row.setting]
        text = plain(form.get(row.setting, current))
        shown = plain(form.get(WAS + row.setting, current))
        if text in {shown, current}:
            continue
        result.texts[row.setting] = text
        try:
            value = row.kind.read(text)
        except InvalidField as error:
            result.problems[row.setting] = str(error)
            continue
        if shown != current:
            result.problems[row.setting] = changed_meanwhile(row.kind.words(getattr(now, row.setting)))
        elif value != getattr(now, row.setting):
            result.changes[row.setting] = value
    return result


def changed_meanwhile(now: str) -> str:
    """Return the error for a field that was also changed elsewhere, to ``now``."""
    return f"Another user has changed this since you opened the page, to: {now or 'none'}. Save again to overwrite it."


def field_of(error: ApiError) -> str:
    """Return the field that an error is about; empty if none."""
    setting = str(error.fields.get("setting", ""))
    if error.code == "InvalidRequest":
        setting = error.message.partition(":")[0]
    if error.code != "QueueExists" and setting in ROWS:
        return setting
    return _FIELD_OF_CODE.get(error.code, "")


HINT = (
    f"Up to {SQS_TAGS_MAX} tags. A key has 1 to {SQS_TAG_KEY_CHARACTERS_MAX} characters, a value up to "
    f"{SQS_TAG_VALUE_CHARACTERS_MAX}: letters, digits, spaces and _ . : / = + - @. To remove a tag, empty both."
)

_EMPTY_ROWS = 3

Rows = list[tuple[str, str]]


class FilledTags(NamedTuple):
    """``put`` are the tags to set, ``removed`` the keys to remove; ``rows`` is what the form shows next."""

    put: dict[str, str]
    removed: list[str]
    rows: Rows
    problem: str = ""


def rows_of(tags: Mapping[str, str]) -> Rows:
    """Return the form rows of ``tags``, then some empty ones."""
    return _padded(list(tags.items()))


def was(tags: Mapping[str, str]) -> str:
    """Return the previous tags, for a hidden field."""
    return msgspec.json.encode(tags).decode()


def filled_tags(form: Mapping[str, str], now: Mapping[str, str]) -> FilledTags:
    """Compare the tags of ``form`` with ``now``, the current ones. A form without rows keeps them."""
    typed = _typed(form)
    before = _before(form, now)
    if typed is None or dict(typed) == before:
        return FilledTags({}, [], rows_of(now))
    rows = _padded(typed)
    tags = {key: value for key, value in typed if key}
    put = {key: value for key, value in tags.items() if before.get(key) != value}
    removed = [key for key in before if key not in tags]
    problem = _problem(typed) or _meanwhile({*put, *removed}, before, now)
    return FilledTags(put, removed, rows, problem)


def _typed(form: Mapping[str, str]) -> Rows | None:
    """Return the rows that are not empty; ``None`` if the form has no rows."""
    rows = []
    for number in range(SQS_TAGS_MAX):
        key, value = form.get(f"tag.{number}.key"), form.get(f"tag.{number}.value", "")
        if key is None:
            break
        rows.append((key, value))
    return [row for row in rows if any(row)] if rows else None


def _before(form: Mapping[str, str], now: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return msgspec.json.decode(form.get(WAS + TAGS, ""), type=dict[str, str])
    except msgspec.MsgspecError:
        return now


def _problem(typed: Rows) -> str:
    keys = [key for key, _ in typed if key]
    duplicate = next((key for key in keys if keys.count(key) > 1), None)
    if duplicate is not None:
        return f"The key {duplicate} occurs twice; keep one of them."
    if len(keys) < len(typed):
        return "A value needs a key; to remove a tag, empty both."
    try:
        read_tags(dict(typed), "")
    except SqsError as error:
        return error.message
    return ""


def _meanwhile(keys: set[str], before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the error if one of ``keys`` was also changed elsewhere."""
    for key in sorted(keys):
        if before.get(key) != now.get(key):
            return f"{key}: " + changed_meanwhile(now.get(key, "no tag"))
    return ""


def _padded(rows: Rows) -> Rows:
    return (rows + [("", "")] * _EMPTY_ROWS)[: max(SQS_TAGS_MAX, len(rows))]


_NEW = QueueSettings()
_LABELS = {NAME: "Name", TAGS: "Tags", **{row.setting: row.label for row in ROWS.values()}}


async def show_new(page: PageContext) -> Response:
    return _new(page, texts_of(_NEW, ROWS.values()), rows_of({}))


async def create(page: PageContext) -> Response:
    """Create the queue, or show the form with errors."""
    form = filled(page.form, _NEW, ROWS.values())
    tags = filled_tags(page.form, {})
    fields = SubmittedForm(page.form)
    name = fields.queue(NAME)
    problems = fields.problems | form.problems | _tag_errors(tags)
    if problems:
        return _new(page, form.texts, tags.rows, FormErrors(problems))
    queue = f"{page.account}/{name}"
    try:
        made = await page.api(
            "POST", api_path("queues", queue, "create"), fields={"settings": form.changes, "tags": tags.put}
        )
    except ApiError as error:
        return _new(page, form.texts, tags.rows, _errors_of(error, default=NAME))
    if not made["is_new"]:
        there = FormErrors(
            {NAME: "There is a queue of this name already; nothing was changed."}, status=HTTPStatus.CONFLICT
        )
        return _new(page, form.texts, tags.rows, there)
    return page.redirect(path_of(queue), done="created")


async def show_present(page: PageContext) -> Response:
    """Show the form of a queue's settings."""
    queue = await show_queue(page)
    texts = texts_of(queue.settings, shown_rows(queue.settings))
    return _present(page, queue, texts, rows_of(queue.settings.tags))


async def change(page: PageContext) -> Response:
    """Apply the changes, or show the form with errors."""
    queue = await show_queue(page)
    form = filled(page.form, queue.settings, shown_rows(queue.settings))
    tags = filled_tags(page.form, queue.settings.tags)
    problems = form.problems | _tag_errors(tags)
    if problems:
        return _present(page, queue, form.texts, tags.rows, FormErrors(problems))
    try:
        if form.changes:
            await page.api("POST", api_path("queues", page.queue, "set"), fields=form.changes)
    except ApiError as error:
        return _present(page, queue, form.texts, tags.rows, _errors_of(error))
    try:
        await _change_tags(page, tags)
    except ApiError as error:
        return await _after_settings(page, form, tags, _errors_of(error))
    is_changed = form.changes or tags.put or tags.removed
    return page.redirect(path_of(page.queue), done="saved" if is_changed else "unchanged")


async def _after_settings(page: PageContext, form: FilledForm, tags: FilledTags, errors: FormErrors) -> Response:
    """Show the form after only the tags were refused: settings and tags are two requests."""
    queue = await show_queue(page)
    done = "The settings were changed, the tags were not. " if form.changes else ""
    texts = texts_of(queue.settings, shown_rows(queue.settings))
    return _present(page, queue, texts, tags.rows, errors._replace(general=done + errors.general))


async def _change_tags(page: PageContext, tags: FilledTags) -> None:
    if tags.put:
        await page.sqs("TagQueue", {"QueueUrl": page.queue_url, "Tags": tags.put})
    if tags.removed:
        await page.sqs("UntagQueue", {"QueueUrl": page.queue_url, "TagKeys": tags.removed})


def _tag_errors(tags: FilledTags) -> dict[str, str]:
    return {TAGS: tags.problem} if tags.problem else {}


def _errors_of(error: ApiError, *, default: str = "") -> FormErrors:
    """Return a refusal as form errors; ``default`` is the field for invalid input that names none."""
    field = field_of(error)
    if not field and error.code == "InvalidRequest":
        field = default
    return FormErrors({field: error.message} if field else {}, "" if field else error.message, error.status)


def _new(page: PageContext, texts: Mapping[str, str], tags: Rows, errors: FormErrors = NO_ERRORS) -> Response:
    values = {"name": page.form.get(NAME, ""), "name_hint": setting_rows.NAME_HINT}
    return _form(page, "queue_new.html", _NEW, GROUPS, texts, tags, errors, **values)


def _present(
    page: PageContext, queue: ShownQueue, texts: Mapping[str, str], tags: Rows, errors: FormErrors = NO_ERRORS
) -> Response:
    groups = _groups(queue.settings)
    return _form(page, "queue_edit.html", queue.settings, groups, texts, tags, errors, queue=page.queue, shown=queue)


def _form(
    page: PageContext,
    template: str,
    settings: QueueSettings,
    groups: Sequence[SettingGroup],
    texts: Mapping[str, str],
    tags: Rows,
    errors: FormErrors,
    **values: Any,
) -> Response:
    """Render the form of ``settings``; ``texts`` and ``tags`` are what its fields show."""
    return page.render(
        template,
        errors=errors,
        groups=groups,
        texts=texts,
        before=texts_of(settings, [row for group in groups for row in group.rows]),
        tags=tags,
        tags_before=was(settings.tags),
        tags_hint=HINT,
        labels=_LABELS,
        **values,
    )


def _groups(settings: QueueSettings) -> list[SettingGroup]:
    shown = shown_rows(settings)
    groups = [group._replace(rows=tuple(row for row in group.rows if row in shown)) for group in GROUPS]
    return [group for group in groups if group.rows]


PAGES = (
    PageRoute("/console/queues/new", show_new, create),
    PageRoute("/console/queues/{account}/{name}/edit", show_present, change),
)
