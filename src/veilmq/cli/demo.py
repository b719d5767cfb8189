"""``veilmq demo``."""

import shutil
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from veilmq.cli.extras import needs_extra
from veilmq.cli.options import whole_number
from veilmq.cli.pipeline_options import ClusterOptions, job, spark_session
from veilmq.cli.pipeline_route_table import print_table
from veilmq.cli.pipeline_tune import print_recommendations
from veilmq.core.limits import Range

if TYPE_CHECKING:
    from veilmq.pipeline.demo import ArchiveCounts, Worked

MINUTES = Range(minimum=1, maximum=60, default=2)
_A_MINUTE_MESSAGES = 1_400
_QUICK_MESSAGES = 300
_MANY = 2_500  # from so many on, each kind of work has receipts enough for the 99th percentile
_JAVA = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # quick to start, for a short life


def demo(
    *,
    minutes: Annotated[int, whole_number(MINUTES, "About how long it takes on an idle machine.")] = (MINUTES.default),
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="Send very few messages.")] = False,
    folder: Annotated[
        Path | None,
        Parameter(metavar="DIR", show_default=False, help="Folder for all files; a new one below ./veilmq-demo."),
    ] = None,
    keep: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep all files, not only the report.")
    ] = False,
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
        report = _play(where, messages)
        if not keep:
            _clean(where, report)
    print(f"\nReport: {report}")
    print("docs/pipeline.md explains the numbers. To start a server for your own queues: veilmq serve --help")


def _play(folder: Path, messages: int) -> Path:
    from veilmq.pipeline.demo import GUESS_S, beside, checking, demonstration
    from veilmq.pipeline.session import showing

    with demonstration(folder, messages=messages, quantile=0.99 if messages >= _MANY else 0.9) as steps:
        print(f"Server: {steps.endpoint}. Starting Spark …", file=sys.stderr)
        with spark_session("demo", ClusterOptions(conf=(_JAVA,))) as spark:
            with beside(lambda stop: steps.archive(spark, stop)) as check:
                _print_heading(f"1. One queue with a guessed timeout of {GUESS_S} s. One worker is killed.")
                with showing({"work": messages}, what="messages") as report:
                    _print_load(steps.one_queue(bar=checking(partial(report, "work"), check)))
                _print_heading("2. Timeouts and classes of work, learned from the event log.")
                found, table = steps.learn(spark)
                print_recommendations(found)
                print()
                print_table(table)
                _print_heading("3. The same load, forwarded by Spark to one queue per class. One worker is killed.")
                with showing({"work": messages}, what="messages") as report:
                    _print_load(steps.routed(spark, table, bar=checking(partial(report, "work"), check)))
            _print_heading("4. The archive of finished work, which Spark filled at the same time.")
            steps.archive(spark)
            _print_archive(steps.archive_counts(), pieces=2 * messages)
            return steps.report(spark)


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


def _clean(folder: Path, report: Path) -> None:
    """Delete all but the report."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry != report:
            entry.unlink()
