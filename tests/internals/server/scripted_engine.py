"""An engine that answers when and what the test says, for orders of events that a real one makes only by chance.

Then: tests that are coroutines.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from inspect import Signature, signature
from typing import Any

from veilmq.core.commands import Command, Done, Wake


class ScriptedEngine:
    """`asked` are the commands that have no answer yet, in the order in which they came."""

    token_key = b""

    def __init__(self) -> None:
        self.asked: list[tuple[Command, Done]] = []
        self.watches: dict[str, Wake] = {}

    def submit(self, command: Command, done: Done) -> None:
        self.asked.append((command, done))

    def withdraw(self, done: Done) -> None:
        self.asked = [entry for entry in self.asked if entry[1] != done]

    def watch(self, queue: str, wake: Wake) -> None:
        assert queue not in self.watches
        self.watches[queue] = wake

    def unwatch(self, queue: str) -> None:
        del self.watches[queue]

    def answer(self, result: Any) -> Command:
        command, done = self.asked.pop(0)
        done(result)
        return command


def played(
    stage: Callable[..., AbstractAsyncContextManager[Any]],
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Return what makes a test of a coroutine function: it runs in an event loop, on what ``stage`` gives."""

    def decorate(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            async def play() -> None:
                async with stage() as given:
                    await story(given, **fixtures)

            asyncio.run(play())

        test.__dict__.update(vars(story), __signature__=Signature([*signature(story).parameters.values()][1:]))
        test.__dict__["place_as"] = story  # where pytest says that it stands
        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return decorate
