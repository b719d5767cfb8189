"""An engine with its own event loop and a virtual clock, driven by synchronous tests."""

import asyncio
import contextlib
import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.commands import Command, SendOptions, VisibilityChange
from veilmq.core.errors import StoreFull
from veilmq.core.limits import LEASE_S_MAX, SECOND_MS
from veilmq.core.messages import Attribute, NewMessage, Properties, encode_properties
from veilmq.core.receipts import CountEvents, EventCounts, EventPage, PlanExport, ReadEvents, ReceiptClosed
from veilmq.core.settings import SettingValue
from veilmq.store.cold import Sweep
from veilmq.store.port import SurveyQueues, execute
from veilmq.store.sqlite import SqliteStore
from veilmq.store.sqlite.copying import examine
from veilmq.store.sqlite.database import EngineOptions
from veilmq.testing import VirtualClock

T = TypeVar("T")

QUEUE = "000000000000/jobs"
RESTLESS = EngineOptions(purge_pause_s=0, queue_name_pause_s=0)  # no pause after a purge or a deletion


class Host:
    """Run commands on an engine, singly or as a batch, and reopen it."""

    slices = 400  # more than background work takes in any test

    def __init__(
        self, folder: Path | None, *, options: EngineOptions | None = None, clock: VirtualClock | None = None
    ) -> None:
        self.clock = clock or VirtualClock()
        self.folder = folder
        self.failures: list[BaseException] = []
        self._options = options or RESTLESS
        self._copies = 0
        self._runner = asyncio.Runner()
        self.engine = self._runner.run(self._open())

    async def _open(self) -> SqliteStore:
        return SqliteStore(self.folder, clock=self.clock, options=self._options, on_fatal=self.failures.append)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def do(self, command: Command) -> Any:
        return self.run(execute(self.engine, command))

    def do_together(self, *together: Command, on_result: Callable[[Any], object] | None = None) -> list[Any]:
        """Submit commands as one batch; return their results or errors. `on_result` gets each as it is made."""

        async def submit() -> list[Any]:
            waiting = [self._submit(command, on_result) for command in together]
            return await asyncio.gather(*waiting)

        return self.run(submit())

    def _submit(self, command: Command, on_result: Callable[[Any], object] | None) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if on_result is not None:
                on_result(answer)
            future.set_result(answer)

        self.engine.submit(command, done)
        return future

    def advance(self, time_ms: int) -> None:
        """Advance the clock; return when the commands that became due are complete."""

        self.in_loop(lambda: self.clock.advance(time_ms))

    def in_loop(self, call: Callable[[], object]) -> None:
        """Run `call` in the event loop; return when the commands that it submits are complete."""

        async def make() -> None:
            call()
            await execute(self.engine, commands.ListQueues(account="none"))

        self.run(make())

    def reopen(self) -> None:
        self._runner.run(self.engine.close())
        self.engine = self._runner.run(self._open())

    def close_with(self, before: Command, after: Command) -> list[Any]:
        async def close() -> list[Any]:
            first = self._submit(before, None)
            closing = asyncio.ensure_future(self.engine.close())
            await asyncio.sleep(0)
            second = self._submit(after, None)
            await closing
            return [await first, await second]

        answers = self._runner.run(close())
        self.engine = self._runner.run(self._open())
        return answers

    def crash(self) -> None:
        """Go on with a copy of the folder made while it was in use; close the original."""
        assert self.folder is not None
        self._copies += 1
        copy = self.folder.with_name(f"copy-{self._copies}")
        shutil.copytree(self.folder, copy)
        self._runner.run(self.engine.close())
        shutil.rmtree(self.folder)
        self.folder = copy
        self.engine = self._runner.run(self._open())

    def forget(self) -> None:
        """Drop all cached state of the store."""
        self.engine._session.clear_caches()

    def stop(self, step: type[Command] = Sweep) -> None:
        """Stop a kind of background work, by default the janitor."""
        self.engine._session.schedulers[step].stop()

    def sweep(self) -> None:
        while self.do(Sweep()) < SECOND_MS:
            pass

    def check(self) -> None:
        assert self.folder is not None
        assert [finding for finding in examine(self.folder).findings if not finding.ok] == []

    def rows(self, table: str) -> int:
        return int(self.engine._session.connection.execute(f"SELECT count(*) FROM {table}").get)

    def steps(self, work: Callable[[], object], every: int = 1) -> int:
        made = 0

        def count() -> bool:
            nonlocal made
            made += 1
            return False

        connection = self.engine._session.connection
        connection.set_progress_handler(count, every)
        work()
        connection.set_progress_handler(None)
        return made

    def written(self) -> int:
        return int(self.engine._session.connection.total_changes())

    def close(self) -> None:
        self._runner.run(self.engine.close())
        self._runner.close()

    def create(self, queue: str = QUEUE, **settings: SettingValue) -> commands.QueueView:
        view: commands.QueueView = self.do(commands.CreateQueue(queue=queue, settings=settings))
        return replace(view, is_new=False)

    def put(self, *new: NewMessage, queue: str = QUEUE, options: SendOptions | None = None) -> list[Any]:
        answers: list[Any] = self.do(commands.Send(queue=queue, messages=new, options=options))
        return answers

    def set_queue(self, queue: str = QUEUE, **settings: SettingValue) -> None:
        self.do(commands.SetQueue(queue=queue, settings=settings))

    def names(self) -> list[str]:
        return list(self.do(SurveyQueues(names_max=1_000)).names)

    def purge(self, queue: str = QUEUE) -> Any:
        return self.do(commands.PurgeQueue(queue=queue))

    def drop(self, queue: str = QUEUE) -> None:
        self.do(commands.DeleteQueue(queue=queue))

    def send(self, *bodies: str, queue: str = QUEUE, delay_s: int | None = None, priority: int = 8) -> None:
        messages = tuple(message(body, delay_s=delay_s, priority=priority) for body in bodies)
        assert all(
            isinstance(sent, commands.SentMessage) for sent in self.do(commands.Send(queue=queue, messages=messages))
        )

    def send_to_groups(self, *bodies: str, queue: str = QUEUE, **fields: Any) -> list[commands.SentMessage]:
        """Send each body to the group of its first letter; its deduplication id is the body unless given."""
        sent = self.put(*(message(body, group=body[0], **{"dedup_id": body, **fields}) for body in bodies), queue=queue)
        assert all(isinstance(each, commands.SentMessage) for each in sent)
        return sent

    def receive(
        self, count: int = 1, *, queue: str = QUEUE, timeout_s: int | None = None
    ) -> list[commands.ReceivedMessage]:
        received: commands.Received = self.do(commands.Receive(queue=queue, count=count, timeout_s=timeout_s))
        return received.messages

    def bodies(self, count: int = 1, *, queue: str = QUEUE, timeout_s: int | None = None) -> list[str]:
        return [each.body for each in self.receive(count, queue=queue, timeout_s=timeout_s)]

    def watch(self, queue: str = QUEUE) -> list[int]:
        """Return a list that collects each wake-up of ``queue``."""
        wake_ups: list[int] = []
        self.engine.watch(queue, wake_ups.append)
        return wake_ups

    def receive_one(self, *, queue: str = QUEUE, timeout_s: int | None = None) -> commands.ReceivedMessage:
        (only,) = self.receive(10, queue=queue, timeout_s=timeout_s)
        return only

    def due_ms(self, *, queue: str = QUEUE) -> int | None:
        received: commands.Received = self.do(commands.Receive(queue=queue, count=0))
        return received.next_due_ms

    def delete(self, *receipts: str, queue: str = QUEUE, **how: bool) -> list[Any]:
        results: list[Any] = self.do(commands.Delete(queue=queue, receipts=receipts, **how))
        return results

    def change(self, receipt: str, timeout_s: int, *, queue: str = QUEUE, bounded: bool = True, **how: bool) -> Any:
        """Return the result of one change; `bounded` applies the 12-hour maximum."""
        changes = (VisibilityChange(receipt=receipt, timeout_s=timeout_s),)
        longest_s = LEASE_S_MAX if bounded else None
        (result,) = self.do(commands.ChangeVisibility(queue=queue, changes=changes, lease_s_max=longest_s, **how))
        return result

    def counts(self, queue: str = QUEUE) -> tuple[int, int, int]:
        counts = self.do(commands.ShowQueue(queue=queue, counts=True)).counts
        return counts.visible, counts.in_flight, counts.delayed


def message(
    body: str,
    *,
    delay_s: int | None = None,
    priority: int = 8,
    group: str | None = None,
    dedup_id: str | None = None,
    kind: str | None = None,
) -> NewMessage:
    attributes = {} if kind is None else {"Type": Attribute("String", kind)}
    properties = Properties(attributes=attributes, group=group, dedup_id=dedup_id)
    return NewMessage(
        body=body,
        properties=encode_properties(properties),
        size_bytes=len(body.encode()),
        delay_s=delay_s,
        priority=priority,
        group=group,
        dedup_id=dedup_id,
    )


def fill(host: Host, body: str = "x" * 50_000) -> list[str]:
    """Send until the store is full; return the acknowledged bodies."""
    sent: list[str] = []
    while len(sent) < 10_000:
        try:
            host.put(message(f"{len(sent)}-{body}"))
        except StoreFull as error:
            assert "free space or drain" in str(error)  # noqa: PT017 - the loop ends with it
            return sent
        sent.append(f"{len(sent)}-{body}")
    raise AssertionError("the store took everything")


HOT = (commands.Send, commands.Receive, commands.Delete, commands.ChangeVisibility)
# The claimed messages of a store on SQLite.
CLAIMED_SEQS = "SELECT c.claim_id, m.seq FROM claimed c JOIN message m ON m.seq BETWEEN c.first_seq AND c.last_seq"


def hosting(
    folder: Path | None, *, options: EngineOptions | None = None, kind: type[Host] = Host
) -> contextlib.closing[Host]:
    return contextlib.closing(kind(folder, options=options))


LOGGED = dataclasses.replace(RESTLESS, event_log="closed")
decode_events = msgspec.msgpack.Decoder(list[ReceiptClosed]).decode  # the events of one batch


def events_of(host: Host) -> list[ReceiptClosed]:
    """Return all stored events in order; the planned range stays planned."""
    return [event for _, event in numbered(host)]


def numbered(host: Host) -> list[tuple[int, ReceiptClosed]]:
    """Return the same with their numbers; assert that there is no gap."""
    counts: EventCounts = host.do(CountEvents())
    page: EventPage = host.do(ReadEvents(first=counts.exported + 1, last=counts.recorded, bytes_max=1 << 30))
    found = [(n, event) for first, batch in page.batches for n, event in enumerate(decode_events(batch), first)]
    assert [n for n, _ in found] == list(range(counts.exported + 1, counts.recorded + 1))
    return found


def outcomes(host: Host) -> list[tuple[str, int]]:
    return [(event.outcome.value, event.held_ms) for event in events_of(host)]


def check_conservation(events: list[ReceiptClosed]) -> Counter[tuple[str, bytes, int]]:
    """Assert that each receipt has one end, then at most one correction and one move; return the ended receipts."""
    of_receipt: dict[tuple[str, bytes, int], list[str]] = {}
    for event in events:
        of_receipt.setdefault((event.queue, event.message_id, event.receipt), []).append(event.outcome.value)
        assert event.held_ms == event.closed_at_ms - event.received_at_ms >= 0
    allowed = {"deleted", "deleted_by_earlier", "expired", "nacked", "nacked dead_lettered"}
    allowed |= {"expired late_deleted", "expired dead_lettered", "expired dead_lettered late_deleted"}
    allowed.add("expired late_deleted dead_lettered")  # of a FIFO queue, which refuses the late delete
    wrong = {receipt: ends for receipt, ends in of_receipt.items() if " ".join(ends) not in allowed}
    assert not wrong, wrong
    return Counter(of_receipt)


def with_type(kind: str) -> bytes:
    return encode_properties(Properties(attributes={"Type": Attribute(type="String", text=kind)}))


def plan(host: Host, events_max: int = 1_000) -> tuple[int, int]:
    planned = host.do(PlanExport(events_max=events_max))
    return planned.first, planned.last
