"""An engine with scripted results, for orders of events that are rare in a real one; a connection without a socket."""

from collections.abc import Callable
from typing import Any

from veilmq.core.commands import Command, Done, Wake
from veilmq.server.http_parser import Date


class ScriptedEngine:
    """`pending` has the commands without a result, in order."""

    token_key = b""

    def __init__(self) -> None:
        self.pending: list[tuple[Command, Done]] = []
        self.watches: dict[str, Wake] = {}

    def submit(self, command: Command, done: Done) -> None:
        self.pending.append((command, done))

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        withdrawn = [done for _, done in self.pending if matches(done)]
        self.pending = [entry for entry in self.pending if not matches(entry[1])]
        return withdrawn

    def watch(self, queue: str, wake: Wake) -> None:
        assert queue not in self.watches
        self.watches[queue] = wake

    def unwatch(self, queue: str) -> None:
        del self.watches[queue]

    def complete(self, result: Any) -> Command:
        command, done = self.pending.pop(0)
        done(result)
        return command


class NullDate:
    line = b""

    def renew(self) -> bytes:
        return b""


class NullConnection:
    """A connection that writes nothing; the reply stays in its request."""

    def __init__(self) -> None:
        self.date: Date = NullDate()
        self.authenticated = False

    def peer(self) -> str | None:
        return None

    def reply_ready(self) -> None:
        """Do nothing."""

    def run_next_in_turn(self) -> None:
        """Run nothing."""
