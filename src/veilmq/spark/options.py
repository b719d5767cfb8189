"""Options of ``format("veilmq")``: tables of rows, from which they are read, checked and documented.

Spark hands options over as text under names of any case. Whatever is wrong is an error that names the option, what it
was and what is allowed; a name that is no option is an error too. What was given is never shown of a secret.

Source and sink share the options that say where the queue is. Credentials are found on the driver and travel with the
plan, so that executors need no variables of their own. The names of the options with secrets are among those that Spark
blanks by itself (``spark.redaction.regex``).
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from veilmq.client.endpoint import DEFAULT_ENDPOINT, ENDPOINT_VARIABLES, endpoint_of
from veilmq.client.signing import SigningKey, key_of
from veilmq.core.limits import Range
from veilmq.wire.sqs.context import DEFAULT_REGION


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

    ``shown`` stands for the default in the documentation where the value would not tell; ``aliases`` are names that
    other sources of Spark have for the same. What is ``secret`` is not repeated in errors.
    """

    name: str
    field: str
    kind: Kind
    doc: str
    default: Any = None
    shown: str = ""
    secret: bool = False
    aliases: tuple[str, ...] = ()


def read(table: Sequence[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all options of ``table`` by field; raises ``OptionWrong``."""
    known = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values = {option.field: option.default for option in table}
    names: dict[str, str] = {}
    for name, text in given.items():
        option = known.get(name.lower())
        if option is None:
            raise OptionWrong(_unknown(name, table))
        if option.field in names:
            raise OptionWrong(f"option {name}: is the same as {names[option.field]}; give one of them")
        names[option.field] = name
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
    if name.lower().startswith(("starting", "ending")):
        return (
            f"option {name}: a queue has no positions to begin or end at; a new stream begins with the messages that "
            "are visible, one with a checkpoint goes on where it was; leave the option out"
        )
    near = difflib.get_close_matches(name.lower(), [option.name.lower() for option in table], n=1)
    meant = [f"did you mean {option.name}?" for option in table if option.name.lower() in near]
    names = ", ".join(option.name for option in table)
    return f"option {name}: there is none of that name; {''.join(meant) or f'there are {names}'}"


def _default(option: Option) -> str:
    if option.shown or option.default is None:
        return option.shown
    return f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"


CONNECTION_OPTIONS = (
    Option(
        name="endpoint",
        field="endpoint",
        kind=TEXT,
        shown=f"{', '.join(f'`${name}`' for name in ENDPOINT_VARIABLES)} of the driver, else `{DEFAULT_ENDPOINT}`",
        doc="URL of the server.",
    ),
    Option(
        name="queue",
        field="queue",
        kind=TEXT,
        shown="needed",
        doc='Name of the queue, or its URL. `load("NAME")` says the same.',
    ),
    Option(name="path", field="path", kind=TEXT, doc="What `load` and `start` are given: another way to say `queue`."),
    Option(
        name="accessKey",
        field="access_key",
        kind=TEXT,
        shown="`$AWS_ACCESS_KEY_ID` of the driver",
        doc="Id of the key that signs the requests; with `secretKey`.",
        secret=True,
    ),
    Option(
        name="secretKey",
        field="secret_key",
        kind=TEXT,
        shown="`$AWS_SECRET_ACCESS_KEY` of the driver",
        doc="Secret of that key.",
        secret=True,
    ),
    Option(
        name="sessionToken",
        field="session_token",
        kind=TEXT,
        shown="`$AWS_SESSION_TOKEN` of the driver",
        doc="Token that belongs to a temporary key.",
        secret=True,
    ),
    Option(
        name="region",
        field="region",
        kind=TEXT,
        shown=f"`$AWS_REGION`, else `{DEFAULT_REGION}`",
        doc="Region that the signature names.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An endpoint, a queue (name or URL) and a key; the key shows no secret."""

    endpoint: str
    queue: str
    key: SigningKey | None = field(default=None)

    @property
    def queue_name(self) -> str:
        """Return the name of the queue, also where ``queue`` is its URL."""
        return self.queue.rstrip("/").rpartition("/")[2]

    @classmethod
    def of(cls, values: dict[str, Any], environment: Mapping[str, str] = os.environ) -> Self:
        """Take what ``CONNECTION_OPTIONS`` read out of ``values``; raises ``OptionWrong``."""
        taken = {option.field: values.pop(option.field) for option in CONNECTION_OPTIONS}
        queue = taken["queue"] or taken["path"]
        if not queue:
            raise OptionWrong(
                'option queue: is needed; say .option("queue", "NAME") or .load("NAME"), and of a table in SQL '
                "CREATE TABLE without columns"
            )
        if taken["queue"] and taken["path"] and taken["queue"] != taken["path"]:
            raise OptionWrong(f"option queue = {queue!r}: there is also a path, {taken['path']!r}; say one of them")
        endpoint = taken["endpoint"] or endpoint_of(environment)
        if not endpoint.startswith(("http://", "https://")):
            raise OptionWrong(f"option endpoint = {endpoint!r}: must look like {DEFAULT_ENDPOINT}")
        return cls(endpoint=endpoint, queue=queue, key=_key(taken, environment))


def _key(taken: dict[str, Any], environment: Mapping[str, str]) -> SigningKey | None:
    found = key_of(environment)
    region = taken["region"] or (found.region if found else environment.get("AWS_REGION") or DEFAULT_REGION)
    if bool(taken["access_key"]) != bool(taken["secret_key"]):
        raise OptionWrong("option accessKey: goes with secretKey; give both, or none for the key of the environment")
    if taken["access_key"]:
        return SigningKey(
            id=taken["access_key"], secret=taken["secret_key"], session_token=taken["session_token"], region=region
        )
    if found is None:
        return None
    return SigningKey(id=found.id, secret=found.secret, session_token=found.session_token, region=region)
