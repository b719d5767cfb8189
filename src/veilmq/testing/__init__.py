"""The test kit: a real server for tests, and clocks that they move: the server's, and that of a consumer's leases."""

from veilmq.testing.running_server import RunningServer
from veilmq.testing.stepped_clock import SteppedClock
from veilmq.testing.virtual_clock import VirtualClock

__all__ = ["RunningServer", "SteppedClock", "VirtualClock"]
