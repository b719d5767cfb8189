"""How options are declared, read and refused.

As in the tables of ``server.settings`` and ``spark.options``, an option is declared where its default would be: by a
parameter of a command, or by a field of a class of ``options``.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast, dataclass_transform, get_args, get_origin

from cyclopts import Parameter, Token

from veilmq.core.limits import Range

Value = TypeVar("Value")


class UsageError(Exception):
    """The command line is wrong; exit code 2. The text says what to do."""


class Option(NamedTuple):
    """How an option is written, read and shown; ``default`` is ``None`` for nothing: False, "", () or None, by type."""

    parameter: Parameter
    default: Any = None


def option(text: str, metavar: str | None = None, *, default: Any = None, **rest: Any) -> Any:
    """Declare an option that is named as what declares it, without the unit ``_s``; ``rest`` is as in cyclopts.

    Without ``default`` it is a switch, may be repeated, or may be left out.
    """
    return Option(Parameter(**{"negative": (), "metavar": metavar, "help": text, **rest}), default)


def number(allowed: Range, text: str, *, default: int | None = None, **rest: Any) -> Any:
    """Declare an option for a whole number in a range, which its help names, and which has the default."""
    text = f"{text} From {allowed.minimum} to {allowed.maximum}."
    default = allowed.default if default is None else default
    return option(text, "N", converter=read_by(allowed.read, allowed), default=default, **rest)


def read_by(read: Callable[[str], Any], allowed: object) -> Callable[[Any, Sequence[Token]], Any]:
    """Return what converts the word of an option, or of an argument, with ``read``.

    What ``read`` refuses (``ValueError``, ``KeyError``) is a ``UsageError`` that names the option and says, with
    ``allowed``, what it must be. Left to the library, 1.5 would be the whole number 2.
    """

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        (token,) = tokens
        try:
            return read(token.value)
        except (ValueError, KeyError):
            place = f" for {token.keyword}" if token.keyword else ""
            raise UsageError(f'Invalid value "{token.value}"{place}. Must be {allowed}.') from None

    return convert


def content(read: Callable[[bytes], Any], text: str) -> Any:
    """Declare an option for a file whose content ``read`` reads, '' for none; what it refuses is a ``UsageError``."""

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        (token,) = tokens
        try:
            return read(Path(token.value).read_bytes()) if token.value else ""
        except (OSError, ValueError) as error:
            reason = f"{error.strerror}." if isinstance(error, OSError) else error
            raise UsageError(f"{token.keyword} {token.value}: {reason}") from error

    return option(text, "FILE", converter=convert, accepts_keys=False, n_tokens=1)


def pairs(texts: Iterable[str], what: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Return values by name of ``NAME=VALUE``; raises ``UsageError``, which names ``what`` must have this ``form``."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{what} must look like {form}, not {text!r}.")
        found[name] = value
    return found


def _declared(name: str, kind: Any, declared: Option) -> tuple[Any, Any]:
    """Return annotation and default of the parameter, or of the field, ``name`` of this ``kind``."""
    default = None if type(None) in get_args(kind) else declared.default
    named = Parameter(name=f"--{name.removesuffix('_s').replace('_', '-')}", show_default=default is not None)
    if default is None and type(None) not in get_args(kind):
        default = (get_origin(kind) or kind)()
    return Annotated[kind, named, declared.parameter], default


def signature_of(function: Callable[..., Any], **more: Option) -> inspect.Signature:
    """Return the signature of a command for cyclopts: with its options, and with the switches ``more``.

    Options of a table (``**``) are last.
    """
    parameters = dict(inspect.signature(function).parameters)
    for name, declared in more.items():
        switch = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=bool)
        parameters.setdefault(name, switch)
    for name, each in parameters.items():
        if isinstance(each.default, Option):
            annotation, default = _declared(name, each.annotation, each.default)
            parameters[name] = each.replace(annotation=annotation, default=default)
        elif is_dataclass(each.annotation):  # one of ``options``
            parameters[name] = each.replace(default=cast(Any, each.annotation)())
    return inspect.Signature(sorted(parameters.values(), key=attrgetter("kind")))


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(kind: type[Value]) -> type[Value]:
    """Return a class whose fields are options of every command that has a parameter of it."""
    for name, annotation in kind.__annotations__.items():
        kind.__annotations__[name], default = _declared(name, annotation, vars(kind)[name])
        setattr(kind, name, default)
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(kind))


JSON = option("Print one JSON document on one line.")
YES = option("Do not ask for confirmation.")
ADMIN_ENDPOINT = option("The server's port for health and metrics.", "URL", default="http://127.0.0.1:9325")
Queue = Annotated[str, Parameter(help="Name of the queue.")]
