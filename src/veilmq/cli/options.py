"""Options that several commands have, each defined once."""

from typing import Annotated, Any

from cyclopts import Parameter

from veilmq.core.limits import Range

DEFAULT_ENDPOINT = "http://127.0.0.1:9324"
ENDPOINT_VARIABLE = "VEILMQ_ENDPOINT"

Endpoint = Annotated[
    str, Parameter(name="--endpoint", env_var=ENDPOINT_VARIABLE, metavar="URL", help="Server to talk to.")
]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for machines.")]
Yes = Annotated[bool, Parameter(name="--yes", negative=(), show_default=False, help="Do not ask for confirmation.")]
Queue = Annotated[str, Parameter(help="Name of the queue.")]


def whole_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, which its help tells and its value must keep."""

    def check(_: Any, value: int | None) -> None:
        if value is not None and not allowed.holds(value):
            raise ValueError(f"Must be a whole number from {allowed.minimum} to {allowed.maximum}.")

    help_text = f"{text} From {allowed.minimum} to {allowed.maximum}."
    return Parameter(validator=check, metavar="N", negative=(), help=help_text)


def own_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, as text, or ``''`` for the server's setting."""

    def check(_: Any, value: str | None) -> None:
        if value and not (value.isdecimal() and allowed.holds(int(value))):
            raise ValueError(f"Must be a whole number from {allowed.minimum} to {allowed.maximum}, or ''.")

    help_text = f"{text} From {allowed.minimum} to {allowed.maximum}; '' for the server's setting."
    return Parameter(validator=check, metavar="N", negative=(), help=help_text)
