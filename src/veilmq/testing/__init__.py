"""The test kit: a real server for tests, and a clock that they move."""

from veilmq.testing.running_server import RunningServer
from veilmq.testing.virtual_clock import VirtualClock

__all__ = ["RunningServer", "VirtualClock"]
