"""The loop: what it does about servers that fail, intakes that are gone, and messages that stay."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.forwarding.received import received
from veilmq.client import ClientError, HttpQueueClient, ReceivedMessage, Unreachable
from veilmq.client.api import Forwards
from veilmq.consumer.forwarding import (
    GROUP_HELD,
    NO_REPLY,
    Forwarder,
    ForwarderOptions,
    ForwardRelay,
    RelayedMessage,
    RelayOutcome,
    Totals,
)
from veilmq.consumer.forwarding_rules import read_rules
from veilmq.testing import RunningServer, SystemClock

TO_REST = read_rules('default = "rest"')
GONE = ClientError("ReceiptEnded", "It is gone.", 410, fields={"state": "gone"})


class Scripted(HttpQueueClient):
    """An intake that answers, or fails, as it is told; then it is empty."""

    def __init__(self, *script: list[ReceivedMessage] | Exception) -> None:
        """Ask nobody."""
        super().__init__("http://127.0.0.1:1")
        self._script = iter(script)
        self.asked: list[dict[str, Any]] = []

    def receive(self, queue: str, **given: Any) -> list[ReceivedMessage]:
        """Return what is next in the script."""
        self.asked.append(given)
        found = next(self._script, [])
        if isinstance(found, Exception):
            raise found
        return found


class Carried:
    """A carrier that answers as it is told, and else carries everything."""

    def __init__(self, *outcomes: RelayOutcome | Exception) -> None:
        """One for each message, in order."""
        self._outcomes = iter(outcomes)
        self.seen: list[str] = []

    def relay(self, messages: Sequence[RelayedMessage]) -> list[RelayOutcome]:
        """Answer."""
        self.seen += [f"{each.message.body} to {each.target}" for each in messages]
        found = [next(self._outcomes, None) for _ in messages]
        if isinstance(found[0], Unreachable):
            raise found[0]
        return found  # type: ignore[return-value]


def run(client: Scripted, carrier: Carried, **options: Any) -> Totals:
    """Forward until the intake is empty, by one worker."""
    chosen = ForwarderOptions(intake="jobs", workers=1, until_empty=True, **options)
    return Forwarder(client, TO_REST, carrier, chosen).run()


@pytest.mark.slow
def test_it_goes_on_after_a_server_that_failed() -> None:
    """What was received afterwards is forwarded."""
    busy, throttled = ClientError("ServiceUnavailable", "", 503), ClientError("RequestThrottled", "", 403)
    client = Scripted(Unreachable("here", "refused"), busy, throttled, [received("a")])
    carrier = Carried()
    assert run(client, carrier, timeout_s=7).forwarded == {"rest": 1}
    assert carrier.seen == ["a to rest"]
    assert [given["timeout_s"] for given in client.asked] == [7] * 5
    assert {given["count"] for given in client.asked} == {10}


def test_an_intake_that_is_gone_ends_it() -> None:
    gone = ClientError("QueueDoesNotExist", "There is none.", 400)
    with pytest.raises(ClientError, match="There is none"):
        run(Scripted([received("a")], gone), Carried())


def test_the_end_of_one_worker_ends_the_others() -> None:
    """None of them waits for ever."""
    options = ForwarderOptions(intake="jobs", workers=4)
    with pytest.raises(ClientError):
        Forwarder(Scripted(ClientError("AccessDenied", "No.", 403)), TO_REST, Carried(), options).run()


def test_what_became_of_each_message_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Why it stayed is told once for each queue and reason; what was not tried for the sake of order is not."""
    long = ClientError("MessageTooLong", "It is too long.", 400)
    outcomes = [None, GONE, long, long, GROUP_HELD, Unreachable("here", "cut off")]
    messages = [received(name, name=name) for name in "abcdef"]
    totals = run(Scripted(messages), Carried(*outcomes))
    assert (totals.messages, totals.gone) == (1, 1)
    assert totals.stayed == {"MessageTooLong": 2, "GroupHeld": 1, NO_REPLY: 1}
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the message id-c was not forwarded to rest",
        "the message id-f was not forwarded to rest",
    ]


def test_a_batch_without_an_answer_stays(caplog: pytest.LogCaptureFixture) -> None:
    client = Scripted([received("a"), received("b")], [received("a")])
    totals = run(client, Carried(Unreachable("here", "cut off"), None, None))
    assert (totals.forwarded, totals.stayed) == ({"rest": 1}, {NO_REPLY: 2})
    assert "cut off" in caplog.text


def test_it_reports_while_it_works() -> None:
    """Every so often, with the numbers of that moment; and stops between two batches."""
    stop, reported = threading.Event(), []

    def report(totals: Totals) -> None:
        reported.append(totals.messages)
        stop.set()

    class Endless(Scripted):
        def receive(self, queue: str, **given: Any) -> list[ReceivedMessage]:
            return [received("a")]

    options = ForwarderOptions(intake="jobs", workers=2)
    totals = Forwarder(Endless(), TO_REST, Carried(), options, stop=stop).run(report=report, every_s=0.05)
    assert len(reported) == 1
    assert totals.messages >= reported[0]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server with queues of both types, on whose clock waits end."""
    with RunningServer(clock=SystemClock()) as running, HttpQueueClient(running.endpoint) as client:
        for name in ("jobs", "rest", "jobs.fifo", "rest.fifo"):
            client.create_queue(name, {"fifo": True} if name.endswith(".fifo") else {})
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_many_workers_forward_each_message_once_and_groups_in_order(server: RunningServer, suffix: str) -> None:
    with HttpQueueClient(server.endpoint) as client, Forwards(server.endpoint, f"jobs{suffix}") as forwards:
        fifo = bool(suffix)
        for number in range(300):
            client.send(f"jobs{suffix}", str(number), group=str(number % 5), dedup_id=str(number) if fifo else None)
        options = ForwarderOptions(intake=f"jobs{suffix}", workers=4, until_empty=True)
        router = read_rules(f'default = "rest{suffix}"')
        forwarder = Forwarder(client, router, ForwardRelay(forwards, fifo=fifo), options)
        assert forwarder.run().forwarded == {f"rest{suffix}": 300}
        check = _in_order if fifo else sorted
        found = _drained(client, f"rest{suffix}")
        assert check(found) == check([str(number) for number in range(300)])


def _in_order(bodies: list[str]) -> dict[int, list[str]]:
    return {group: [body for body in bodies if int(body) % 5 == group] for group in range(5)}


def _drained(client: HttpQueueClient, queue: str) -> list[str]:
    found: list[str] = []
    while got := client.receive(queue, count=10, timeout_s=600):
        found += [each.body for each in got]
        client.delete_batch(queue, [each.receipt for each in got])
    return found
