"""Consumers: handlers whose messages stay theirs for as long as they work on them.

``Consumer`` is the way in; ``docs/consumer.md`` has the whole of it.
"""

from veilmq.consumer.app import Consumer, Running
from veilmq.consumer.context import Backoff, Batch, Cancelled, Context, Drop, Item, Reject, RetryLater
from veilmq.consumer.leases import LeaseLost, LeaseState
from veilmq.consumer.records import ByKey, ByMessageId, InFile, InMemory
from veilmq.consumer.renewal_policies import Adaptive, Fixed, NServiceBusPolicy

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
