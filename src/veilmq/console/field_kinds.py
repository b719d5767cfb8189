"""Kinds of fields in forms: how a value is shown in one, read from it, and told in words with its unit.

A kind writes a value as the text of its field and reads that text back; what it cannot read it says in a sentence for
the place beside the field. Texts come with line ends as browsers send them, so they are compared after ``plain``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from veilmq.console.rendering import duration
from veilmq.core.limits import Range
from veilmq.core.settings import SettingValue

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
