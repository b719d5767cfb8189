"""Create a queue, and edit its settings and tags: a form with errors changes nothing."""

import re
from http import HTTPStatus

from starlette.responses import Response

from veilmq.console import setting_rows
from veilmq.console.asking import Refused
from veilmq.console.fields import NOTHING_SAID, Said
from veilmq.console.queue_look import look, route
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
from veilmq.console.visit import Page, Visit
from veilmq.core.settings import QueueSettings
from veilmq.wire.v1.queues import ShownQueue
from veilmq.wire.v1.request import NAMES

_NEW = QueueSettings()
_NAME = re.compile(NAMES)


async def show_new(visit: Visit) -> Response:
    """Show the form of a new queue."""
    return _new(visit, FilledForm({}, texts_of(_NEW, ROWS.values()), {}), rows_of({}))


async def create(visit: Visit) -> Response:
    """Create the queue, or show the form with errors."""
    form = filled(visit.form, _NEW, ROWS.values())
    tags = filled_tags(visit.form, {})
    name = visit.form.get(NAME, "").strip()
    problems = {} if _NAME.fullmatch(name) else {NAME: "This cannot be a name."}
    problems |= form.problems | _of_tags(tags)
    if problems:
        return _new(visit, form, tags.rows, Said(problems))
    queue = f"{visit.account}/{name}"
    try:
        made = await visit.api("POST", route(queue, "create"), fields={"settings": form.changes, "tags": tags.put})
    except Refused as refused:
        return _new(visit, form, tags.rows, _said(refused, otherwise=NAME))
    if not made["is_new"]:
        there = Said({NAME: "There is a queue of this name already; nothing was changed."}, status=HTTPStatus.CONFLICT)
        return _new(visit, form, tags.rows, there)
    return visit.go(path_of(queue), done="created")


async def show_present(visit: Visit) -> Response:
    """Show the form of a queue's settings."""
    queue = await look(visit)
    texts = texts_of(queue.settings, shown_rows(queue.settings))
    return _present(visit, queue, FilledForm({}, texts, {}), rows_of(queue.settings.tags))


async def change(visit: Visit) -> Response:
    """Apply the changes, or show the form with errors."""
    queue = await look(visit)
    form = filled(visit.form, queue.settings, shown_rows(queue.settings))
    tags = filled_tags(visit.form, queue.settings.tags)
    problems = form.problems | _of_tags(tags)
    if problems:
        return _present(visit, queue, form, tags.rows, Said(problems))
    try:
        if form.changes:
            await visit.api("POST", route(visit.queue, "set"), fields=form.changes)
    except Refused as refused:
        return _present(visit, queue, form, tags.rows, _said(refused))
    try:
        await _change_tags(visit, tags)
    except Refused as refused:
        return await _after_settings(visit, form, tags, _said(refused))
    is_changed = form.changes or tags.put or tags.removed
    return visit.go(path_of(visit.queue), done="saved" if is_changed else "unchanged")


async def _after_settings(visit: Visit, form: FilledForm, tags: FilledTags, said: Said) -> Response:
    """Show the form after only the tags were refused: settings and tags are two requests."""
    queue = await look(visit)
    done = "The settings were changed, the tags were not. " if form.changes else ""
    texts = texts_of(queue.settings, shown_rows(queue.settings))
    return _present(visit, queue, FilledForm({}, texts, {}), tags.rows, said._replace(general=done + said.general))


async def _change_tags(visit: Visit, tags: FilledTags) -> None:
    if tags.put:
        await visit.sqs("TagQueue", {"QueueUrl": visit.queue_url, "Tags": tags.put})
    if tags.removed:
        await visit.sqs("UntagQueue", {"QueueUrl": visit.queue_url, "TagKeys": tags.removed})


def _of_tags(tags: FilledTags) -> dict[str, str]:
    return {TAGS: tags.problem} if tags.problem else {}


def _said(refused: Refused, *, otherwise: str = "") -> Said:
    """Return a refusal as form errors; ``otherwise`` is the field for invalid input that names none."""
    field = field_of(refused)
    if not field and refused.code == "InvalidRequest":
        field = otherwise
    return Said({field: refused.message} if field else {}, "" if field else refused.message, refused.status)


def _new(visit: Visit, form: FilledForm, tags: list[tuple[str, str]], said: Said = NOTHING_SAID) -> Response:
    return visit.page(
        "queue_new.html",
        status=said.status,
        name=visit.form.get(NAME, ""),
        name_hint=setting_rows.NAME_HINT,
        groups=GROUPS,
        texts=form.texts,
        before={},
        tags=tags,
        tags_before=was({}),
        tags_hint=HINT,
        problems=said.problems,
        general=said.general,
        labels=_labels(),
    )


def _present(
    visit: Visit, queue: ShownQueue, form: FilledForm, tags: list[tuple[str, str]], said: Said = NOTHING_SAID
) -> Response:
    rows = shown_rows(queue.settings)
    return visit.page(
        "queue_edit.html",
        status=said.status,
        queue=visit.queue,
        shown=queue,
        groups=_groups(queue.settings),
        texts=form.texts,
        before=texts_of(queue.settings, rows),
        tags=tags,
        tags_before=was(queue.settings.tags),
        tags_hint=HINT,
        problems=said.problems,
        general=said.general,
        labels=_labels(),
    )


def _groups(settings: QueueSettings) -> list[SettingGroup]:
    shown = shown_rows(settings)
    groups = [group._replace(rows=tuple(row for row in group.rows if row in shown)) for group in GROUPS]
    return [group for group in groups if group.rows]


def _labels() -> dict[str, str]:
    return {NAME: "Name", TAGS: "Tags", **{row.setting: row.label for row in ROWS.values()}}


PAGES = (
    Page("/console/queues/new", show_new, create),
    Page("/console/queues/{account}/{name}/edit", show_present, change),
)
