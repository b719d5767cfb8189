"""Routing by a table of the pipeline."""

import pytest

from tests.forwarding.received import received
from veilmq.consumer.forwarding_rules import RoutesError, TableRouter
from veilmq.core.settings import RoutingTable, TimeoutClass

SHORT = TimeoutClass(name="short", visibility_timeout_s=2, queue="jobs-short")
LONG = TimeoutClass(name="long", visibility_timeout_s=200, queue="jobs-long")
TABLE = RoutingTable(version=1, attribute="kind", classes=(SHORT, LONG), keys={"a": 0}, default=1)


def test_a_message_goes_to_the_queue_of_its_class() -> None:
    router = TableRouter(TABLE)
    messages = [received(kind="a"), received(kind="b"), received(), received(kind=b"a")]
    assert [router.route(each).queue for each in messages] == ["jobs-short", "jobs-long", "jobs-long", "jobs-long"]
    assert router.targets == {"jobs-short": 2, "jobs-long": 200}


def test_receives_in_the_intake_do_not_count() -> None:
    """They were those of forwarders that were killed, and nobody's work."""
    assert TableRouter(TABLE).route(received(kind="a", receive_count=9)).queue == "jobs-short"


def test_a_class_must_have_a_queue() -> None:
    with pytest.raises(RoutesError, match="class bare"):
        TableRouter(RoutingTable(version=1, classes=(TimeoutClass(name="bare", visibility_timeout_s=1),), default=0))
