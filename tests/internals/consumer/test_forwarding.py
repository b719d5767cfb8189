"""The forwarder: its loop, both ways to relay messages, and its metrics."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.consumer.simulation import received
from veilmq.client import ClientError, HttpQueueClient, NewMessage, ReceivedMessage, SentMessage, Unreachable
from veilmq.client.api import Forwards
from veilmq.consumer.forwarding import (
    BATCH_BYTES_MAX,
    GROUP_HELD,
    NO_REPLY,
    Forwarder,
    ForwardRelay,
    Relay,
    RelayedMessage,
    RelayOutcome,
    SendRelay,
    Totals,
    forwarder_metrics,
)
from veilmq.consumer.forwarding_rules import read_rules
from veilmq.consumer.metrics import Exported
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer, SystemClock

TO_REST = read_rules('default = "rest"')
GONE = ClientError("ReceiptEnded", "It is gone.", 410, fields={"state": "gone"})


class Scripted(HttpQueueClient):
    """An intake that answers, or fails, as it is told; then it is empty."""

    def __init__(self, *script: list[ReceivedMessage] | Exception) -> None:
        super().__init__("http://127.0.0.1:1")
        self._script = iter(script)
        self.asked: list[dict[str, Any]] = []

    def receive(self, queue: str, **given: Any) -> list[ReceivedMessage]:
        self.asked.append(given)
        found = next(self._script, [])
        if isinstance(found, Exception):
            raise found
        return found


class Carried(Relay):
    """A carrier that answers as it is told, and else carries everything."""

    def __init__(self, *outcomes: RelayOutcome | Exception) -> None:
        super().__init__(fifo=False)
        self._outcomes = iter(outcomes)
        self.seen: list[str] = []

    def relay(self, messages: Sequence[RelayedMessage]) -> list[RelayOutcome]:
        self.seen += [f"{each.message.body} to {each.target}" for each in messages]
        found = [next(self._outcomes, None) for _ in messages]
        if isinstance(found[0], Unreachable):
            raise found[0]
        return found  # type: ignore[return-value]


def run(client: Scripted, carrier: Carried, **options: Any) -> Totals:
    """Forward until the intake is empty, by one worker."""
    return Forwarder(client, TO_REST, carrier, intake="jobs", workers=1, until_empty=True, **options).run()


@pytest.mark.slow
def test_it_goes_on_after_a_server_that_failed() -> None:
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
    refusing = Scripted(ClientError("AccessDenied", "No.", 403))
    with pytest.raises(ClientError):
        Forwarder(refusing, TO_REST, Carried(), intake="jobs", workers=4).run()


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

    forwarder = Forwarder(Endless(), TO_REST, Carried(), intake="jobs", workers=2, stop=stop)
    totals = forwarder.run(report=report, every_s=0.05)
    assert len(reported) == 1
    assert totals.messages >= reported[0]


QUEUES = ("jobs", "fast", "slow", "jobs.fifo", "fast.fifo", "slow.fifo")


@contextmanager
def serving(**options: Any) -> Iterator[RunningServer]:
    with RunningServer(**options) as running, HttpQueueClient(running.endpoint) as client:
        for name in QUEUES:
            client.create_queue(name, {"fifo": True} if name.endswith(".fifo") else {})
        yield running


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_many_workers_forward_each_message_once_and_groups_in_order(suffix: str) -> None:
    with (
        serving(clock=SystemClock()) as server,
        HttpQueueClient(server.endpoint) as client,
        Forwards(server.endpoint, f"jobs{suffix}") as forwards,
    ):
        fifo = bool(suffix)
        for number in range(300):
            client.send(f"jobs{suffix}", str(number), group=str(number % 5), dedup_id=str(number) if fifo else None)
        router, relay = read_rules(f'default = "fast{suffix}"'), ForwardRelay(forwards, fifo=fifo)
        forwarder = Forwarder(client, router, relay, intake=f"jobs{suffix}", workers=4, until_empty=True)
        assert forwarder.run().forwarded == {f"fast{suffix}": 300}
        check = _in_order if fifo else sorted
        found = bodies_of(client, f"fast{suffix}")
        assert check(found) == check([str(number) for number in range(300)])


def _in_order(bodies: list[str]) -> dict[int, list[str]]:
    return {group: [body for body in bodies if int(body) % 5 == group] for group in range(5)}


class Tampered(HttpQueueClient):
    """A client whose batches can be tampered with, before and after they are sent."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.sends: list[list[str]] = []
        self.refused: set[str] = set()
        self.lost_sends = 0
        self.lost_deletes = 0

    def send_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[SentMessage | ClientError]:
        """Send all but those that are to be refused; lose the answer."""
        self.sends.append([each.body for each in messages])
        kept = [each for each in messages if each.body not in self.refused]
        answers = iter(super().send_batch(queue, kept)) if kept else iter(())
        refused = ClientError("InternalError", "Not now.", 500)
        found = [refused if each.body in self.refused else next(answers) for each in messages]
        if self.lost_sends:
            self.lost_sends -= 1
            raise Unreachable("here", "no answer in time")
        return found

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        """Delete nothing where the request is to be lost."""
        if self.lost_deletes:
            self.lost_deletes -= 1
            raise Unreachable("here", "no answer in time")
        return super().delete_batch(queue, receipts)


@pytest.fixture
def tampered(server: RunningServer) -> Iterator[Tampered]:
    with Tampered(server.endpoint) as connected:
        yield connected


@pytest.fixture(params=["forward", "send"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def relay_of(way: str, tampered: Tampered, server: RunningServer, intake: str) -> Relay:
    fifo = intake.endswith(".fifo")
    if way == "forward":
        return ForwardRelay(Forwards(server.endpoint, intake), fifo=fifo)
    return SendRelay(tampered, intake, fifo=fifo)


def fill(tampered: HttpQueueClient, intake: str, *bodies: str, **more: Any) -> list[ReceivedMessage]:
    """Send to the intake, groups being first letters, and receive."""
    for body in bodies:
        fifo = intake.endswith(".fifo")
        tampered.send(intake, body, group=body[0], dedup_id=body if fifo else None, **more)
    return tampered.receive(intake, count=10, timeout_s=60)


def to(target: str, messages: Sequence[ReceivedMessage]) -> list[RelayedMessage]:
    """Return the messages on their way to one queue."""
    return [RelayedMessage(message, target) for message in messages]


def bodies_of(client: HttpQueueClient, queue: str) -> list[str]:
    """Receive and delete all that is in a queue."""
    found = []
    while got := client.receive(queue, count=10, timeout_s=600):
        found += [each.body for each in got]
        client.delete_batch(queue, [each.receipt for each in got])
    return found


def codes(outcomes: Sequence[RelayOutcome]) -> list[str | None]:
    return [None if each is None else getattr(each, "code", "Unreachable") for each in outcomes]


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_messages_come_to_their_queues_with_what_they_carry(
    server: RunningServer, tampered: Tampered, way: str, suffix: str
) -> None:
    attributes = {
        "kind": Attribute("String.x", "é"),
        "n": Attribute("Number", "1"),
        "raw": Attribute("Binary", data=b"\0"),
    }
    got = fill(tampered, f"jobs{suffix}", "a1", "b1", "a2", "b2", attributes=attributes)
    messages = [RelayedMessage(each, f"fast{suffix}" if each.body[0] == "a" else f"slow{suffix}") for each in got]
    assert relay_of(way, tampered, server, f"jobs{suffix}").relay(messages) == [None] * 4
    fast = tampered.receive(f"fast{suffix}", count=10)
    assert sorted(each.body for each in fast) == ["a1", "a2"]
    assert all((each.attributes, each.group) == (attributes, "a") for each in fast)
    assert sorted(bodies_of(tampered, f"slow{suffix}")) == ["b1", "b2"]
    status = tampered.show(f"jobs{suffix}")
    assert (status.visible, status.in_flight) == (0, 0)
    if way == "forward":
        assert {each.id for each in fast} == {each.id for each in got if each.body[0] == "a"}


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_one_missing_queue_keeps_its_messages_and_no_others(
    server: RunningServer, tampered: Tampered, way: str, suffix: str
) -> None:
    """In a FIFO queue the messages behind one that stays wait with it, and those of other groups go on."""
    got = fill(tampered, f"jobs{suffix}", "a1", "b1", "a2")
    by_body = {each.body: each for each in got}
    messages = [
        RelayedMessage(by_body["a1"], f"none{suffix}"),
        RelayedMessage(by_body["b1"], f"fast{suffix}"),
        RelayedMessage(by_body["a2"], f"fast{suffix}"),
    ]
    missing, *others = codes(relay_of(way, tampered, server, f"jobs{suffix}").relay(messages))
    assert missing in ("QueueNotFound", "QueueDoesNotExist")
    assert others == ([None, GROUP_HELD.code] if suffix else [None, None])
    assert bodies_of(tampered, f"fast{suffix}") == (["b1"] if suffix else ["b1", "a2"])
    assert tampered.show(f"jobs{suffix}").in_flight == (2 if suffix else 1)


def test_a_request_that_is_refused_as_a_whole_is_made_singly(server: RunningServer, tampered: Tampered) -> None:
    """As a server with credentials refuses a forward to several queues of which one is missing."""

    class Strict(Forwards):
        def forward(self, entries: Sequence[tuple[str, str]]) -> Any:
            if any(target == "none.fifo" for _, target in entries):
                raise ClientError("QueueNotFound", "There is none.", 404)
            return super().forward(entries)

    got = {each.body: each for each in fill(tampered, "jobs.fifo", "a1", "b1", "a2")}
    with Strict(server.endpoint, "jobs.fifo") as forwards:
        messages = [*to("none.fifo", [got["a1"]]), *to("fast.fifo", [got["b1"], got["a2"]])]
        outcomes = ForwardRelay(forwards, fifo=True).relay(messages)
    assert codes(outcomes) == ["QueueNotFound", None, GROUP_HELD.code]
    assert bodies_of(tampered, "fast.fifo") == ["b1"]


# Sending and deleting.


def test_order_holds_where_a_message_of_a_batch_is_refused(server: RunningServer, tampered: Tampered) -> None:
    """Of each group one message at a time: what follows one that failed is not tried."""
    got = fill(tampered, "jobs.fifo", "a1", "a2", "b1", "a3", "b2")
    tampered.refused = {"a2"}
    outcomes = SendRelay(tampered, "jobs.fifo", fifo=True).relay(to("fast.fifo", got))
    found = dict(zip([each.body for each in got], codes(outcomes), strict=True))
    assert found == {"a1": None, "a2": "InternalError", "a3": GROUP_HELD.code, "b1": None, "b2": None}
    assert tampered.sends == [["a1", "b1"], ["a2", "b2"]]


@pytest.mark.parametrize("lost", ["lost_sends", "lost_deletes"])
def test_what_is_sent_and_not_deleted_comes_again_and_a_fifo_queue_stores_it_once(
    server: RunningServer, tampered: Tampered, lost: str
) -> None:
    """The id is the deduplication id, for five minutes; a standard queue stores it twice."""
    for suffix in ("", ".fifo"):
        got = fill(tampered, f"jobs{suffix}", "a1")
        setattr(tampered, lost, 1)
        (outcome,) = SendRelay(tampered, f"jobs{suffix}", fifo=bool(suffix)).relay(to(f"fast{suffix}", got))
        assert isinstance(outcome, Unreachable)
        server.advance(60_000)
        again = tampered.receive(f"jobs{suffix}")
        assert SendRelay(tampered, f"jobs{suffix}", fifo=bool(suffix)).relay(to(f"fast{suffix}", again)) == [None]
        assert bodies_of(tampered, f"fast{suffix}") == (["a1"] if suffix else ["a1", "a1"])
        assert tampered.show(f"jobs{suffix}").in_flight == 0


def test_a_forward_after_a_send_that_was_not_deleted_stores_it_once(server: RunningServer, tampered: Tampered) -> None:
    """Whoever changes from the one way to the other."""
    got = fill(tampered, "jobs.fifo", "a1")
    tampered.lost_deletes = 1
    SendRelay(tampered, "jobs.fifo", fifo=True).relay(to("fast.fifo", got))
    assert relay_of("forward", tampered, server, "jobs.fifo").relay(to("fast.fifo", got)) == [None]
    assert bodies_of(tampered, "fast.fifo") == ["a1"]
    assert tampered.show("jobs.fifo").in_flight == 0


def test_no_send_is_larger_than_every_server_takes(server: RunningServer, tampered: Tampered) -> None:
    large = "x" * (BATCH_BYTES_MAX - 10)
    got = fill(tampered, "jobs", "y", large, "z" * 20)
    assert SendRelay(tampered, "jobs", fifo=False).relay(to("fast", got)) == [None] * 3
    assert all(sum(map(len, batch)) <= BATCH_BYTES_MAX for batch in tampered.sends)
    assert len(tampered.sends) == 2
    assert sorted(map(len, bodies_of(tampered, "fast"))) == [1, 20, len(large)]


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
    totals.add([RelayedMessage(each, *router.route(each)) for each in messages], [None, None, None, refused, GONE])
    registry = CollectorRegistry()
    registry.register(Exported(forwarder_metrics("jobs", lambda: totals)))

    def value(name: str, **labels: Any) -> float | None:
        return registry.get_sample_value(f"veilmq_forward_{name}_total", {"intake": "jobs", **labels})

    assert [value(name) for name in ("received", "retried", "unmatched", "gone")] == [5, 1, 2, 1]
    assert value("forwarded", queue="video", rule="1") == 1
    assert value("forwarded", queue="rest", rule="default") == 2
    assert value("failed", reason="MessageTooLong") == 1
