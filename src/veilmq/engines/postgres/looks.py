"""Looks at a queue: its messages as they are, and those that a receive of this instant would give; nothing changes."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Any

from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE, PRIORITY
from veilmq.core.looks import (
    LOOKED_AT_MAX,
    LookAtLeases,
    LookAtQueue,
    MessageState,
    Peek,
    Peeked,
    PeekedMessage,
    SeenLease,
    SeenMessage,
)
from veilmq.core.properties import decode
from veilmq.core.receipts import ReceiptBook
from veilmq.engines import held
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.fair_queues import FAIR, LANE, FairQueues
from veilmq.engines.postgres.fifo_taking import properties_of
from veilmq.engines.postgres.on_queue import retention_ms, sql
from veilmq.engines.postgres.positions import COUNTER_BITS
from veilmq.engines.postgres.redrive import target_of

_LOOKS = {
    None: "look",
    MessageState.VISIBLE: "look_visible",
    MessageState.IN_FLIGHT: "look_in_flight",
    MessageState.DELAYED: "look_delayed",
}


class Looks:
    """The commands of ``core.looks``."""

    def __init__(self, *, database: Database, catalog: Catalog, fair: FairQueues, book: ReceiptBook) -> None:
        """``catalog`` is the node's; ``fair`` knows who has to wait; ``book`` has the keys of receipts."""
        self._book = book
        self._fair = fair
        self._database = database
        self._catalog = catalog

    async def look(self, command: LookAtQueue) -> list[SeenMessage]:
        """Show what there is, in the order of sending, or what is in one state."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            terms: tuple[Any, ...] = (queue.partition, command.count, retention_ms(queue))
            if command.state is not None:
                terms = (*terms, LOOKED_AT_MAX + command.count)
            statement = sql(queue)[_LOOKS[command.state]]
            rows = await _fetch(connection, statement, terms, bytes_max=command.bytes_max, only=command.id)
        if command.state is not None:
            rows = sorted(rows, key=_until)
        return [self._seen(queue, row, with_receipt=command.receipts) for row in rows]

    async def leases(self, command: LookAtLeases) -> list[SeenLease]:
        """Show the leases that end first."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            terms = (queue.partition, command.count, retention_ms(queue), LOOKED_AT_MAX + command.count)
            rows = await connection.fetch(sql(queue)["leases"], *terms)
            asked = sorted({*command.also} - {row["seq"] for row in rows})
            also = (
                await connection.fetch(sql(queue)["leases_at"], queue.partition, asked, retention_ms(queue))
                if asked
                else []
            )
        return [_lease(row) for row in (*sorted(rows, key=itemgetter("visible_at")), *also)]

    def _seen(self, queue: Queue, row: Any, *, with_receipt: bool) -> SeenMessage:
        state = _state(row)
        is_claimed = row["claim"] is not None
        was_received = row["receive_count"] > 0 and not is_claimed
        receipt = None
        if with_receipt and was_received and state is MessageState.IN_FLIGHT:
            fence = (row["generation"], row["epoch"], row["visible_at"])
            receipt = self._book.issue(queue.number, row["seq"], *fence)
        return SeenMessage(
            id=row["id"],
            body=row["body"],
            properties=properties_of(queue, row),
            sent_at_ms=row["sent_at"],
            receive_count=row["receive_count"] + row["receives_before"],
            state=state,
            visible_at_ms=_hidden_until_ms(row),
            received_at_ms=_received_at_ms(row) if was_received else None,
            first_received_at_ms=None if is_claimed else row["first_received_at"],
            group=_group(row),
            priority=PRIORITY.default if queue.settings.fifo else row["priority"] % LANE,
            receipt=receipt,
        )

    async def peek(self, command: Peek) -> Peeked:
        """Show the first visible messages; the quota of messages in flight does not count."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            dies = await target_of(connection, self._catalog, queue) is not None
            count = command.count + DEAD_LETTERS_PER_RECEIVE if dies else command.count
            rows = await self._first(connection, queue, count, command.bytes_max)
        shown = islice(_living(rows, queue.settings.receives_max if dies else 0), command.count)
        return Peeked(messages=[_shown(queue, row) for row in shown], smq_base64=queue.settings.smq_base64)

    async def _first(self, connection: Any, queue: Queue, count: int, bytes_max: int | None) -> list[Any]:
        terms: tuple[Any, ...] = (queue.partition, count, retention_ms(queue))
        statement = sql(queue)["peek"]
        if not queue.settings.fifo and self._fair.has(queue):
            statement, terms = FAIR["peek"], (*terms, await self._fair.noisy(connection, queue, judge=False))
        return await _fetch(connection, statement, terms, bytes_max=bytes_max)


async def _fetch(
    connection: Any, statement: str, terms: tuple[Any, ...], *, bytes_max: int | None, only: bytes | None = None
) -> list[Any]:
    """Return the rows of a statement, as far as their bodies are within ``bytes_max``; of the id ``only``, that one."""
    if bytes_max is not None or only is not None:
        statement, terms = _bounded(statement, len(terms) + 1), (*terms, only, bytes_max)
    rows: list[Any] = await connection.fetch(statement, *terms)
    return rows


@cache
def _bounded(statement: str, place: int) -> str:
    """Return the statement with these bounds as further terms. (No body is read to know how long it is.)"""
    return f"""
        SELECT sized.* FROM (
            SELECT found.*,
                sum(octet_length(found.body)) OVER (ROWS UNBOUNDED PRECEDING) - octet_length(found.body) AS before
            FROM ({statement}
            ) AS found
            WHERE ${place}::bytea IS NULL OR found.id = ${place}
        ) AS sized
        WHERE sized.before < ${place + 1}::bigint OR ${place + 1} IS NULL
    """


def _living(rows: Iterable[Any], receives_max: int) -> Iterator[Any]:
    """Yield what a receive would give, up to where it has moved as many dead letters as one may."""
    dead = 0
    for row in rows:
        if not receives_max or row["receive_count"] < receives_max:
            yield row
        elif (dead := dead + 1) >= DEAD_LETTERS_PER_RECEIVE:
            return


def _shown(queue: Queue, row: Any) -> PeekedMessage:
    return PeekedMessage(
        id=row["id"],
        body=row["body"],
        properties=properties_of(queue, row),
        sent_at_ms=row["sent_at"],
        first_received_at_ms=row["first_received_at"],
        receive_count=row["receive_count"] + row["receives_before"],
        priority=PRIORITY.default if queue.settings.fifo else row["priority"] % LANE,
        source=row["source"],
    )


def _state(row: Any) -> MessageState:
    if _due_ms(row) <= row["now"]:
        return MessageState.VISIBLE
    return MessageState.IN_FLIGHT if row["receive_count"] else MessageState.DELAYED


def _until(row: Any) -> tuple[int, int]:
    """Return what says which of one state comes first."""
    return _due_ms(row), row["seq"]


def _due_ms(row: Any) -> int:
    """Return when a message is or was visible, which of a FIFO queue the statement tells."""
    return int(row.get("due") or row["visible_at"])


def _hidden_until_ms(row: Any) -> int | None:
    """Return when the last hiding ends or ended, if there was one; a position tells when the message came."""
    came_at_ms = max(row["sent_at"], row["seq"] >> COUNTER_BITS)
    is_or_was = row["claim"] is None and (row["receive_count"] or _due_ms(row) > came_at_ms)
    return _due_ms(row) if is_or_was else None


def _received_at_ms(row: Any) -> int:
    """Return when the message was given: a wait before that is known for the first receive, and with an event log."""
    *_, waited_ms = held.read(row["log"] or 0)
    return int(max(row["received_at"] + waited_ms, row["first_received_at"]))


def _group(row: Any) -> str | None:
    """Return the message group that a message names."""
    if "group_id" in row.keys():  # noqa: SIM118 - a row is no mapping
        return str(row["group_id"])
    return decode(row["properties"] or b"").group


def _lease(row: Any) -> SeenLease:
    return SeenLease(
        message_id=row["id"],
        position=row["seq"],
        generation=row["generation"],
        received_at_ms=_received_at_ms(row),
        visible_at_ms=row["visible_at"],
        receive_count=row["receive_count"],
        extensions=held.read(row["log"])[0] if row["log"] else None,
        group=_group(row),
    )
