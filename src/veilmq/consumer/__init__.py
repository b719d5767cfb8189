"""The consumer library: handlers whose leases are renewed while they run.

Start with ``Consumer``; ``docs/consumer.md`` is the manual.
"""

from veilmq.consumer.app import Consumer, Running, SendOptions
from veilmq.consumer.context import Backoff, Batch, Cancelled, Context, Drop, Ending, Failed, Item, Reject, RetryLater
from veilmq.consumer.handlers import CallNext, HandlerOptions
from veilmq.consumer.leases import LeaseLost, LeaseState
from veilmq.consumer.records import ByKey, ByMessageId, InFile, InMemory
from veilmq.consumer.renewal_policies import Adaptive, Fixed, NServiceBusPolicy
from veilmq.consumer.test_client import Sent, TestClient

__all__ = [
    "Adaptive",
    "Backoff",
    "Batch",
    "ByKey",
    "ByMessageId",
    "CallNext",
    "Cancelled",
    "Consumer",
    "Context",
    "Drop",
    "Ending",
    "Failed",
    "Fixed",
    "HandlerOptions",
    "InFile",
    "InMemory",
    "Item",
    "LeaseLost",
    "LeaseState",
    "NServiceBusPolicy",
    "Reject",
    "RetryLater",
    "Running",
    "SendOptions",
    "Sent",
    "TestClient",
]
