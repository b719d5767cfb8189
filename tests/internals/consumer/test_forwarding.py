"""The forwarder: its loop, both relays, and its metrics."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.client.scripted_server import ScriptedServer, reply
from tests.consumer.simulation import received
from veilmq.client import ClientError, HttpQueueClient, NewMessage, ReceivedMessage, SentMessage, Unreachable
from veilmq.client.api import Forwards
from veilmq.client.transport import ATTEMPTS_MAX, UNEXPECTED_REPLY
from veilmq.consumer.forwarding import (
    BATCH_BYTES_MAX,
    GROUP_HELD,
    NO_REPLY,
    NO_RULE,
    Forwarder,
    Relay,
    RelayedMessage,
    RelayOutcome,
    Totals,
    can_forward,
    forwarder_metrics,
    relay_by_sending,
    relay_in_transactions,
)
from veilmq.consumer.forwarding_rules import read_rules
from veilmq.consumer.metrics import Exported
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer, SystemClock

TO_REST = read_rules('default = "rest"')
GONE = ClientError("ReceiptEnded", "It is gone.", 410, fields={"state": "gone"})


class Scripted(HttpQueueClient):
    """An intake whose receives return or raise as scripted, then nothing."""

    def __init__(self, *script: list[ReceivedMessage] | Exception) -> None:
        super().__init__("http://127.0.0.1:1")
        self._script = iter(script)
        self.receives: list[dict[str, Any]] = []

    def receive(self, queue: str, **options: Any) -> list[ReceivedMessage]:
        self.receives.append(options)
        found = next(self._script, [])
        if isinstance(found, Exception):
            raise found
        return found


class ScriptedRelay:
    """A relay with scripted outcomes, then success."""

    def __init__(self, *outcomes: RelayOutcome | Exception) -> None:
        self._outcomes = iter(outcomes)
        self.relayed: list[str] = []

    def __call__(self, messages: Sequence[RelayedMessage]) -> list[RelayOutcome]:
        self.relayed += [f"{each.message.body} to {each.target}" for each in messages]
        found = [next(self._outcomes, None) for _ in messages]
        if isinstance(found[0], Unreachable):
            raise found[0]
        return found  # type: ignore[return-value]


def run(client: Scripted, relay: ScriptedRelay, **options: Any) -> Totals:
    """Forward with one worker until the intake is empty."""
    return Forwarder(client, TO_REST, relay, intake="jobs", workers=1, until_empty=True, **options).run()


@pytest.mark.parametrize("error", [
    Unreachable("here", "refused"),
    ClientError("ServiceUnavailable", "", 503),
    ClientError("RequestThrottled", "", 403),
    *(ClientError(UNEXPECTED_REPLY, "A page of a proxy.", status) for status in (200, 429)),
], ids=repr)  # fmt: skip
def test_transient_errors_of_receives_are_retried(error: Exception) -> None:
    client = Scripted(error, [received("a")])
    relay = ScriptedRelay()
    assert run(client, relay, timeout_s=7).forwarded == {("rest", NO_RULE): 1}
    assert relay.relayed == ["a to rest"]
    assert [options["timeout_s"] for options in client.receives] == [7] * 3
    assert {options["count"] for options in client.receives} == {10}


@pytest.mark.parametrize("status", [200, 429, 502, 404])
def test_only_a_client_error_means_that_the_server_has_no_forwards(status: int) -> None:
    """A page of a proxy does not: the server may have moved the message, and a copy would be a second one."""
    url = "http://h/000000000000/jobs"
    with ScriptedServer(*[reply(status, b"<html>")] * 2 * ATTEMPTS_MAX) as scripted:
        client = HttpQueueClient(scripted.endpoint)
        calls: tuple[Callable[[], bool], ...] = (
            lambda: can_forward(Forwards(scripted.endpoint, url)),
            lambda: client.dead_letter(url, "receipt", "dead", {}),
        )
        for call in calls:
            with nullcontext() if status == 404 else pytest.raises(ClientError, match="not that of a queue server"):
                assert not call()


def test_a_missing_intake_ends_the_forwarder() -> None:
    missing = ClientError("QueueDoesNotExist", "There is none.", 400)
    with pytest.raises(ClientError, match="There is none"):
        run(Scripted([received("a")], missing), ScriptedRelay())


def test_a_fatal_error_of_one_worker_ends_the_others() -> None:
    refusing = Scripted(ClientError("AccessDenied", "No.", 403))
    with pytest.raises(ClientError):
        Forwarder(refusing, TO_REST, ScriptedRelay(), intake="jobs", workers=4).run()


def test_outcomes_are_counted_and_failures_logged_once_by_queue_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Messages that were not tried because of their group are not logged."""
    long = ClientError("MessageTooLong", "It is too long.", 400)
    outcomes = [None, GONE, long, long, GROUP_HELD, Unreachable("here", "cut off")]
    messages = [received(name, name=name) for name in "abcdef"]
    totals = run(Scripted(messages), ScriptedRelay(*outcomes))
    assert (totals.forwarded.total(), totals.gone) == (1, 1)
    assert totals.failed == {("MessageTooLong",): 2, ("GroupHeld",): 1, (NO_REPLY,): 1}
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the message id-c was not forwarded to rest",
        "the message id-f was not forwarded to rest",
    ]


def test_the_messages_of_a_batch_without_a_reply_count_as_stayed(caplog: pytest.LogCaptureFixture) -> None:
    client = Scripted([received("a"), received("b")], [received("a")])
    totals = run(client, ScriptedRelay(Unreachable("here", "cut off"), None, None))
    assert (totals.forwarded.total(), totals.failed) == (1, {(NO_REPLY,): 2})
    assert "cut off" in caplog.text


def test_totals_are_reported_periodically() -> None:
    stop, reported = threading.Event(), []

    def report(totals: Totals) -> None:
        reported.append(totals.forwarded.total())
        stop.set()

    class Endless(Scripted):
        def receive(self, queue: str, **options: Any) -> list[ReceivedMessage]:
            return [received("a")]

    forwarder = Forwarder(Endless(), TO_REST, ScriptedRelay(), intake="jobs", workers=2, stop=stop)
    totals = forwarder.run(report=report, every_s=0.05)
    assert len(reported) == 1
    assert totals.forwarded.total() >= reported[0]


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
        router, relay = read_rules(f'default = "fast{suffix}"'), partial(relay_in_transactions, forwards, fifo=fifo)
        forwarder = Forwarder(client, router, relay, intake=f"jobs{suffix}", workers=4, until_empty=True)
        assert forwarder.run().forwarded == {(f"fast{suffix}", NO_RULE): 300}
        check = _in_order if fifo else sorted
        found = bodies_of(client, f"fast{suffix}")
        assert check(found) == check([str(number) for number in range(300)])


def _in_order(bodies: list[str]) -> dict[int, list[str]]:
    return {group: [body for body in bodies if int(body) % 5 == group] for group in range(5)}


class FaultyClient(HttpQueueClient):
    """A client that refuses entries and loses requests or replies."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.sends: list[list[str]] = []
        self.refused: set[str] = set()
        self.lost_sends = 0
        self.lost_deletes = 0

    def send_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[SentMessage | ClientError]:
        self.sends.append([each.body for each in messages])
        accepted = [each for each in messages if each.body not in self.refused]
        results = iter(super().send_batch(queue, accepted)) if accepted else iter(())
        refused = ClientError("InternalError", "Not now.", 500)
        found = [refused if each.body in self.refused else next(results) for each in messages]
        if self.lost_sends:
            self.lost_sends -= 1
            raise Unreachable("here", "no answer in time")
        return found

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        if self.lost_deletes:
            self.lost_deletes -= 1
            raise Unreachable("here", "no answer in time")
        return super().delete_batch(queue, receipts)


@pytest.fixture
def client(server: RunningServer) -> Iterator[FaultyClient]:
    with FaultyClient(server.endpoint) as connected:
        yield connected


@pytest.fixture(params=["forward", "send"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def relay_of(kind: str, client: FaultyClient, server: RunningServer, intake: str) -> Relay:
    fifo = intake.endswith(".fifo")
    if kind == "forward":
        return partial(relay_in_transactions, Forwards(server.endpoint, intake), fifo=fifo)
    return partial(relay_by_sending, client, intake, fifo=fifo)


def fill(client: HttpQueueClient, intake: str, *bodies: str, **more: Any) -> list[ReceivedMessage]:
    """Send to the intake, with the first letters as groups, and receive."""
    for body in bodies:
        fifo = intake.endswith(".fifo")
        client.send(intake, body, group=body[0], dedup_id=body if fifo else None, **more)
    return client.receive(intake, count=10, timeout_s=60)


def to(target: str, messages: Sequence[ReceivedMessage]) -> list[RelayedMessage]:
    return [RelayedMessage(message, target) for message in messages]


def bodies_of(client: HttpQueueClient, queue: str) -> list[str]:
    """Receive and delete all messages of a queue."""
    found = []
    while got := client.receive(queue, count=10, timeout_s=600):
        found += [each.body for each in got]
        client.delete_batch(queue, [each.receipt for each in got])
    return found


def codes(outcomes: Sequence[RelayOutcome]) -> list[str | None]:
    return [None if each is None else getattr(each, "code", "Unreachable") for each in outcomes]


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_messages_are_moved_with_attributes_and_group(
    server: RunningServer, client: FaultyClient, kind: str, suffix: str
) -> None:
    attributes = {
        "kind": Attribute("String.x", "é"),
        "n": Attribute("Number", "1"),
        "raw": Attribute("Binary", data=b"\0"),
    }
    got = fill(client, f"jobs{suffix}", "a1", "b1", "a2", "b2", attributes=attributes)
    messages = [RelayedMessage(each, f"fast{suffix}" if each.body[0] == "a" else f"slow{suffix}") for each in got]
    assert relay_of(kind, client, server, f"jobs{suffix}")(messages) == [None] * 4
    fast = client.receive(f"fast{suffix}", count=10)
    assert sorted(each.body for each in fast) == ["a1", "a2"]
    assert all((each.attributes, each.group) == (attributes, "a") for each in fast)
    assert sorted(bodies_of(client, f"slow{suffix}")) == ["b1", "b2"]
    status = client.show(f"jobs{suffix}")
    assert (status.visible, status.in_flight) == (0, 0)
    if kind == "forward":
        assert {each.id for each in fast} == {each.id for each in got if each.body[0] == "a"}


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_only_messages_to_a_missing_queue_and_their_groups_stay(
    server: RunningServer, client: FaultyClient, kind: str, suffix: str
) -> None:
    got = fill(client, f"jobs{suffix}", "a1", "b1", "a2")
    by_body = {each.body: each for each in got}
    messages = [
        RelayedMessage(by_body["a1"], f"none{suffix}"),
        RelayedMessage(by_body["b1"], f"fast{suffix}"),
        RelayedMessage(by_body["a2"], f"fast{suffix}"),
    ]
    missing, *others = codes(relay_of(kind, client, server, f"jobs{suffix}")(messages))
    assert missing in ("QueueNotFound", "QueueDoesNotExist")
    assert others == ([None, GROUP_HELD.code] if suffix else [None, None])
    assert bodies_of(client, f"fast{suffix}") == (["b1"] if suffix else ["b1", "a2"])
    assert client.show(f"jobs{suffix}").in_flight == (2 if suffix else 1)


def test_messages_of_a_refused_request_are_forwarded_one_by_one(server: RunningServer, client: FaultyClient) -> None:
    """A server with credentials refuses a request if one target is missing."""

    class Strict(Forwards):
        def forward(self, entries: Sequence[tuple[str, str]]) -> Any:
            if any(target == "none.fifo" for _, target in entries):
                raise ClientError("QueueNotFound", "There is none.", 404)
            return super().forward(entries)

    got = {each.body: each for each in fill(client, "jobs.fifo", "a1", "b1", "a2")}
    with Strict(server.endpoint, "jobs.fifo") as forwards:
        messages = [*to("none.fifo", [got["a1"]]), *to("fast.fifo", [got["b1"], got["a2"]])]
        outcomes = relay_in_transactions(forwards, messages, fifo=True)
    assert codes(outcomes) == ["QueueNotFound", None, GROUP_HELD.code]
    assert bodies_of(client, "fast.fifo") == ["b1"]


def test_the_rest_of_a_group_is_not_sent_after_a_refused_message(server: RunningServer, client: FaultyClient) -> None:
    """Each send has at most one message of a group."""
    got = fill(client, "jobs.fifo", "a1", "a2", "b1", "a3", "b2")
    client.refused = {"a2"}
    outcomes = relay_by_sending(client, "jobs.fifo", to("fast.fifo", got), fifo=True)
    found = dict(zip([each.body for each in got], codes(outcomes), strict=True))
    assert found == {"a1": None, "a2": "InternalError", "a3": GROUP_HELD.code, "b1": None, "b2": None}
    assert client.sends == [["a1", "b1"], ["a2", "b2"]]


@pytest.mark.parametrize("lost", ["lost_sends", "lost_deletes"])
def test_a_repeated_send_is_stored_once_in_a_fifo_queue_and_twice_in_a_standard_queue(
    server: RunningServer, client: FaultyClient, lost: str
) -> None:
    """The message's id is the deduplication id, for five minutes."""
    for suffix in ("", ".fifo"):
        got = fill(client, f"jobs{suffix}", "a1")
        relay = relay_of("send", client, server, f"jobs{suffix}")
        setattr(client, lost, 1)
        (outcome,) = relay(to(f"fast{suffix}", got))
        assert isinstance(outcome, Unreachable)
        server.advance(60_000)
        again = client.receive(f"jobs{suffix}")
        assert relay(to(f"fast{suffix}", again)) == [None]
        assert bodies_of(client, f"fast{suffix}") == (["a1"] if suffix else ["a1", "a1"])
        assert client.show(f"jobs{suffix}").in_flight == 0


def test_a_forward_after_a_send_without_a_delete_is_stored_once(server: RunningServer, client: FaultyClient) -> None:
    """An operator may change from one relay to the other."""
    got = fill(client, "jobs.fifo", "a1")
    client.lost_deletes = 1
    relay_by_sending(client, "jobs.fifo", to("fast.fifo", got), fifo=True)
    assert relay_of("forward", client, server, "jobs.fifo")(to("fast.fifo", got)) == [None]
    assert bodies_of(client, "fast.fifo") == ["a1"]
    assert client.show("jobs.fifo").in_flight == 0


def test_sends_are_no_larger_than_each_server_accepts(server: RunningServer, client: FaultyClient) -> None:
    large = "x" * (BATCH_BYTES_MAX - 10)
    got = fill(client, "jobs", "y", large, "z" * 20)
    assert relay_by_sending(client, "jobs", to("fast", got), fifo=False) == [None] * 3
    assert all(sum(map(len, batch)) <= BATCH_BYTES_MAX for batch in client.sends)
    assert len(client.sends) == 2
    assert sorted(map(len, bodies_of(client, "fast"))) == [1, 20, len(large)]


RULES = """
default = "rest"

[[rules]]
queue = "video"
attributes.kind = "video"
"""


def test_the_metrics_of_a_forwarder() -> None:
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
