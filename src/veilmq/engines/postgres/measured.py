"""How long commands of each kind take at the database, and how many of them travelled together."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from veilmq.engines.clock import stopwatch_s
from veilmq.engines.figures import Figure, Series


class Measured:
    """The measures of one node."""

    def __init__(self) -> None:
        """Begin with none."""
        self._durations: dict[str, Series] = {}
        self._commands: Counter[str] = Counter()

    def together(
        self, kind: type, work: Callable[[Sequence[Any]], Awaitable[list[Any]]]
    ) -> Callable[[Sequence[Any]], Awaitable[list[Any]]]:
        """Return ``work``, measured, which carries out commands of ``kind`` together."""

        async def measured(commands: Sequence[Any]) -> list[Any]:
            with self.taking(kind, len(commands)):
                return await work(commands)

        return measured

    @contextmanager
    def taking(self, kind: type, commands: int = 1) -> Iterator[None]:
        """Count what happens meanwhile as one turn of ``commands`` of ``kind``."""
        begun_s = stopwatch_s()
        try:
            yield
        finally:
            name = kind.__name__
            series = self._durations.get(name)
            if series is None:
                series = self._durations[name] = Series()
            series.add(stopwatch_s() - begun_s)
            self._commands[name] += commands

    def figures(self) -> list[Figure]:
        """Return what was measured so far."""
        return [
            Figure(
                "store_turn_duration_seconds",
                "How long commands that went together took at the database, and waited for a connection.",
                "durations",
                {name: series.copy() for name, series in sorted(self._durations.items())},
                label="command",
            ),
            Figure(
                "store_commands",
                "Commands that the database was asked to carry out.",
                "counter",
                dict(sorted(self._commands.items())),
                label="command",
            ),
        ]
