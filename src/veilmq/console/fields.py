"""Form fields: each kind of value is written to a field, read from it, and formatted for display with its unit.

A value that cannot be read raises an error with a sentence to show beside the field. The ``control`` of a kind is the
macro of ``parts/forms.html`` that renders its field. Browsers send CRLF line ends, so texts are compared after
``plain``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

from veilmq.console.rendering import counted, duration
from veilmq.core.limits import Range
from veilmq.core.settings import SettingValue
from veilmq.wire.v1.request import NAMES

SECONDS = "seconds"
BYTES = "bytes"

_DIGITS_MAX = 18
_MINUTE_S = 60


class InvalidField(Exception):
    """The text is not a valid value; ``str()`` says what is."""


def plain(text: str) -> str:
    return text.replace("\r\n", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A whole number of ``unit``; ``protocols`` may have narrower ranges.

    ``empty`` says what no number means, if that is allowed; ``zero`` what 0 means, if it is special.
    """

    allowed: Range
    unit: str
    protocols: Mapping[str, Range] = field(default_factory=dict)
    empty: str = ""
    zero: str = ""
    control: str = "field"

    @property
    def hint(self) -> str:
        """The range with its unit, and those of protocols with other ranges."""
        narrower = [
            f"{name}: {span(each)}"
            for name, each in self.protocols.items()
            if (each.minimum, each.maximum) != (self.allowed.minimum, self.allowed.maximum)
        ]
        parts = [f"{span(self.allowed)} {self.unit}", *narrower]
        if self.zero:
            parts.append(f"0: {self.zero}")
        if self.empty:
            parts.append(f"empty: {self.empty}")
        return "; ".join(parts) + "."

    def write(self, value: SettingValue) -> str:
        return "" if value is None else str(value)

    def read(self, text: str) -> SettingValue:
        """Return the number; raises ``InvalidField``."""
        typed = text.strip()
        if not typed and self.empty:
            return None
        if not (typed.isascii() and typed.isdigit() and len(typed) <= _DIGITS_MAX):
            raise InvalidField(f"This must be a whole number, {span(self.allowed)} {self.unit}.")
        if not self.allowed.holds(int(typed)):
            raise InvalidField(f"This must be {span(self.allowed)} {self.unit}.")
        return int(typed)

    def words(self, value: SettingValue) -> str:
        """Return the number with its unit."""
        if value is None or not isinstance(value, int):
            return self.empty
        if value == 0 and self.zero:
            return self.zero
        text = counted(value, self.unit)
        return f"{text} ({duration(value)})" if self.unit == SECONDS and value >= _MINUTE_S else text


def span(allowed: Range) -> str:
    return f"{allowed.minimum:,} to {allowed.maximum:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few values, each with its text in the form and its label."""

    values: tuple[tuple[SettingValue, str, str], ...]
    hint: str = ""
    control: str = "choice"

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        return tuple((text, words) for _, text, words in self.values)

    def write(self, value: SettingValue) -> str:
        return next(text for each, text, _ in self.values if each == value)

    def read(self, text: str) -> SettingValue:
        """Return the value of ``text``; raises ``InvalidField``."""
        for value, each, _ in self.values:
            if each == text:
                return value
        raise InvalidField(f"Choose one of these: {', '.join(words for _, words in self.options)}.")

    def words(self, value: SettingValue) -> str:
        return next(words for each, _, words in self.values if each == value)


def yes_or_no(hint: str) -> Choice:
    return Choice(values=((False, "no", "no"), (True, "yes", "yes")), hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Any text, on one line or (``area``) several."""

    hint: str
    control: str = "field"

    def write(self, value: SettingValue) -> str:
        return str(value)

    def read(self, text: str) -> SettingValue:
        return text if self.control == "area" else text.strip()

    def words(self, value: SettingValue) -> str:
        return self.write(value)


class Queues(Text):
    """Names of queues of the same account, one per line."""

    def write(self, value: SettingValue) -> str:
        """Return the names without their account."""
        assert isinstance(value, tuple)
        return "\n".join(name.rpartition("/")[2] for name in value)

    def read(self, text: str) -> SettingValue:
        return tuple(text.split())

    def words(self, value: SettingValue) -> str:
        return self.write(value).replace("\n", ", ")


class QueueName(Text):
    """The name of one queue of the same account, or none; the server checks that it exists."""

    def write(self, value: SettingValue) -> str:
        return str(value).rpartition("/")[2]


Kind = Number | Choice | Text

_NAME = re.compile(NAMES)
_NO_NAME = "Queue names may contain only letters, digits, hyphens and underscores."
_EMPTY = "This field is required."


class FormErrors(NamedTuple):
    """Errors of a form: ``problems`` by field, and a ``general`` one."""

    problems: Mapping[str, str] = MappingProxyType({})
    general: str = ""
    status: int = HTTPStatus.UNPROCESSABLE_ENTITY


NO_ERRORS = FormErrors(status=HTTPStatus.OK)


class SubmittedForm:
    """A submitted form and its ``problems`` by field, a sentence each."""

    def __init__(self, form: Mapping[str, str]) -> None:
        self._form = form
        self.problems: dict[str, str] = {}

    def text(self, name: str) -> str:
        """Return a one-line field, stripped; empty if it is missing."""
        return self._form.get(name, "").strip()

    def lines(self, name: str) -> str:
        """Return a field of several lines as typed."""
        return plain(self._form.get(name, ""))

    def number(self, name: str, kind: Number) -> int | None:
        """Return a number; ``None`` if it is empty or invalid, which adds a problem."""
        try:
            value = kind.read(self.text(name))
        except InvalidField as error:
            self.problems[name] = str(error)
            return None
        assert value is None or isinstance(value, int)
        return value

    def queue(self, name: str) -> str:
        """Return a queue's name without its account; an invalid one adds a problem."""
        text = self.text(name)
        if not _NAME.fullmatch(text):
            self.problems[name] = _NO_NAME if text else _EMPTY
        return text
