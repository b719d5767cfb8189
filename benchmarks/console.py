"""The cost of the console: its first page with very many queues, and of open pages during the cycle.

The store is filled and the server restarted, so that no queue is counted before the first request. Half of the open
pages are lists (five different pages of fifty queues), half are timelines of five busy queues. The cycle is measured
with and without them in alternating turns on the same server.
"""

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Self

from benchmarks import rates, stock
from benchmarks.bench import Bench, Opened
from benchmarks.dialogue import Dialogue, converse, request
from benchmarks.kinds import per_s
from benchmarks.process import Command, free_port, running
from benchmarks.rates import CYCLE
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import VEILMQ
from benchmarks.sqs import Sqs

QUEUES = 10_000
MESSAGES = 100  # in each queue
TOGETHER = 10
WRITERS = 16
REQUESTS = 15
PAGES = 50
SHOWN = 50
BUSY = 5
TURNS = 16  # a single turn is off by some per cent, either way
CPU_SAMPLES = 5
WARM_S = 3.0
SETTLE_S = 2.0
WATCH_S = 5.0
ACCOUNT = "000000000000"
BY_NAME = "/console/queues?size=50"
BY_COUNT = f"{BY_NAME}&sort=visible&descending=true"


class Pages:
    """Open pages whose live updates are read in a thread."""

    def __init__(self, port: int, queries: Sequence[str]) -> None:
        self._port = port
        self._queries = queries
        self.read_bytes = 0

    def __enter__(self) -> Self:
        self._sockets = [self._open(query) for query in self._queries]
        self._over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over = True
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _open(self, query: str) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self._port), timeout=60.0)
        opened.sendall(f"GET /console/live?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = opened.recv(65_536)
        if not head.startswith(b"HTTP/1.1 200"):
            raise rates.FAILURES[0](f"no stream: {head[:200]!r}")
        opened.setblocking(False)
        return opened

    def _read(self) -> None:
        while not self._over:
            time.sleep(0.25)
            for each in self._sockets:
                try:
                    while part := each.recv(1 << 20):
                        self.read_bytes += len(part)
                except BlockingIOError:
                    pass


def measure(bench: Bench) -> Section:
    """Measure the first page by name and by counts, cold and warm, and the cycle with and without open pages."""
    bench.log(f"console: {QUEUES:,} queues, {QUEUES * MESSAGES:,} messages …")
    if missing := VEILMQ.missing():
        return Section(name="console", rows=(alone("first page", "", missing),))
    try:
        rows = tuple(_rows(bench))
    except (*rates.FAILURES, OSError) as failure:
        bench.log(f"  {failure}")
        rows = (alone("first page", "", failed(failure)),)
    return Section(name="console", rows=rows)


def _rows(bench: Bench) -> Iterator[Row]:
    with bench.folder() as data:
        port, admin_port = free_port(), free_port()
        command = VEILMQ.command(port, admin_port, data)
        with running(command):
            _fill(port)
        for words, path in (("by name", BY_NAME), ("by what is visible", BY_COUNT)):
            with running(command):
                yield from _first_page(words, path, admin_port)
        yield from _open_pages(bench, command, port, admin_port)


def _fill(port: int) -> None:
    """Create the queues with their messages, over several connections."""
    converse(port=port, dialogues=[_filling(f"http://127.0.0.1:{port}", each) for each in range(WRITERS)])


def _filling(endpoint: str, writer: int) -> Dialogue:
    entries = [{"Id": str(number), "MessageBody": stock.BODY} for number in range(TOGETHER)]
    for number in range(writer, QUEUES, WRITERS):
        name = f"queue-{number:05}"
        yield request("CreateQueue", QueueName=name)
        for _ in range(MESSAGES // TOGETHER):
            yield request("SendMessageBatch", QueueUrl=f"{endpoint}/{ACCOUNT}/{name}", Entries=entries)


def _first_page(words: str, path: str, admin_port: int) -> Iterator[Row]:
    connection = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=60.0)
    cold_ms = _request_ms(connection, path)
    time.sleep(WARM_S)
    warm_ms = [_request_ms(connection, path) for _ in range(REQUESTS)]
    connection.close()
    note = f"worst of {REQUESTS}: {max(warm_ms):.0f} ms, the very first {cold_ms:.0f} ms"
    yield alone(f"first page of {QUEUES:,} queues, {words}", "ms", median(warm_ms), note=note)


def _request_ms(connection: http.client.HTTPConnection, path: str) -> float:
    began_s = time.perf_counter()
    connection.request("GET", path)
    reply = connection.getresponse()
    text = reply.read()
    taken_ms = (time.perf_counter() - began_s) * 1e3
    if reply.status != 200 or text.count(b"<tr data-queue=") != SHOWN:
        raise OSError(f"{path}: {reply.status}, {text.count(b'<tr data-queue=')} queues")
    return taken_ms


def _open_pages(bench: Bench, command: Command, port: int, admin_port: int) -> Iterator[Row]:
    with running(command) as process, ExitStack() as busy, Sqs(port=port) as sqs:
        opened = Opened(process=process, port=port)
        url = sqs.create_queue("busy-0")
        for number in range(1, BUSY):
            busy.enter_context(_working(port, f"busy-{number}"))
        per_s(opened, CYCLE, url, bench.seconds / 2, bench.connections, {})
        without, shares = [], []
        for turn in range(TURNS):
            share = _turn(opened, admin_port, url, bench, pages_first=bool(turn % 2))
            without.append(share[0])
            shares.append(share[1] / share[0])
        cpu = [_cpu_share(opened, admin_port) for _ in range(CPU_SAMPLES)]
    yield alone(f"{PAGES} open pages: processor", "% of a core", median(cpu))
    note = f"{len(shares)} turns: {', '.join(f'{share:.3f}' for share in shares)}"
    yield alone(f"cycle with {PAGES} open pages ÷ without", "times", median(shares), note=note)
    yield alone("cycle without them", "requests/s", median(without))


def _turn(opened: Opened, admin_port: int, url: str, bench: Bench, *, pages_first: bool) -> tuple[float, float]:
    """Measure the cycle with and without pages, in the given order: neither is always on the larger store."""
    figures = {}
    for has_pages in (pages_first, not pages_first):
        with ExitStack() as pages:
            if has_pages:
                pages.enter_context(Pages(admin_port, _queries()))
            figures[has_pages] = per_s(opened, CYCLE, url, bench.seconds / 2, bench.connections, {})
    return figures[False], figures[True]


def _cpu_share(opened: Opened, admin_port: int) -> float:
    """Return the CPU use that open pages add to an idle server, in per cent of a core."""
    without_s = _cpu_s(opened)
    with Pages(admin_port, _queries()):
        time.sleep(SETTLE_S)
        with_s = _cpu_s(opened)
    return (with_s - without_s) * 100 / WATCH_S


def _cpu_s(opened: Opened) -> float:
    before_s = opened.process.usage().cpu_s
    time.sleep(WATCH_S)
    return opened.process.usage().cpu_s - before_s


def _queries() -> list[str]:
    lists = [
        ",".join(f"queue-{number:05}" for number in range(page * SHOWN, (page + 1) * SHOWN)) for page in range(BUSY)
    ]
    half = PAGES // 2
    return [
        *(f"counts={lists[number % BUSY]}" for number in range(half)),
        *(f"leases={ACCOUNT}/busy-{number % BUSY}" for number in range(PAGES - half)),
    ]


@contextmanager
def _working(port: int, name: str) -> Iterator[None]:
    """Run a consumer in a thread: twenty messages a second, some of which it holds for a while."""
    over = threading.Event()

    def work() -> None:
        with Sqs(port=port) as sqs:
            url = sqs.create_queue(name, visibility_timeout_s=20)
            while not over.wait(0.5):
                for _ in range(10):
                    sqs.call("SendMessage", QueueUrl=url, MessageBody=stock.BODY)
                taken = sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
                for message in taken[::2]:
                    sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
