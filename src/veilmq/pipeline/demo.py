"""The demonstration: a server, a producer, workers (one is killed) and the pipeline, on one machine in a few minutes.

All figures are computed afterwards from the event log and the archive.
"""

import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import urllib3
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from veilmq.client import HttpQueueClient, NewMessage
from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings, RoutingTable, SettingValue
from veilmq.pipeline.archive import archive
from veilmq.pipeline.cells import ENDED
from veilmq.pipeline.demo_worker import ATTRIBUTE, KINDS, SIGMA, Done, work
from veilmq.pipeline.options import ArchiveOptions, ClassOptions, ForwardOptions, TuneOptions
from veilmq.pipeline.report import report
from veilmq.pipeline.route import create_queues, forward, route_table
from veilmq.pipeline.session import PipelineFailed
from veilmq.pipeline.tune import Recommendation, plain_name, settings_of, tune

ONE_QUEUE, INTAKE, DONE, DEAD = "work", "routed", "done", "dead"
GUESS_S = 2
"""The guessed timeout of the queue ``work``: long for most messages, too short for some."""

RECEIVES_MAX = 3
"""Receives after which a message of the queue ``work``, or of the longest class, is a dead letter."""

WORKERS = 3
THREADS = 24
KILL_AT = 0.4
_SEED = 20_260_101
_SEND_BATCH = 10
_POLL_S = 0.3
_LOAD_S_MAX = 240.0
_LOAD_PER_SEND_MAX = 12.0  # times the duration of sending
_START_S_MAX = 60.0
_END_S_MAX = 20.0
_STARTED = re.compile(r"^\{.*\}$", re.MULTILINE)  # the output of ``veilmq serve --json``
_DEAD_LETTERS: dict[str, SettingValue] = {"dead_letter_queue": DEAD, "receives_max": RECEIVES_MAX}

Bar = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """The result of one load: its duration, finished messages, dead letters, and receipts.

    ``repeated`` counts receipts after the first of each message. The ``expired`` ones were held for ``wasted_s`` in
    total; ``late`` ones of them were deleted afterwards.
    """

    seconds: float
    done: int
    dead: int
    repeated: int
    expired: int
    late: int
    wasted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCounts:
    """The archive of finished work: its ``rows``, and the distinct ``messages`` and pieces of ``work`` in them."""

    rows: int
    messages: int
    work: int


@contextmanager
def running(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of ``demo_worker`` while the context lasts, with its output in ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "veilmq.pipeline.demo_worker", *arguments]
    with log.open("ab") as out, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def demonstration(folder: Path, *, messages: int, quantile: float) -> Iterator["Demo"]:
    """Run a server with its event log in ``folder``; all processes end with the context.

    ``messages`` is the size of each load, ``quantile`` an option of ``tune``.
    """
    log = folder / "logs" / "server.log"
    folders = ["--data", str(folder / "data"), "--events-to", str(folder / "events")]
    flags = ["--json", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--events-period-s", "1"]
    with running(log, "veilmq", "serve", *flags, *folders) as server:
        deadline_s = time.monotonic() + _START_S_MAX
        while not (found := _STARTED.search(log.read_text(encoding="utf-8", errors="replace"))):
            if time.monotonic() > deadline_s or server.poll() is not None:
                raise PipelineFailed(f"The server of the demonstration does not start; see {log}.")
            time.sleep(0.05)
        started = msgspec.json.decode(found[0])
        with HttpQueueClient(started["endpoint"]) as client:
            options = TuneOptions(quantile=quantile)
            yield Demo(folder, started["endpoint"], started["admin_endpoint"], client, messages, options)


@dataclass(frozen=True, slots=True)
class Demo:
    """The steps of the demonstration."""

    folder: Path
    endpoint: str
    admin_endpoint: str
    client: HttpQueueClient
    messages: int
    options: TuneOptions

    def one_queue(self, *, bar: Bar) -> Worked:
        """Process a load in one queue with a guessed timeout."""
        self.client.create_queue(DEAD)
        self.client.create_queue(DONE)
        self.client.create_queue(ONE_QUEUE, {"visibility_timeout_s": GUESS_S, **_DEAD_LETTERS})
        return self._worked(ONE_QUEUE, (ONE_QUEUE,), first=0, bar=bar)

    def learn(self, spark: SparkSession) -> tuple[tuple[Recommendation, ...], RoutingTable]:
        """Recommend a timeout for the queue and each kind of work, and compute the classes, from the event log."""
        settings = settings_of(self.client, [ONE_QUEUE])
        found = self._tune(spark, settings)
        table = route_table(
            spark,
            state=str(self.folder / "state"),
            queue=ONE_QUEUE,
            path=self.folder / "routing-table.json",
            classes=ClassOptions(attribute=ATTRIBUTE),
            options=self.options,
            settings=settings,
        )
        return tuple(each for each in found if plain_name(each.queue) == ONE_QUEUE), table

    def routed(self, spark: SparkSession, table: RoutingTable, *, bar: Bar) -> Worked:
        """Process the same load again, forwarded by Spark to the queues of its classes."""
        self.client.create_queue(INTAKE)
        create_queues(self.client, table, receives_max=1)
        self.client.set(table.classes[-1].queue, _DEAD_LETTERS)
        options = ForwardOptions(checkpoint=str(self.folder / "checkpoints" / "route"), continuous=True)
        queues = tuple(each.queue for each in table.classes)
        forwarded = {INTAKE: 0}

        def route(stop: threading.Event) -> int:
            return forward(spark, self.endpoint, INTAKE, table, options, report=forwarded.__setitem__, stop=stop)

        with beside(route) as check:

            def arrived() -> int:
                check()
                return forwarded[INTAKE]

            return self._worked(INTAKE, queues, first=self.messages, bar=bar, arrived=arrived)

    def archive(self, spark: SparkSession, stop: threading.Event | None = None) -> None:
        """Archive the messages of finished work until ``stop`` is set; without ``stop``, the visible ones."""
        options = ArchiveOptions(table=str(self.folder / "archive"), continuous=stop is not None)
        archive(spark, self.endpoint, (DONE,), options, stop=stop)

    def archive_counts(self) -> ArchiveCounts:
        """Count the rows of the archive with a Delta reader."""
        rows = DeltaTable(self.folder / "archive").to_pyarrow_table(columns=["id", "body"])
        done = {msgspec.json.decode(body, type=Done).number for body in rows["body"].to_pylist()}
        return ArchiveCounts(rows=rows.num_rows, messages=len(set(rows["id"].to_pylist())), work=len(done))

    def report(self, spark: SparkSession) -> Path:
        """Count the new receipts, and write the report; return its path."""
        settings = settings_of(self.client, self.client.list_queues())
        self._tune(spark, settings)
        return report(
            spark,
            state=str(self.folder / "state"),
            path=self.folder / "report.html",
            at_ms=time.time_ns() // 1_000_000,
            title="veilmq demo",
            options=self.options,
            settings=settings,
        )

    def _tune(self, spark: SparkSession, settings: Mapping[str, QueueSettings]) -> tuple[Recommendation, ...]:
        events, state = self.folder / "events" / "receipt_closed", self.folder / "state"
        return tune(spark, events=str(events), state=str(state), options=self.options, settings=settings)

    def _worked(
        self, intake: str, queues: tuple[str, ...], *, first: int, bar: Bar, arrived: Callable[[], int] | None = None
    ) -> Worked:
        """Send a load to ``intake``, process it in ``queues``, and count the result.

        ``arrived`` returns how many messages have reached ``queues``; by default, all that were sent.
        """
        dead_before, begun_s = self.client.show(DEAD).visible, time.monotonic()
        mean_s = sum(share * median_s * math.exp(SIGMA**2 / 2) for median_s, share in KINDS.values())
        send_s = self.messages * mean_s / (WORKERS * THREADS) / 2  # half of the time that the workers need
        pieces = tuple(work(self.messages, seed=_SEED, first=first))
        sent = finished = 0

        def produce(stop: threading.Event) -> None:
            """Send all work, evenly over ``send_s``."""
            nonlocal sent
            with HttpQueueClient(self.endpoint) as client:
                for start in range(0, len(pieces), _SEND_BATCH):
                    messages = [
                        NewMessage(
                            body=msgspec.json.encode(each).decode(),
                            attributes={ATTRIBUTE: Attribute(type="String", text=each.kind)},
                        )
                        for each in pieces[start : start + _SEND_BATCH]
                    ]
                    try:
                        client.send_batch(intake, messages)
                    except Exception as error:
                        failed = f"The producer of the demonstration has failed after {sent} messages: {error}"
                        raise PipelineFailed(failed) from error
                    sent += len(messages)
                    if stop.wait(max(0.0, begun_s + send_s * sent / len(pieces) - time.monotonic())):
                        return

        with ExitStack() as stack:
            workers = []
            for number in range(WORKERS):
                log = self.folder / "logs" / f"worker-{number}.log"
                worker = running(log, "work", self.endpoint, str(number), str(THREADS), DONE, *queues)
                workers.append(stack.enter_context(worker))
            check = stack.enter_context(beside(produce))
            while finished < self.messages:
                time.sleep(_POLL_S)
                reached = arrived() if arrived else sent
                shown = map(self.client.show, queues)  # in the order of classes: none is missed
                waiting = sum(status.visible + status.in_flight + status.delayed for status in shown)
                finished = max(finished, reached - waiting)
                bar(finished)
                if finished >= KILL_AT * self.messages:
                    workers[0].kill()
                check()
                if time.monotonic() - begun_s > _LOAD_S_MAX + _LOAD_PER_SEND_MAX * send_s:
                    done = f"{finished} of {self.messages} messages are done"
                    raise PipelineFailed(f"The demonstration does not end: {done}.")
            seconds = time.monotonic() - begun_s
        dead = self.client.show(DEAD).visible - dead_before
        logged = self._logged()
        names = pc.replace_substring_regex(logged["queue"], pattern="^.*/", replacement="")  # the log has account/name
        rows = logged.filter(pc.is_in(names, pa.array(queues)))
        ended = rows.filter(pc.is_in(rows["outcome"], pa.array([each.value for each in ENDED])))
        expired = rows.filter(pc.equal(rows["outcome"], "expired"))
        return Worked(
            seconds=seconds,
            done=self.messages - dead,
            dead=dead,
            repeated=ended.num_rows - pc.count_distinct(ended["message_id"]).as_py(),
            expired=expired.num_rows,
            late=rows.filter(pc.equal(rows["outcome"], "late_deleted")).num_rows,
            wasted_s=(pc.sum(expired["held_ms"]).as_py() or 0) / 1000,
        )

    def _logged(self) -> pa.Table:
        """Export the server's event log and return it. Raises ``PipelineFailed``."""
        while (reply := urllib3.request("POST", f"{self.admin_endpoint}/events/flush")).status == 202:
            continue  # 202: not finished yet
        if reply.status != 200:
            raise PipelineFailed(f"The server of the demonstration exports no event log: {reply.data!r}")
        columns = ["queue", "outcome", "message_id", "held_ms"]
        return ds.dataset(self.folder / "events", format="parquet", partitioning="hive").to_table(columns=columns)


@contextmanager
def beside(job: Callable[[threading.Event], object]) -> Iterator[Callable[[], None]]:
    """Run ``job`` in a thread while the context lasts, whose end sets the job's event.

    The context yields a function that raises the job's error, if any. The end of the context raises it, too.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running: Future[object] = pool.submit(job, stop)

        def check() -> None:
            if running.done():
                running.result()

        try:
            yield check
        finally:
            stop.set()
        running.result()
