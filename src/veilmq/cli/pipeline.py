"""``veilmq pipeline``: the jobs on Spark; and ``veilmq demo``, which runs all parts once.

Options that are fields of a job's own options have their names, and come there as they are.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import Result, Rows, aligned, command, group, progress, stop_on_signals
from veilmq.cli.connection import Server, environment
from veilmq.cli.options import JSON, UsageError, number, option, options, pairs, read_by
from veilmq.client import QueueClient, Unreachable
from veilmq.core import limits
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, RoutingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veilmq.pipeline.cost import TuneOptions
    from veilmq.pipeline.demo import Worked
    from veilmq.pipeline.session import Report
    from veilmq.pipeline.tune import Change, QueueFacts, Recommendation

CLASSES = limits.Range(minimum=1, maximum=32, default=4)
MINUTES = limits.Range(minimum=1, maximum=60, default=2)
RECORD = "changes.jsonl"
_ENDLESS = 1e9

State = Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the state of tune.")]
_BAD_ROWS = "If a row cannot be sent: fail, leave it out, or write it to files in PATH."
BAD_ROWS = option(_BAD_ROWS, "fail|skip|table=PATH", default="fail")


@options
class ClusterOptions:
    """Where the job runs: by default in this process, or where spark-submit started it."""

    master: str = option("Spark master, such as local[4] or spark://HOST:7077.", "URL")
    remote: str = option("Spark Connect server, sc://HOST:15002.", "URL")
    conf: tuple[str, ...] = option("Spark setting NAME=VALUE; may be repeated.", "NAME=VALUE")
    verbose: bool = option("Print Spark's log.")


@options
class StreamOptions:
    """Fields of ``pipeline.session.ReadOptions``, for the jobs that read queues by claims."""

    continuous: bool = option("Run until stopped, instead of until all visible messages are read.")
    batch_messages: int | None = number(
        limits.CLAIM_MESSAGES, "Maximum number of messages in a micro-batch.", name="--batch"
    )
    takeover: bool = option("Replace another such job of the same queues.")
    hold_s: int | None = number(limits.CLAIM_HOLD_S, "Seconds for which messages stay claimed while the job is down.")
    on_lost_claim: Literal["fail", "skip"] = option(
        "After a longer downtime: fail, or continue and log the messages delivered twice.", default="fail"
    )


def _within(low: float, high: float, text: str, *, default: float) -> Any:
    """Declare an option for a number between two bounds, both exclusive."""

    def read(text: str) -> float:
        if not low < (number := float(text)) < high:  # also rejects NaN
            raise ValueError(text)
        return number

    allowed = f"a number, more than {low:g} and less than {high:g}"
    return option(text, "X", converter=read_by(read, allowed), default=default)


@options
class StatisticsOptions:
    """Options of the statistics; ``docs/pipeline.md`` explains them."""

    quantile: float = _within(0.5, 0.9999, "Quantile of the processing times to estimate.", default=0.99)
    half_life: float = _within(0, 3_650, "Days after which the weight of a receipt halves.", default=7.0)
    gain_min: float = _within(0, 1, "Share of the cost that a change must save.", default=0.10)
    price_work: float = _within(0, _ENDLESS, "Cost of a second of wasted work.", default=1.0)
    price_wait: float = _within(0, _ENDLESS, "Cost of a second of waiting after a crash.", default=1.0)
    price_dead_letter: float = _within(0, _ENDLESS, "Cost of a false dead letter.", default=60.0)

    def values(self) -> "TuneOptions":
        """Return the options of the jobs."""
        from veilmq.pipeline.cost import Prices, TuneOptions

        prices = Prices(work=self.price_work, wait=self.price_wait, dead_letter=self.price_dead_letter)
        return TuneOptions(quantile=self.quantile, half_life_days=self.half_life, gain_min=self.gain_min, prices=prices)


@contextmanager
def _spark(name: str, options: ClusterOptions) -> Iterator["SparkSession"]:
    """Run Spark for the job ``name``, where ``options`` specify; it finds the profile's key in the environment."""
    if options.master and options.remote:
        raise UsageError("--master and --remote: give only one of them.")
    settings = pairs(options.conf, "--conf")
    from veilmq.pipeline.session import Cluster, open_session

    os.environ.update(environment())
    cluster = Cluster(master=options.master, remote=options.remote, settings=settings, verbose=options.verbose)
    with open_session(f"veilmq pipeline {name}", cluster) as spark:
        yield spark


@contextmanager
def _streaming(
    name: str, options: ClusterOptions, totals: Mapping[str, int | None]
) -> Iterator[tuple["SparkSession", threading.Event, "Report"]]:
    """Give Spark, an event that signals set, and what shows the messages done of each of ``totals``."""
    with _spark(name, options) as spark, stop_on_signals() as stop, progress("messages", totals) as report:
        yield spark, stop, report


def _facts(server: Server, *, needed: bool = False) -> dict[str, "QueueFacts"]:
    """Return the settings of all queues; none if the server does not reply, unless they are ``needed``."""
    from veilmq.pipeline.tune import facts_of

    client = QueueClient(server)
    with suppress(*(() if needed else (Unreachable,))):
        return facts_of(client, client.list_queues())
    return {}


def archive(
    queues: Annotated[tuple[str, ...], Parameter(negative=(), help="Names of the queues.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive; created if missing.")],
    checkpoint: str = option("Folder or URL of the checkpoints.", "DIR"),
    stream: StreamOptions,
    consumer: str = option("Consumer name of the streams.", "NAME", default="archive"),
    compact_minutes: int = number(
        limits.ARCHIVE_COMPACT_MINUTES, "Minutes between compactions of small files; 0: never."
    ),
    keep_hours: int = number(limits.ARCHIVE_KEEP_H, "Hours until files that left the table are deleted."),
    expire_days: int = number(limits.ARCHIVE_EXPIRE_DAYS, "Days after which messages leave the table; 0: never."),
    server: Server,
    cluster: ClusterOptions,
) -> Result:
    """Move the messages of queues into a Delta table, each exactly once.

    A message is deleted from its queue after it is durable in the table.
    A job that was stopped or killed continues when it is started again.
    """
    client = QueueClient(server)
    visible: dict[str, int | None] = {queue: client.show(queue).visible for queue in queues}
    from veilmq.pipeline.archive import ArchiveOptions, archive

    often: dict[str, Any] = {"compact_minutes": compact_minutes, "keep_h": keep_hours, "expire_days": expire_days}
    chosen = {"checkpoint": checkpoint, "consumer": consumer, **often, **asdict(stream)}
    options = ArchiveOptions(queues=queues, table=table, endpoint=server.endpoint, **chosen)
    totals = dict.fromkeys(queues) if stream.continuous else visible
    with _streaming("archive", cluster, totals) as (spark, stop, report):
        result = archive(spark, options, report=report, stop=stop, clock_s=time.monotonic)
    files = {"joined": result.compaction.removed, "expired": result.expired_files, "deleted": result.deleted_files}
    text = "\n".join(f"{queue}: {messages} messages archived" for queue, messages in result.messages.items())
    expired = f"{files['expired']} files expired, " if expire_days else ""
    note = f"{expired}{files['joined']} small files compacted, {files['deleted']} removed files deleted"
    return Result({"messages": result.messages, **files}, text, note)


def replay(
    to: Annotated[str, Parameter(help="Name of the destination queue.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive.")],
    run: Annotated[str, Parameter(metavar="NAME", help="Name of the replay; the same name continues it.")],
    queue: tuple[str, ...] = option("Only messages of this queue; may be repeated.", "QUEUE"),
    since: datetime | None = option("Only messages sent at this time (UTC) or later.", "TIME"),
    until: datetime | None = option("Only messages sent before this time (UTC).", "TIME"),
    where: str = option("Only messages that match this condition on the columns.", "SQL"),
    id: tuple[str, ...] = option("Only the message with this id; may be repeated.", "ID"),  # noqa: A002 - as the option
    batch: int = number(limits.REPLAY_BATCH_MESSAGES, "Approximate number of messages in a transaction."),
    bad_rows: str = BAD_ROWS,
    server: Server,
    cluster: ClusterOptions,
) -> Result:
    """Send a slice of the archive to a queue, each message once for each run.

    A job that was killed continues when it is started again with the same
    name and slice. With another name it sends the messages again.
    """
    from veilmq.pipeline.archive import Replay, Slice

    first, last = (at.replace(tzinfo=at.tzinfo or UTC) if at is not None else None for at in (since, until))
    part = Slice(to=to, queues=queue, since=first, until=last, where=where, ids=id)
    wanted = Replay(table=table, run=run, slice=part, endpoint=server.endpoint, batch_messages=batch, bad_rows=bad_rows)
    with _streaming("replay", cluster, {to: None}) as (spark, stop, report):
        result = wanted.send(spark, report=report, stop=stop)
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
    statistics: StatisticsOptions,
    cluster: ClusterOptions,
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
    known, options = _facts(server, needed=sets), statistics.values()
    with _spark("tune", cluster) as spark:
        found = tune(spark, events=events, state=state, options=options, facts=known, map_tasks=map_tasks)
    rows = found.recommendations
    note = "" if rows else "The event log has no receipts."
    result = Result(rows_of(rows), aligned(_recommended(rows)), note)
    if not sets:
        return result
    result.show(json=json)
    made = apply_to(client, rows, record=changes, at_ms=at_ms, explore=explore, dry_run=dry_run)
    _print_changes(made, would=dry_run)
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
    """Print a line for each change; ``would``: of a dry run."""
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
    classes: int = number(CLASSES, "Maximum number of classes."),
    attribute: str = option("Message attribute with the kind of work.", "NAME", default=ROUTING_ATTRIBUTE_DEFAULT),
    queue_pattern: str = option(
        "Name of each class's queue; {queue} and {class} are replaced.", "TEXT", default="{queue}-{class}"
    ),
    server: Server,
    statistics: StatisticsOptions,
    cluster: ClusterOptions,
) -> Result:
    """Compute the routing table of a queue: classes of routing keys that share a timeout.

    `veilmq pipeline route` forwards messages by this table.
    """
    from veilmq.pipeline.route import route_table

    chosen: dict[str, Any] = {"classes": classes, "attribute": attribute, "queue_pattern": queue_pattern}
    facts, options = _facts(server).get(queue), statistics.values()
    with _spark("route-table", cluster) as spark:
        made = route_table(spark, state=state, queue=queue, path=to, options=options, facts=facts, **chosen)
    return Result(made.table, aligned(_class_rows(made.table)))


def _class_rows(table: RoutingTable) -> Rows:
    """Yield a row for each class: queue, timeout and keys."""
    for index, each in enumerate(table.classes):
        keys = [key for key, place in table.keys.items() if place == index]
        others = ["all others"] if index == table.default else []
        yield each.queue or each.name, f"{each.visibility_timeout_s} s: {', '.join([*keys, *others])}"


def route(
    intake: Annotated[str, Parameter(help="Name of the intake queue.")],
    /,
    *,
    table: Annotated[Path, Parameter(metavar="FILE", help="Routing table, as written by route-table.")],
    checkpoint: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the checkpoint.")],
    create: bool = option("Create the class queues or change their settings."),
    receives_max: int = number(
        limits.SQS_RECEIVES_MAX, "With --create: receives in a class before the next longer class.", default=1
    ),
    stream: StreamOptions,
    consumer: str = option("Consumer name of the stream.", "NAME", default="route"),
    bad_rows: str = BAD_ROWS,
    server: Server,
    cluster: ClusterOptions,
) -> Result:
    """Forward each message of a queue to the queue of its class, exactly once.

    With --create, the dead-letter queue of each class is the next longer class,
    so a message whose work exceeds its timeout gets a longer one.
    """
    try:
        routing_table = msgspec.json.decode(table.read_bytes(), type=RoutingTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--table {table}: not a routing table: {error}") from error
    from veilmq.pipeline.route import ForwardOptions, checked, create_queues, forward

    chosen: dict[str, Any] = {"checkpoint": checkpoint, "consumer": consumer, "bad_rows": bad_rows, **asdict(stream)}
    options = ForwardOptions(intake=intake, table=checked(routing_table, intake), endpoint=server.endpoint, **chosen)
    client = QueueClient(server)
    visible = client.show(intake).visible
    totals = {intake: None if stream.continuous else visible}
    with _streaming("route", cluster, totals) as (spark, stop, report):
        if create:
            create_queues(client, routing_table, receives_max=receives_max)
        forwarded = forward(spark, options, report=report, stop=stop)
    return Result({"queue": intake, "messages": forwarded}, f"{intake}: {forwarded} messages forwarded")


def report(
    *,
    state: State,
    to: Annotated[Path, Parameter(metavar="FILE", help="HTML file to write.")],
    title: str = option("Title of the report.", "TEXT", default="Visibility timeouts"),
    server: Server,
    statistics: StatisticsOptions,
    cluster: ClusterOptions,
) -> Result:
    """Write a report with charts of each queue, and print its path."""
    from veilmq.pipeline.report import report

    known, options = _facts(server), statistics.values()
    with _spark("report", cluster) as spark:
        at_ms = time.time_ns() // 1_000_000
        path = report(spark, state=state, path=to, at_ms=at_ms, title=title, options=options, facts=known)
    return Result({"path": str(path)}, str(path))


app = group("pipeline", archive, replay, tune, route_table, route, report)


# The demonstration.

_A_MINUTE_MESSAGES = 1_400
_QUICK_MESSAGES = 300
_MANY = 2_500  # from so many on, each kind of work has receipts enough for the 99th percentile
_JAVA = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # quick to start, for a short life


@command
def demo(
    *,
    minutes: int = number(MINUTES, "About how long it takes on an idle machine."),
    quick: bool = option("Send very few messages."),
    folder: Path | None = option("Folder for all files; a new one below ./veilmq-demo.", "DIR"),
    keep: bool = option("Keep all files, not only the report."),
    json: bool = JSON,
) -> Result:
    """Run all parts once: a server, workers (one is killed), the archive, tuning, routing and the report.

    It needs Java 17 and the extras server and spark. All processes that it
    starts end with it, and every number that it prints is counted.
    """
    import veilmq.server.app  # noqa: F401 - a missing module is reported before anything starts
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
    """Run all parts; print and return what they found."""
    from veilmq.pipeline.demo import GUESS_S, beside, checking, demonstration
    from veilmq.pipeline.tune import rows_of

    def load(heading: str, step: Callable[..., "Worked"], check: Callable[[], None]) -> "Worked":
        """Process one load, and print its figures."""
        print(f"\n{heading} One worker is killed.\n", flush=True)
        with progress("messages", {"work": messages}) as report:
            worked = step(bar=checking(partial(report, "work"), check))
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
        with _spark("demo", ClusterOptions(conf=(_JAVA,))) as spark:
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
