"""``veilmq send`` and ``veilmq receive``."""

import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from veilmq.cli.command import (
    CommandFailed,
    Endpoint,
    Json,
    Queue,
    UsageError,
    instant,
    print_aligned,
    print_json,
    whole_number,
)
from veilmq.cli.connection import connect
from veilmq.client import QueueClient, ReceivedMessage
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import SQS_DELAY_S, SQS_RECEIVE_COUNT, SQS_RECEIVE_WAIT_S, VISIBILITY_TIMEOUT_S
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
    attributes = dict(_read_attribute(text) for text in attribute)
    with connect(endpoint) as client:
        sent = client.send(
            queue, _read_body(body), attributes=attributes, delay_s=delay, group=group, dedup_id=dedup_id
        )
    if json:
        print_json(sent)
    else:
        print(sent.id)


def _read_attribute(text: str) -> tuple[str, Attribute]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--attribute must look like NAME=TEXT, not {text!r}.")
    return name, Attribute(type="String", text=value)


def _read_body(given: str) -> str:
    """Return the message; of standard input to its end, without a last line's end."""
    if given != STANDARD_INPUT:
        return given
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"A message is text: standard input is not UTF-8 at byte {error.start}.") from error


def receive(
    queue: Queue,
    /,
    *,
    count: Annotated[
        int, whole_number(SQS_RECEIVE_COUNT, "How many messages to take at most.")
    ] = SQS_RECEIVE_COUNT.default,
    wait: Annotated[
        int | None, whole_number(SQS_RECEIVE_WAIT_S, "Seconds to wait for a message, instead of the queue's.")
    ] = None,
    timeout: Annotated[
        int | None, whole_number(VISIBILITY_TIMEOUT_S, "Seconds to hide the messages, instead of the queue's.")
    ] = None,
    delete: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Delete the messages after they are printed.")
    ] = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Receive messages and print them; they stay hidden until their timeout ends, and then come back."""
    with connect(endpoint) as client:
        messages = client.receive(queue, count=count, wait_s=wait, timeout_s=timeout)
        if json:
            print_json([_message_document(message) for message in messages])
        else:
            _print_messages(messages)
        if delete and messages:
            sys.stdout.flush()  # a reader that went away has not seen them: then they must come back
            _delete(client, queue, messages)


def _print_messages(messages: Sequence[ReceivedMessage]) -> None:
    if not messages:
        print("No message.", file=sys.stderr)
    for place, message in enumerate(messages):
        if place:
            print()
        print_aligned(_message_rows(message))


def _message_rows(message: ReceivedMessage) -> list[tuple[str, object]]:
    return [
        ("id", message.id),
        ("receipt", message.receipt),
        ("sent", instant(message.sent_at_ms)),
        ("first received", instant(message.first_received_at_ms)),
        ("receive count", message.receive_count),
        *[(name.replace("_", " "), value) for name, value in _order(message).items() if value is not None],
        *[(f"attribute {name}", f"{_text(value)} ({value.type})") for name, value in message.attributes.items()],
        ("body", message.body),
    ]


def _message_document(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "receipt": message.receipt,
        "body": message.body,
        "attributes": {name: {"type": value.type, "value": _text(value)} for name, value in message.attributes.items()},
        "sent_at_ms": message.sent_at_ms,
        "first_received_at_ms": message.first_received_at_ms,
        "receive_count": message.receive_count,
        **_order(message),
    }


def _order(message: ReceivedMessage) -> dict[str, str | None]:
    """Return what only some messages have: a place in a group, a queue that they came from."""
    return {
        "group": message.group,
        "dedup_id": message.dedup_id,
        "sequence": message.sequence,
        "source": message.source,
    }


def _text(value: Attribute) -> str:
    """Return the value of an attribute; bytes in Base64."""
    return value.text or "" if value.data is None else base64.b64encode(value.data).decode()


def _delete(client: QueueClient, queue: str, messages: Sequence[ReceivedMessage]) -> None:
    errors = client.delete_batch(queue, [message.receipt for message in messages])
    failed = [error for error in errors if error is not None]
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(messages)} messages were not deleted: {failed[0]}")
