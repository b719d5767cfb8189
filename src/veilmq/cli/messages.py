"""``veilmq send``, ``receive`` and ``peek``."""

import base64
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Result, Rows, aligned, command, instant, progress
from veilmq.cli.connection import Server
from veilmq.cli.options import JSON, Queue, UsageError, number, option, pairs
from veilmq.client import ClientError, NewMessage, QueueClient, ReceivedMessage, Unreachable
from veilmq.client.api import Inspection
from veilmq.client.messages import is_transient
from veilmq.core import limits
from veilmq.core.messages import Attribute, attributes_bytes

STANDARD_INPUT = "-"
RETRY_S = 2.0
"""The pause of ``--follow`` after a failed receive."""


@command
def send(
    queue: Queue,
    body: Annotated[
        str, Parameter(allow_leading_hyphen=True, show_default=False, help="The message; - reads standard input.")
    ] = STANDARD_INPUT,
    /,
    *,
    file: Path | None = option("Send each line of this file as a message.", "FILE"),
    stdin_lines: bool = option("Send each line of standard input as a message."),
    delay: int | None = number(
        limits.SQS_DELAY_S, "Seconds until the message becomes visible, instead of the queue's."
    ),
    attribute: tuple[str, ...] = option("Message attribute of type String; may be repeated.", "NAME=TEXT"),
    group: str | None = option("Message group: the unit of order in a FIFO queue.", "ID"),
    dedup_id: str | None = option("Deduplication id: the same one within five minutes is not stored.", "ID"),
    json: bool = JSON,
    server: Server,
) -> Result:
    """Send a message, and print its id; or send each line of a file as a message.

    Lines are sent ten at a time; empty ones are skipped. Lines that were not
    sent are printed with their numbers, and the exit code is then 1.
    """
    rest: dict[str, Any] = {"delay_s": delay, "group": group, "dedup_id": dedup_id}
    given = pairs(attribute, "--attribute", "NAME=TEXT")
    rest["attributes"] = {name: Attribute(type="String", text=text) for name, text in given.items()}
    client = QueueClient(server)
    if file is None and not stdin_lines:
        sent = client.send(queue, _read_body(body), **rest)
        return Result(sent, sent.id)
    if (file is not None) + stdin_lines + (body != STANDARD_INPUT) > 1:
        raise UsageError("Give one of a message, --file and --stdin-lines.")
    if dedup_id is not None:
        raise UsageError("--dedup-id would make all lines one message; a FIFO queue can deduplicate them by content.")
    try:
        source = nullcontext(sys.stdin.buffer) if file is None else file.open("rb")
    except OSError as error:
        raise UsageError(f"--file {file}: {error.strerror}.") from error
    count, failed, line = 0, list[dict[str, Any]](), 0
    stopped: BaseException | None = None
    try:
        with source as lines, progress("messages", {"sent": _length(lines)}) as report:
            for line, refusal in _send_lines(client, queue, NewMessage(body="", **rest), lines):
                count += refusal is None
                if refusal is not None:
                    failed.append({"line": line, "code": refusal.code, "message": refusal.message})
                report("sent", line)
    except (ClientError, Unreachable, OSError, KeyboardInterrupt) as error:  # the next lines would fail too
        stopped = error
    result = Result({"sent": count, "failed": failed}, f"Sent {count} messages.")
    if stopped is None and not failed:
        return result
    result.show(json=json)
    for each in failed:
        print("line {line}: {message} ({code})".format(**each), file=sys.stderr)
    if isinstance(stopped, KeyboardInterrupt):
        print(f"veilmq: Sending stopped at line {line + 1}.", file=sys.stderr)
        raise stopped
    if stopped is not None:
        raise CommandFailed(f"Sending stopped at line {line + 1}: {stopped}") from stopped
    raise CommandFailed(f"{len(failed)} of {count + len(failed)} lines were not sent.")


def _read_body(argument: str) -> str:
    """Return the body from the argument, or from standard input without its last newline."""
    if argument != STANDARD_INPUT:
        return argument
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"A message is text: standard input is not UTF-8 at byte {error.start}.") from error


def _length(lines: BinaryIO) -> int | None:
    """Return the number of lines, for a progress bar; ``None`` without a terminal or if ``lines`` cannot be rewound."""
    if not sys.stderr.isatty() or not lines.seekable():
        return None
    start = lines.tell()
    count = sum(1 for _ in lines)
    lines.seek(start)
    return count


def _send_lines(
    client: QueueClient, queue: str, form: NewMessage, lines: Iterable[bytes]
) -> Iterator[tuple[int, ClientError | None]]:
    """Send ``lines`` as messages like ``form``; yield the number of each with the reason if it was not sent."""
    batch: dict[int, NewMessage | ClientError] = {}
    batch_bytes, rest_bytes = 0, attributes_bytes(form.attributes)

    def send() -> Iterator[tuple[int, ClientError | None]]:
        messages = [each for each in batch.values() if isinstance(each, NewMessage)]
        results = iter(client.send_batch(queue, messages) if messages else ())
        for line, each in batch.items():
            outcome = each if isinstance(each, ClientError) else next(results)
            yield line, outcome if isinstance(outcome, ClientError) else None
        batch.clear()

    for line_number, line in enumerate(lines, 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        size = len(data) + rest_bytes
        if len(batch) == limits.SQS_BATCH_ENTRIES_MAX or batch_bytes + size > limits.SQS_BATCH_BYTES_MAX:
            yield from send()
            batch_bytes = 0
        if size > limits.MESSAGE_BYTES.maximum:
            text = f"It has {size} bytes with its attributes; a message has at most {limits.MESSAGE_BYTES.maximum}."
            batch[line_number] = ClientError("InvalidParameterValue", text, 400)
            continue
        try:
            if body := data.decode():
                batch[line_number] = replace(form, body=body)
                batch_bytes += size
        except UnicodeDecodeError as error:
            text = f"It is not UTF-8 at byte {error.start}."
            batch[line_number] = ClientError("InvalidMessageContents", text, 400)
    yield from send()


@command
def receive(
    queue: Queue,
    /,
    *,
    count: int = number(limits.SQS_RECEIVE_COUNT, "Messages to receive at once."),
    wait: int | None = number(limits.SQS_RECEIVE_WAIT_S, "Seconds to wait for a message, instead of the queue's."),
    timeout: int | None = number(limits.VISIBILITY_TIMEOUT_S, "Seconds to hide the messages, instead of the queue's."),
    delete: bool = option("Delete the messages after they are printed."),
    follow: bool = option("Keep receiving until Ctrl-C."),
    json: bool = JSON,
    server: Server,
) -> None:
    """Receive messages and print them; they are visible again when their timeout ends.

    With --follow and --json each message is one line.
    """
    if follow and wait == 0:
        raise UsageError("--follow needs a --wait of at least 1.")
    wait_s = limits.SQS_RECEIVE_WAIT_S.maximum if follow and wait is None else wait
    client, shown, failing = QueueClient(server), 0, False
    with suppress(*([KeyboardInterrupt] if follow else [])):
        while follow or not shown:
            try:
                messages = client.receive(queue, count=count, wait_s=wait_s, timeout_s=timeout)
                for part in [[each] for each in messages] if follow else [messages]:
                    documents = [_document(each) for each in part]
                    text = "\n" * (shown > 0) + aligned(*map(_rows, part))
                    Result(documents[0] if follow else documents, text, "" if part else "No message.").show(json=json)
                    shown += 1
                if delete and messages:  # only after they are printed
                    results = client.delete_batch(queue, [message.receipt for message in messages])
                    if failed := [each for each in results if each is not None]:
                        text = f"{len(failed)} of {len(results)} messages were not deleted: {failed[0]}"
                        raise CommandFailed(text) from failed[0]
                failing = False
            except (ClientError, Unreachable, CommandFailed) as error:
                if not follow or not is_transient(error.__cause__ if isinstance(error, CommandFailed) else error):
                    raise
                if not failing:
                    print(f"veilmq: {error} Trying again every {RETRY_S:g} s.", file=sys.stderr)
                failing = True
                time.sleep(RETRY_S)


_INSTANTS = ("sent_at_ms", "first_received_at_ms", "received_at_ms", "visible_at_ms")
_PARTS = ("receipt", *_INSTANTS, "state", "receive_count", "group", "dedup_id", "sequence", "source")


def _rows(message: Any) -> Rows:
    """Yield the fields of a message: a ``ReceivedMessage``, or one of ``wire.v1.queues``."""
    yield "id", message.id
    for name in _PARTS:
        if (value := getattr(message, name, None)) is not None:
            yield name.removesuffix("_at_ms").replace("_", " "), instant(value) if name in _INSTANTS else value
    types = getattr(message, "attribute_types", None) or {}
    for name, value in message.attributes.items():
        text, kind = (value, types.get(name, "String")) if isinstance(value, str) else (_text(value), value.type)
        yield f"attribute {name}", f"{text} ({kind})"
    yield "body", message.body


def _document(message: ReceivedMessage) -> dict[str, Any]:
    attributes = {name: {"type": value.type, "value": _text(value)} for name, value in message.attributes.items()}
    document = {each.name: getattr(message, each.name) for each in fields(message)}
    del document["trace_header"]
    return document | {"attributes": attributes}


def _text(value: Attribute) -> str:
    """Return the value of an attribute as text; bytes in Base64."""
    return value.text or "" if value.data is None else base64.b64encode(value.data).decode()


@command
def peek(
    queue: Queue,
    /,
    *,
    count: int = number(limits.INSPECT_MESSAGES, "Messages to show."),
    state: Literal["visible", "in_flight", "delayed", "any"] | None = option(
        "Messages of this state in the order of sending, instead of what a receive would return now."
    ),
    id: str | None = option("Only the message with this id.", "ID"),  # noqa: A002 - the name of the option
    server: Server,
) -> Result:
    """Print messages without receiving them: none is hidden, and no receive is counted.

    Only veilmq's server can do this, not Amazon SQS.
    """
    inspection = Inspection(server, queue)
    if state is None and id is None:
        found: Any = inspection.peek(count=count)
    else:
        found = inspection.messages(state=None if state == "any" else state, id=id, count=count)
    if found.is_cut:
        print("The reply has reached its size limit; there may be more messages.", file=sys.stderr)
    return Result(found.messages, aligned(*map(_rows, found.messages)), "" if found.messages else "No message.")
