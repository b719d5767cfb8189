"""``veilmq pipeline tune``."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.failures import UsageError
from veilmq.cli.options import Endpoint, Json, whole_number
from veilmq.cli.pipeline_options import ClusterOptions, job, spark_session
from veilmq.cli.printing import print_aligned
from veilmq.cli.statistics_options import StatisticsOptions, facts
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import TUNE_MAP_TASKS

if TYPE_CHECKING:
    from veilmq.pipeline.tune import Change, Recommendation

_HERE = ClusterOptions()
_USUAL = StatisticsOptions()

RECORD = "changes.jsonl"


def tune(
    *,
    state: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the counts.")],
    events: Annotated[
        str, Parameter(metavar="DIR", show_default=False, help="The event log's table receipt_closed.")
    ] = "",
    apply: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Set the recommended timeouts on the queues.")
    ] = False,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Print the changes of --apply without making them.")
    ] = False,
    undo: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Revert the changes of the last run with --apply.")
    ] = False,
    record: Annotated[
        Path | None,
        Parameter(metavar="FILE", help="File to which --apply adds each change; the state's changes.jsonl."),
    ] = None,
    explore: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="With --apply: set longer timeouts where none can be recommended."
        ),
    ] = False,
    map_tasks: Annotated[
        int, whole_number(TUNE_MAP_TASKS, "Maximum number of tasks that read the event log.")
    ] = TUNE_MAP_TASKS.default,
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
        from veilmq.pipeline.tune import apply as apply_to
        from veilmq.pipeline.tune import to_json, tune
        from veilmq.pipeline.tune import undo as undo_last

        sets = apply or dry_run
        changes = _record(state, record) if sets or undo else Path()
        if undo:
            with connect(endpoint) as client:
                _print_changes(undo_last(client, record=changes, at_ms=at_ms), would=False)
            return
        known = facts(endpoint, needed=sets)
        with spark_session("tune", cluster) as spark:
            tuned = tune(
                spark, events=events, state=state, options=statistics.values(), facts=known, map_tasks=map_tasks
            )
        if json:
            print(to_json(tuned.recommendations).decode())
        else:
            print_recommendations(tuned.recommendations)
        if sets:
            with connect(endpoint) as client:
                made = apply_to(
                    client, tuned.recommendations, record=changes, at_ms=at_ms, explore=explore, dry_run=dry_run
                )
            _print_changes(made, would=dry_run)


def _record(state: str, record: Path | None) -> Path:
    """Return the file that records changes: a local one, because lines are appended."""
    from veilmq.pipeline.folders import is_url

    if record is not None:
        return record
    if is_url(state):
        raise UsageError(f"--record is required: the state {state} is a URL, and changes are recorded in a local file.")
    return Path(state) / RECORD


def print_recommendations(recommendations: "tuple[Recommendation, ...]") -> None:
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
