"""The thread that keeps leases alive, on a connection of its own.

It sleeps until the next lease is due, sends what is due in batches with a timeout for each entry, and returns the
results to the table. Each call has a timeout of its own: long enough for the slowest recent calls, and never past the
end of the first lease of the batch, so that a connection which drops everything costs a try and not the lease.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from veilmq.client.messages import Hidden
from veilmq.consumer.leases import Lease, LeaseTable, RenewalRequest
from veilmq.consumer.renewal_policies import RenewalResult, renewal_result
from veilmq.core.commands import VisibilityChange

_log = logging.getLogger("veilmq.consumer")


PATIENCE_S_USUAL = 5.0
PATIENCE_S_LAST = 2.0
"""Not halved any more: what is left of a lease then goes to one try."""
PATIENCE_S_LEAST = 0.5
"""For a batch with a lease that is nearly over, or is."""


class Renewer:
    """Renews what is due in a ``LeaseTable``; ``run_due`` does it once, ``start`` for as long as the process lives."""

    def __init__(
        self,
        table: LeaseTable,
        change: Callable[..., Sequence[Exception | Hidden | None]],
        *,
        renewed: Callable[[Sequence[RenewalRequest], Sequence[RenewalResult]], object] | None = None,
        calls_max: int = 4,
    ) -> None:
        """``change`` is ``QueueClient.change_visibility_batch``, of a client with connections of its own.

        Nothing else may keep a renewal waiting.

        ``renewed`` is called after each call, in the renewer's threads, with a result for each request. When more than
        one batch is due, up to ``calls_max`` calls are under way at once.
        """
        self._table = table
        self._change = change
        self._renewed = renewed
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
        """Renew all that is due, and notice what has ended; returns when every call has a reply or was given up."""
        batches = self._table.due()
        if self._calls is None or len(batches) < 2:
            for batch in batches:
                self._renew(batch)
        else:
            list(self._calls.map(self._renew, batches))

    def _run(self) -> None:
        while not self._stopping:
            self._table.alarm.wait_until(self._table.next_due_s())
            try:
                if not self._stopping:
                    self.run_due()
            except Exception:  # noqa: BLE001 - every lease depends on this thread
                _log.exception("a renewal failed; renewing continues")

    def _renew(self, batch: Sequence[Lease]) -> None:
        requests = self._table.prepare(batch)
        if not requests:
            return
        changes = [VisibilityChange(receipt=one.lease.message.receipt, timeout_s=one.for_s) for one in requests]
        replies: Sequence[Exception | Hidden | None]
        try:
            queue = batch[0].subscription.queue
            replies = self._change(queue, changes, patience_s=patience_s(requests, self._table))
        except Exception as error:  # noqa: BLE001 - it says nothing about a lease, and the thread goes on
            replies = [error] * len(requests)
            results = [RenewalResult.AGAIN] * len(requests)
        else:
            results = [
                renewal_result(reply, requested_s=one.for_s, elapsed_s=one.lease.elapsed_s(one.sent_at_s))
                for one, reply in zip(requests, replies, strict=True)
            ]
            # What the server granted counts from when the request was sent: no clocks have to agree then, and it is
            # early by the way there at most. More than was requested does not count.
            requests = [
                replace(one, for_s=int(reply.for_s)) if isinstance(reply, Hidden) and reply.for_s < one.for_s else one
                for one, reply in zip(requests, replies, strict=True)
            ]
        self._table.answered(requests, results)
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        self._table.metrics.called(results, errors, self._table.clock.now_s() - requests[0].sent_at_s)
        if self._renewed is not None:
            self._renewed(requests, results)


def patience_s(requests: Sequence[RenewalRequest], table: LeaseTable) -> float:
    """Return how long to wait for the reply to ``requests``, in seconds: longer with each try, up to half of the rest.

    The last seconds of a lease are waited for to the end.
    """
    first = requests[0].lease
    left_s = min(one.lease.remaining_s(table.clock.now_s()) for one in requests)
    usual_s = max(PATIENCE_S_USUAL, 4 * (first.measured.call_s or 0.0)) * 2.0 ** min(first.tries, 10)
    return max(PATIENCE_S_LEAST, min(usual_s, max(left_s / 2, PATIENCE_S_LAST), left_s))
