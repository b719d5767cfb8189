"""The forwarder: receives messages from the intake queue, routes them, and moves each to its target queue.

Each worker is a thread that processes one receive of up to ten messages at a time. A message that cannot be forwarded
stays in the intake, and is received again when its timeout ends; the intake's dead-letter rule limits how often. On a
FIFO intake the server locks a group while one of its messages is in flight, so two workers never have the same group.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from veilmq.client.api import Forwards
from veilmq.client.messages import ClientError, NewMessage, ReceivedMessage, Unreachable, is_transient
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.consumer.clock import Threads
from veilmq.consumer.forwarding_rules import Router, RoutesError
from veilmq.consumer.metrics import Labels, Metric
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, Range
from veilmq.core.messages import attributes_bytes
from veilmq.core.settings import SettingValue
from veilmq.wire.sqs.names import is_fifo

BATCH_BYTES_MAX = 262_144
"""Total size of a batch that each server accepts; a larger message is sent alone."""
NO_REPLY = "no answer"
"""The reason if the outcome is unknown."""
NO_RULE = "default"
"""The label of messages that matched no rule."""
REPORT_S = Range(minimum=1, maximum=3_600, default=10)
TIMEOUT_S = Range(minimum=1, maximum=240, default=30)  # less than the five minutes of deduplication
WAIT_S = Range(minimum=1, maximum=20, default=5)
WORKERS = Range(minimum=1, maximum=10, default=4)

_LAST_WAIT_S = 1
_MISSING = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
_NO_FORWARD = frozenset({UNEXPECTED_REPLY, "UnknownRoute"})
_PAUSE_S_MAX = 5.0
_PAUSE_S_MIN = 0.1

log = logging.getLogger("veilmq.forwarding")


class RelayedMessage(NamedTuple):
    """A message in flight in the intake, its target queue, and the rule that matched."""

    message: ReceivedMessage
    target: str
    rule: str | None = None


RelayOutcome = ClientError | Unreachable | None
"""Why a message has stayed in the intake; ``None`` if it was forwarded."""

GROUP_HELD = ClientError("GroupHeld", "An earlier message of the group was not forwarded: that one goes first.", 409)
"""The outcome of a message that was not tried, to keep the order of its group."""

Relay = Callable[[Sequence[RelayedMessage]], list[RelayOutcome]]
"""Tries to move up to ten messages of one receive, and returns their outcomes; for several threads.

Raises ``Unreachable`` if no outcome is known. ``fifo``: the intake and all targets are FIFO queues.
"""
Moved = Iterator[tuple[RelayedMessage, RelayOutcome]]


def relay_in_transactions(forwards: Forwards, messages: Sequence[RelayedMessage], *, fifo: bool) -> list[RelayOutcome]:
    """Move each message in one transaction of veilmq's server, so that it is always in exactly one queue.

    All are in one request. If it is refused (a target is missing or forbidden), they are forwarded one by one.
    """
    try:
        results = forwards.forward([(each.message.receipt, each.target) for each in messages])
    except ClientError as error:
        if is_transient(error) or len(messages) == 1:
            return [error] * len(messages)

        def one_by_one(free: Sequence[RelayedMessage]) -> Moved:
            for each in free:
                yield each, relay_in_transactions(forwards, [each], fifo=fifo)[0]

        return _in_order(messages, one_by_one, fifo=fifo)
    return [result if isinstance(result, ClientError) else None for result in results]


def relay_by_sending(
    client: QueueClient, intake: str, messages: Sequence[RelayedMessage], *, fifo: bool
) -> list[RelayOutcome]:
    """Send to the target, then delete from the intake; works with any SQS server.

    A crash in between repeats the send. A FIFO target discards the repetition for five minutes, because the message's
    id is the deduplication id; a standard target stores it twice.
    """

    def send(free: Sequence[RelayedMessage]) -> Moved:
        by_target: dict[str, list[RelayedMessage]] = {}
        for each in free:
            by_target.setdefault(each.target, []).append(each)
        for target, group in by_target.items():
            for batch in _batches(group):
                yield from zip(batch, _send(client, intake, target, batch, fifo=fifo), strict=True)

    return _in_order(messages, send, fifo=fifo)


def _in_order(
    messages: Sequence[RelayedMessage], move: Callable[[Sequence[RelayedMessage]], Moved], *, fifo: bool
) -> list[RelayOutcome]:
    """Let ``move`` try the messages, and return their outcomes.

    On a FIFO queue the first message of each group is tried, then the second of each, and so on. After a failure,
    the rest of the group is not tried.
    """
    groups: dict[str | None, list[RelayedMessage]] = {}
    for each in messages:
        groups.setdefault(each.message.group if fifo else each.message.receipt, []).append(each)
    outcomes: dict[str, RelayOutcome] = dict.fromkeys((each.message.receipt for each in messages), GROUP_HELD)
    held: set[str | None] = set()
    for members in zip_longest(*groups.values()):  # once, if the queue is not FIFO
        free = [each for each in members if each is not None and each.message.group not in held]
        for each, outcome in move(free):
            outcomes[each.message.receipt] = outcome
            if outcome is not None:
                held.add(each.message.group)
    return [outcomes[each.message.receipt] for each in messages]


def _send(
    client: QueueClient, intake: str, target: str, batch: Sequence[RelayedMessage], *, fifo: bool
) -> Sequence[RelayOutcome]:
    new = [
        NewMessage(
            body=message.body,
            attributes=message.attributes,
            group=message.group,
            dedup_id=message.id if fifo else None,
        )
        for message, _, _ in batch
    ]
    try:
        sent = client.send_batch(target, new)
    except (ClientError, Unreachable) as error:
        return [error] * len(batch)
    arrived = [
        each.message.receipt for each, result in zip(batch, sent, strict=True) if not isinstance(result, ClientError)
    ]
    deleted: Sequence[RelayOutcome] = []
    try:
        if arrived:
            deleted = client.delete_batch(intake, arrived)
    except (ClientError, Unreachable) as error:
        deleted = [error] * len(arrived)
    outcomes = iter(deleted)
    return [result if isinstance(result, ClientError) else next(outcomes) for result in sent]


def _batches(messages: Sequence[RelayedMessage]) -> Iterator[list[RelayedMessage]]:
    """Split the messages, in order, into batches that one send accepts."""
    batch: list[RelayedMessage] = []
    size_bytes = 0
    for each in messages:
        own_bytes = len(each.message.body.encode()) + attributes_bytes(each.message.attributes)
        if batch and size_bytes + own_bytes > BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(each)
        size_bytes += own_bytes
    yield batch


@dataclass(slots=True, kw_only=True)
class Totals:
    """Counters of a forwarder, by the names of its metrics (``METRICS``), with the labels as keys.

    A message that stayed in the intake may be counted as ``failed`` several times. ``gone`` messages had already left
    the intake: an earlier request moved them, but its reply was lost.
    """

    received: int = 0
    retried: int = 0
    unmatched: int = 0
    gone: int = 0
    forwarded: Counter[Labels] = field(default_factory=Counter)
    failed: Counter[Labels] = field(default_factory=Counter)

    def add(self, messages: Sequence[RelayedMessage], outcomes: Sequence[RelayOutcome]) -> None:
        """Count messages and their outcomes."""
        self.received += len(messages)
        self.retried += sum(each.message.receive_count > 1 for each in messages)
        for each, outcome in zip(messages, outcomes, strict=True):
            if outcome is None:
                self.forwarded[each.target, each.rule or NO_RULE] += 1
                self.unmatched += each.rule is None
            elif (reason := _reason_of(outcome)) is None:
                self.gone += 1
            else:
                self.failed[reason,] += 1


def _reason_of(outcome: ClientError | Unreachable) -> str | None:
    """Return why a message has stayed in the intake; ``None`` for one that is gone."""
    if isinstance(outcome, Unreachable):
        return NO_REPLY
    return None if outcome.fields.get("state") == "gone" else outcome.code


@dataclass(eq=False)
class Forwarder:
    """Forwards the messages of one intake, which ``client`` receives.

    ``timeout_s`` is the visibility timeout, ``wait_s`` the time that a receive may wait, and thus a stop. With
    ``until_empty`` a worker ends at an empty receive. Once ``stop`` is set, workers end after their current messages.
    """

    client: QueueClient
    router: Router
    relay: Relay
    _: KW_ONLY
    intake: str
    workers: int = WORKERS.default
    timeout_s: int = TIMEOUT_S.default
    wait_s: int = WAIT_S.default
    until_empty: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._totals = Totals()
        self._lock = threading.Lock()
        self._warned: set[tuple[str, str | None]] = set()

    def totals(self) -> Totals:
        """Return a copy of the counters."""
        with self._lock:
            return deepcopy(self._totals)

    def run(
        self, *, report: Callable[[Totals], None] = lambda totals: None, every_s: float = REPORT_S.default
    ) -> Totals:
        """Forward until ``stop`` is set, or the intake is empty, and call ``report`` every ``every_s``.

        Raises ``ClientError`` if receiving from the intake fails permanently, for example because it is missing.
        """
        threads = Threads("forward", self.workers)
        running: set[Future[None]] = {threads.submit(self._work) for _ in range(self.workers)}
        try:
            while running:
                ended, running = wait(running, timeout=every_s, return_when=FIRST_EXCEPTION)
                for each in ended:
                    each.result()
                if running:
                    report(self.totals())
        finally:
            self.stop.set()
            threads.close()
        return self.totals()

    def _work(self) -> None:
        pause_s, wait_s = _PAUSE_S_MIN, _LAST_WAIT_S if self.until_empty else self.wait_s
        while not self.stop.is_set():
            try:
                messages = self.client.receive(
                    self.intake, count=SQS_BATCH_ENTRIES_MAX, timeout_s=self.timeout_s, wait_s=wait_s
                )
            except (ClientError, Unreachable) as error:
                if not is_transient(error):
                    raise
                log.warning("nothing could be received from %s: %s", self.intake, error)
                worked = False
            else:
                if not messages and self.until_empty:
                    return
                worked = not messages or self._forward(messages)
            pause_s = _PAUSE_S_MIN if worked else min(2 * pause_s, _PAUSE_S_MAX)
            if not worked:
                self.stop.wait(pause_s)

    def _forward(self, received: Sequence[ReceivedMessage]) -> bool:
        """Relay the messages; return ``False`` after a transient error."""
        messages = [RelayedMessage(message, *self.router.route(message)) for message in received]
        outcomes: Sequence[RelayOutcome]
        try:
            outcomes = self.relay(messages)
        except Unreachable as error:
            outcomes = [error] * len(messages)
        with self._lock:
            self._totals.add(messages, outcomes)
        failures = [(each, why) for each, why in zip(messages, outcomes, strict=True) if why is not None]
        for each, why in failures:
            kind = each.target, _reason_of(why)
            if kind[1] not in (None, GROUP_HELD.code) and kind not in self._warned:
                self._warned.add(kind)  # log once for each queue and reason
                log.warning("the message %s was not forwarded to %s: %s", each.message.id, each.target, why)
        return not any(is_transient(why) for _, why in failures)


METRICS: dict[str, tuple[str, Labels]] = {
    "received": ("Messages received from the intake.", ()),
    "retried": ("Of them, those that had been received before.", ()),
    "unmatched": ("Messages forwarded to the default queue, because no rule matched.", ()),
    "gone": ("Messages that were no longer in the intake queue.", ()),
    "forwarded": ("Messages forwarded.", ("queue", "rule")),
    "failed": ("Attempts after which a message stayed in the intake queue.", ("reason",)),
}
"""Name of a metric → its description and labels."""


def forwarder_metrics(intake: str, totals: Callable[[], Totals]) -> list[Metric]:
    """Return the metrics of the forwarder of ``intake``."""

    def read(name: str) -> list[tuple[Labels, int]]:
        counts = getattr(totals(), name)
        return [((intake, *own), count) for own, count in (counts.items() if METRICS[name][1] else [((), counts)])]

    return [
        Metric(
            name=f"veilmq_forward_{name}",
            kind="counter",
            text=text,
            labels=("intake", *labels),
            read=partial(read, name),
        )
        for name, (text, labels) in METRICS.items()
    ]


def check_targets(intake: str, targets: Mapping[str, int | None]) -> None:
    """Raise ``RoutesError`` if a target is the intake, or if one is a FIFO queue and the other is not."""
    fifo = is_fifo(intake)
    for target in targets:
        if target == intake:
            raise RoutesError(f"The intake {intake} is one of the queues to forward to; name another one.")
        if is_fifo(target) != fifo:
            raise RoutesError(f"{intake} and {target} must both be FIFO queues, or both not.")


def ready_queues(client: QueueClient, targets: Mapping[str, int | None], *, create: bool) -> list[str]:
    """Create the missing queues and return their names. Without ``create``, raise ``RoutesError`` if any is missing."""
    missing = []
    for target in targets:
        try:
            client.show(target)
        except ClientError as error:
            if error.code not in _MISSING:
                raise
            missing.append(target)
    if missing and not create:
        raise RoutesError(f"There is no queue {', '.join(missing)}; create it first, or use --create.")
    for target in missing:
        timeout_s = targets[target]
        settings: dict[str, SettingValue] = {} if timeout_s is None else {"visibility_timeout_s": timeout_s}
        client.create_queue(target, settings | ({"fifo": True} if is_fifo(target) else {}))
    return missing


def can_forward(forwards: Forwards) -> bool:
    """Return whether the server supports forwards. Raises ``ClientError`` if it refuses them, and ``Unreachable``."""
    try:
        forwards.forward([])
    except ClientError as error:
        if error.code in _NO_FORWARD and not is_transient(error):
            return False
        raise
    return True
