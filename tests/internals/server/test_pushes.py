"""Pushes and topics: the URL guard, attempts, the pusher, undeliverable messages, subscribing, key and certificate."""

import asyncio
import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.clients.smq.raw import element, smq_request
from tests.internals.server.scripted_engine import ScriptedEngine
from tests.internals.wire.sqs.requests import message, received
from tests.server.push_receiver import TOPIC, Receiver, publish, subscribed, waiting
from veilmq.core import commands
from veilmq.core.errors import EndpointRefused, InternalError, QueueNotFound, ReceiptState, StoreFull
from veilmq.core.topics import PUSHES, ListPushes, Subscribe, Subscription, push_queue
from veilmq.server import push_identity, pushes
from veilmq.server.http_parser import Pending
from veilmq.server.metrics import PushOutcome, TopicCounts
from veilmq.server.pushes import (
    LEASE_S,
    LOG_PERIOD_MS,
    RECEIVER_PUSHES_MAX,
    RESOLVE_S_MAX,
    LogThrottle,
    Pusher,
    PushError,
    Resolve,
    SystemResolver,
    TopicService,
    UrlGuard,
)
from veilmq.server.pushes import Receiver as PushReceiver
from veilmq.server.settings import AllowList, ServerSettings
from veilmq.store.port import StoreError
from veilmq.testing import RunningServer, VirtualClock


class FakeResolver:
    """Returns scripted addresses, and records the queries."""

    def __init__(self, **addresses: list[str]) -> None:
        self.queries: list[tuple[str, int]] = []
        self._addresses = addresses

    async def __call__(self, name: str, port: int) -> list[str]:
        self.queries.append((name, port))
        if name not in self._addresses:
            raise OSError(-2, "Name or service not known")
        return self._addresses[name]


def admit(url: str, allow: str, resolver: FakeResolver | None = None) -> list[str]:
    """Return the addresses that the guard allows for ``url``."""
    target = asyncio.run(UrlGuard(AllowList(allow), resolve=resolver or FakeResolver()).admit(url))
    return [str(address) for address in target.addresses]


def refusal(url: str, allow: str, resolver: FakeResolver | None = None) -> str:
    with pytest.raises(EndpointRefused) as caught:
        admit(url, allow, resolver)
    return str(caught.value)


def test_only_allowed_addresses_of_a_name_are_used() -> None:
    resolver = FakeResolver(hook=["2606:4700::1111", "10.0.0.1", "8.8.8.8"])
    assert admit("http://hook/in", "hook", resolver) == ["2606:4700::1111", "8.8.8.8"]


def test_without_a_list_nothing_is_allowed_and_no_name_resolved() -> None:
    resolver = FakeResolver(hook=["8.8.8.8"])
    assert "no host is allowed; add it to the server's setting push_allow" in refusal("http://hook/", "", resolver)
    assert "hook port 80 is not allowed; add it" in refusal("http://hook/", "other", resolver)
    assert resolver.queries == []


def test_an_allowed_name_must_have_a_public_address() -> None:
    error = refusal("http://hook/", "hook", FakeResolver(hook=["127.0.0.1", "10.1.1.1"]))
    assert "hook resolves to 127.0.0.1, 10.1.1.1, which is not a public address" in error
    assert "push_allow" in error
    assert admit("http://hook/", "hook,10.0.0.0/8", FakeResolver(hook=["127.0.0.1", "10.1.1.1"])) == ["10.1.1.1"]


def test_an_address_is_allowed_by_its_network_whatever_its_name() -> None:
    assert admit("http://inside/", "10.0.0.0/8", FakeResolver(inside=["10.1.1.1"])) == ["10.1.1.1"]
    assert "not allowed" in refusal("http://inside/", "10.0.0.0/8", FakeResolver(inside=["11.1.1.1"]))


def test_an_address_in_a_url_is_not_resolved() -> None:
    resolver = FakeResolver()
    assert admit("http://127.0.0.1:81/", "127.0.0.1:81", resolver) == ["127.0.0.1"]
    assert "127.0.0.1 port 80 is not allowed" in refusal("http://127.0.0.1/", "127.0.0.1:81", resolver)
    assert "not allowed" in refusal("http://[::ffff:169.254.169.254]/", "0.0.0.0/0, ::/0", resolver)
    assert admit("http://[::ffff:10.0.0.1]/", "10.0.0.1", resolver) == ["10.0.0.1"]
    assert resolver.queries == []


def test_concurrent_lookups_of_one_name_share_a_query() -> None:
    """A name whose servers are down occupies one thread."""

    async def several() -> list[list[str]]:
        resolver = SystemResolver()
        lookups = [asyncio.ensure_future(resolver("localhost", 80)) for _ in range(200)]
        return await asyncio.gather(*lookups)

    first, *others = asyncio.run(several())
    assert all(other is first for other in others)


def test_the_number_of_concurrent_lookups_is_limited() -> None:
    async def many() -> list[object]:
        resolver = SystemResolver()
        lookups = [asyncio.ensure_future(resolver("localhost", port)) for port in range(1, 81)]
        return await asyncio.gather(*lookups, return_exceptions=True)

    refused = [each for each in asyncio.run(many()) if isinstance(each, OSError)]
    assert len(refused) == 16
    assert "too many names" in str(refused[0])


def test_a_lookup_that_outlasts_the_server_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    def slow(name: str, port: int, **_: object) -> list[object]:
        assert may_end.wait(60)
        return []

    async def begin() -> None:
        lookup = asyncio.ensure_future(SystemResolver()("hook.example", 80))
        await asyncio.wait({lookup}, timeout=0)

    monkeypatch.setattr("socket.getaddrinfo", slow)
    asyncio.run(begin())
    (thread,) = [each for each in threading.enumerate() if each.name == "veilmq-push-hook.example"]
    may_end.set()
    thread.join(60)
    assert caplog.records == []


def test_an_invalid_name_cannot_be_resolved() -> None:
    with pytest.raises(OSError, match=r".*"):
        asyncio.run(SystemResolver()("a" * 64 + ".invalid", 80))


def test_acceptance_doubles_the_concurrency_and_a_failure_resets_it() -> None:
    receiver = PushReceiver()
    seen = []
    for _ in range(6):
        seen.append(receiver.limit - receiver.running)
        receiver.running += 1
        receiver.finish(succeeded=True)
    assert seen == [1, 2, 4, 8, 16, 16] == [*seen[:5], RECEIVER_PUSHES_MAX]
    receiver.running += 3
    receiver.finish(succeeded=False)
    assert (receiver.limit, receiver.running) == (1, 2)


MESSAGE = message()


class RebindingResolver:
    """Returns another address from the second query on."""

    def __init__(self) -> None:
        self.queries: list[tuple[str, int]] = []

    async def __call__(self, name: str, port: int) -> list[str]:
        self.queries.append((name, port))
        return ["127.0.0.1" if len(self.queries) == 1 else "127.0.0.2"]


class FakeSigner:
    """A fake key with its certificate."""

    certificate_pem = b"certificate"

    def sign(self, text: bytes) -> bytes:
        return b"signature"


def attempt(url: str, *, allow: str = "127.0.0.1", resolve: Resolve | None = None) -> str:
    async def one() -> str:
        service = TopicService(
            ServerSettings(push_allow=allow),
            engine=ScriptedEngine(),
            clock=VirtualClock(),
            wall_s=lambda: 0.0,
            base_url="http://certificate.example",
            identity=FakeSigner(),
        )
        if resolve is not None:
            service._guard = UrlGuard(AllowList(allow), resolve=resolve)
        return await service.attempt(Subscription(topic="1/t", name="s", endpoint=url, push_url=url), MESSAGE)

    return asyncio.run(one())


def test_the_checked_address_is_connected_to(receiver: Receiver) -> None:
    """The name is resolved once, and sent as ``Host``."""
    resolver = RebindingResolver()
    assert attempt(f"http://hook.example:{receiver.port}/in", resolve=resolver) == ""
    assert resolver.queries == [("hook.example", receiver.port)]
    assert receiver.pushes[0].headers["Host"] == f"hook.example:{receiver.port}"


def test_each_attempt_resolves_and_checks_again(receiver: Receiver) -> None:
    resolver = RebindingResolver()
    url = f"http://hook.example:{receiver.port}/in"
    assert attempt(url, resolve=resolver) == ""
    assert "not allowed" in attempt(url, resolve=resolver)
    assert len(receiver.pushes) == 1


async def two_addresses(name: str, port: int) -> list[str]:
    """Resolve every name to an address without a listener, and to this machine."""
    return ["127.0.0.2", "127.0.0.1"]


def test_the_next_address_is_tried_if_one_refuses(receiver: Receiver) -> None:
    url = f"http://hook.example:{receiver.port}/in"
    assert attempt(url, allow="127.0.0.0/8", resolve=two_addresses) == ""
    assert "no connection to 127.0.0.2: " in attempt("http://127.0.0.2:1/", allow="127.0.0.0/8")


def test_the_next_address_is_tried_if_one_does_not_reply(receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.2", receiver.port), backlog=0), ExitStack() as waiting_to_be_accepted:
        for _ in range(2):  # more than the listener queues, so further ones get no reply
            client = waiting_to_be_accepted.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.2", receiver.port))
        url = f"http://hook.example:{receiver.port}/in"
        assert attempt(url, allow="127.0.0.0/8", resolve=two_addresses) == ""


@pytest.mark.parametrize("status", [200, 201, 204, 299, 300, 302, 304, 400, 403, 404, 500, 503])
def test_only_2xx_statuses_accept(receiver: Receiver, status: int) -> None:
    receiver.status = status
    assert attempt(receiver.url) == ("" if status < 300 else f"status {status}")


def test_errors_do_not_contain_the_url(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """It may contain a secret, and errors are logged."""

    async def defective(name: str, port: int) -> list[str]:
        raise ZeroDivisionError

    for url in (f"http://127.0.0.2:{receiver.port}/s3cret", "http://127.0.0.1:1/?token=s3cret"):
        assert "127.0.0." in attempt(url)
        assert "s3cret" not in attempt(url)
    assert attempt("http://hook.example/s3cret", resolve=defective) == "a defect of this server"
    assert "a push of s of 1/t failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "s3cret" not in caplog.text


# Invalid replies.


@contextmanager
def replying(reply: bytes, *, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port of a listener that sends these bytes on one connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                connection, _ = listener.accept()
                with connection if context is None else context.wrap_socket(connection, server_side=True) as wrapped:
                    wrapped.recv(65_536)
                    wrapped.sendall(reply)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
    thread.join(60)


@pytest.mark.parametrize(("reply", "error"), [
    (b"", "ended without a reply"), (b"HTTP/1.1 200 OK\r\n", "ended without a reply"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", "the reply is not HTTP"), (b"HTTP/1.1 999 What\r\n\r\n", "the reply is not HTTP"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "ended without a reply"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 500\r\n\r\n", "status 500"),
], ids=["nothing", "half", "other", "status", "endless", "provisional"])  # fmt: skip
def test_invalid_replies(reply: bytes, error: str) -> None:
    with replying(reply) as port:
        assert error in attempt(f"http://127.0.0.1:{port}/")


# TLS.


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ssl.SSLContext]:
    """Return a factory of server contexts with a name and a trusted certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))

    def context(name: str) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(made)
        return made

    return context


async def here(name: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.mark.parametrize("name", ["hook.example", "other.example", "127.0.0.1"])
def test_tls_verifies_the_name_and_not_the_address(trusted: Callable[[str], ssl.SSLContext], name: str) -> None:
    with replying(b"HTTP/1.1 204 No Content\r\n\r\n", context=trusted(name)) as port:
        problem = attempt(f"https://hook.example:{port}/", resolve=here)
    assert problem == "" if name == "hook.example" else "CERTIFICATE_VERIFY_FAILED" in problem


def test_an_untrusted_certificate_is_refused(trusted: Callable[[str], ssl.SSLContext]) -> None:
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("hook.example").configure_cert(stranger)
    with replying(b"HTTP/1.1 204 No Content\r\n\r\n", context=stranger) as port:
        assert "CERTIFICATE_VERIFY_FAILED" in attempt(f"https://hook.example:{port}/", resolve=here)


def test_no_proxy_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert attempt(receiver.url) == ""


def test_a_subject_is_logged_once_a_minute() -> None:
    clock = VirtualClock()
    throttle = LogThrottle(clock)
    assert [throttle.due("a"), throttle.due("a"), throttle.due("b")] == [True, False, True]
    clock.advance(LOG_PERIOD_MS - 1)
    assert not throttle.due("a")
    clock.advance(1)
    assert throttle.due("a")


def test_the_number_of_subjects_is_bounded() -> None:
    throttle = LogThrottle(VirtualClock())
    for subject in range(pushes._SUBJECTS_MAX):
        throttle.due(subject)
    assert not throttle.due(0)
    assert throttle.due("one more")
    assert throttle.due(0)


URL = "http://hook.example/"
ONE = Subscription(topic="1/t", name="one", endpoint=URL, push_url=URL)
QUEUE = push_queue("1/t", "one")
NOTHING, SOMETHING = received(), received(MESSAGE)


class Bench:
    """A pusher on a scripted engine; `problem` is the result of attempts."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.counts = TopicCounts()
        self.problem = ""
        self.pusher = Pusher(
            engine=self.engine,
            clock=self.clock,
            attempt=self.attempt,
            counts=self.counts,
            parallel_max=2,
            jitter=lambda: 0.0,
        )
        self.pusher.start()

    async def attempt(self, subscription: Subscription, message: object) -> str:
        return self.problem

    def pending(self) -> list[commands.Command]:
        return [command for command, _ in self.engine.pending]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def receive(count: int = 1, queue: str = QUEUE) -> commands.Receive:
    return commands.Receive(queue=queue, count=count, timeout_s=LEASE_S)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_subscription_ends_when_it_is_not_listed_and_not_when_its_queue_is_missing(bench: Bench) -> None:
    """The missing queue may be that of a deleted subscription, and one of the same name be listed already."""
    bench.engine.complete([ONE])
    bench.engine.watches[PUSHES](0)
    (_, on_received), (_, listed) = bench.engine.pending
    bench.engine.pending.clear()
    listed([ONE])
    on_received(QueueNotFound(QUEUE))
    assert bench.pending() == []
    bench.engine.watches[QUEUE](bench.clock.now_ms())
    assert bench.pending() == [receive()]
    bench.engine.complete(QueueNotFound(QUEUE))
    bench.engine.watches[PUSHES](0)
    bench.engine.complete([])
    bench.clock.advance(1_000)
    assert (bench.pending(), set(bench.engine.watches)) == ([], {PUSHES})


async def test_listing_subscriptions_is_retried_after_a_second(bench: Bench) -> None:
    bench.engine.complete(StoreFull())
    bench.clock.advance(1_000)
    bench.engine.complete([ONE])
    assert bench.pending() == [receive()]


async def test_changes_while_subscriptions_are_listed_cause_one_more_listing(bench: Bench) -> None:
    for _ in range(3):
        bench.engine.watches[PUSHES](0)
    assert bench.pending() == [ListPushes()]
    bench.engine.complete([ONE])
    assert bench.pending() == [receive(), ListPushes()]
    bench.engine.complete(NOTHING)
    bench.engine.complete([ONE])
    assert bench.pending() == []


async def test_a_pushed_message_that_cannot_be_deleted_is_pushed_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bench.engine.complete([ONE])
    bench.engine.complete(SOMETHING)
    await settle()
    bench.engine.complete(StoreFull())
    await settle()
    assert not any(bench.counts.pushes.values())
    assert bench.counts.pushes_running == 0
    assert "was not settled; it is received again" in caplog.text


@pytest.mark.parametrize(("problem", "count"), [("", 2), ("status 500", 1)], ids=["accepts", "fails"])
async def test_the_concurrency_of_a_receiver_grows_while_it_accepts(bench: Bench, problem: str, count: int) -> None:
    """Up to that of all receivers, which is two."""
    bench.problem = problem
    bench.engine.complete([ONE])
    for _ in range(2):
        bench.engine.complete(SOMETHING)
        await settle()
        bench.engine.complete([ReceiptState.LIVE])
        await settle()
        bench.engine.watches[QUEUE](bench.clock.now_ms())
        assert bench.pending() == [receive(count)]


async def test_a_message_received_for_an_ended_subscription_is_pushed(bench: Bench) -> None:
    """But nothing more is received."""
    bench.engine.complete([ONE])
    bench.engine.watches[PUSHES](0)
    (_, on_received), (_, listed) = bench.engine.pending
    bench.engine.pending.clear()
    listed([])
    on_received(SOMETHING)
    await settle()
    assert isinstance(bench.engine.complete(QueueNotFound(QUEUE)), commands.Delete)
    await settle()
    assert (bench.pending(), bench.counts.pushes_running) == ([], 0)


async def test_a_late_result_for_an_ended_subscription_does_not_end_a_new_one(bench: Bench) -> None:
    bench.engine.complete([ONE])
    (_, on_received) = bench.engine.pending.pop()
    for subscriptions in ([], [ONE]):
        bench.engine.watches[PUSHES](0)
        bench.engine.complete(subscriptions)
    on_received(QueueNotFound(QUEUE))
    assert set(bench.engine.watches) == {PUSHES, QUEUE}


async def test_close_waits_for_received_messages_and_receives_no_more(bench: Bench) -> None:
    bench.engine.complete([ONE])
    watches = dict(bench.engine.watches)
    closing = asyncio.ensure_future(bench.pusher.close())
    await settle()
    assert bench.pending() == [receive(), ListPushes()]
    bench.engine.complete(SOMETHING)
    bench.engine.complete([ONE])
    await settle()
    assert not closing.done()
    bench.engine.complete([ReceiptState.LIVE])
    await closing
    for wake in watches.values():
        wake(bench.clock.now_ms())
    assert (bench.pending(), bench.engine.watches) == ([], {})
    assert bench.counts.pushes[PushOutcome.ACCEPTED] == 1


async def test_a_listing_that_ends_after_close_is_ignored(bench: Bench) -> None:
    closing = asyncio.ensure_future(bench.pusher.close())
    await settle()
    bench.engine.complete([ONE])
    bench.engine.complete(InternalError())
    await closing
    assert bench.pending() == []


@pytest.mark.parametrize("store", ["memory", "postgres"])
def test_a_message_for_a_new_subscription_of_the_same_name_goes_to_its_url(
    store: str, store_settings: Callable[[str], dict[str, Any]], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server receives it before it has read that the subscription is a new one."""
    release, late = threading.Event(), list[object]()
    receiver.before = lambda _: release.wait(60)
    with RunningServer(push_allow="127.0.0.1", **store_settings(store)) as server:
        subscribed(server, "s", f"{receiver.url}/old")
        publish(server)
        server.wait_until(lambda: receiver.pushes)
        monkeypatch.setattr(Pusher, "_listed", lambda _, result: late.append(result))
        assert smq_request(server, "DELETE", f"{TOPIC}/subscriptions/s").status == 204
        subscribed(server, "s", f"{receiver.url}/new", NotifyContentFormat="SIMPLIFIED")
        publish(server, "for the new one")
        server.wait_until(lambda: late)
        release.set()
        server.wait_until(lambda: waiting(server) == 0)
    assert [push.path for push in receiver.pushes] == ["/old", "/new"]
    assert receiver.pushes[1].headers["Content-Type"] == "text/plain;charset=utf-8"


def undeliverable(server: RunningServer) -> int:
    (line,) = [
        line
        for line in urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode().splitlines()
        if line.startswith("veilmq_topic_messages_undeliverable_total ")
    ]
    return int(float(line.partition(" ")[2]))


def test_an_undeliverable_message_is_logged_once_a_minute(
    veilmq_server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = veilmq_server
    smq_request(server, "PUT", "/topics/news")
    for name in ("gone", "stays"):
        smq_request(server, "PUT", f"/queues/{name}")
        endpoint = element("Endpoint", f"acs:mns:r:000000000000:queues/{name}")
        assert (
            smq_request(
                server, "PUT", f"/topics/news/subscriptions/{name}", f"<Subscription>{endpoint}</Subscription>"
            ).status
            == 201
        )
    publish(server)
    assert undeliverable(server) == 0
    smq_request(server, "DELETE", "/queues/gone")
    for _ in range(3):
        publish(server)
    assert undeliverable(server) == 3
    text = "of 000000000000/news did not reach subscription gone: The queue 000000000000/gone does not exist"
    assert caplog.text.count(text) == 1
    server.advance(seconds=60)
    publish(server)
    assert caplog.text.count(text) == 2
    assert "subscription stays" not in caplog.text
    page = smq_request(server, "GET", "/queues/stays/messages?numOfMessages=16")
    assert len(page.texts("MessageId")) == 5


def test_a_certificate_is_valid_from_the_day_before_for_ten_years() -> None:
    certificate = x509.load_pem_x509_certificate(push_identity.generate(now_s=NOW_S).certificate_pem)
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    assert (NOW_S - begin, end - NOW_S) == (86_400, 3_650 * 86_400)


def service(engine: ScriptedEngine, clock: VirtualClock) -> TopicService:
    return TopicService(ServerSettings(), engine=engine, clock=clock, wall_s=lambda: 0.0, base_url="", identity=None)


PUSHED = Subscribe(subscription=Subscription(topic="1/t", name="s", endpoint=URL, push_url=URL))


class SubscribeBench:
    """Subscribing on a scripted engine; the test resolves names."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.found: asyncio.Queue[list[str]] = asyncio.Queue()
        self.results: list[Any] = []
        self._service = service(self.engine, self.clock)
        self._service._guard = UrlGuard(AllowList("hook.example"), resolve=self._resolve)

    async def _resolve(self, name: str, port: int) -> list[str]:
        return await self.found.get()

    async def subscribe(self) -> Pending:
        one = self._service.handlers[Subscribe](PUSHED, 0, self.results.append)
        assert one is not None
        await settle()
        return one


@pytest.fixture
def subscribing() -> SubscribeBench:
    return SubscribeBench()


async def test_a_subscription_is_submitted_after_the_guard_admits_its_url(subscribing: SubscribeBench) -> None:
    await subscribing.subscribe()
    assert subscribing.engine.pending == []
    subscribing.found.put_nowait(["8.8.8.8"])
    await settle()
    assert subscribing.engine.complete("subscribed") == PUSHED
    await settle()
    assert subscribing.results == ["subscribed"]


async def test_resolving_a_name_may_take_five_seconds(subscribing: SubscribeBench) -> None:
    one = await subscribing.subscribe()
    subscribing.clock.advance(RESOLVE_S_MAX * 1_000 - 1)
    assert subscribing.results == []
    subscribing.clock.advance(1)
    await settle()
    (refused,) = subscribing.results
    assert "not found in time" in str(refused)
    one.hurry()
    assert len(subscribing.results) == 1


@pytest.mark.parametrize("is_found", [False, True], ids=["before-resolution", "before-the-command-begins"])
async def test_a_withdrawn_subscription_is_not_made(subscribing: SubscribeBench, is_found: bool) -> None:
    one = await subscribing.subscribe()
    if is_found:
        subscribing.found.put_nowait(["8.8.8.8"])
        await settle()
    one.withdraw()
    await settle()
    assert (subscribing.results, subscribing.engine.pending) == ([], [])
    subscribing.clock.advance(RESOLVE_S_MAX * 1_000)
    assert subscribing.results == []


NOW_S = 1_700_000_000.0


def test_the_identity_is_shared_by_all_servers_of_a_database(store_settings: Callable[[str], dict[str, Any]]) -> None:
    """tests/server/test_pushing.py has the same for a data folder."""
    settings, certificates = store_settings("postgres"), set[bytes]()
    for _ in range(2):
        with RunningServer(push_allow="hook.example", **settings) as server:
            certificates.add(urllib3.request("GET", f"{server.endpoint}/push-certificate.pem").data)
    assert len(certificates) == 1


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "push.new").mkdir()
    with pytest.raises(StoreError, match=r"push\.pem cannot be read or written"):
        RunningServer(data=tmp_path, push_allow="hook.example").__enter__()


def write_identity(folder: Path) -> tuple[Path, Path]:
    """Write a key and its certificate; return their files."""
    pem = push_identity.generate(now_s=NOW_S).encode()
    begin = pem.index(b"-----BEGIN CERTIFICATE")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    key.write_bytes(pem[:begin])
    certificate.write_bytes(pem[begin:])
    return key, certificate


def test_errors_of_a_given_identity(tmp_path: Path) -> None:
    key, certificate = write_identity(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(PushError, match="is not the certificate of"):
        push_identity.read(key, write_identity(other)[1])
    with pytest.raises(PushError, match="cannot be read: No such file"):
        push_identity.read(tmp_path / "none.pem", certificate)
    with pytest.raises(PushError, match="must be a key and a certificate in PEM"):
        push_identity.read(certificate, certificate)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(PushError, match="pipe cannot be read: it is no file"):
        push_identity.read(pipe, certificate)
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key.write_bytes(curve)
    with pytest.raises(PushError, match="must be an RSA key"):
        push_identity.read(key, certificate)


def test_errors_of_the_identity_prevent_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PushError, match="cannot be read"):
        RunningServer(push_allow="a", push_key=tmp_path / "k", push_certificate=tmp_path / "c").__enter__()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "veilmq.server.push_identity", raising=False)
    with pytest.raises(PushError, match=r"needs the module cryptography.*pip install 'veilmq\[push\]'"):
        RunningServer(push_allow="a").__enter__()
