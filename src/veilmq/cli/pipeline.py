"""``veilmq pipeline``, the Spark jobs, and ``veilmq demo``, which runs all parts once."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import Result, Rows, aligned, command, group, progress, stop_on_signals
from veilmq.cli.connection import Server, environment
from veilmq.cli.options import JSON, UsageError, number, option, pairs
from veilmq.client import QueueClient, Unreachable
from veilmq.core import limits
from veilmq.core.settings import QueueSettings, RoutingTable
from veilmq.pipeline.options import (
    ArchiveOptions,
    ClassOptions,
    Cluster,
    ForwardOptions,
    ReplayOptions,
    Slice,
    TuneOptions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veilmq.pipeline.demo import Worked
    from veilmq.pipeline.session import Report
    from veilmq.pipeline.tune import Change, Recommendation

MINUTES = limits.Range(minimum=1, maximum=60, default=2)
RECORD = "changes.jsonl"

State = Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the state of tune.")]


@contextmanager
def _spark(name: str, cluster: Cluster) -> Iterator["SparkSession"]:
    """Run Spark for the job ``name``, with the profile's key in the environment."""
    if cluster.master and cluster.remote:
        raise UsageError("--master and --remote: give only one of them.")
    pairs(cluster.conf, "--conf")
    from veilmq.pipeline.session import open_session

    os.environ.update(environment())
    with open_session(f"veilmq pipeline {name}", cluster) as spark:
        yield spark


@contextmanager
def _streaming(
    name: str, cluster: Cluster, totals: Mapping[str, int | None]
) -> Iterator[tuple["SparkSession", threading.Event, "Report"]]:
    """Yield Spark, an event that signals set, and a function that shows progress for each of ``totals``."""
    with _spark(name, cluster) as spark, stop_on_signals() as stop, progress("messages", totals) as report:
        yield spark, stop, report


def _settings(server: Server, *, needed: bool = False) -> dict[str, QueueSettings]:
    """Return the settings of all queues; empty if the server does not reply, unless they are ``needed``."""
    from veilmq.pipeline.tune import settings_of

    client = QueueClient(server)
    with suppress(*(() if needed else (Unreachable,))):
        return settings_of(client, client.list_queues())
    return {}


def archive(
    queues: Annotated[tuple[str, ...], Parameter(negative=(), help="Names of the queues.")],
    /,
    *,
    options: ArchiveOptions,
    server: Server,
    cluster: Cluster,
) -> Result:
    """Move the messages of queues into a Delta table, each exactly once.

    A message is deleted from its queue after it is durable in the table.
    A job that was stopped or killed continues when it is started again.
    """
    client = QueueClient(server)
    visible: dict[str, int | None] = {queue: client.show(queue).visible for queue in queues}
    from veilmq.pipeline.archive import archive

    totals = dict.fromkeys(queues) if options.continuous else visible
    with _streaming("archive", cluster, totals) as (spark, stop, report):
        result = archive(spark, server.endpoint, queues, options, report=report, stop=stop)
    files = {each: result.files[each] for each in ("joined", "expired", "deleted")}
    text = "\n".join(f"{queue}: {messages} messages archived" for queue, messages in result.messages.items())
    expired = f"{files['expired']} files expired, " if options.expire_days else ""
    note = f"{expired}{files['joined']} small files compacted, {files['deleted']} removed files deleted"
    return Result({"messages": result.messages, **files}, text, note)


def replay(
    to: Annotated[str, Parameter(help="Name of the destination queue.")],
    /,
    *,
    options: ReplayOptions,
    part: Slice,
    server: Server,
    cluster: Cluster,
) -> Result:
    """Send a slice of the archive to a queue, each message once for each run.

    A job that was killed continues when it is started again with the same
    name and slice. With another name it sends the messages again.
    """
    from veilmq.pipeline.archive import Replay

    run = Replay(endpoint=server.endpoint, to=to, slice=part, options=options)
    with _streaming("replay", cluster, {to: None}) as (spark, stop, report):
        result = run.send(spark, report=report, stop=stop)
    before = f", {result.before} of them earlier" if result.before else ""
    document = {"queue": to, "messages": result.messages, "before": result.before}
    return Result(document, f"{to}: {result.messages} messages replayed{before}")


def tune(
    *,
    state: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the counts.")],
    events: str = option("The event log's table receipt_closed.", "DIR"),
    apply: bool = option("Set the recommended timeouts on the queues."),
    dry_run: bool = option("Print the changes of --apply without making them."),
    undo: bool = option("Revert the changes of the last run with --apply."),
    record: Path | None = option("File to which --apply adds each change; the state's changes.jsonl.", "FILE"),
    explore: bool = option("With --apply: set longer timeouts where none can be recommended."),
    map_tasks: int = number(limits.TUNE_MAP_TASKS, "Maximum number of tasks that read the event log."),
    json: bool = JSON,
    server: Server,
    options: TuneOptions,
    cluster: Cluster,
) -> Result | None:
    """Recommend a visibility timeout for each queue and routing key from its event log.

    The job reads only new files of the log. --apply sets timeouts that are
    certain to cost less, by at most a factor of 3 per run, and records each
    change in <state>/changes.jsonl, or in --record if the state is a URL.
    --undo reverts the changes of the last run.
    """
    if undo == bool(events):
        raise UsageError("Give either --events, the event log, or --undo.")
    at_ms = time.time_ns() // 1_000_000
    from veilmq.pipeline.folders import is_url
    from veilmq.pipeline.tune import apply as apply_to
    from veilmq.pipeline.tune import rows_of, tune
    from veilmq.pipeline.tune import undo as undo_last

    sets, client = apply or dry_run, QueueClient(server)
    if (sets or undo) and record is None and is_url(state):
        text = f"the state {state} is a URL, and changes are recorded in a local file."
        raise UsageError(f"--record is required: {text}")
    changes = record or Path(state) / RECORD
    if undo:
        undone = undo_last(client, record=changes, at_ms=at_ms)
        _print_changes(undone, would=False)
        return Result(undone, "")
    settings = _settings(server, needed=sets)
    with _spark("tune", cluster) as spark:
        rows = tune(spark, events=events, state=state, options=options, settings=settings, map_tasks=map_tasks)
    note = "" if rows else f"The event log {events} has no receipts."
    result = Result(rows_of(rows), aligned(_recommended(rows)), note)
    if not sets:
        return result
    result.show(json=json)
    applied = apply_to(client, rows, record=changes, at_ms=at_ms, explore=explore, dry_run=dry_run)
    _print_changes(applied, would=dry_run)
    return None


def _recommended(recommendations: "tuple[Recommendation, ...]") -> Rows:
    """Yield a line for each queue and each of its keys, with the reason."""
    for each in recommendations:
        name = each.queue if each.key is None else f"  {each.key or '(no key)'}"
        timeout = "no advice" if each.recommended_s is None else f"{each.recommended_s} s"
        if each.keeps:
            timeout = "keep"
        yield name, f"{timeout} (now {each.current_s} s; confidence {each.confidence.value}): {each.reason}"


def _print_changes(changes: "list[Change]", *, would: bool) -> None:
    """Print a line for each change; ``would`` is for a dry run."""
    for change in changes:
        line = f"{change.queue}: {change.before_s} s → {change.after_s} s"
        print(f"would change {line}" if would else line, file=sys.stderr)
    if not changes:
        print("No timeout would change." if would else "No timeout changed.", file=sys.stderr)


def route_table(
    queue: Annotated[str, Parameter(help="Name of the queue whose messages are routed.")],
    /,
    *,
    state: State,
    to: Annotated[Path, Parameter(metavar="FILE", help="JSON file to write.")],
    classes: ClassOptions,
    server: Server,
    options: TuneOptions,
    cluster: Cluster,
) -> Result:
    """Compute the routing table of a queue: classes of routing keys that share a timeout.

    `veilmq pipeline route` forwards messages by this table.
    """
    from veilmq.pipeline.route import route_table

    known = _settings(server)
    with _spark("route-table", cluster) as spark:
        table = route_table(spark, state=state, queue=queue, path=to, classes=classes, options=options, settings=known)
    return Result(table, aligned(_class_rows(table)))


def _class_rows(table: RoutingTable) -> Rows:
    for index, each in enumerate(table.classes):
        keys = [key for key, place in table.keys.items() if place == index]
        others = ["all others"] if index == table.default else []
        yield each.queue or each.name, f"{each.visibility_timeout_s} s: {', '.join([*keys, *others])}"


def route(
    intake: Annotated[str, Parameter(help="Name of the intake queue.")],
    /,
    *,
    table: Annotated[Path, Parameter(metavar="FILE", help="Routing table, as written by route-table.")],
    create: bool = option("Create the class queues or change their settings."),
    receives_max: int = number(
        limits.SQS_RECEIVES_MAX, "With --create: receives in a class before the next longer class.", default=1
    ),
    options: ForwardOptions,
    server: Server,
    cluster: Cluster,
) -> Result:
    """Forward each message of a queue to the queue of its class, exactly once.

    With --create, the dead-letter queue of each class is the next longer class,
    so a message whose work exceeds its timeout gets a longer one.
    """
    try:
        routing_table = msgspec.json.decode(table.read_bytes(), type=RoutingTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--table {table}: not a routing table: {error}") from error
    from veilmq.pipeline.route import checked, create_queues, forward

    checked(routing_table, intake)
    client = QueueClient(server)
    visible = client.show(intake).visible
    totals = {intake: None if options.continuous else visible}
    with _streaming("route", cluster, totals) as (spark, stop, report):
        if create:
            create_queues(client, routing_table, receives_max=receives_max)
        forwarded = forward(spark, server.endpoint, intake, routing_table, options, report=report, stop=stop)
    return Result({"queue": intake, "messages": forwarded}, f"{intake}: {forwarded} messages forwarded")


def report(
    *,
    state: State,
    to: Annotated[Path, Parameter(metavar="FILE", help="HTML file to write.")],
    title: str = option("Title of the report.", "TEXT", default="Visibility timeouts"),
    server: Server,
    options: TuneOptions,
    cluster: Cluster,
) -> Result:
    """Write a report with charts of each queue, and print its path."""
    from veilmq.pipeline.report import report

    known = _settings(server)
    with _spark("report", cluster) as spark:
        at_ms = time.time_ns() // 1_000_000
        path = report(spark, state=state, path=to, at_ms=at_ms, title=title, options=options, settings=known)
    return Result({"path": str(path)}, str(path))


app = group("pipeline", archive, replay, tune, route_table, route, report)


# The demonstration.

_A_MINUTE_MESSAGES = 1_400
_QUICK_MESSAGES = 300
_MANY = 2_500  # enough for the 99th percentile of each kind of work
_JAVA = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a fast start


@command
def demo(
    *,
    minutes: int = number(MINUTES, "Approximate duration on an idle machine."),
    quick: bool = option("Send very few messages."),
    folder: Path | None = option("Folder for all files; a new one below ./veilmq-demo.", "DIR"),
    keep: bool = option("Keep all files, not only the report."),
    json: bool = JSON,
) -> Result:
    """Run all parts once: a server, workers (one is killed), the archive, tuning, routing and the report.

    It needs Java 17 and the extras server and spark. All processes that it
    starts end with it. All numbers are computed from the event log and the
    archive.
    """
    import veilmq.server.app  # noqa: F401 - report a missing module before anything starts
    from veilmq.pipeline.session import check_java

    check_java()
    messages = _QUICK_MESSAGES if quick else minutes * _A_MINUTE_MESSAGES
    where = folder or Path("veilmq-demo") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    where = where.absolute()
    where.mkdir(parents=True, exist_ok=folder is None)
    with redirect_stdout(sys.stderr if json else sys.stdout):
        found = _play(where, messages)
    for entry in () if keep else where.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif str(entry) != found["report"]:
            entry.unlink()
    text = "docs/pipeline.md explains the numbers. To start a server for your own queues: veilmq serve --help"
    return Result(found, f"\nReport: {found['report']}\n{text}")


def _play(folder: Path, messages: int) -> dict[str, Any]:
    """Run all parts; print and return the results."""
    from veilmq.pipeline.demo import GUESS_S, beside, demonstration
    from veilmq.pipeline.tune import rows_of

    def load(heading: str, step: Callable[..., "Worked"], check: Callable[[], None]) -> "Worked":
        """Process one load, and print its result."""
        print(f"\n{heading} One worker is killed.\n", flush=True)
        with progress("messages", {"work": messages}) as report:

            def update(done: int) -> None:
                check()
                report("work", done)

            worked = step(bar=update)
        print(
            f"   {worked.done:,} messages done in {worked.seconds:.0f} s, {worked.dead:,} moved to the dead-letter "
            f"queue.\n   {worked.repeated:,} redeliveries: {worked.expired:,} receipts expired before the work ended, "
            f"after {worked.wasted_s:,.0f} s in total.\n   {worked.late:,} of them had a timeout that was too short: "
            "they were deleted late. The others were never deleted.",
            flush=True,
        )
        return worked

    os.environ.update(environment())
    with demonstration(folder, messages=messages, quantile=0.99 if messages >= _MANY else 0.9) as steps:
        print(f"Server: {steps.endpoint}. Starting Spark …", file=sys.stderr)
        with _spark("demo", Cluster(conf=(_JAVA,))) as spark:
            with beside(lambda stop: steps.archive(spark, stop)) as check:
                one_queue = load(f"1. One queue with a guessed timeout of {GUESS_S} s.", steps.one_queue, check)
                print("\n2. Timeouts and classes of work, learned from the event log.\n", flush=True)
                found, table = steps.learn(spark)
                print(aligned(_recommended(found), _class_rows(table)), flush=True)
                heading = "3. The same load, forwarded by Spark to one queue per class."
                routed = load(heading, partial(steps.routed, spark, table), check)
            print("\n4. The archive of finished work, which Spark filled at the same time.\n", flush=True)
            steps.archive(spark)
            kept = steps.archive_counts()
            each = "each exactly once" if kept.rows == kept.messages else "NOT each exactly once"
            print(
                f"   {kept.rows:,} rows, {kept.messages:,} different messages: {each}. They report {kept.work:,} of "
                f"{2 * messages:,} pieces of work as done; {kept.messages - kept.work:,} were done again.",
                flush=True,
            )
            loads = {"one_queue": one_queue, "routed": routed, "archive": kept, "table": table}
            return {**loads, "recommendations": rows_of(found), "report": str(steps.report(spark))}
