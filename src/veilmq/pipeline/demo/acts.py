"""The acts of the demonstration and their results. Every figure is counted afterwards."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from veilmq.client import HttpQueueClient
from veilmq.core.routing import RoutingTable
from veilmq.core.settings import SettingValue
from veilmq.pipeline.applying import facts_of
from veilmq.pipeline.archive import ArchiveOptions, archive
from veilmq.pipeline.demo import counted
from veilmq.pipeline.demo.kinds import ATTRIBUTE, mean_s, work
from veilmq.pipeline.demo.load import THREADS, WORKERS, Load, Stage, run
from veilmq.pipeline.demo.processes import Processes
from veilmq.pipeline.forward import ForwardOptions, create_queues, forward
from veilmq.pipeline.recommendation import Recommendation, plain_name
from veilmq.pipeline.report import report
from veilmq.pipeline.route_table import route_table
from veilmq.pipeline.tune import tune
from veilmq.pipeline.tune_options import TuneOptions

ONE_QUEUE = "work"
INTAKE = "routed"
DONE = "done"
GUESS_S = 2
"""The guessed timeout of the one queue: long for most of its work, too short for some."""

DEAD = "dead"
RECEIVES_MAX = 3
"""After so many receives in the one queue, or in the longest class, a message is a dead letter."""

_EXPORT_S_MAX = 60.0
_SEED = 20_260_101

_MORTAL: dict[str, SettingValue] = {"dead_letter_queue": DEAD, "receives_max": RECEIVES_MAX}

Bar = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large the demonstration is: ``messages`` of each load, the ``quantile`` that timeouts are judged by."""

    messages: int
    quantile: float

    @property
    def send_s(self) -> float:
        """Return over how many seconds a load is sent: half of what the workers need for it."""
        return self.messages * mean_s() / (WORKERS * THREADS) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """One load: its duration, the messages ``done`` and dead-lettered (``dead``), and the ends of its receipts."""

    seconds: float
    done: int
    dead: int
    receipts: counted.Receipts


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """Run a server with its event log in ``folder``; all processes end with the context."""
    with Processes(folder / "logs") as processes:
        endpoint = processes.serve(data=folder / "data", events=folder / "events")
        with HttpQueueClient(endpoint) as client:
            yield Stage(folder=folder, endpoint=endpoint, client=client, processes=processes)


def one_queue(stage: Stage, plan: Plan, *, bar: Bar) -> Worked:
    """Work through one queue with a guessed timeout."""
    stage.client.create_queue(DEAD)
    stage.client.create_queue(DONE)
    stage.client.create_queue(ONE_QUEUE, {"visibility_timeout_s": GUESS_S, **_MORTAL})
    return _worked(stage, plan, _load(plan, intake=ONE_QUEUE, queues=(ONE_QUEUE,), first=0), bar=bar)


def advice(stage: Stage, plan: Plan, spark: SparkSession) -> tuple[tuple[Recommendation, ...], RoutingTable]:
    """Learn from the event log a timeout for the queue and each kind of work, and the classes."""
    options = TuneOptions(quantile=plan.quantile)
    state = str(stage.folder / "state")
    facts = facts_of(stage.client, [ONE_QUEUE])
    tuned = tune(spark, events=_closed(stage), state=state, options=options, facts=facts)
    made = route_table(
        spark,
        state=state,
        queue=ONE_QUEUE,
        path=stage.folder / "routing-table.json",
        attribute=ATTRIBUTE,
        options=options,
        facts=facts[ONE_QUEUE],
    )
    return tuple(each for each in tuned.recommendations if plain_name(each.queue) == ONE_QUEUE), made.table


def routed(stage: Stage, plan: Plan, spark: SparkSession, table: RoutingTable, *, bar: Bar) -> Worked:
    """Work through the same load again, forwarded by Spark to the queues of its classes."""
    stage.client.create_queue(INTAKE)
    create_queues(stage.client, table, receives_max=1)
    stage.client.set(table.classes[-1].queue, _MORTAL)
    options = ForwardOptions(
        intake=INTAKE,
        table=table,
        endpoint=stage.endpoint,
        checkpoint=str(stage.folder / "checkpoints" / "route"),
        continuous=True,
    )
    queues = tuple(each.queue for each in table.classes)
    forwarded = {INTAKE: 0}
    with beside(lambda stop: forward(spark, options, report=forwarded.__setitem__, stop=stop)) as check:
        load = _load(plan, intake=INTAKE, queues=queues, first=plan.messages)
        return _worked(stage, plan, replace(load, arrived=lambda: forwarded[INTAKE]), bar=checking(bar, check))


def archiving(stage: Stage, spark: SparkSession, stop: threading.Event) -> None:
    """Archive the messages of finished work until ``stop`` is set."""
    options = ArchiveOptions(queues=(DONE,), table=str(archive_folder(stage)), endpoint=stage.endpoint, continuous=True)
    archive(spark, options, stop=stop, clock_s=time.monotonic)


def archive_rest(stage: Stage, spark: SparkSession) -> counted.Archive:
    """Archive what is left, and count the archive."""
    options = ArchiveOptions(queues=(DONE,), table=str(archive_folder(stage)), endpoint=stage.endpoint)
    archive(spark, options, clock_s=time.monotonic)
    return counted.archive(archive_folder(stage))


def archive_folder(stage: Stage) -> Path:
    """Return the folder of the archive."""
    return stage.folder / "archive"


def reported(stage: Stage, plan: Plan, spark: SparkSession) -> Path:
    """Learn what is new, and write the report about everything; return its path."""
    options = TuneOptions(quantile=plan.quantile)
    state = str(stage.folder / "state")
    facts = facts_of(stage.client, stage.client.list_queues())
    tune(spark, events=_closed(stage), state=state, options=options, facts=facts)
    at_ms = time.time_ns() // 1_000_000
    path = stage.folder / "report.html"
    return report(spark, state=state, path=path, at_ms=at_ms, title="veilmq demo", options=options, facts=facts)


def checking(bar: Bar, check: Callable[[], None]) -> Bar:
    """Return a bar that calls ``check`` each time it moves."""

    def move(done: int) -> None:
        check()
        bar(done)

    return move


@contextmanager
def beside(job: Callable[[threading.Event], object]) -> Iterator[Callable[[], None]]:
    """Run ``job`` in a thread while the context is open; its end sets the job's event and raises the job's failure.

    The context's value raises that failure at once when it is called.
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


def _load(plan: Plan, *, intake: str, queues: tuple[str, ...], first: int) -> Load:
    pieces = tuple(work(plan.messages, seed=_SEED, first=first))
    return Load(intake=intake, worked=queues, done=DONE, work=pieces, send_s=plan.send_s)


def _worked(stage: Stage, plan: Plan, load: Load, *, bar: Bar) -> Worked:
    before = stage.client.show(DEAD).visible
    seconds = run(stage, load, report=bar)
    dead = stage.client.show(DEAD).visible - before
    receipts = counted.receipts(counted.settled(stage.events, patience_s=_EXPORT_S_MAX), load.worked)
    return Worked(seconds=seconds, done=plan.messages - dead, dead=dead, receipts=receipts)


def _closed(stage: Stage) -> str:
    return str(stage.events / "receipt_closed")
