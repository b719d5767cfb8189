"""The thread that keeps leases alive, on a connection of its own.

It sleeps until the next lease is due, sends what is due in batches with a timeout for each entry, and brings the
answers to the table. Each call has a patience of its own: long enough for the slowest calls of late, and never past the
end of the first lease of the batch, so that a connection which swallows everything costs a try and not the lease.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from veilmq.client.messages import ClientError, Hidden
from veilmq.consumer.lease_table import Asked, LeaseTable
from veilmq.consumer.leases import Lease
from veilmq.consumer.verdicts import Verdict, verdict
from veilmq.core.commands import VisibilityChange

PATIENCE_S_USUAL = 5.0
PATIENCE_S_LAST = 2.0
"""Not halved any more: what is left of a lease then goes to one try."""
PATIENCE_S_LEAST = 0.5
"""For a batch with a lease that is nearly over, or is."""

_log = logging.getLogger("veilmq.consumer")


class VisibilityChanger(Protocol):
    """What the renewer needs of a ``QueueClient``: one call, which it gives up after ``patience_s`` and tries once."""

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> Sequence[ClientError | Hidden | None]:
        """Make up to ten changes; no error for each that succeeded. Raises ``ClientError`` and ``Unreachable``."""


class RenewalMeter(Protocol):
    """Is told of every call that the renewer makes, in the threads of the renewer."""

    def sending(self, asked: Sequence[Asked]) -> object:
        """One call is about to be made; the leases are as they were before it."""

    def failed(self, errors: Sequence[Exception]) -> object:
        """Some of the entries of a call were not renewed: why, one error for each."""

    def called(self, asked: Sequence[Asked], verdicts: Sequence[Verdict], took_s: float) -> object:
        """One call took ``took_s``; each of its entries ended with a verdict."""


class Unmeasured:
    """A ``RenewalMeter`` that counts nothing."""

    def sending(self, asked: Sequence[Asked]) -> object:
        """Do nothing."""

    def failed(self, errors: Sequence[Exception]) -> object:
        """Do nothing."""

    def called(self, asked: Sequence[Asked], verdicts: Sequence[Verdict], took_s: float) -> object:
        """Do nothing."""


class Renewer:
    """Renews what is due in a ``LeaseTable``; ``run_due`` does it once, ``start`` for as long as the process lives."""

    def __init__(
        self, table: LeaseTable, client: VisibilityChanger, *, meter: RenewalMeter | None = None, calls_max: int = 4
    ) -> None:
        """``client`` should have connections of its own: nothing else may keep a renewal waiting.

        When more than one batch is due, up to ``calls_max`` calls are under way at once.
        """
        self._table = table
        self._client = client
        self._meter: RenewalMeter = meter or Unmeasured()
        self._calls = ThreadPoolExecutor(calls_max, "veilmq-renewal") if calls_max > 1 else None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="veilmq-renewer", daemon=True)

    def start(self) -> None:
        """Begin to renew, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the call that is on its way; leases are not touched. Harmless before ``start``."""
        self._stopping = True
        self._table.alarm.ring()
        if self._thread.is_alive():
            self._thread.join()
        if self._calls is not None:
            self._calls.shutdown()

    def run_due(self) -> None:
        """Renew all that is due, and notice what has ended; returns when every call has been answered or given up."""
        batches = self._table.due()
        if self._calls is None or len(batches) < 2:
            for batch in batches:
                self._renew(batch)
        else:
            list(self._calls.map(self._renew, batches))

    def _run(self) -> None:
        table = self._table
        while not self._stopping:
            table.alarm.wait_until(table.next_due_s())
            if not self._stopping:
                self._try_due()

    def _try_due(self) -> None:
        """Renew what is due, whatever becomes of it: every lease depends on this thread."""
        try:
            self.run_due()
        except Exception:  # noqa: BLE001 - what measures may raise anything
            _log.exception("renewing failed, and goes on")

    def _renew(self, batch: Sequence[Lease]) -> None:
        clock = self._table.clock
        asked = self._table.prepare(batch)
        if not asked:
            return
        self._meter.sending(asked)
        answers = self._ask(asked, patience_s(asked, self._table))
        if answers is None:
            verdicts = [Verdict.AGAIN] * len(asked)
        else:
            verdicts = [
                verdict(answer, asked_s=one.for_s, elapsed_s=one.lease.elapsed_s(one.sent_at_s))
                for one, answer in zip(asked, answers, strict=True)
            ]
            asked = list(map(_granted, asked, answers))
        self._table.answered(asked, verdicts)
        self._meter.called(asked, verdicts, clock.now_s() - asked[0].sent_at_s)

    def _ask(self, asked: Sequence[Asked], patience_s: float) -> Sequence[ClientError | Hidden | None] | None:
        changes = [VisibilityChange(receipt=one.lease.message.receipt, timeout_s=one.for_s) for one in asked]
        queue = asked[0].lease.subscription.queue
        try:
            answers = self._client.change_visibility_batch(queue, changes, patience_s=patience_s)
        except Exception as error:  # noqa: BLE001 - it says nothing about a lease, and the thread goes on
            self._meter.failed([error] * len(asked))
            return None
        self._meter.failed([answer for answer in answers if isinstance(answer, Exception)])
        return answers


def _granted(asked: Asked, answer: ClientError | Hidden | None) -> Asked:
    """Return ``asked`` with what the server granted of it, where it says so: never more than was asked for.

    It counts from when the request was sent, as no clocks have to agree then, and is early by the way there at most.
    """
    if isinstance(answer, Hidden) and answer.for_s < asked.for_s:
        return replace(asked, for_s=int(answer.for_s))
    return asked


def patience_s(asked: Sequence[Asked], table: LeaseTable) -> float:
    """Return how long to wait for the answer to ``asked``, in seconds: longer with each try, up to half of the rest.

    The last seconds of a lease are waited for to the end.
    """
    first = asked[0].lease
    left_s = min(one.lease.remaining_s(table.clock.now_s()) for one in asked)
    usual_s = max(PATIENCE_S_USUAL, 4 * (first.measured.call_s or 0.0)) * 2.0 ** min(first.tries, 10)
    return max(PATIENCE_S_LEAST, min(usual_s, max(left_s / 2, PATIENCE_S_LAST), left_s))
