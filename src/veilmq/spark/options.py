"""Options of ``format("veilmq")``: tables by which they are parsed, checked and documented.

Spark passes options as text, with names in any case. An error names the option, its value and the allowed values; an
unknown name is an error too. Errors never show the value of a secret.

Source and sink share the options of the connection. The driver reads credentials from its environment, and the plan
carries them to the executors. Spark redacts the options with secrets by their names (``spark.redaction.regex``).
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from veilmq.client.transport import DEFAULT_ENDPOINT, ENDPOINT_VARIABLES, SigningKey, endpoint_of, key_of
from veilmq.core.limits import Range
from veilmq.wire.sqs.context import DEFAULT_REGION


class OptionWrong(ValueError):
    """An option is unknown, missing or out of range; ``str()`` names it and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The type of an option: ``read`` parses its text or raises ``ValueError``; ``says`` states the allowed values."""

    read: Callable[[str], Any]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its ``name`` in Spark, its ``field`` in the code, its ``default`` and its documentation.

    ``shown`` replaces the default in the documentation; ``aliases`` are the names in other sources of Spark. Errors do
    not show the value of a ``secret`` option.
    """

    name: str
    field: str
    kind: Kind
    doc: str
    default: Any = None
    shown: str = ""
    secret: bool = False
    aliases: tuple[str, ...] = ()


def read(table: Sequence[Option], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all options of ``table`` by field; raises ``OptionWrong``."""
    known = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values = {option.field: option.default for option in table}
    names: dict[str, str] = {}
    for name, text in options.items():
        option = known.get(name.lower())
        if option is None:
            raise OptionWrong(_unknown(name, table))
        if option.field in names:
            raise OptionWrong(f"option {name}: is the same as {names[option.field]}; give only one of them")
        names[option.field] = name
        values[option.field] = _value(option, text)
    return values


def page(table: Sequence[Option]) -> str:
    """Return ``table`` as a Markdown table for the documentation."""
    rows = [f"| `{option.name}` | {option.kind.says} | {_default(option)} | {option.doc} |" for option in table]
    return "\n".join(["| option | values | default | description |", "| --- | --- | --- | --- |", *rows]) + "\n"


def whole(allowed: Range) -> Kind:
    """Return the type of whole numbers within ``allowed``."""

    def read_number(text: str) -> int:
        value = int(text)
        if not allowed.holds(value):
            raise ValueError
        return value

    return Kind(read=read_number, says=f"{allowed.minimum:,} to {allowed.maximum:,}")


def choice(*names: str) -> Kind:
    """Return the type of an enumeration of ``names``, which are read in any case."""
    return Kind(read=lambda text: names[names.index(text.lower())], says=" or ".join(f"`{name}`" for name in names))


def name_of(characters_max: int) -> Kind:
    """Return the type of names of sources and writers."""
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
            f"option {name}: a queue has no positions to start or end at; a new stream starts with the visible "
            "messages, and a stream with a checkpoint continues where it stopped; remove the option"
        )
    near = difflib.get_close_matches(name.lower(), [option.name.lower() for option in table], n=1)
    meant = [f"did you mean {option.name}?" for option in table if option.name.lower() in near]
    names = ", ".join(option.name for option in table)
    return f"option {name}: does not exist; {''.join(meant) or f'the options are {names}'}"


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
        shown="required",
        doc='Name or URL of the queue. `load("NAME")` is equivalent.',
    ),
    Option(name="path", field="path", kind=TEXT, doc="The argument of `load` and `start`, equivalent to `queue`."),
    Option(
        name="accessKey",
        field="access_key",
        kind=TEXT,
        shown="`$AWS_ACCESS_KEY_ID` of the driver",
        doc="Id of the access key that signs the requests; requires `secretKey`.",
        secret=True,
    ),
    Option(
        name="secretKey",
        field="secret_key",
        kind=TEXT,
        shown="`$AWS_SECRET_ACCESS_KEY` of the driver",
        doc="Secret of the access key.",
        secret=True,
    ),
    Option(
        name="sessionToken",
        field="session_token",
        kind=TEXT,
        shown="`$AWS_SESSION_TOKEN` of the driver",
        doc="Session token of a temporary access key.",
        secret=True,
    ),
    Option(
        name="region",
        field="region",
        kind=TEXT,
        shown=f"`$AWS_REGION`, else `{DEFAULT_REGION}`",
        doc="Region in the signature.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An endpoint, a queue (name or URL) and an access key, whose ``repr`` hides the secret."""

    endpoint: str
    queue: str
    key: SigningKey | None = field(default=None)

    @property
    def queue_name(self) -> str:
        """Return the name of the queue, also if ``queue`` is its URL."""
        return self.queue.rstrip("/").rpartition("/")[2]

    @classmethod
    def of(cls, values: dict[str, Any], environment: Mapping[str, str] = os.environ) -> Self:
        """Remove the values of ``CONNECTION_OPTIONS`` from ``values``, and use them; raises ``OptionWrong``."""
        taken = {option.field: values.pop(option.field) for option in CONNECTION_OPTIONS}
        queue = taken["queue"] or taken["path"]
        if not queue:
            raise OptionWrong(
                'option queue: is required; use .option("queue", "NAME") or .load("NAME"), and create tables in SQL '
                "without columns"
            )
        if taken["queue"] and taken["path"] and taken["queue"] != taken["path"]:
            raise OptionWrong(f"option queue = {queue!r}: the path is {taken['path']!r}; give only one of them")
        endpoint = taken["endpoint"] or endpoint_of(environment)
        if not endpoint.startswith(("http://", "https://")):
            raise OptionWrong(f"option endpoint = {endpoint!r}: must look like {DEFAULT_ENDPOINT}")
        return cls(endpoint=endpoint, queue=queue, key=_key(taken, environment))


def _key(taken: dict[str, Any], environment: Mapping[str, str]) -> SigningKey | None:
    found = key_of(environment)
    region = taken["region"] or (found.region if found else environment.get("AWS_REGION") or DEFAULT_REGION)
    if bool(taken["access_key"]) != bool(taken["secret_key"]):
        raise OptionWrong("option accessKey: requires secretKey; give both, or neither for the key in the environment")
    if taken["access_key"]:
        return SigningKey(
            id=taken["access_key"], secret=taken["secret_key"], session_token=taken["session_token"], region=region
        )
    if found is None:
        return None
    return SigningKey(id=found.id, secret=found.secret, session_token=found.session_token, region=region)
