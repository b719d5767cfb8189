"""Options that several commands have, each defined once."""

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter, Token

from veilmq.cli.failures import UsageError
from veilmq.client.transport import ENDPOINT_VARIABLES, endpoint_of
from veilmq.core.limits import Range
from veilmq.server import settings

Value = TypeVar("Value")


def _endpoint(_: Any, tokens: Sequence[Token]) -> str:
    """Return the URL that was given; an empty variable names no server, and the next one counts."""
    (token,) = tokens
    return endpoint_of(os.environ) if token.source == "env" else token.value


Endpoint = Annotated[
    str,
    Parameter(
        name="--endpoint",
        env_var=ENDPOINT_VARIABLES,
        converter=_endpoint,
        metavar="URL",
        help="Server to talk to.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for machines.")]
Yes = Annotated[bool, Parameter(name="--yes", negative=(), show_default=False, help="Do not ask for confirmation.")]
Queue = Annotated[str, Parameter(help="Name of the queue.")]


def read_by(read: Callable[[str], Value], *, allowed: str) -> Callable[[Any, Sequence[Token]], Value]:
    """Return what converts the word of an option, or of an argument, with ``read``.

    What ``read`` refuses with ``ValueError`` is a ``UsageError`` that names the option and says, with ``allowed``, what
    it must be. Left to the library, 1.5 would be the whole number 2, and abc "unable to convert" without a range.
    """

    def convert(_: Any, tokens: Sequence[Token]) -> Value:
        (token,) = tokens
        try:
            return read(token.value)
        except ValueError:
            place = f" for {token.keyword}" if token.keyword else ""
            raise UsageError(f'Invalid value "{token.value}"{place}. Must be {allowed}.') from None

    return convert


def whole_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, which its help tells and its value must keep."""
    kind = settings.whole_number(allowed)
    help_text = f"{text} From {allowed.minimum} to {allowed.maximum}."
    return Parameter(converter=read_by(kind.read, allowed=kind.allowed), metavar="N", negative=(), help=help_text)


def own_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, as text, or ``''`` for the server's setting."""

    def check(_: Any, value: str | None) -> None:
        if value and not (value.isdecimal() and allowed.holds(int(value))):
            raise ValueError(f"Must be a whole number from {allowed.minimum} to {allowed.maximum}, or ''.")

    help_text = f"{text} From {allowed.minimum} to {allowed.maximum}; '' for the server's setting."
    return Parameter(validator=check, metavar="N", negative=(), help=help_text)
