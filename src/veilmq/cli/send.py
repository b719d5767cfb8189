"""``veilmq send``."""

import sys
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.failures import UsageError
from veilmq.cli.options import Endpoint, Json, Queue, whole_number
from veilmq.cli.printing import print_json
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import SQS_DELAY_S
from veilmq.core.messages import Attribute

STANDARD_INPUT = "-"


def send(
    queue: Queue,
    body: Annotated[
        str, Parameter(allow_leading_hyphen=True, show_default=False, help="The message; - reads standard input.")
    ] = STANDARD_INPUT,
    /,
    *,
    delay: Annotated[
        int | None, whole_number(SQS_DELAY_S, "Seconds until the message becomes visible, instead of the queue's.")
    ] = None,
    attribute: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            metavar="NAME=TEXT",
            help="An attribute of the message, of type String; may be repeated.",
        ),
    ] = (),
    group: Annotated[
        str | None, Parameter(metavar="ID", help="Group of the message: the unit of order in a FIFO queue.")
    ] = None,
    dedup_id: Annotated[
        str | None, Parameter(metavar="ID", help="Deduplication id: the same one within five minutes is not stored.")
    ] = None,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Send a message, and print its id."""
    attributes = dict(_attribute(text) for text in attribute)
    with connect(endpoint) as client:
        sent = client.send(queue, _body(body), attributes=attributes, delay_s=delay, group=group, dedup_id=dedup_id)
    if json:
        print_json(sent)
    else:
        print(sent.id)


def _attribute(text: str) -> tuple[str, Attribute]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--attribute must look like NAME=TEXT, not {text!r}.")
    return name, Attribute(type="String", text=value)


def _body(given: str) -> str:
    """Return the message; of standard input to its end, without a last line's end."""
    if given != STANDARD_INPUT:
        return given
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"A message is text: standard input is not UTF-8 at byte {error.start}.") from error
