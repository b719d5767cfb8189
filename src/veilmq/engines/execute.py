"""Awaiting an engine: the convenient form of ``Engine.submit`` for callers that are not on the hot path."""

import asyncio
from typing import Any

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.ports import Engine


async def execute(engine: Engine, command: Command) -> Any:
    """Submit ``command`` and wait for its result; raises its ``VeilmqError``."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: object) -> None:
        if future.cancelled():
            return
        if isinstance(result, VeilmqError):
            future.set_exception(result)
        else:
            future.set_result(result)

    engine.submit(command, done)
    try:
        return await future
    finally:
        if future.cancelled():
            engine.withdraw(done)
