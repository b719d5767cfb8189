"""A filled-in form of settings, against what the queue has now: what to change, and what to say beside which field.

Only what was changed in the form is sent, so nobody undoes what somebody else did meanwhile: the form brings back what
each field had when it was shown (``was.``), and a field that both have changed is a problem, not a decision of ours.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from veilmq.console.asking import Refused
from veilmq.console.field_kinds import Unfit, plain
from veilmq.console.setting_rows import ROWS, SettingRow
from veilmq.core.settings import QueueSettings, SettingValue

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
