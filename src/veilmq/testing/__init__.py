"""The test kit: a real server for tests, its queues from inside, faults on demand, and clocks that tests move.

``pytest_veilmq`` has it as fixtures. A server needs the extra ``server``; the clocks are the server's and that of a
consumer's leases.
"""

try:
    from veilmq.testing import faults
    from veilmq.testing.consumer_bench import ConsumerBench, Renewal
    from veilmq.testing.faults import ANY
    from veilmq.testing.running_server import RunningQueue, RunningServer
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "veilmq":
        raise  # a defect of ours, which no extra repairs
    raise ModuleNotFoundError(
        f"veilmq.testing runs a server, for which the module {error.name} is missing: pip install 'veilmq[server]'",
        name=error.name,
    ) from None
from veilmq.core.commands import MessageState, SeenMessage
from veilmq.store.clock import SystemClock
from veilmq.testing.clocks import SteppedClock, VirtualClock

__all__ = [
    "ANY",
    "ConsumerBench",
    "MessageState",
    "Renewal",
    "RunningQueue",
    "RunningServer",
    "SeenMessage",
    "SteppedClock",
    "SystemClock",
    "VirtualClock",
    "faults",
]
