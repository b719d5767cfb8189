"""Dead letters: what a receive does with messages that were received as often as their queue allows.

They are not given out. In the transaction of the receive they leave for the dead-letter queue, with the same id, body
and properties and a position of their own there; so each is in exactly one of the two, whenever a node or the database
ends. Where the dead-letter queue cannot take them, they are delivered once more.
"""

from typing import Any

from veilmq.core import redrive
from veilmq.core.errors import StoreUnavailable
from veilmq.core.limits import DEAD_LETTER_BYTES_PER_RECEIVE, DEAD_LETTERS_PER_RECEIVE
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.on_queue import STANDARD
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.watches import Watches


class Redrive:
    """What the receives of one queue do with dead letters."""

    def __init__(self, *, source: Queue, target: Queue, watches: Watches, positions: Positions) -> None:
        """``target`` is the dead-letter queue of ``source``; ``watches`` hears when something has come there."""
        self._positions = positions
        self._source = source
        self._target = target
        self._watches = watches
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether no more may be moved in this receive."""
        return self._left <= 0 or self._bytes_left <= 0

    async def living(self, connection: Any, rows: list[Any]) -> list[Any]:
        """Return those of ``rows``, just received, that are given out; move the others."""
        receives_max = self._source.settings.receives_max
        dead = [row for row in rows if row["receive_count"] > receives_max]
        if not dead:
            return rows
        moved = await connection.fetch(
            STANDARD["move_dead"],
            self._source.partition,
            self._target.partition,
            [row["seq"] for row in dead],
            self._positions.take(len(dead) + 1),
            self._source.name,
        )
        if not moved:
            return rows
        await connection.execute(
            STANDARD["add_priorities"], self._target.partition, sorted({row["priority"] for row in moved})
        )
        self._left -= len(dead)
        self._bytes_left -= sum(len(row["body"]) + len(row["properties"] or b"") for row in dead)
        self._watches.wake(self._target.name, dead[0]["now"])
        return [row for row in rows if row["receive_count"] <= receives_max]


async def redrive_of(
    connection: Any, catalog: Catalog, queue: Queue, watches: Watches, positions: Positions
) -> Redrive | None:
    """Return what receives of ``queue`` do with dead letters; ``None`` when they stay where they are."""
    target = await target_of(connection, catalog, queue)
    return None if target is None else Redrive(source=queue, target=target, watches=watches, positions=positions)


async def target_of(connection: Any, catalog: Catalog, queue: Queue) -> Queue | None:
    """Return the queue that takes the dead letters of ``queue`` as things are now, if one does."""
    settings = queue.settings
    if not settings.receives_max:
        return None
    try:
        target = await catalog.target(connection, settings.dead_letter_queue, (queue.number, queue.name))
    except StoreUnavailable:  # of the other database: this one has time
        return None
    if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    return target
