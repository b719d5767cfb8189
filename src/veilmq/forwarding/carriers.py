"""How messages are carried over: by veilmq's own forward, or by sending and deleting, which every SQS server can.

The forward is one transaction for each message. Sending and then deleting repeats what it was killed in between: in a
FIFO target the repetition is not stored for five minutes, as the message's id is its deduplication id there; in a
standard one it is.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from veilmq.client.api import Forwards
from veilmq.client.messages import ClientError, NewMessage, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.core.properties import attributes_bytes
from veilmq.forwarding.parcels import HELD, GroupOrder, Outcome, Parcel, by_target, in_rounds

BATCH_BYTES_MAX = 262_144
"""What the messages of one send may have together on every server; a single one that has more is sent alone."""

_SERVER_FAILED = 500


class Carrier(Protocol):
    """Carries messages to their queues; threads may share one."""

    def carry(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Try up to ten messages of one receive, and tell what became of each. No message overtakes its group.

        Raises ``Unreachable`` where it is not known of any of them.
        """


class ForwardCarrier:
    """Asks veilmq to forward; each message is in one queue whenever anything ends."""

    def __init__(self, forwards: Forwards, *, fifo: bool) -> None:
        """``forwards`` is the intake's; ``fifo`` tells whether that is a FIFO queue."""
        self._forwards = forwards
        self._fifo = fifo

    def carry(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Ask for all at once; where that is refused as a whole (one target is missing or forbidden), one by one."""
        try:
            return self._ask(parcels)
        except ClientError as error:
            if error.status >= _SERVER_FAILED or len(parcels) == 1:
                return [error] * len(parcels)
        order = GroupOrder(fifo=self._fifo)
        outcomes: list[Outcome] = []
        for parcel in parcels:
            outcome = HELD if order.holds(parcel) else self.carry([parcel])[0]
            order.note(parcel, outcome)
            outcomes.append(outcome)
        return outcomes

    def _ask(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        answers = self._forwards.forward([(each.message.receipt, each.target) for each in parcels])
        return [answer if isinstance(answer, ClientError) else None for answer in answers]


class SendCarrier:
    """Sends to the target, then deletes in the intake."""

    def __init__(self, client: QueueClient, intake: str, *, fifo: bool) -> None:
        """``fifo`` tells whether the intake, and so each target, is a FIFO queue."""
        self._client = client
        self._intake = intake
        self._fifo = fifo

    def carry(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Send in as few requests as the order of groups allows: of each group, one message at a time."""
        outcomes: dict[str, Outcome] = {}  # by receipt
        order = GroupOrder(fifo=self._fifo)
        for some in in_rounds(parcels) if self._fifo else [list(parcels)]:
            outcomes |= {parcel.message.receipt: HELD for parcel in some if order.holds(parcel)}
            for target, group in by_target(parcel for parcel in some if not order.holds(parcel)).items():
                for batch in _in_batches(group):
                    for parcel, outcome in zip(batch, self._send(target, batch), strict=True):
                        outcomes[parcel.message.receipt] = outcome
                        order.note(parcel, outcome)
        return [outcomes[parcel.message.receipt] for parcel in parcels]

    def _send(self, target: str, batch: Sequence[Parcel]) -> list[Outcome]:
        try:
            sent = self._client.send_batch(target, [self._new(parcel) for parcel in batch])
        except (ClientError, Unreachable) as error:
            return [error] * len(batch)
        outcomes: list[Outcome] = [each if isinstance(each, ClientError) else None for each in sent]
        arrived = [place for place, outcome in enumerate(outcomes) if outcome is None]
        for place, outcome in zip(arrived, self._delete([batch[place] for place in arrived]), strict=True):
            outcomes[place] = outcome
        return outcomes

    def _delete(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        if not parcels:
            return []
        try:
            return self._client.delete_batch(self._intake, [parcel.message.receipt for parcel in parcels])
        except (ClientError, Unreachable) as error:
            return [error] * len(parcels)

    def _new(self, parcel: Parcel) -> NewMessage:
        message = parcel.message
        return NewMessage(
            body=message.body,
            attributes=message.attributes,
            group=message.group,
            dedup_id=message.id if self._fifo else None,
        )


def _in_batches(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Yield the messages in their order, as many at once as one send takes."""
    batch: list[Parcel] = []
    size = 0
    for parcel in parcels:
        own = len(parcel.message.body.encode()) + attributes_bytes(parcel.message.attributes)
        if batch and size + own > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(parcel)
        size += own
    yield batch
