"""Handlers that do what the body of a message says; in a module of their own, so that processes find them."""

import os
import signal

from veilmq.client import ReceivedMessage
from veilmq.consumer import Context, Drop, Reject, RetryLater

RETRY_S = 7


def act(message: ReceivedMessage, ctx: Context) -> Drop | None:
    """End as the body says."""
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
    """End as the body says."""
    return act(message, ctx)


async def fail_async(body: str) -> None:
    raise LookupError(body)


def forgets_await(message: ReceivedMessage, ctx: Context) -> object:
    """Return a coroutine that nothing runs."""
    return act_async(message, ctx)


def die(message: ReceivedMessage) -> None:
    """Take the whole process along at the first attempt."""
    if message.receive_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def spin(body: str, ctx: Context) -> None:
    """Compute for ever, without a look at anything."""
    while True:
        pass


def stop_when_told(body: str, ctx: Context) -> None:
    while True:
        ctx.check()


def fenced(body: str, ctx: Context) -> None:
    """Do something that must not happen twice."""
    with ctx.fence():
        ctx.progress(0.5)


def takes_number(number: int) -> None:
    """Take what some bodies are not."""


def takes_whole(message: ReceivedMessage, ctx: Context) -> None:
    """Take the message as it is, and look whether to go on."""
    ctx.check()
    assert (ctx.message_id, ctx.attempt) == (message.id, 1)


class _Outer:
    class Reject(Exception):
        """The program's own, which is no verb."""

    class RetryLater(Exception):
        """The program's own, too."""


def raises_its_own(body: str) -> None:
    raise getattr(_Outer, body)(body)
