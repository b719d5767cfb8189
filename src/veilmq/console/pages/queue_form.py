"""Create a queue, and edit its settings and tags: a form with errors changes nothing."""

import re
from http import HTTPStatus

from starlette.responses import Response

from veilmq.console import setting_rows
from veilmq.console.api_client import ApiError, api_path
from veilmq.console.fields import NO_ERRORS, FormErrors
from veilmq.console.page_context import PageContext, PageRoute
from veilmq.console.queue_queries import show_queue
from veilmq.console.rendering import path_of
from veilmq.console.setting_form import (
    HINT,
    NAME,
    TAGS,
    FilledForm,
    FilledTags,
    field_of,
    filled,
    filled_tags,
    rows_of,
    shown_rows,
    texts_of,
    was,
)
from veilmq.console.setting_rows import GROUPS, ROWS, SettingGroup
from veilmq.core.settings import QueueSettings
from veilmq.wire.v1.queues import ShownQueue
from veilmq.wire.v1.request import NAMES

_NEW = QueueSettings()
_NAME = re.compile(NAMES)


async def show_new(page: PageContext) -> Response:
    return _new(page, FilledForm({}, texts_of(_NEW, ROWS.values()), {}), rows_of({}))


async def create(page: PageContext) -> Response:
    """Create the queue, or show the form with errors."""
    form = filled(page.form, _NEW, ROWS.values())
    tags = filled_tags(page.form, {})
    name = page.form.get(NAME, "").strip()
    problems = (
        {} if _NAME.fullmatch(name) else {NAME: "Names may contain only letters, digits, hyphens and underscores."}
    )
    problems |= form.problems | _tag_errors(tags)
    if problems:
        return _new(page, form, tags.rows, FormErrors(problems))
    queue = f"{page.account}/{name}"
    try:
        made = await page.api(
            "POST", api_path("queues", queue, "create"), fields={"settings": form.changes, "tags": tags.put}
        )
    except ApiError as error:
        return _new(page, form, tags.rows, _errors_of(error, default=NAME))
    if not made["is_new"]:
        there = FormErrors(
            {NAME: "There is a queue of this name already; nothing was changed."}, status=HTTPStatus.CONFLICT
        )
        return _new(page, form, tags.rows, there)
    return page.redirect(path_of(queue), done="created")


async def show_present(page: PageContext) -> Response:
    """Show the form of a queue's settings."""
    queue = await show_queue(page)
    texts = texts_of(queue.settings, shown_rows(queue.settings))
    return _present(page, queue, FilledForm({}, texts, {}), rows_of(queue.settings.tags))


async def change(page: PageContext) -> Response:
    """Apply the changes, or show the form with errors."""
    queue = await show_queue(page)
    form = filled(page.form, queue.settings, shown_rows(queue.settings))
    tags = filled_tags(page.form, queue.settings.tags)
    problems = form.problems | _tag_errors(tags)
    if problems:
        return _present(page, queue, form, tags.rows, FormErrors(problems))
    try:
        if form.changes:
            await page.api("POST", api_path("queues", page.queue, "set"), fields=form.changes)
    except ApiError as error:
        return _present(page, queue, form, tags.rows, _errors_of(error))
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
    return _present(page, queue, FilledForm({}, texts, {}), tags.rows, errors._replace(general=done + errors.general))


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


def _new(page: PageContext, form: FilledForm, tags: list[tuple[str, str]], errors: FormErrors = NO_ERRORS) -> Response:
    return page.render(
        "queue_new.html",
        errors=errors,
        name=page.form.get(NAME, ""),
        name_hint=setting_rows.NAME_HINT,
        groups=GROUPS,
        texts=form.texts,
        before={},
        tags=tags,
        tags_before=was({}),
        tags_hint=HINT,
        labels=_labels(),
    )


def _present(
    page: PageContext, queue: ShownQueue, form: FilledForm, tags: list[tuple[str, str]], errors: FormErrors = NO_ERRORS
) -> Response:
    rows = shown_rows(queue.settings)
    return page.render(
        "queue_edit.html",
        errors=errors,
        queue=page.queue,
        shown=queue,
        groups=_groups(queue.settings),
        texts=form.texts,
        before=texts_of(queue.settings, rows),
        tags=tags,
        tags_before=was(queue.settings.tags),
        tags_hint=HINT,
        labels=_labels(),
    )


def _groups(settings: QueueSettings) -> list[SettingGroup]:
    shown = shown_rows(settings)
    groups = [group._replace(rows=tuple(row for row in group.rows if row in shown)) for group in GROUPS]
    return [group for group in groups if group.rows]


def _labels() -> dict[str, str]:
    return {NAME: "Name", TAGS: "Tags", **{row.setting: row.label for row in ROWS.values()}}


PAGES = (
    PageRoute("/console/queues/new", show_new, create),
    PageRoute("/console/queues/{account}/{name}/edit", show_present, change),
)
