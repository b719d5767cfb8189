"""The test kit: a real server, direct access to its queues, faults, and clocks that tests control.

The distribution ``pytest-veilmq`` provides it as fixtures. A server needs the extra ``server``. Each name is imported
on first use (PEP 562), so that tests of the server do not import the consumer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilmq.core.commands import MessageState as MessageState
    from veilmq.core.commands import SeenMessage as SeenMessage
    from veilmq.store.clock import SystemClock as SystemClock
    from veilmq.testing import faults as faults
    from veilmq.testing.clocks import SteppedClock as SteppedClock
    from veilmq.testing.clocks import VirtualClock as VirtualClock
    from veilmq.testing.consumer_bench import ConsumerBench as ConsumerBench
    from veilmq.testing.consumer_bench import Renewal as Renewal
    from veilmq.testing.faults import ANY as ANY
    from veilmq.testing.running_server import RunningQueue as RunningQueue
    from veilmq.testing.running_server import RunningServer as RunningServer

_NAMES = {
    "core.commands": "MessageState SeenMessage",
    "store.clock": "SystemClock",
    "testing.clocks": "SteppedClock VirtualClock",
    "testing.consumer_bench": "ConsumerBench Renewal",
    "testing.faults": "ANY",
    "testing.running_server": "RunningQueue RunningServer",
}
_MODULES = {name: f"veilmq.{module}" for module, names in _NAMES.items() for name in names.split()}
_MODULES["faults"] = "veilmq.testing.faults"
__all__ = [*_MODULES]  # noqa: PLE0604 (of strings)


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use. Raises ``ModuleNotFoundError`` that names the missing extra."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "veilmq":
            raise  # a defect, not a missing extra
        raise ModuleNotFoundError(
            f"veilmq.testing runs a server, for which the module {error.name} is missing: pip install 'veilmq[server]'",
            name=error.name,
        ) from None
    found = globals()[name] = module if name == "faults" else getattr(module, name)
    return found
