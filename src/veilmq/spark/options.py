"""Options of ``format("veilmq")``: tables of rows, from which they are read, checked and documented.

Spark hands options over as text under names of any case. Whatever is wrong is an error that names the option, what it
was and what is allowed; a name that is no option is an error too. What was given is never shown of a secret.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veilmq.core.limits import Range


class OptionWrong(ValueError):
    """An option is unknown, missing or out of range; ``str()`` says which one and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the text of an option may be: ``read`` makes a value of it or raises ``ValueError``; ``says`` is words."""

    read: Callable[[str], Any]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: ``name`` as people write it, ``field`` as we do, a ``default`` and one sentence about it.

    ``shown`` stands for the default in the documentation where the value would not tell. What is ``secret`` is not
    repeated in errors.
    """

    name: str
    field: str
    kind: Kind
    doc: str
    default: Any = None
    shown: str = ""
    secret: bool = False


def read(table: Sequence[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all options of ``table`` by field; raises ``OptionWrong``."""
    known = {option.name.lower(): option for option in table}
    values = {option.field: option.default for option in table}
    for name, text in given.items():
        option = known.get(name.lower())
        if option is None:
            raise OptionWrong(_unknown(name, table))
        values[option.field] = _value(option, text)
    return values


def page(table: Sequence[Option]) -> str:
    """Return the table of ``table`` for the documentation, in Markdown."""
    rows = [f"| `{option.name}` | {option.kind.says} | {_default(option)} | {option.doc} |" for option in table]
    return (
        "\n".join(["| option | what it may be | default | what it does |", "| --- | --- | --- | --- |", *rows]) + "\n"
    )


def whole(allowed: Range) -> Kind:
    """Return the kind of whole numbers within ``allowed``."""

    def read_number(text: str) -> int:
        value = int(text)
        if not allowed.holds(value):
            raise ValueError
        return value

    return Kind(read=read_number, says=f"{allowed.minimum:,} to {allowed.maximum:,}")


def choice(*names: str) -> Kind:
    """Return the kind of one of ``names``, in any case."""
    return Kind(read=lambda text: names[names.index(text.lower())], says=" or ".join(f"`{name}`" for name in names))


def name_of(characters_max: int) -> Kind:
    """Return the kind of names that the server takes for sources and writers."""
    allowed = re.compile(f"[A-Za-z0-9_-]{{1,{characters_max}}}")

    def read_name(text: str) -> str:
        if not allowed.fullmatch(text):
            raise ValueError
        return text

    return Kind(read=read_name, says=f"1 to {characters_max} letters, digits, - and _")


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


TEXT = Kind(read=_text, says="text")
YES_NO = Kind(read=lambda text: {"true": True, "false": False}[text.lower()], says="`true` or `false`")


def _value(option: Option, text: str) -> Any:
    try:
        return option.kind.read(text)
    except (ValueError, KeyError):
        what = "" if option.secret else f" = {text!r}"
        raise OptionWrong(f"option {option.name}{what}: must be {option.kind.says.replace('`', '')}") from None


def _unknown(name: str, table: Sequence[Option]) -> str:
    near = difflib.get_close_matches(name.lower(), [option.name.lower() for option in table], n=1)
    meant = [f"did you mean {option.name}?" for option in table if option.name.lower() in near]
    names = ", ".join(option.name for option in table)
    return f"option {name}: there is none of that name; {''.join(meant) or f'there are {names}'}"


def _default(option: Option) -> str:
    if option.shown or option.default is None:
        return option.shown
    return f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"
