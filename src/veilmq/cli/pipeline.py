"""``veilmq pipeline``: the jobs on Spark; and ``veilmq demo``, which runs all parts once."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from veilmq.cli.command import (
    CommandFailed,
    Json,
    Rows,
    UsageError,
    needs_extra,
    option,
    print_aligned,
    print_json,
    print_result,
    read_by,
    read_pair,
    stop_on_signals,
    whole_number,
)
from veilmq.cli.connection import Endpoint, connect, environment
from veilmq.client import HttpQueueClient, Unreachable
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core import limits
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, RoutingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veilmq.pipeline.cost import TuneOptions
    from veilmq.pipeline.demo import ArchiveCounts, Worked
    from veilmq.pipeline.session import Report
    from veilmq.pipeline.tune import Change, QueueFacts, Recommendation

CLASSES = limits.Range(minimum=1, maximum=32, default=4)
MINUTES = limits.Range(minimum=1, maximum=60, default=2)
RECORD = "changes.jsonl"
_ENDLESS = 1e9

BadRows = Annotated[
    str,
    Parameter(
        metavar="fail|skip|table=PATH",
        help="If a row cannot be sent: fail, leave it out, or write it to files in PATH.",
    ),
]
State = Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the state of tune.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Where the job runs: by default in this process, or where spark-submit started it."""

    master: Annotated[str | None, option("Spark master, such as local[4] or spark://HOST:7077.", "URL")] = None
    remote: Annotated[str | None, option("Spark Connect server, sc://HOST:15002.", "URL")] = None
    conf: Annotated[
        tuple[str, ...], option("Spark setting NAME=VALUE; may be repeated.", "NAME=VALUE", name="--conf")
    ] = ()
    verbose: Annotated[bool, option("Print Spark's log.")] = False

    def settings(self) -> dict[str, str]:
        """Return the Spark settings by name; raises ``UsageError``."""
        refusal = "must be NAME=VALUE, such as spark.executor.memory=4g."
        return dict(read_pair(text, f"--conf {text}: {refusal}") for text in self.conf)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of the jobs that read queues by claims."""

    continuous: Annotated[bool, option("Run until stopped, instead of until all visible messages are read.")] = False
    batch: Annotated[
        int | None, whole_number(limits.CLAIM_MESSAGES, "Maximum number of messages in a micro-batch.")
    ] = None
    takeover: Annotated[bool, option("Replace another such job of the same queues.")] = False
    hold: Annotated[
        int | None, whole_number(limits.CLAIM_HOLD_S, "Seconds for which messages stay claimed while the job is down.")
    ] = None
    on_lost_claim: Annotated[
        Literal["fail", "skip"],
        Parameter(help="After a longer downtime: fail, or continue and log the messages delivered twice."),
    ] = "fail"

    def values(self) -> dict[str, Any]:
        """Return them by the names of ``pipeline.stream.ReadOptions``."""
        rest = {"batch_messages": self.batch, "hold_s": self.hold, "on_lost_claim": self.on_lost_claim}
        return {"continuous": self.continuous, "takeover": self.takeover, **rest}


def _within(low: float, high: float, text: str) -> Parameter:
    """Return the option for a number between two bounds, both exclusive."""

    def read(text: str) -> float:
        if not low < (number := float(text)) < high:  # also rejects NaN
            raise ValueError(text)
        return number

    allowed = f"a number, more than {low:g} and less than {high:g}"
    return Parameter(converter=read_by(read, allowed=allowed), metavar="X", negative=(), help=text)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsOptions:
    """Options of the statistics; ``docs/pipeline.md`` explains them."""

    quantile: Annotated[float, _within(0.5, 0.9999, "Quantile of the work by which timeouts are judged.")] = 0.99
    half_life: Annotated[float, _within(0, 3_650, "Days after which the weight of a receipt halves.")] = 7.0
    gain_min: Annotated[float, _within(0, 1, "Share of the cost that a change must save.")] = 0.10
    price_work: Annotated[float, _within(0, _ENDLESS, "Cost of a second of wasted work.")] = 1.0
    price_wait: Annotated[float, _within(0, _ENDLESS, "Cost of a second of waiting after a crash.")] = 1.0
    price_dead_letter: Annotated[float, _within(0, _ENDLESS, "Cost of a false dead letter.")] = 60.0

    def values(self) -> "TuneOptions":
        """Return the options of the jobs."""
        from veilmq.pipeline.cost import Prices, TuneOptions

        prices = Prices(work=self.price_work, wait=self.price_wait, dead_letter=self.price_dead_letter)
        return TuneOptions(quantile=self.quantile, half_life_days=self.half_life, gain_min=self.gain_min, prices=prices)


_HERE = ClusterOptions()
_STREAM = StreamOptions()
_USUAL = StatisticsOptions()


@contextmanager
def job(name: str) -> Iterator[None]:
    """Report a missing extra or the failure of a job in one line; Spark finds the profile's key in the environment."""
    os.environ.update(environment())
    command = name if name == "demo" else f"pipeline {name}"
    with needs_extra("spark", command=command):
        from veilmq.pipeline.session import PipelineFailed
    try:
        with needs_extra("spark", command=command):
            yield
    except PipelineFailed as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        if error.filename is None:
            raise  # not about a file
        raise CommandFailed(f"{error.filename} cannot be used: {error.strerror}.") from error


@contextmanager
def _spark(name: str, options: ClusterOptions) -> Iterator["SparkSession"]:
    """Run Spark for the job ``name``, where ``options`` specify."""
    if options.master and options.remote:
        raise UsageError("--master and --remote: give only one of them.")
    settings: dict[str, Any] = options.settings()
    from veilmq.pipeline.session import Cluster, open_session

    cluster = Cluster(
        master=options.master or "", remote=options.remote or "", settings=settings, verbose=options.verbose
    )
    with open_session(f"veilmq pipeline {name}", cluster) as spark:
        yield spark


@contextmanager
def _streaming(
    name: str, options: ClusterOptions, totals: Mapping[str, int | None]
) -> Iterator[tuple["SparkSession", threading.Event, "Report"]]:
    """Give Spark, an event that signals set, and what shows the messages done of each of ``totals``."""
    from veilmq.pipeline.session import showing

    with _spark(name, options) as spark, stop_on_signals() as stop, showing(totals, what="messages") as report:
        yield spark, stop, report


def _facts(endpoint: str, *, needed: bool = False) -> dict[str, "QueueFacts"]:
    """Return the settings of all queues; none if the server does not reply, unless they are ``needed``."""
    from veilmq.pipeline.tune import facts_of

    with connect(HttpQueueClient, endpoint) as client:
        try:
            return facts_of(client, client.list_queues())
        except Unreachable:
            if needed:
                raise
            return {}


def archive(
    queues: Annotated[tuple[str, ...], Parameter(negative=(), help="Names of the queues.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive; created if missing.")],
    checkpoint: Annotated[str, option("Folder or URL of the checkpoints.", "DIR")] = "",
    stream: StreamOptions = _STREAM,
    consumer: Annotated[str, Parameter(metavar="NAME", help="Consumer name of the streams.")] = "archive",
    compact_minutes: Annotated[
        int, whole_number(limits.ARCHIVE_COMPACT_MINUTES, "Minutes between compactions of small files; 0: never.")
    ] = limits.ARCHIVE_COMPACT_MINUTES.default,
    keep_hours: Annotated[
        int, whole_number(limits.ARCHIVE_KEEP_H, "Hours until files that left the table are deleted.")
    ] = limits.ARCHIVE_KEEP_H.default,
    expire_days: Annotated[
        int, whole_number(limits.ARCHIVE_EXPIRE_DAYS, "Days after which messages leave the table; 0: never.")
    ] = limits.ARCHIVE_EXPIRE_DAYS.default,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Move the messages of queues into a Delta table, each exactly once.

    A message is deleted from its queue after it is durable in the table.
    A job that was stopped or killed continues when it is started again.
    """
    with connect(HttpQueueClient, endpoint) as client:
        visible: dict[str, int | None] = {queue: client.show(queue).visible for queue in queues}
    with job("archive"):
        from veilmq.pipeline.archive import ArchiveOptions, archive

        options = ArchiveOptions(
            queues=queues,
            table=table,
            endpoint=endpoint,
            checkpoint=checkpoint,
            consumer=consumer,
            compact_minutes=compact_minutes,
            keep_h=keep_hours,
            expire_days=expire_days,
            **stream.values(),
        )
        totals = dict.fromkeys(queues) if stream.continuous else visible
        with _streaming("archive", cluster, totals) as (spark, stop, report):
            result = archive(spark, options, report=report, stop=stop, clock_s=time.monotonic)
    files = {"joined": result.compaction.removed, "expired": result.expired_files, "deleted": result.deleted_files}
    text = "\n".join(f"{queue}: {messages} messages archived" for queue, messages in result.messages.items())
    print_result({"messages": result.messages, **files}, text, json=json)
    if not json:
        expired = f"{files['expired']} files expired, " if expire_days else ""
        compacted = f"{files['joined']} small files compacted, {files['deleted']} removed files deleted"
        print(f"{expired}{compacted}", file=sys.stderr)


def replay(
    to: Annotated[str, Parameter(help="Name of the destination queue.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive.")],
    run: Annotated[str, Parameter(metavar="NAME", help="Name of the replay; the same name continues it.")],
    queue: Annotated[
        tuple[str, ...], option("Only messages of this queue; may be repeated.", "QUEUE", name="--queue")
    ] = (),
    since: Annotated[datetime | None, option("Only messages sent at this time (UTC) or later.", "TIME")] = None,
    until: Annotated[datetime | None, option("Only messages sent before this time (UTC).", "TIME")] = None,
    where: Annotated[str, option("Only messages that match this condition on the columns.", "SQL")] = "",
    id: Annotated[  # noqa: A002 - the name of the option
        tuple[str, ...], option("Only the message with this id; may be repeated.", "ID", name="--id")
    ] = (),
    batch: Annotated[
        int, whole_number(limits.REPLAY_BATCH_MESSAGES, "Approximate number of messages in a transaction.")
    ] = limits.REPLAY_BATCH_MESSAGES.default,
    bad_rows: BadRows = "fail",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Send a slice of the archive to a queue, each message once for each run.

    A job that was killed continues when it is started again with the same
    name and slice. With another name it sends the messages again.
    """
    with job("replay"):
        from veilmq.pipeline.archive import Replay, Slice

        first, last = (at.replace(tzinfo=at.tzinfo or UTC) if at is not None else None for at in (since, until))
        part = Slice(to=to, queues=queue, since=first, until=last, where=where, ids=id)
        wanted = Replay(table=table, run=run, slice=part, endpoint=endpoint, batch_messages=batch, bad_rows=bad_rows)
        with _streaming("replay", cluster, {to: None}) as (spark, stop, report):
            result = wanted.send(spark, report=report, stop=stop)
    before = f", {result.before} of them earlier" if result.before else ""
    document = {"queue": to, "messages": result.messages, "before": result.before}
    print_result(document, f"{to}: {result.messages} messages replayed{before}", json=json)


def tune(
    *,
    state: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the counts.")],
    events: Annotated[str, option("The event log's table receipt_closed.", "DIR")] = "",
    apply: Annotated[bool, option("Set the recommended timeouts on the queues.")] = False,
    dry_run: Annotated[bool, option("Print the changes of --apply without making them.")] = False,
    undo: Annotated[bool, option("Revert the changes of the last run with --apply.")] = False,
    record: Annotated[
        Path | None, option("File to which --apply adds each change; the state's changes.jsonl.", "FILE")
    ] = None,
    explore: Annotated[bool, option("With --apply: set longer timeouts where none can be recommended.")] = False,
    map_tasks: Annotated[
        int, whole_number(limits.TUNE_MAP_TASKS, "Maximum number of tasks that read the event log.")
    ] = limits.TUNE_MAP_TASKS.default,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    statistics: StatisticsOptions = _USUAL,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Recommend a visibility timeout for each queue and routing key from its event log.

    The job reads only new files of the log. --apply sets timeouts that are
    certain to cost less, by at most a factor of 3 per run, and records each
    change in <state>/changes.jsonl, or in --record if the state is a URL.
    --undo reverts the changes of the last run.
    """
    if undo == bool(events):
        raise UsageError("Give either --events, the event log, or --undo.")
    at_ms = time.time_ns() // 1_000_000
    with job("tune"):
        from veilmq.pipeline.folders import is_url
        from veilmq.pipeline.tune import apply as apply_to
        from veilmq.pipeline.tune import to_json, tune
        from veilmq.pipeline.tune import undo as undo_last

        sets = apply or dry_run
        if (sets or undo) and record is None and is_url(state):
            text = f"the state {state} is a URL, and changes are recorded in a local file."
            raise UsageError(f"--record is required: {text}")
        changes = record or Path(state) / RECORD
        if undo:
            with connect(HttpQueueClient, endpoint) as client:
                undone = undo_last(client, record=changes, at_ms=at_ms)
            _print_changes(undone, would=False)
            if json:
                print_json(undone)
            return
        known = _facts(endpoint, needed=sets)
        with _spark("tune", cluster) as spark:
            tuned = tune(
                spark, events=events, state=state, options=statistics.values(), facts=known, map_tasks=map_tasks
            )
        if json:
            print_json(msgspec.json.decode(to_json(tuned.recommendations)))
        else:
            _print_recommendations(tuned.recommendations)
        if sets:
            with connect(HttpQueueClient, endpoint) as client:
                made = apply_to(
                    client, tuned.recommendations, record=changes, at_ms=at_ms, explore=explore, dry_run=dry_run
                )
            _print_changes(made, would=dry_run)


def _print_recommendations(recommendations: "tuple[Recommendation, ...]") -> None:
    """Print a line for each queue and each of its keys, with the reason."""
    rows = []
    for each in recommendations:
        name = each.queue if each.key is None else f"  {each.key or '(no key)'}"
        timeout = "no advice" if each.recommended_s is None else f"{each.recommended_s} s"
        if each.keeps:
            timeout = "keep"
        rows.append((name, f"{timeout} (now {each.current_s} s; confidence {each.confidence.value}): {each.reason}"))
    if rows:
        print_aligned(rows)
    else:
        print("The event log has no receipts.", file=sys.stderr)


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
    classes: Annotated[int, whole_number(CLASSES, "Maximum number of classes.")] = CLASSES.default,
    attribute: Annotated[
        str, Parameter(metavar="NAME", help="Message attribute with the kind of work.")
    ] = ROUTING_ATTRIBUTE_DEFAULT,
    queue_pattern: Annotated[
        str, Parameter(metavar="TEXT", help="Name of each class's queue; {queue} and {class} are replaced.")
    ] = "{queue}-{class}",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    statistics: StatisticsOptions = _USUAL,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Compute the routing table of a queue: classes of routing keys that share a timeout.

    `veilmq pipeline route` forwards messages by this table.
    """
    with job("route-table"):
        from veilmq.pipeline.route import route_table

        known = _facts(endpoint)
        with _spark("route-table", cluster) as spark:
            made = route_table(
                spark,
                state=state,
                queue=queue,
                path=to,
                classes=classes,
                attribute=attribute,
                queue_pattern=queue_pattern,
                options=statistics.values(),
                facts=known.get(queue),
            )
        print_result(made.table, [_class_rows(made.table)], json=json)


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
    create: Annotated[bool, option("Create the class queues or change their settings.")] = False,
    receives_max: Annotated[
        int, whole_number(limits.SQS_RECEIVES_MAX, "With --create: receives in a class before the next longer class.")
    ] = 1,
    stream: StreamOptions = _STREAM,
    consumer: Annotated[str, Parameter(metavar="NAME", help="Consumer name of the stream.")] = "route",
    bad_rows: BadRows = "fail",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Forward each message of a queue to the queue of its class, exactly once.

    With --create, the dead-letter queue of each class is the next longer class,
    so a message whose work exceeds its timeout gets a longer one.
    """
    try:
        routing_table = msgspec.json.decode(table.read_bytes(), type=RoutingTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--table {table}: not a routing table: {error}") from error
    with job("route"):
        from veilmq.pipeline.route import ForwardOptions, checked, create_queues, forward

        options = ForwardOptions(
            intake=intake,
            table=checked(routing_table, intake),
            endpoint=endpoint,
            checkpoint=checkpoint,
            consumer=consumer,
            bad_rows=bad_rows,
            **stream.values(),
        )
        with connect(HttpQueueClient, endpoint) as client:
            visible = client.show(intake).visible
            if create:
                create_queues(client, routing_table, receives_max=receives_max)
        totals = {intake: None if stream.continuous else visible}
        with _streaming("route", cluster, totals) as (spark, stop, report):
            forwarded = forward(spark, options, report=report, stop=stop)
    print_result({"queue": intake, "messages": forwarded}, f"{intake}: {forwarded} messages forwarded", json=json)


def report(
    *,
    state: State,
    to: Annotated[Path, Parameter(metavar="FILE", help="HTML file to write.")],
    title: Annotated[str, Parameter(metavar="TEXT", help="Title of the report.")] = "Visibility timeouts",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    statistics: StatisticsOptions = _USUAL,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Write a report with charts of each queue, and print its path."""
    with job("report"):
        from veilmq.pipeline.report import report

        known, options = _facts(endpoint), statistics.values()
        with _spark("report", cluster) as spark:
            at_ms = time.time_ns() // 1_000_000
            path = report(spark, state=state, path=to, at_ms=at_ms, title=title, options=options, facts=known)
        print_result({"path": str(path)}, str(path), json=json)


# The demonstration.

_A_MINUTE_MESSAGES = 1_400
_QUICK_MESSAGES = 300
_MANY = 2_500  # from so many on, each kind of work has receipts enough for the 99th percentile
_JAVA = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # quick to start, for a short life


def demo(
    *,
    minutes: Annotated[int, whole_number(MINUTES, "About how long it takes on an idle machine.")] = MINUTES.default,
    quick: Annotated[bool, option("Send very few messages.")] = False,
    folder: Annotated[Path | None, option("Folder for all files; a new one below ./veilmq-demo.", "DIR")] = None,
    keep: Annotated[bool, option("Keep all files, not only the report.")] = False,
    json: Json = False,
) -> None:
    """Run all parts once: a server, workers (one is killed), the archive, tuning, routing and the report.

    It needs Java 17 and the extras server and spark. All processes that it
    starts end with it, and every number that it prints is counted.
    """
    with needs_extra("server", command="demo"):
        import veilmq.server.app  # noqa: F401 - a missing module is reported before anything starts
    with job("demo"):
        from veilmq.pipeline.session import check_java

        check_java()
        messages = _QUICK_MESSAGES if quick else minutes * _A_MINUTE_MESSAGES
        where = folder or Path("veilmq-demo") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        where = where.absolute()
        where.mkdir(parents=True, exist_ok=folder is None)
        with redirect_stdout(sys.stderr if json else sys.stdout):
            found = _play(where, messages)
            print(f"\nReport: {found['report']}")
            print("docs/pipeline.md explains the numbers. To start a server for your own queues: veilmq serve --help")
        for entry in () if keep else where.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif str(entry) != found["report"]:
                entry.unlink()
    if json:
        print_json(found)


def _play(folder: Path, messages: int) -> dict[str, Any]:
    """Run all parts; print and return what they found."""
    from veilmq.pipeline.demo import GUESS_S, beside, checking, demonstration
    from veilmq.pipeline.session import showing
    from veilmq.pipeline.tune import to_json

    with demonstration(folder, messages=messages, quantile=0.99 if messages >= _MANY else 0.9) as steps:
        print(f"Server: {steps.endpoint}. Starting Spark …", file=sys.stderr)
        with _spark("demo", ClusterOptions(conf=(_JAVA,))) as spark:
            with beside(lambda stop: steps.archive(spark, stop)) as check:
                _print_heading(f"1. One queue with a guessed timeout of {GUESS_S} s. One worker is killed.")
                with showing({"work": messages}, what="messages") as report:
                    one_queue = steps.one_queue(bar=checking(partial(report, "work"), check))
                    _print_load(one_queue)
                _print_heading("2. Timeouts and classes of work, learned from the event log.")
                found, table = steps.learn(spark)
                _print_recommendations(found)
                print()
                print_aligned(_class_rows(table))
                _print_heading("3. The same load, forwarded by Spark to one queue per class. One worker is killed.")
                with showing({"work": messages}, what="messages") as report:
                    routed = steps.routed(spark, table, bar=checking(partial(report, "work"), check))
                    _print_load(routed)
            _print_heading("4. The archive of finished work, which Spark filled at the same time.")
            steps.archive(spark)
            counts = steps.archive_counts()
            _print_archive(counts, pieces=2 * messages)
            loads = {"one_queue": one_queue, "routed": routed, "archive": counts, "table": table}
            return {**loads, "recommendations": msgspec.json.decode(to_json(found)), "report": str(steps.report(spark))}


def _print_heading(heading: str) -> None:
    print(f"\n{heading}\n", flush=True)


def _print_load(worked: "Worked") -> None:
    """Print the figures of one load."""
    print(
        f"   {worked.done:,} messages done in {worked.seconds:.0f} s, {worked.dead:,} moved to the dead-letter queue.\n"
        f"   {worked.repeated:,} redeliveries: {worked.expired:,} receipts expired before the work ended, after "
        f"{worked.wasted_s:,.0f} s in total.\n"
        f"   {worked.late:,} of them had a timeout that was too short: they were deleted late. The others were never "
        "deleted.",
        flush=True,
    )


def _print_archive(archive: "ArchiveCounts", *, pieces: int) -> None:
    twice = archive.messages - archive.work
    print(
        f"   {archive.rows:,} rows, {archive.messages:,} different messages: "
        f"{'each exactly once' if archive.rows == archive.messages else 'NOT each exactly once'}. "
        f"They report {archive.work:,} of {pieces:,} pieces of work as done; {twice:,} were done again.",
        flush=True,
    )


app = App(name="pipeline")
for each in (archive, replay, tune, route_table, route, report):
    app.command(each)
