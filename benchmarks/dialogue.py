"""A small load client: many keep-alive connections, each driven by a Python generator (a dialogue).

A dialogue yields an encoded request and receives the body of the reply; when it returns, its connection is done. wrk
only repeats; a dialogue can stop at an exact number of messages. It does little work per reply (one search for the
length), so that the server remains the bottleneck. A reply other than 200 ends all dialogues with an error.
"""

import asyncio
import json
import time
from collections.abc import Generator, Sequence
from typing import cast

import uvloop

Dialogue = Generator[bytes, bytes, None]


class DialogueError(Exception):
    """A reply other than 200, a lost connection, or a timeout."""


class Connection(asyncio.Protocol):
    """One connection; `finished` completes when its dialogue returns or fails."""

    __slots__ = ("_buffer", "_dialogue", "_transport", "finished")

    _transport: asyncio.Transport

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._buffer = b""
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        self._advance(None)

    def close(self) -> None:
        self._transport.close()
        self.finished.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        body_end = head_end + 4 + _content_length(self._buffer[:head_end])
        if len(self._buffer) < body_end:
            return
        answer, self._buffer = self._buffer[:body_end], self._buffer[body_end:]
        if answer[9:12] != b"200":
            self._fail(f"the server answered {answer[:600].decode(errors='replace')}")
        else:
            self._advance(answer[head_end + 4 :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the server closed a connection: {exc or 'no reason given'}")

    def _advance(self, body: bytes | None) -> None:
        try:
            request = next(self._dialogue) if body is None else self._dialogue.send(body)
        except StopIteration:
            if not self.finished.done():
                self.finished.set_result(None)
        else:
            self._transport.write(request)

    def _fail(self, why: str) -> None:
        if not self.finished.done():
            self.finished.set_exception(DialogueError(why))


def _content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        raise DialogueError(f"an answer without Content-Length: {head[:300].decode(errors='replace')}")
    end = lower.find(b"\r", at + 2)
    return int(lower[at + 17 : end if end > 0 else len(lower)])


async def connect(*, port: int, dialogue: Dialogue) -> Connection:
    """Open a connection for `dialogue`, which sends nothing before `start`."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(dialogue), "127.0.0.1", port)
    return connection


async def hold(*, port: int, dialogues: Sequence[Dialogue], timeout_s: float) -> float:
    """Run all dialogues at once; return the seconds from the first request to the last reply."""
    connections = [await connect(port=port, dialogue=dialogue) for dialogue in dialogues]
    began = time.perf_counter()
    try:
        for connection in connections:
            connection.start()
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(connection.finished for connection in connections))
        return time.perf_counter() - began
    except TimeoutError as late:
        raise DialogueError(f"not finished after {timeout_s:.0f} s") from late
    finally:
        for connection in connections:
            connection.close()


def converse(*, port: int, dialogues: Sequence[Dialogue], timeout_s: float = 600.0) -> float:
    """Run `hold` in a new event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(hold(port=port, dialogues=dialogues, timeout_s=timeout_s))


def request(action: str, **members: object) -> bytes:
    """Encode one SQS action as AWS JSON 1.0."""
    return framed(action, json.dumps(members, separators=(",", ":")).encode())


def framed(action: str, body: bytes) -> bytes:
    return b"".join(
        (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-amz-json-1.0\r\n",
            b"X-Amz-Target: AmazonSQS.",
            action.encode(),
            b"\r\nContent-Length: ",
            str(len(body)).encode(),
            b"\r\n\r\n",
            body,
        )
    )
