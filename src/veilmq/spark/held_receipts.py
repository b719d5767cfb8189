"""Messages that the driver has received in the plain way of SQS, and the thread that keeps them hidden."""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from veilmq.client.errors import ClientError, Unreachable
from veilmq.client.http import HttpQueueClient
from veilmq.client.messages import ReceivedMessage
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, SQS_RECEIVE_COUNT
from veilmq.spark.patience import patiently
from veilmq.spark.source_options import SourceOptions

THREADS = 8
BEATS_PER_TIMEOUT = 3
BATCH_BYTES_MAX = 64 * 1_048_576
"""When the bodies of a batch are this long, it is whole: the driver has them all in its memory."""

T = TypeVar("T")

_log = logging.getLogger("veilmq.spark")


class HeldReceipts:
    """What was received, by batch, until it is deleted."""

    def __init__(self, options: SourceOptions) -> None:
        """Begin with nothing, and renew what comes."""
        at = options.connection
        self._options = options
        self._queue = at.queue
        self._client = HttpQueueClient(at.endpoint, key=at.key)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="veilmq-receive")
        self._batches: dict[int, list[ReceivedMessage]] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._renew, name="veilmq-renewal", daemon=True).start()

    def visible(self) -> int:
        """Return how many messages the queue says are visible."""
        return patiently(lambda: self._client.show(self._queue).visible, self._options.patience_s)

    def messages(self, number: int) -> list[ReceivedMessage] | None:
        """Return the messages of batch ``number``, ``None`` if it was not received here."""
        return self._batches.get(number)

    def receive(self, number: int, count_max: int, *, wait_s: int) -> int:
        """Receive batch ``number``, waiting for the first message alone; returns how many there are."""
        taken = self._batches.setdefault(number, [])
        taken += patiently(lambda: self._take(count_max - len(taken), wait_s), self._options.patience_s)
        while taken and len(taken) < count_max and sum(len(each.body) for each in taken) < BATCH_BYTES_MAX:
            rounds = min(THREADS, -(-(count_max - len(taken)) // SQS_RECEIVE_COUNT.maximum))
            more = [
                each
                for found in self._threads.map(self._take, *_shares(count_max - len(taken), rounds))
                for each in found
            ]
            if not more:
                break
            taken += more
        if not taken:
            del self._batches[number]
        return len(taken)

    def delete(self, number: int) -> None:
        """Delete the messages of all batches up to ``number``."""
        done = [each for each in self._batches if each <= number]
        receipts = [message.receipt for each in done for message in self._batches.pop(each)]
        failed = [error for errors in self._threads.map(self._delete, _tens(receipts)) for error in errors if error]
        if failed:
            _log.warning("%d of %d messages were not deleted and come again: %s", len(failed), len(receipts), failed[0])

    def stop(self) -> None:
        """Renew nothing any more."""
        self._stopped.set()

    def _take(self, count_max: int, wait_s: int = 0) -> list[ReceivedMessage]:
        if count_max <= 0:
            return []
        count = min(count_max, SQS_RECEIVE_COUNT.maximum)
        return self._client.receive(self._queue, count=count, timeout_s=self._options.lease_s, wait_s=wait_s)

    def _delete(self, receipts: Sequence[str]) -> list[ClientError | None]:
        return patiently(lambda: self._client.delete_batch(self._queue, receipts), self._options.patience_s)

    def _renew(self) -> None:
        while not self._stopped.wait(self._options.lease_s / BEATS_PER_TIMEOUT):
            receipts = [message.receipt for batch in list(self._batches.values()) for message in list(batch)]
            for each in self._threads.map(self._renew_ten, _tens(receipts)):
                if each:
                    _log.warning("Messages could not be kept and may come again: %s", each)

    def _renew_ten(self, receipts: Sequence[str]) -> ClientError | Unreachable | None:
        changes = [VisibilityChange(receipt=receipt, timeout_s=self._options.lease_s) for receipt in receipts]
        try:
            answers = self._client.change_visibility_batch(self._queue, changes)
        except (ClientError, Unreachable) as error:
            return error
        return next((answer for answer in answers if isinstance(answer, ClientError)), None)


def _shares(count: int, rounds: int) -> tuple[list[int]]:
    """Return, for each of ``rounds`` receives, how many messages it may bring of ``count``."""
    most = SQS_RECEIVE_COUNT.maximum
    return ([min(most, count - position * most) for position in range(rounds)],)


def _tens(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(values), SQS_BATCH_ENTRIES_MAX):
        yield values[begin : begin + SQS_BATCH_ENTRIES_MAX]
