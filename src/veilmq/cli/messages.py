"""``veilmq send``, ``receive`` and ``peek``."""

import base64
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from cyclopts import Parameter

from veilmq.cli.command import (
    CommandFailed,
    Json,
    Queue,
    Rows,
    UsageError,
    instant,
    option,
    print_aligned,
    print_json,
    print_result,
    progress,
    read_pair,
    whole_number,
)
from veilmq.cli.connection import Endpoint, connect
from veilmq.client import ClientError, HttpQueueClient, NewMessage, QueueClient, ReceivedMessage, Unreachable
from veilmq.client.api import Inspection
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core import limits
from veilmq.core.messages import Attribute, attributes_bytes

if TYPE_CHECKING:
    from veilmq.wire.v1.queues import ListedMessage, ListedMessages, PeekedMessages, PeekedRow

STANDARD_INPUT = "-"


def send(
    queue: Queue,
    body: Annotated[
        str, Parameter(allow_leading_hyphen=True, show_default=False, help="The message; - reads standard input.")
    ] = STANDARD_INPUT,
    /,
    *,
    file: Annotated[Path | None, option("Send each line of this file as a message.", "FILE")] = None,
    stdin_lines: Annotated[bool, option("Send each line of standard input as a message.")] = False,
    delay: Annotated[
        int | None,
        whole_number(limits.SQS_DELAY_S, "Seconds until the message becomes visible, instead of the queue's."),
    ] = None,
    attribute: Annotated[
        tuple[str, ...], option("Message attribute of type String; may be repeated.", "NAME=TEXT")
    ] = (),
    group: Annotated[
        str | None, Parameter(metavar="ID", help="Message group: the unit of order in a FIFO queue.")
    ] = None,
    dedup_id: Annotated[
        str | None, Parameter(metavar="ID", help="Deduplication id: the same one within five minutes is not stored.")
    ] = None,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Send a message, and print its id; or send each line of a file as a message.

    Lines are sent ten at a time; empty ones are skipped. Lines that were not
    sent are printed with their numbers, and the exit code is then 1.
    """
    rest: dict[str, Any] = {"delay_s": delay, "group": group, "dedup_id": dedup_id}
    rest["attributes"] = dict(map(_read_attribute, attribute))
    if file is None and not stdin_lines:
        with connect(HttpQueueClient, endpoint) as client:
            sent = client.send(queue, _read_body(body), **rest)
        print_result(sent, sent.id, json=json)
        return
    if (file is not None) + stdin_lines + (body != STANDARD_INPUT) > 1:
        raise UsageError("Give one of a message, --file and --stdin-lines.")
    if dedup_id is not None:
        raise UsageError("--dedup-id would make all lines one message; a FIFO queue can deduplicate them by content.")
    try:
        source = nullcontext(sys.stdin.buffer) if file is None else file.open("rb")
    except OSError as error:
        raise UsageError(f"--file {file}: {error.strerror}.") from error
    with source as lines, connect(HttpQueueClient, endpoint) as client:
        count, failed, stopped = _send_lines(client, queue, NewMessage(body="", **rest), lines)
    failed.sort(key=itemgetter(0))
    shown = [{"line": line, "code": each.code, "message": each.message} for line, each in failed]
    print_result({"sent": count, "failed": shown}, f"Sent {count} messages.", json=json)
    for line, each in failed:
        print(f"line {line}: {each.message} ({each.code})", file=sys.stderr)
    if stopped is not None:
        start, reason = stopped
        if isinstance(reason, KeyboardInterrupt):
            print(f"veilmq: Sending stopped at line {start}.", file=sys.stderr)
            raise reason
        raise CommandFailed(f"Sending stopped at line {start}: {reason}") from reason
    if failed:
        raise CommandFailed(f"{len(failed)} of {count + len(failed)} lines were not sent.")


def _read_attribute(text: str) -> tuple[str, Attribute]:
    name, value = read_pair(text, f"--attribute must look like NAME=TEXT, not {text!r}.")
    return name, Attribute(type="String", text=value)


def _read_body(given: str) -> str:
    """Return the message; of standard input to its end, without a last line's end."""
    if given != STANDARD_INPUT:
        return given
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"A message is text: standard input is not UTF-8 at byte {error.start}.") from error


Failures = list[tuple[int, ClientError]]
"""Numbers of lines, from 1, and why they were not sent."""


Stop = tuple[int, ClientError | Unreachable | KeyboardInterrupt]
"""The line to start again from, and why: a batch that is refused as a whole, or has no reply, or Ctrl-C."""


def _send_lines(
    client: QueueClient, queue: str, form: NewMessage, lines: BinaryIO
) -> tuple[int, Failures, Stop | None]:
    """Send ``lines`` as messages like ``form``; return how many the server keeps, those it does not, and what stopped.

    What stops all would stop the next lines too.
    """
    sent, failed, total, line = 0, Failures(), None, 1
    if lines.seekable() and sys.stderr.isatty():
        start = lines.tell()
        total = sum(1 for _ in lines)
        lines.seek(start)
    try:
        with progress("sent", unit="messages") as report:
            for batch in _batches(lines, attributes_bytes(form.attributes), failed):
                results = client.send_batch(queue, [replace(form, body=body) for _, body in batch])
                pairs = zip((number for number, _ in batch), results, strict=True)
                refused = [(number, each) for number, each in pairs if isinstance(each, ClientError)]
                failed += refused
                sent += len(batch) - len(refused)
                line = batch[-1][0] + 1
                report(line - 1, total)
    except (ClientError, Unreachable, KeyboardInterrupt) as error:
        return sent, failed, (line, error)
    return sent, failed, None


def _batches(lines: Iterable[bytes], rest_bytes: int, failed: Failures) -> Iterator[list[tuple[int, str]]]:
    """Yield numbered bodies, as many at once as a request may have; add to ``failed`` what no message can be."""
    batch: list[tuple[int, str]] = []
    batch_bytes = 0
    for number, line in enumerate(lines, 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        size = len(data) + rest_bytes
        try:
            body = data.decode()
        except UnicodeDecodeError as error:
            failed.append(
                (number, ClientError("InvalidMessageContents", f"It is not UTF-8 at byte {error.start}.", 400))
            )
            continue
        if size > limits.MESSAGE_BYTES.maximum:
            text = f"It has {size} bytes with its attributes; a message has at most {limits.MESSAGE_BYTES.maximum}."
            failed.append((number, ClientError("InvalidParameterValue", text, 400)))
        elif body:
            if len(batch) == limits.SQS_BATCH_ENTRIES_MAX or (
                batch and batch_bytes + size > limits.SQS_BATCH_BYTES_MAX
            ):
                yield batch
                batch, batch_bytes = [], 0
            batch.append((number, body))
            batch_bytes += size
    if batch:
        yield batch


def receive(
    queue: Queue,
    /,
    *,
    count: Annotated[
        int, whole_number(limits.SQS_RECEIVE_COUNT, "Messages to receive at once.")
    ] = limits.SQS_RECEIVE_COUNT.default,
    wait: Annotated[
        int | None, whole_number(limits.SQS_RECEIVE_WAIT_S, "Seconds to wait for a message, instead of the queue's.")
    ] = None,
    timeout: Annotated[
        int | None, whole_number(limits.VISIBILITY_TIMEOUT_S, "Seconds to hide the messages, instead of the queue's.")
    ] = None,
    delete: Annotated[bool, option("Delete the messages after they are printed.")] = False,
    follow: Annotated[bool, option("Keep receiving until Ctrl-C.")] = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Receive messages and print them; they stay hidden until their timeout ends, and then return.

    With --follow and --json each message is one line.
    """
    if follow and wait == 0:
        raise UsageError("--follow needs a --wait of at least 1.")
    wait_s = limits.SQS_RECEIVE_WAIT_S.maximum if follow and wait is None else wait
    with connect(HttpQueueClient, endpoint) as client, suppress(*([KeyboardInterrupt] if follow else [])):
        shown = 0
        while True:
            messages = client.receive(queue, count=count, wait_s=wait_s, timeout_s=timeout)
            if json:
                documents = list(map(_document, messages))
                for each in documents if follow else [documents]:
                    print_json(each)
            else:
                for place, message in enumerate(messages, shown):
                    print("\n" * (place > 0), end="")
                    print_aligned(_rows(message))
            shown += len(messages)
            sys.stdout.flush()  # messages that no reader has seen must return: they are deleted after this
            if delete and messages:
                _delete(client, queue, messages)
            if not follow:
                break
        if not shown and not json:
            print("No message.", file=sys.stderr)


def _rows(message: ReceivedMessage) -> Rows:
    return [
        ("id", message.id),
        ("receipt", message.receipt),
        ("sent", instant(message.sent_at_ms)),
        ("first received", instant(message.first_received_at_ms)),
        ("receive count", message.receive_count),
        *[(name.replace("_", " "), value) for name, value in _origin(message).items() if value is not None],
        *[(f"attribute {name}", f"{_text(value)} ({value.type})") for name, value in message.attributes.items()],
        ("body", message.body),
    ]


def _document(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "receipt": message.receipt,
        "body": message.body,
        "attributes": {name: {"type": value.type, "value": _text(value)} for name, value in message.attributes.items()},
        "sent_at_ms": message.sent_at_ms,
        "first_received_at_ms": message.first_received_at_ms,
        "receive_count": message.receive_count,
        **_origin(message),
    }


def _origin(message: ReceivedMessage) -> dict[str, str | None]:
    """Return what only some messages have: a place in a group, a source queue."""
    return {name: getattr(message, name) for name in ("group", "dedup_id", "sequence", "source")}


def _text(value: Attribute) -> str:
    """Return the value of an attribute; bytes in Base64."""
    return value.text or "" if value.data is None else base64.b64encode(value.data).decode()


def _delete(client: QueueClient, queue: str, messages: Sequence[ReceivedMessage]) -> None:
    errors = client.delete_batch(queue, [message.receipt for message in messages])
    failed = [error for error in errors if error is not None]
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(messages)} messages were not deleted: {failed[0]}")


def peek(
    queue: Queue,
    /,
    *,
    count: Annotated[int, whole_number(limits.INSPECT_MESSAGES, "Messages to show.")] = limits.INSPECT_MESSAGES.default,
    state: Annotated[
        Literal["visible", "in_flight", "delayed", "any"] | None,
        Parameter(help="Messages of this state in the order of sending, instead of what a receive would return now."),
    ] = None,
    id: Annotated[  # noqa: A002 - the name of the option
        str | None, Parameter(name="--id", metavar="ID", help="Only the message with this id.")
    ] = None,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Print messages without receiving them: none is hidden, and no receive is counted.

    Only veilmq's server can do this, not Amazon SQS.
    """
    with connect(Inspection, endpoint, queue) as inspection:
        if state is None and id is None:
            found: PeekedMessages | ListedMessages = inspection.peek(count=count)
        else:
            found = inspection.messages(state=None if state == "any" else state, id=id, count=count)
    print_result(found.messages, map(_peeked_rows, found.messages), json=json)
    if not found.messages and not json:
        print("No message.", file=sys.stderr)
    if found.is_cut:
        print("The reply has reached its size limit; there may be more messages.", file=sys.stderr)


_INSTANTS = ("sent_at_ms", "first_received_at_ms", "received_at_ms", "visible_at_ms")


def _peeked_rows(message: "PeekedRow | ListedMessage") -> Rows:
    yield "id", message.id
    for name in (*_INSTANTS, "state", "receive_count", "group", "dedup_id", "source"):
        if (value := getattr(message, name, None)) is not None:
            yield name.removesuffix("_at_ms").replace("_", " "), instant(value) if name in _INSTANTS else value
    types = message.attribute_types or {}
    for name, value in message.attributes.items():
        yield f"attribute {name}", f"{value} ({types.get(name, 'String')})"
    yield "body", message.body
