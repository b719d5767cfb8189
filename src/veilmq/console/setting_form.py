"""A filled-in form of settings, against what the queue has now: what to change, and what to say beside which field.

Only what was changed in the form is sent, so nobody undoes what somebody else did meanwhile: the form brings back what
each field had when it was shown (``was.``), and a field that both have changed is a problem, not a decision of ours.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from veilmq.console.asking import Refused
from veilmq.console.fields import Unfit, plain
from veilmq.console.setting_rows import ROWS, SettingRow
from veilmq.core.limits import SQS_TAG_KEY_CHARACTERS_MAX, SQS_TAG_VALUE_CHARACTERS_MAX, SQS_TAGS_MAX
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.queues import read_tags

WAS = "was."
"""What the name of a field begins with that has what another field was."""

NAME = "name"
TAGS = "tags"

_FIELD_OF_CODE = {
    "QueueExists": NAME,
    "QueueDeletedRecently": NAME,
    "DeadLetterQueueRefused": "dead_letter_queue",
    "InvalidAttributeValue": "policy",  # the one setting whose text another protocol defines
    "InvalidParameterValue": TAGS,
}


class FilledForm(NamedTuple):
    """``changes`` by setting; ``texts`` is what each field shows next, ``problems`` what is said beside some."""

    changes: dict[str, SettingValue]
    texts: dict[str, str]
    problems: dict[str, str]


def shown_rows(settings: QueueSettings) -> list[SettingRow]:
    """Return the settings that a queue with these may change."""
    return [row for row in ROWS.values() if row.fifo <= settings.fifo and not row.fixed]


def texts_of(settings: QueueSettings, rows: Iterable[SettingRow]) -> dict[str, str]:
    """Return what the fields of ``rows`` have before anybody types."""
    return {row.setting: plain(row.kind.write(getattr(settings, row.setting))) for row in rows}


def filled(form: Mapping[str, str], now: QueueSettings, rows: Iterable[SettingRow]) -> FilledForm:
    """Return what ``form`` asks for; ``now`` is what the queue has. Fields that it lacks stay as they are."""
    found = FilledForm(changes={}, texts=texts_of(now, rows), problems={})
    for row in rows:
        present = found.texts[row.setting]
        typed = plain(form.get(row.setting, present))
        was = plain(form.get(WAS + row.setting, present))
        if typed in {was, present}:
            continue
        found.texts[row.setting] = typed
        try:
            value = row.kind.read(typed)
        except Unfit as unfit:
            found.problems[row.setting] = str(unfit)
            continue
        if was != present:
            found.problems[row.setting] = changed_meanwhile(row.kind.words(getattr(now, row.setting)))
        elif value != getattr(now, row.setting):
            found.changes[row.setting] = value
    return found


def changed_meanwhile(now: str) -> str:
    """Return what is said of a field that somebody else has changed, to ``now`` in words."""
    return f"Somebody has changed this since you opened the page, to: {now or 'none'}. Save again to have yours."


def field_of(refused: Refused) -> str:
    """Return the field that a refusal is about, an empty text for none."""
    setting = str(refused.fields.get("setting", ""))
    if refused.code == "InvalidRequest":
        setting = refused.message.partition(":")[0]
    if refused.code != "QueueExists" and setting in ROWS:
        return setting
    return _FIELD_OF_CODE.get(refused.code, "")


HINT = (
    f"Up to {SQS_TAGS_MAX} tags. A key has 1 to {SQS_TAG_KEY_CHARACTERS_MAX} characters, a value up to "
    f"{SQS_TAG_VALUE_CHARACTERS_MAX}: letters, digits, spaces and _ . : / = + - @. To remove a tag, empty both."
)
"""What may be filled in."""

_EMPTY_ROWS = 3

Rows = list[tuple[str, str]]


class FilledTags(NamedTuple):
    """``put`` are the tags to set, ``removed`` the keys to remove; ``rows`` is what is shown next."""

    put: dict[str, str]
    removed: list[str]
    rows: Rows
    problem: str = ""


def rows_of(tags: Mapping[str, str]) -> Rows:
    """Return the rows of a form for ``tags``, with empty ones behind them."""
    return _padded(list(tags.items()))


def was(tags: Mapping[str, str]) -> str:
    """Return what the form brings back of the tags that it showed."""
    return msgspec.json.encode(tags).decode()


def filled_tags(form: Mapping[str, str], now: Mapping[str, str]) -> FilledTags:
    """Return what ``form`` asks for; ``now`` is what the queue has. Without rows in it all tags stay."""
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
    """Return the rows with anything in them, ``None`` for a form that has no rows at all."""
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
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        return f"The key {twice} is there twice; keep one of them."
    if len(keys) < len(typed):
        return "A value needs a key; to remove a tag, empty both."
    try:
        read_tags(dict(typed), "")
    except SqsError as error:
        return error.message
    return ""


def _meanwhile(keys: set[str], before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return what to say where somebody else has changed one of ``keys``."""
    for key in sorted(keys):
        if before.get(key) != now.get(key):
            return f"{key}: " + changed_meanwhile(now.get(key, "no tag"))
    return ""


def _padded(rows: Rows) -> Rows:
    return (rows + [("", "")] * _EMPTY_ROWS)[: max(SQS_TAGS_MAX, len(rows))]
