"""The numbers of a forwarder, as Prometheus is told them."""

from typing import Any

from prometheus_client import CollectorRegistry

from tests.forwarding.received import received
from veilmq.client import ClientError
from veilmq.consumer.forwarding import RelayedMessage, Totals, forwarder_metrics
from veilmq.consumer.forwarding_rules import read_rules
from veilmq.consumer.metrics import Collector, Exported

RULES = """
default = "rest"

[[rules]]
queue = "video"
attributes.kind = "video"
"""


def test_everything_that_becomes_of_messages_is_told() -> None:
    """Received, forwarded by queue and rule, unmatched, failed by reason, retried, gone."""
    router, totals = read_rules(RULES), Totals()
    messages = [received(kind="video"), received(), received(), received(kind="video", receive_count=2), received()]
    refused = ClientError("MessageTooLong", "It is too long.", 400)
    gone = ClientError("ReceiptEnded", "It is gone.", 410, fields={"state": "gone"})
    totals.add([RelayedMessage(each, *router.route(each)) for each in messages], [None, None, None, refused, gone])
    exported = Exported()
    exported.add(forwarder_metrics("jobs", lambda: totals))
    registry = CollectorRegistry()
    registry.register(Collector(exported))

    def value(name: str, **labels: Any) -> float | None:
        return registry.get_sample_value(f"veilmq_forward_{name}_total", {"intake": "jobs", **labels})

    assert [value(name) for name in ("received", "retried", "unmatched", "gone")] == [5, 1, 2, 1]
    assert value("forwarded", queue="video", rule="1") == 1
    assert value("forwarded", queue="rest", rule="default") == 2
    assert value("failed", reason="MessageTooLong") == 1
