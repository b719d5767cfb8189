"""Fields of forms: how a value of each kind is shown in one, read from it, and told in words with its unit.

A kind writes a value as the text of its field and reads that text back; what it cannot read it says in a sentence for
the place beside the field. Texts come with line ends as browsers send them, so they are compared after ``plain``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple, Protocol

from veilmq.console.rendering import duration
from veilmq.core.limits import Range
from veilmq.core.settings import SettingValue
from veilmq.wire.v1.request import NAMES

SECONDS = "seconds"
BYTES = "bytes"

_DIGITS_MAX = 18
_MINUTE_S = 60


class Unfit(Exception):
    """What was typed cannot be the value; ``str()`` says what can."""


class Kind(Protocol):
    """How a setting is shown and read. ``control`` is the macro of ``parts/forms.html`` that draws its field."""

    @property
    def control(self) -> str:
        """Return ``field``, ``choice`` or ``area``."""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Return what may be chosen, as texts and words; nothing for what is typed."""

    @property
    def hint(self) -> str:
        """Return what may be filled in, with its unit."""

    def write(self, value: SettingValue) -> str:
        """Return ``value`` as the text of the field."""

    def read(self, text: str) -> SettingValue:
        """Return the value of ``text``; raises ``Unfit``."""

    def words(self, value: SettingValue) -> str:
        """Return ``value`` for a person, an empty text for none."""


def plain(text: str) -> str:
    """Return ``text`` with the line ends of Unix: browsers send those of HTTP, whatever they were given."""
    return text.replace("\r\n", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A whole number of ``unit``; ``protocols`` have narrower ranges of their own.

    No number at all means ``empty`` in words, where that is allowed; ``zero`` is what 0 means where it means no limit.
    """

    allowed: Range
    unit: str
    protocols: Mapping[str, Range] = field(default_factory=dict)
    empty: str = ""
    zero: str = ""
    control: str = "field"
    options: tuple[tuple[str, str], ...] = ()

    @property
    def hint(self) -> str:
        """Return the range and its unit, and those of the protocols whose ranges differ."""
        narrower = [
            f"{name}: {span(each)}"
            for name, each in self.protocols.items()
            if (each.minimum, each.maximum) != (self.allowed.minimum, self.allowed.maximum)
        ]
        said = [f"{span(self.allowed)} {self.unit}".strip(), *narrower]
        if self.zero:
            said.append(f"0: {self.zero}")
        if self.empty:
            said.append(f"empty: {self.empty}")
        return "; ".join(said) + "."

    def write(self, value: SettingValue) -> str:
        """Return the digits."""
        return "" if value is None else str(value)

    def read(self, text: str) -> SettingValue:
        """Return the number; raises ``Unfit`` for one out of range, and for what is none."""
        typed = text.strip()
        if not typed and self.empty:
            return None
        if not (typed.isascii() and typed.isdigit() and len(typed) <= _DIGITS_MAX):
            raise Unfit(f"This must be a whole number, {span(self.allowed)}{_of(self.unit)}.")
        if not self.allowed.holds(int(typed)):
            raise Unfit(f"This must be {span(self.allowed)}{_of(self.unit)}.")
        return int(typed)

    def words(self, value: SettingValue) -> str:
        """Return the number with its unit."""
        if value is None or not isinstance(value, int):
            return self.empty
        if value == 0 and self.zero:
            return self.zero
        said = f"{value:,} {_of_one(self.unit) if value == 1 else self.unit}".strip()
        return f"{said} ({duration(value)})" if self.unit == SECONDS and value >= _MINUTE_S else said


def span(allowed: Range) -> str:
    """Return a range as people write it."""
    return f"{allowed.minimum:,} to {allowed.maximum:,}"


def _of_one(unit: str) -> str:
    what, space, rest = unit.partition(" ")
    return what.removesuffix("s") + space + rest


def _of(unit: str) -> str:
    return f" {unit}" if unit else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few values, each with its text in the form and its words."""

    values: tuple[tuple[SettingValue, str, str], ...]
    hint: str = ""
    control: str = "choice"

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Return texts and words."""
        return tuple((text, words) for _, text, words in self.values)

    def write(self, value: SettingValue) -> str:
        """Return the text of ``value``."""
        return next(text for each, text, _ in self.values if each == value)

    def read(self, text: str) -> SettingValue:
        """Return the value of ``text``; raises ``Unfit``."""
        for value, each, _ in self.values:
            if each == text:
                return value
        raise Unfit(f"Choose one of these: {', '.join(words for _, words in self.options)}.")

    def words(self, value: SettingValue) -> str:
        """Return the words of ``value``."""
        return next(words for each, _, words in self.values if each == value)


def yes_or_no(hint: str) -> Choice:
    """Return the choice of what is on or off."""
    return Choice(values=((False, "no", "no"), (True, "yes", "yes")), hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Any text, on one line, or on several (``area``)."""

    hint: str
    control: str = "field"
    options: tuple[tuple[str, str], ...] = ()

    def write(self, value: SettingValue) -> str:
        """Return it as it is."""
        return str(value)

    def read(self, text: str) -> SettingValue:
        """Return it; spaces around a single line are not meant."""
        return text if self.control == "area" else text.strip()

    def words(self, value: SettingValue) -> str:
        """Return it as it is."""
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Names of queues of the same account, one a line."""

    hint: str
    control: str = "area"
    options: tuple[tuple[str, str], ...] = ()

    def write(self, value: SettingValue) -> str:
        """Return the names without their account."""
        assert isinstance(value, tuple)
        return "\n".join(name.rpartition("/")[2] for name in value)

    def read(self, text: str) -> SettingValue:
        """Return the names; lines without one do not count."""
        return tuple(text.split())

    def words(self, value: SettingValue) -> str:
        """Return the names side by side."""
        return self.write(value).replace("\n", ", ")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueName:
    """The name of one queue of the same account, or none."""

    hint: str
    control: str = "field"
    options: tuple[tuple[str, str], ...] = ()

    def write(self, value: SettingValue) -> str:
        """Return the name without its account."""
        return str(value).rpartition("/")[2]

    def read(self, text: str) -> SettingValue:
        """Return the name; whether there is such a queue, the server knows."""
        return text.strip()

    def words(self, value: SettingValue) -> str:
        """Return the name without its account."""
        return self.write(value)


_NAME = re.compile(NAMES)
_NO_NAME = "This cannot be the name of a queue: those have letters, digits, hyphens and underscores."
_EMPTY = "This is missing."


class Said(NamedTuple):
    """What a form that was not taken is answered with: ``problems`` by field, ``general`` about no single one."""

    problems: Mapping[str, str] = MappingProxyType({})
    general: str = ""
    status: int = HTTPStatus.UNPROCESSABLE_ENTITY


NOTHING_SAID = Said(status=HTTPStatus.OK)


class Filled:
    """The fields of a form, and what is wrong with them: ``problems`` by field, a sentence each."""

    def __init__(self, form: Mapping[str, str]) -> None:
        """``form`` is as it was sent."""
        self._form = form
        self.problems: dict[str, str] = {}

    def text(self, name: str) -> str:
        """Return a field of one line without the spaces around it, an empty text for one that is not there."""
        return self._form.get(name, "").strip()

    def lines(self, name: str) -> str:
        """Return a field of several lines as it was typed."""
        return plain(self._form.get(name, ""))

    def number(self, name: str, kind: Number) -> int | None:
        """Return a number, ``None`` for an empty field where ``kind`` has one, and for one that has a problem now."""
        try:
            value = kind.read(self.text(name))
        except Unfit as unfit:
            self.problems[name] = str(unfit)
            return None
        assert value is None or isinstance(value, int)
        return value

    def queue(self, name: str) -> str:
        """Return the name of a queue, without its account; what is none has a problem now."""
        text = self.text(name)
        if not _NAME.fullmatch(text):
            self.problems[name] = _NO_NAME if text else _EMPTY
        return text
