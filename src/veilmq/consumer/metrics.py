"""The numbers of a running consumer, in the registry of prometheus-client where that is installed."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from veilmq.consumer.running import Running


@contextmanager
def exported(running: Running) -> Iterator[None]:
    """Have the numbers of ``running`` in the default registry, if there is one."""
    if importlib.util.find_spec("prometheus_client") is None:
        yield
        return
    from prometheus_client import REGISTRY  # noqa: PLC0415 - the plain install has none

    from veilmq.consumer.prometheus import Collector  # noqa: PLC0415

    collector = Collector(running)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)
