"""The forwarder: receives from the intake, asks the router, and has the messages carried over; several at a time.

Each worker is a thread with one receive of up to ten messages at work. A message that cannot be carried over stays in
the intake and comes back when its timeout ends; how often that may happen is for the intake's dead-letter rule to say.
A group of a FIFO intake is locked by the server while one of its messages is in flight, so no two workers have it.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass

from veilmq.client.messages import ClientError, ReceivedMessage, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.consumer.threads import Threads
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, Range
from veilmq.forwarding.carriers import Carrier
from veilmq.forwarding.parcels import Outcome, Parcel
from veilmq.forwarding.router import Router
from veilmq.forwarding.tally import Tally, Totals, is_gone, is_held, reason_of

log = logging.getLogger(__name__)

WORKERS = Range(minimum=1, maximum=10, default=4)
TIMEOUT_S = Range(minimum=1, maximum=240, default=30)  # less than the five minutes of deduplication
WAIT_S = Range(minimum=1, maximum=20, default=5)
REPORT_S = Range(minimum=1, maximum=3_600, default=10)

_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 5.0
_LAST_WAIT_S = 1
_PASSING = frozenset({"RequestThrottled", "ThrottlingException", "Throttling", "OverLimit"})
_SERVER_FAILED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwarderOptions:
    """How to go about it.

    ``timeout_s`` is how long the messages at hand are hidden, ``wait_s`` how long a receive waits for the first one,
    and a stop for the receive. With ``until_empty`` it ends when a receive finds nothing.
    """

    intake: str
    workers: int = WORKERS.default
    timeout_s: int = TIMEOUT_S.default
    wait_s: int = WAIT_S.default
    until_empty: bool = False


class Forwarder:
    """One intake on its way through a router and a carrier."""

    def __init__(
        self,
        client: QueueClient,
        router: Router,
        carrier: Carrier,
        options: ForwarderOptions,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        """``client`` receives. When ``stop`` is set, every worker ends after what it has at hand."""
        self._client = client
        self._router = router
        self._carrier = carrier
        self._options = options
        self._stop = stop or threading.Event()
        self._tally = Tally()
        self._told: set[tuple[str, str]] = set()

    def totals(self) -> Totals:
        """Return what was done so far."""
        return self._tally.totals()

    def run(
        self, *, report: Callable[[Totals], None] = lambda totals: None, every_s: float = REPORT_S.default
    ) -> Totals:
        """Forward until ``stop`` is set, or the intake is empty; ``report`` is called every so often.

        Raises ``ClientError`` when the intake cannot be received from: what is missing or forbidden stays so.
        """
        threads = Threads("forward", self._options.workers)
        running: set[Future[None]] = {threads.submit(self._work) for _ in range(self._options.workers)}
        try:
            while running:
                ended, running = wait(running, timeout=every_s, return_when=FIRST_EXCEPTION)
                for each in ended:
                    each.result()
                if running:
                    report(self.totals())
        finally:
            self._stop.set()
            threads.close()
        return self.totals()

    def _work(self) -> None:
        pause_s = _PAUSE_S_MIN
        while not self._stop.is_set():
            try:
                messages = self._receive()
            except (ClientError, Unreachable) as error:
                if not _passes(error):
                    raise
                log.warning("nothing could be received from %s: %s", self._options.intake, error)
                went_well = False
            else:
                if not messages and self._options.until_empty:
                    return
                went_well = self._forward(messages)
            pause_s = _PAUSE_S_MIN if went_well else min(2 * pause_s, _PAUSE_S_MAX)
            if not went_well:
                self._stop.wait(pause_s)

    def _receive(self) -> list[ReceivedMessage]:
        options = self._options
        return self._client.receive(
            options.intake,
            count=SQS_BATCH_ENTRIES_MAX,
            timeout_s=options.timeout_s,
            wait_s=_LAST_WAIT_S if options.until_empty else options.wait_s,
        )

    def _forward(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Carry the messages over; tell whether the server is well."""
        if not messages:
            return True
        parcels = [Parcel(message, *self._router.route(message)) for message in messages]
        outcomes: Sequence[Outcome]
        try:
            outcomes = self._carrier.carry(parcels)
        except Unreachable as error:
            outcomes = [error] * len(parcels)
        self._tally.add(parcels, outcomes)
        for parcel, outcome in zip(parcels, outcomes, strict=True):
            if outcome is not None and not is_gone(outcome) and not is_held(outcome):
                self._tell(parcel, outcome)
        return not any(outcome is not None and _passes(outcome) for outcome in outcomes)

    def _tell(self, parcel: Parcel, outcome: ClientError | Unreachable) -> None:
        """Say why a message stayed; of each queue and reason once, as it will come again and again."""
        kind = parcel.target, reason_of(outcome)
        if kind not in self._told:
            self._told.add(kind)
            log.warning("the message %s was not forwarded to %s: %s", parcel.message.id, parcel.target, outcome)


def _passes(error: ClientError | Unreachable) -> bool:
    """Tell whether the same request may succeed a little later."""
    return isinstance(error, Unreachable) or error.status >= _SERVER_FAILED or error.code in _PASSING
