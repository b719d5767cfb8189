"""Handlers controlled by the body of a message; in a module, so that worker processes can import them."""

import os
import signal
import sys
from pathlib import Path

from veilmq.client import ReceivedMessage
from veilmq.consumer import Context, Drop, Reject, RetryLater

RETRY_S = 7


def act(message: ReceivedMessage, ctx: Context) -> Drop | None:
    assert ctx.attempt == message.receive_count
    if message.body == "drop":
        return Drop("of no use")
    if message.body == "reject":
        raise Reject("bad schema")
    if message.body == "retry" and ctx.attempt == 1:
        raise RetryLater(RETRY_S)
    if message.body == "crash" and ctx.attempt == 1:
        raise LookupError("not yet")
    return None


async def act_async(message: ReceivedMessage, ctx: Context) -> Drop | None:
    return act(message, ctx)


async def fail_async(body: str) -> None:
    raise LookupError(body)


def forgets_await(message: ReceivedMessage, ctx: Context) -> object:
    return act_async(message, ctx)


def die(message: ReceivedMessage) -> None:
    if message.receive_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def forks(message: ReceivedMessage) -> None:
    if message.body == "fails":
        raise LookupError
    for end, code in ((sys.exit, 3), (os.kill, 1)):  # by its exit code; by a TypeError
        if (child := os.fork()) == 0:
            end(code)  # type: ignore[call-arg]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code


async def forks_async(message: ReceivedMessage) -> None:
    forks(message)


def reads_a_pipe(message: ReceivedMessage) -> None:
    if message.receive_count < 4:
        Path(message.body).read_bytes()


def spin(body: str, ctx: Context) -> None:
    while True:
        pass


def check_forever(body: str, ctx: Context) -> None:
    while True:
        ctx.check()


def fenced(body: str, ctx: Context) -> None:
    with ctx.fence():
        ctx.progress(0.5)


def takes_number(number: int) -> None:
    pass


def takes_whole(message: ReceivedMessage, ctx: Context) -> None:
    ctx.check()
    assert (ctx.message_id, ctx.attempt) == (message.id, 1)


class _Outer:  # the program's own exceptions with the names of verbs
    class Reject(Exception): ...

    class RetryLater(Exception): ...


def raises_its_own(body: str) -> None:
    raise getattr(_Outer, body)(body)
