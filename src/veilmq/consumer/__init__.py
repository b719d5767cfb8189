"""Consumers: handlers whose messages stay theirs for as long as they work on them.

``Consumer`` is the way in; ``docs/consumer.md`` has the whole of it.
"""

from veilmq.consumer.adaptive import Adaptive
from veilmq.consumer.app import Consumer
from veilmq.consumer.backoff import Backoff
from veilmq.consumer.batches import Batch, Item
from veilmq.consumer.context import Context
from veilmq.consumer.leases import LeaseLost, LeaseState
from veilmq.consumer.nservicebus import NServiceBusPolicy
from veilmq.consumer.outcomes import Cancelled, Drop, Reject, RetryLater
from veilmq.consumer.policies import Fixed
from veilmq.consumer.records.idempotency import ByKey, ByMessageId
from veilmq.consumer.records.in_file import InFile
from veilmq.consumer.records.in_memory import InMemory
from veilmq.consumer.running import Running

__all__ = [
    "Adaptive",
    "Backoff",
    "Batch",
    "ByKey",
    "ByMessageId",
    "Cancelled",
    "Consumer",
    "Context",
    "Drop",
    "Fixed",
    "InFile",
    "InMemory",
    "Item",
    "LeaseLost",
    "LeaseState",
    "NServiceBusPolicy",
    "Reject",
    "RetryLater",
    "Running",
]
