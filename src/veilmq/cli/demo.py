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
    from veilmq.pipeline.demo.acts import Plan, Worked
    from veilmq.pipeline.demo.counted import Archive

MINUTES = Range(minimum=1, maximum=60, default=3)
_A_MINUTE_MESSAGES = 1_400  # what the workers do in the third of a minute that each of two loads gets of it
_QUICK_MESSAGES = 300
_MANY = 2_500  # from so many on, each kind of work has receipts enough for the 99th percentile


def demo(
    *,
    minutes: Annotated[int, whole_number(MINUTES, "How long it takes, about, on a machine that is idle.")] = (
        MINUTES.default
    ),
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="The same with very few messages.")] = False,
    folder: Annotated[
        Path | None,
        Parameter(metavar="DIR", show_default=False, help="Where everything goes; a new folder below ./veilmq-demo."),
    ] = None,
    keep: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep everything, not only the report.")
    ] = False,
) -> None:
    """Play everything once: a server, workers of which one dies, the archive, tuning, routing, the report.

    It needs Java 17 and the extras server and spark. Nothing that it starts
    outlives it, and every number that it prints is counted.
    """
    with needs_extra("server", command="demo"):
        import veilmq.server.app  # noqa: F401 - whoever lacks something learns it before anything starts
    with job("demo"):
        from veilmq.pipeline.demo.acts import Plan
        from veilmq.pipeline.session import check_java

        check_java()

        messages = _QUICK_MESSAGES if quick else minutes * _A_MINUTE_MESSAGES
        plan = Plan(messages=messages, quantile=0.99 if messages >= _MANY else 0.9)
        where = folder or Path("veilmq-demo") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        where = where.absolute()
        where.mkdir(parents=True, exist_ok=folder is None)
        report = _play(where, plan)
        if not keep:
            _clean(where, report)
    print(f"\nThe report: {report}")
    print("What these numbers mean: docs/pipeline.md. To begin with your own queues: veilmq serve --help")


def _play(folder: Path, plan: "Plan") -> Path:
    from veilmq.pipeline.demo import acts
    from veilmq.pipeline.streams import showing

    with acts.stage(folder) as stage:
        print(f"A server is at {stage.endpoint}; Spark starts …", file=sys.stderr)
        with spark_session("demo", ClusterOptions()) as spark:
            with acts.beside(lambda stop: acts.archiving(stage, spark, stop)) as check:
                _say(f"1. One queue. Its timeout, {acts.GUESS_S} s, is a guess; one of the workers is killed.")
                with showing({"work": plan.messages}, what="messages") as report:
                    _tell(acts.one_queue(stage, plan, bar=acts.checking(partial(report, "work"), check)))
                _say("2. What the event log teaches: a timeout for each kind of work, and classes of them.")
                found, table = acts.advice(stage, plan, spark)
                print_recommendations(found)
                print()
                print_table(table)
                _say("3. The same load, forwarded by Spark to the queues of its classes; a worker is killed again.")
                with showing({"work": plan.messages}, what="messages") as report:
                    bar = acts.checking(partial(report, "work"), check)
                    _tell(acts.routed(stage, plan, spark, table, bar=bar))
            _say("4. The archive of what workers told to have done, filled by Spark all the while.")
            _count(acts.archive_rest(stage, spark), plan)
            return acts.reported(stage, plan, spark)


def _say(heading: str) -> None:
    print(f"\n{heading}\n", flush=True)


def _tell(worked: "Worked") -> None:
    """Print what one load came to."""
    receipts = worked.receipts
    print(
        f"   {worked.done:,} messages done in {worked.seconds:.0f} s, {worked.dead:,} died as dead letters.\n"
        f"   {receipts.repeated:,} deliveries were repetitions: {receipts.expired:,} timeouts had ended before the "
        f"work, after {receipts.wasted_s:,.0f} s.\n"
        f"   {receipts.late:,} of these were too short, the work was finished all the same; the others were a death.",
        flush=True,
    )


def _count(archive: "Archive", plan: "Plan") -> None:
    pieces, twice = 2 * plan.messages, archive.messages - archive.work
    print(
        f"   {archive.rows:,} rows, {archive.messages:,} different messages: "
        f"{'each one once' if archive.rows == archive.messages else 'NOT each one once'}. "
        f"They tell of {archive.work:,} of {pieces:,} pieces of work; {twice:,} were done once more.",
        flush=True,
    )


def _clean(folder: Path, report: Path) -> None:
    """Delete all but the report."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry != report:
            entry.unlink()
