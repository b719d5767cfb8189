"""The declaration and the conversion of options.

An option is declared as the default of a command's parameter, or of a field of a dataclass that is such a parameter
(here or in ``pipeline.options``).
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from cyclopts import Parameter, Token

from veilmq.core.limits import Range


class UsageError(Exception):
    """The command line is wrong; exit code 2. The text has the remedy."""


class Option(NamedTuple):
    """The cyclopts parameter of an option; ``default=None`` is the empty value of its type: False, "", () or None."""

    parameter: Parameter
    default: Any = None


def option(text: str, metavar: str | None = None, *, default: Any = None, allowed: Any = None, **rest: Any) -> Any:
    """Declare an option with the name of its parameter or field, without the unit ``_s``; ``rest`` is for cyclopts.

    An option without ``default`` is a switch, may be repeated, or may be missing. ``allowed`` parses its value; a
    ``Range`` also adds its bounds to the help, and has a default.
    """
    if isinstance(allowed, Range):
        text, metavar = f"{text} From {allowed.minimum} to {allowed.maximum}.", "N"
        default = allowed.default if default is None else default
    if allowed is not None:
        rest["converter"] = read_by(allowed.read, allowed)
    return Option(Parameter(**{"negative": (), "metavar": metavar, "help": text, **rest}), default)


def number(allowed: Range, text: str, *, default: int | None = None, **rest: Any) -> Any:
    return option(text, allowed=allowed, default=default, **rest)


def read_by(read: Callable[[str], Any], allowed: object) -> Callable[[Any, Sequence[Token]], Any]:
    """Return a converter of an option's or argument's value by ``read``.

    If ``read`` raises ``ValueError`` or ``KeyError``, the converter raises a ``UsageError`` with the name of the option
    and what is ``allowed``. (cyclopts would convert 1.5 to the whole number 2.)
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
    """Declare an option for a file whose content ``read`` parses, or ''. Errors of ``read`` become ``UsageError``."""

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        (token,) = tokens
        try:
            return read(Path(token.value).read_bytes()) if token.value else ""
        except (OSError, ValueError) as error:
            reason = f"{error.strerror}." if isinstance(error, OSError) else error
            raise UsageError(f"{token.keyword} {token.value}: {reason}") from error

    return option(text, "FILE", converter=convert, accepts_keys=False, n_tokens=1)


def pairs(texts: Iterable[str], what: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Parse ``NAME=VALUE`` into values by name. Raises ``UsageError``: ``what`` must have this ``form``."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{what} must look like {form}, not {text!r}.")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{what} names {name} twice; give it one value.")
    return found


def _declared(name: str, kind: Any, declared: Option) -> tuple[Any, Any]:
    """Return the annotation and the default of the parameter or field ``name`` of type ``kind``."""
    default = None if type(None) in get_args(kind) else declared.default
    named = Parameter(name=f"--{name.removesuffix('_s').replace('_', '-')}", show_default=default is not None)
    if default is None and type(None) not in get_args(kind):
        default = (get_origin(kind) or kind)()
    return Annotated[kind, named, declared.parameter], default


def signature_of(function: Callable[..., Any], **more: Option) -> inspect.Signature:
    """Return the signature of a command for cyclopts, with its options and the additional switches ``more``.

    Options of a ``TypedDict`` (``**``) are last.
    """
    parameters = dict(inspect.signature(function).parameters)
    for name, declared in more.items():
        switch = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=bool)
        parameters.setdefault(name, switch)
    for name, each in parameters.items():
        if isinstance(each.default, Option):
            annotation, default = _declared(name, each.annotation, each.default)
            parameters[name] = each.replace(annotation=annotation, default=default)
        elif isinstance(each.annotation, type) and is_dataclass(each.annotation):
            form = _form(each.annotation)
            is_required = any(part.default is MISSING for part in fields(form))
            parameters[name] = each.replace(annotation=form, default=each.empty if is_required else form())
    return inspect.Signature(sorted(parameters.values(), key=attrgetter("kind")))


@cache
def _form(kind: type[Any]) -> Any:
    """Return a subclass of the dataclass ``kind`` whose fields are annotated for cyclopts."""
    hints, annotated = get_type_hints(kind), []
    for each in fields(kind):
        declared = each.default
        if each.metadata:  # from pipeline.options
            declared = option(default=each.default or None, **each.metadata)  # False, "" and () are not shown
        if isinstance(declared, Option):
            annotation, default = _declared(each.name, hints[each.name], declared)
        else:  # not an option; it stays a field so that ``replace`` works
            annotation, default = Annotated[hints[each.name], Parameter(parse=False)], declared
        annotated.append((each.name, annotation, field(default=default, kw_only=True)))
    namespace = {"__module__": kind.__module__}
    form = make_dataclass(kind.__name__, annotated, bases=(kind,), namespace=namespace, frozen=True)
    return Parameter(name="*")(form)


JSON = option("Print one JSON document on one line.")
YES = option("Do not ask for confirmation.")
ADMIN_ENDPOINT = option("The server's port for health and metrics.", "URL", default="http://127.0.0.1:9325")
Queue = Annotated[str, Parameter(help="Name of the queue.")]
