"""What is filled in, read field by field: where one cannot be taken, what is said beside it."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

from veilmq.console.field_kinds import Number, Unfit, plain
from veilmq.wire.v1.request import NAMES

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
