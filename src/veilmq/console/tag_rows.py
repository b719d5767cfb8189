"""The tags of a queue as rows of a form: a key and a value each, some of them empty for further ones."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from veilmq.console.setting_form import TAGS, WAS, changed_meanwhile
from veilmq.core.limits import SQS_TAG_KEY_CHARACTERS_MAX, SQS_TAG_VALUE_CHARACTERS_MAX, SQS_TAGS_MAX
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.queues import read_tags

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
