"""The kinds of queue attributes that can be set: from text to fields of ``QueueSettings`` and back.

A kind names the ``fields`` that keep it, reads the text of a request into values for them, and writes them as the wire
has them: ``None`` where a queue has nothing to show. ``allowed`` and ``default`` are words for the reference page.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from veilmq.core.limits import VISIBILITY_RULES_BYTES_MAX, Range
from veilmq.core.routing import TableError, read_table
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import INVALID_ATTRIBUTE_VALUE, SqsError

Values = dict[str, SettingValue]
"""Values by field of ``QueueSettings``."""

_WHOLE_NUMBER = re.compile("[0-9]{1,10}")
_FLAGS = {"true": True, "false": False}
_FLAG_TEXTS = {value: text for text, value in _FLAGS.items()}


class Kind(Protocol):
    """What each kind can do."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of ``QueueSettings`` that keep the attribute."""

    @property
    def allowed(self) -> str:
        """Return which values there are, in words."""

    @property
    def default(self) -> str:
        """Return the value of a queue that never set it; empty where it shows nothing."""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return what ``text`` for the attribute ``name`` of ``queue`` sets; raises ``SqsError``."""

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return what GetQueueAttributes shows, ``None`` for nothing."""


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number within a range."""

    field: str
    range: Range

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the one field."""
        return (self.field,)

    @property
    def allowed(self) -> str:
        """Return the range."""
        return f"{self.range.minimum} to {self.range.maximum}"

    @property
    def default(self) -> str:
        """Return the range's own default."""
        return str(self.range.default)

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the number; raises InvalidAttributeValue for other text and for numbers out of range."""
        if not _WHOLE_NUMBER.fullmatch(text) or not self.range.holds(int(text)):
            raise invalid_attribute(
                name, f"Must be a whole number between {self.range.minimum} and {self.range.maximum}."
            )
        return {self.field: int(text)}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the number in digits."""
        return str(getattr(settings, self.field))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words, each with the value that it stands for inside; the first one is the default.

    ``any_case``: the words, which are lower-case, may be given in any case.
    """

    field: str
    words: Mapping[str, SettingValue]
    any_case: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the one field."""
        return (self.field,)

    @property
    def allowed(self) -> str:
        """Return the words."""
        return " or ".join(f"`{word}`" for word in self.words)

    @property
    def default(self) -> str:
        """Return the first word."""
        return next(iter(self.words))

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return what the word stands for; raises InvalidAttributeValue for any other."""
        word = text.lower() if self.any_case else text
        if word not in self.words:
            raise invalid_attribute(name, f"Must be {' or '.join(self.words)}.")
        return {self.field: self.words[word]}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the word of the value."""
        value = getattr(settings, self.field)
        return next(word for word, meant in self.words.items() if meant == value)


@dataclass(frozen=True, slots=True)
class Override:
    """A number or a word of the queue's own in place of the server's setting; empty for the server's, and not shown."""

    own: Number | Choice

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the field of the queue's own value."""
        return self.own.fields

    @property
    def allowed(self) -> str:
        """Return what the queue's own value may be."""
        return f"{self.own.allowed}; empty for the server's setting"

    @property
    def default(self) -> str:
        """Return nothing: the server's is in force."""
        return ""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the value, ``None`` for empty text; raises InvalidAttributeValue for a value that cannot be."""
        return self.own.read(name, text, queue, context) if text else dict.fromkeys(self.fields)

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the queue's own value as text."""
        return None if getattr(settings, self.own.field) is None else self.own.write(settings, context)


@dataclass(frozen=True, slots=True)
class Name:
    """A name kept as it was given, at most ``characters_max`` long; empty for none, which shows nothing."""

    field: str
    characters_max: int

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the one field."""
        return (self.field,)

    @property
    def allowed(self) -> str:
        """Return how long it may be."""
        return f"up to {self.characters_max} characters; empty to remove"

    @property
    def default(self) -> str:
        """Return nothing: there is none."""
        return ""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the text; raises InvalidAttributeValue for one that is too long or not printable."""
        if len(text) > self.characters_max or not text.isprintable():
            raise invalid_attribute(name, f"Must be at most {self.characters_max} printable characters.")
        return {self.field: text}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the name."""
        return getattr(settings, self.field) or None


@dataclass(frozen=True, slots=True)
class TimeoutRules:
    """A routing table, kept as it was given once it was found to be one; empty for none, which shows nothing."""

    fields: tuple[str, ...] = ("visibility_rules",)
    allowed: str = (
        f"JSON of up to {VISIBILITY_RULES_BYTES_MAX:,} bytes ([visibility-rules.md](../visibility-rules.md)); "
        "empty to remove"
    )
    default: str = ""

    def read(self, name: str, text: str, queue: str, context: RequestContext) -> Values:
        """Return the text; raises InvalidAttributeValue for one that is no routing table, or too long."""
        if len(text.encode()) > VISIBILITY_RULES_BYTES_MAX:
            raise invalid_attribute(name, f"Must have at most {VISIBILITY_RULES_BYTES_MAX:,} bytes.")
        try:
            if text:
                read_table(text)
        except TableError as error:
            raise invalid_attribute(name, str(error)) from None
        return {"visibility_rules": text}

    def write(self, settings: QueueSettings, context: RequestContext) -> str | None:
        """Return the table as it was given."""
        return settings.visibility_rules or None


def flag(field: str, *, default: bool = False) -> Choice:
    """Return the kind of an attribute that is ``true`` or ``false``, in any case."""
    return Choice(field, {_FLAG_TEXTS[default]: default, _FLAG_TEXTS[not default]: not default}, any_case=True)


def invalid_attribute(name: str, reason: str) -> SqsError:
    """Return the error for a value of the queue attribute ``name`` that breaks the rule ``reason``."""
    return SqsError(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {reason}")
