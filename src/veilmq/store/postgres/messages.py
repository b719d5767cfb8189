"""Sends, deletes and visibility changes; all commands of a batch share one statement."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from veilmq.core.commands import Delete, LeaseChange, Send, SentMessage
from veilmq.core.errors import InternalError, LeaseTooLong, ReceiptInvalid, ReceiptState, VeilmqError
from veilmq.core.limits import DEDUPLICATION_S, PRIORITY, SECOND_MS
from veilmq.core.messages import NewMessage, dedup_id_of, deduplication_key
from veilmq.core.receipts import Receipt, receipt_acts, receipt_state
from veilmq.store.postgres import queues
from veilmq.store.postgres.database import COLLISIONS, COLLISIONS_MAX
from veilmq.store.postgres.node import COUNTER_BITS, GROUPED, Node, keys_of
from veilmq.store.postgres.queues import FAIR, FIFO, SQL, STANDARD, PartitionRetired, Queue, retention_ms
from veilmq.store.transaction import checked

_COUNTERS = 1 << COUNTER_BITS
NO_DELAY_MS = -1
"""No delay, whatever the delay of the FIFO queue."""


async def insert(
    node: Node, connection: Any, queue: Queue, new: list[NewMessage], keys: list[bytes | None], ids: list[bytes]
) -> list[Any]:
    """Store messages; return the row of each, which is that of the first for a duplicate in a FIFO queue.

    Raises ``PartitionRetired``, and ``COLLISIONS`` if another node used the same counter in the same millisecond, or
    sent the same ids in another order.
    """
    if queue.settings.fifo:
        rows: list[Any] = await connection.fetch(
            FIFO["send"],
            queue.partition,
            queue.origin,
            node.positions.take(len(new)),
            DEDUPLICATION_S * SECOND_MS,
            [each.group for each in new],
            keys,
            ids,
            [each.properties or None for each in new],
            [each.body for each in new],
            [None if each.delay_s is None else each.delay_s * SECOND_MS or NO_DELAY_MS for each in new],
        )
        if not rows:
            raise PartitionRetired(queue.name)
        node.stored(queue, sum(row["id"] == own for row, own in zip(rows, ids, strict=True)))
        return rows
    groups = keys_of(new)
    priorities = [
        each.priority if group is None else GROUPED + each.priority for each, group in zip(new, groups, strict=True)
    ]
    added = sorted(set(priorities) - {PRIORITY.default})
    if added:
        await connection.execute(STANDARD["add_priorities"], queue.partition, added)
    is_fair = any(group is not None for group in groups)
    first = node.positions.take(len(new))
    rows = await connection.fetch(
        (FAIR if is_fair else STANDARD)["send"],
        queue.partition,
        [number % _COUNTERS for number in range(first, first + len(new))],
        priorities,
        [(queue.settings.delay_s if each.delay_s is None else each.delay_s) * SECOND_MS for each in new],
        ids,
        [each.properties or None for each in new],
        [each.body for each in new],
        *([groups] if is_fair else []),
    )
    if not rows:
        raise PartitionRetired(queue.name)
    node.stored(queue, len(rows))
    by_id = {row["id"]: row for row in rows}
    stored = [by_id[each] for each in ids]
    if is_fair:
        node.fair[queue.partition].stored(groups, stored)
    return stored


def key_of(group: str, dedup_id: str, queue: Queue) -> bytes:
    """Return the key of a deduplication id in the deduplication log."""
    return deduplication_key(queue.number, group, dedup_id, queue.settings)


async def send(node: Node, connection: Any, queue: Queue, commands: Sequence[Send]) -> list[Any]:
    """Store the valid messages of all commands; return a list of results, or an error, for each command."""
    settings, results = queue.settings, list[Any]()
    places, new, keys = list[tuple[list[Any], int, Send]](), list[NewMessage](), list[bytes | None]()
    for command in commands:
        try:
            command_results: list[Any] = checked(command.messages, command.options, settings)
        except VeilmqError as error:  # they are not valid together
            results.append(error)
            continue
        results.append(command_results)
        for index, each in enumerate(command_results):
            if not isinstance(each, NewMessage):
                continue
            places.append((command_results, index, command))
            new.append(each)
            if settings.fifo:
                dedup_id = dedup_id_of(each, settings)
                keys.append(None if dedup_id is None else key_of(each.group or "", dedup_id, queue))
                replies_receipt = command.options is not None and command.options.receipts  # which contains the delay
                if replies_receipt and settings.delay_s and each.delay_s is None:
                    new[-1] = replace(each, delay_s=settings.delay_s)
    if not new:
        return results
    ids = [node.ids.next() for _ in new]
    rows = await node.retry_collisions(partial(insert, node, connection, queue, new, keys, ids))
    if settings.fifo:
        await node.watches.wake_groups(connection, queue)
    else:
        node.watches.wake(queue.name, min(row["visible_at"] for row in rows))
    for (command_results, index, command), row in zip(places, rows, strict=True):
        command_results[index] = _sent(node, queue, command, row)
    return results


def _sent(node: Node, queue: Queue, command: Send, row: Any) -> SentMessage:
    sequence, receipt = row["seq"] if queue.settings.fifo else None, None
    if command.options is not None and command.options.receipts and row["visible_at"] != row["sent_at"]:
        receipt = node.codec.issue(queue.number, row["seq"], 0, 0, row["visible_at"])
    return SentMessage(id=row["id"], sequence=sequence, receipt=receipt)


class _ReceiptRequest(NamedTuple):
    """A receipt of a command; its result is stored at ``result_index`` of ``results``."""

    results: list[Any]
    result_index: int
    receipt: Receipt
    command: Any
    timeout_s: int


async def _settle(name: str, node: Node, connection: Any, queue: Queue, commands: Sequence[Any]) -> list[Any]:
    results: list[list[Any]] = []
    requests = list(_read(node, queue, commands, results))
    shares = node.fair_of(queue)
    if shares is not None:
        await shares.refresh(connection, queue)
    left = requests
    while left:  # a statement has each message once, in the order of positions
        first = {each.receipt.position: each for each in reversed(left)}
        chunk = sorted(first.values(), key=lambda each: each.receipt.position)
        left = [each for each in left if first[each.receipt.position] is not each]
        found = await _rows(name, connection, queue, chunk)
        outcomes: list[Any] = [(each, row := found.get(each.receipt.position), _state(row)) for each in chunk]
        # Messages in flight whose receipt acts.
        acting = (ReceiptState.LIVE, ReceiptState.EARLIER)
        freed = [row for _, row, state in outcomes if state in acting and row["visible_at"] > row["now"]]
        if name == "delete":
            for each, _, state in outcomes:
                each.results[each.result_index] = state
            if freed and shares is not None:
                shares.ended([row["seq"] for row in freed], freed[0]["now"])
            useless = [(each.receipt, state) for each, _, state in outcomes if not _acts(state, each, queue)]
            deleted = len(outcomes) - len(useless)
            node.totals[queue.number]["deleted"] += deleted
            if not deleted:  # gone, perhaps by a commit that is only here: a failover would undo it
                await connection.execute(SQL["await_standbys"])
            if queue.logs:
                ended = [receipt for receipt, state in useless if state in (ReceiptState.EXPIRED, ReceiptState.GONE)]
                by_state = (ReceiptState.SUPERSEDED, ReceiptState.EARLIER)
                superseded = [each.receipt for each, _, state in outcomes if state in by_state]
                await queues.write_late_deletes(connection, queue, ended, superseded=superseded)
        else:
            freed = [row for row in freed if row["until"] <= row["now"]]
            for each, row, state in outcomes:
                each.results[each.result_index] = _changed(node, queue, each, state, row)
        if freed:
            node.in_flight.freed(queue, len(freed), freed[0]["now"])
    if requests and queue.settings.fifo:
        await node.watches.wake_groups(connection, queue)
    return results


delete = partial(_settle, "delete")
change = partial(_settle, "change")


def _read(node: Node, queue: Queue, commands: Sequence[Any], results: list[list[Any]]) -> Iterator[_ReceiptRequest]:
    """Yield the genuine receipts; put errors for the others into ``results``."""
    for command in commands:
        if isinstance(command, Delete):
            named = [(text, 0) for text in command.receipts]
        else:
            named = [(each.receipt, each.timeout_s) for each in command.changes]
        command_results: list[Any] = [None] * len(named)
        results.append(command_results)
        for index, (text, timeout_s) in enumerate(named):
            try:
                receipt = node.codec.read(text)
                if receipt.queue != queue.number:
                    raise ReceiptInvalid
                yield _ReceiptRequest(command_results, index, receipt, command, timeout_s)
            except ReceiptInvalid as error:
                command_results[index] = error


async def _rows(name: str, connection: Any, queue: Queue, chunk: Sequence[_ReceiptRequest]) -> dict[int, Any]:
    """Run a statement, again after conflicts and for rows that changed meanwhile; return the rows by position."""
    statement = queues.sql(queue)[name]
    found: dict[int, Any] = {}
    for _ in range(2 * COLLISIONS_MAX):
        try:
            rows = await connection.fetch(statement, queue.partition, *_statement_args(name, queue, chunk))
        except COLLISIONS:
            continue
        found |= {row["seq"]: row for row in rows}
        missed = {row["seq"] for row in rows if row.get("is_missed")}
        if not missed:
            return found
        found = {seq: row for seq, row in found.items() if seq not in missed}
        chunk = [each for each in chunk if each.receipt.position in missed]
    raise InternalError


def _statement_args(name: str, queue: Queue, chunk: Sequence[_ReceiptRequest]) -> Iterator[Any]:
    """Yield the arguments of the statement that follow the partition, in order."""
    yield [each.receipt.position for each in chunk]
    yield [each.receipt.generation for each in chunk]
    yield [each.receipt.epoch for each in chunk]
    yield [each.command.any_epoch for each in chunk]
    yield retention_ms(queue)
    if not queue.settings.fifo:  # in a FIFO queue, only live receipts act
        yield [each.command.only_live for each in chunk]
        yield [each.command.any_receive for each in chunk]
    if name == "change":
        yield [each.timeout_s * SECOND_MS for each in chunk]
        yield [None if each.command.lease_s_max is None else each.command.lease_s_max * SECOND_MS for each in chunk]
        yield [each.command.renew_receipt for each in chunk]
    yield from queues.event_log_args(queue)


def _changed(
    node: Node, queue: Queue, request: _ReceiptRequest, state: ReceiptState, row: Any
) -> LeaseChange | VeilmqError:
    if not _acts(state, request, queue):
        return LeaseChange(state=state)
    if not row["is_short"]:
        return LeaseTooLong(request.command.lease_s_max)
    until_ms: int = row["until"]
    if not queue.settings.fifo:
        if row["group_key"] is not None or node.fair_of(queue) is not None:
            node.fair[queue.partition].moved(queue, row)
        node.watches.wake(queue.name, until_ms)
    renewed, at = None, request.receipt
    if request.command.renew_receipt:
        renewed = node.codec.issue(queue.number, at.position, at.generation, row["epoch"], until_ms)
    hidden_for_ms = request.timeout_s * SECOND_MS
    return LeaseChange(state=state, visible_at_ms=until_ms, hidden_for_ms=hidden_for_ms, receipt=renewed)


def _state(row: Any) -> ReceiptState:
    if row is None:
        return ReceiptState.GONE
    if not row["is_current"] and row.get("is_earlier"):
        return ReceiptState.EARLIER
    return receipt_state(current=row["is_current"], visible_at_ms=row["visible_at"], now_ms=row["now"])


def _acts(state: ReceiptState, request: _ReceiptRequest, queue: Queue) -> bool:
    return receipt_acts(state, only_live=request.command.only_live or queue.settings.fifo)
