"""An engine that answers when and what the test says, for orders of events that a real one makes only by chance.

And a connection of no socket.
"""

from typing import Any

from veilmq.core.commands import Command, Done, Wake
from veilmq.server.http_parser import Date


class ScriptedEngine:
    """`pending` has the commands that have no answer yet, in the order in which they came."""

    token_key = b""

    def __init__(self) -> None:
        self.pending: list[tuple[Command, Done]] = []
        self.watches: dict[str, Wake] = {}

    def submit(self, command: Command, done: Done) -> None:
        self.pending.append((command, done))

    def withdraw(self, done: Done) -> None:
        self.pending = [entry for entry in self.pending if entry[1] != done]

    def watch(self, queue: str, wake: Wake) -> None:
        assert queue not in self.watches
        self.watches[queue] = wake

    def unwatch(self, queue: str) -> None:
        del self.watches[queue]

    def answer(self, result: Any) -> Command:
        command, done = self.pending.pop(0)
        done(result)
        return command


class NoDate:
    """No date line."""

    line = b""

    def renew(self) -> bytes:
        return b""


class NoLine:
    """A connection that keeps nothing; the reply stays in its request."""

    def __init__(self) -> None:
        self.date: Date = NoDate()
        self.authenticated = False

    def peer(self) -> str | None:
        return None

    def reply_ready(self) -> None:
        """Take note."""

    def start_first(self) -> None:
        """Let nobody begin."""
