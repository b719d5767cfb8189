"""The job ``tune``: event log → cells → a recommended timeout for each queue and routing key, and its application.

The job is incremental and can run at any time: it reads only new files, and equal cells give equal recommendations.

``apply`` sets a recommended timeout only if the gain exceeds ``TuneOptions.gain_min`` and the confidence is medium or
high, and by at most ``STEP_FACTOR`` a run, so that unstable estimates do not make timeouts unstable. A queue whose
timeout has changed since the statistics were computed is not changed. Each change is recorded for ``undo``.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession

from veilmq.client.sqs import QueueClient
from veilmq.core import Value
from veilmq.core.limits import TUNE_MAP_TASKS, VISIBILITY_TIMEOUT_S
from veilmq.core.receipts import Outcome
from veilmq.core.settings import QueueSettings
from veilmq.pipeline.cells import HELD, KeyCounts, ReceiptCounts, counts_by_key, decayed, shifts, whole_of
from veilmq.pipeline.cost import candidates_s
from veilmq.pipeline.estimate import Estimate, Quantile, Rates, estimates, seconds
from veilmq.pipeline.event_log import CellStore
from veilmq.pipeline.folders import located
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.survival import crossings_s, share
from veilmq.wire.sqs.names import full_name


class Confidence(StrEnum):
    """The confidence of a recommendation, or of keeping the current timeout.

    ``high``: the timeout costs little more than the best one in nearly all draws, and the quantile is known to 10 %.
    ``medium``: one of these holds: the quantile is known less precisely; it is known only from late deletes; the crash
    rate is known only from a plateau. ``low``: the timeout may cost more, or the key borrows receipts of its queue.
    ``none``: no statement is possible.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


def plain_name(queue: str) -> str:
    return queue.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommendation for a queue (``key`` is ``None``) or one of its routing keys; durations in seconds.

    ``recommended_s`` is ``None`` if the current timeout should be kept, or if no statement is possible (``confidence``
    is then ``none``). ``explore_s`` is a longer timeout that would provide more data. ``change`` is whether the gain is
    large enough. Costs are per message, ``None`` if unknown; ``cost_current_lower`` and ``cost_recommended_upper`` are
    one-sided 95 % bounds, and for a recommendation the second is below the first.
    """

    queue: str
    key: str | None
    receipts: float
    first_receipts: float
    quantile: Quantile
    rates: Rates
    renewal_s: float | None
    longest_s: float
    current_s: int
    crash_lower: float
    crash_upper: float
    recommended_s: int | None = None
    explore_s: int | None = None
    cost_current: float | None = None
    cost_recommended: float | None = None
    cost_current_lower: float | None = None
    cost_recommended_upper: float | None = None
    confidence: Confidence = Confidence.NONE
    change: bool = False
    reason: str

    @property
    def keeps(self) -> bool:
        """Whether the current timeout should be kept."""
        return self.recommended_s is None and self.confidence is not Confidence.NONE

    @property
    def gain(self) -> float:
        """The share of the current cost that the recommended timeout saves; 0 if unknown."""
        if not self.cost_current or self.cost_recommended is None:
            return 0.0
        return 1.0 - self.cost_recommended / self.cost_current


EXPLORE_FACTOR = 4
"""If all timeouts are too short for an estimate, the timeout to try is the longest one times this factor."""

BOUNDS_CLOSE = 0.10
"""Bounds at most this far from the point, relatively, are close."""

COST_FACTOR_NEAR = 1.10
COST_NEAR_S = 0.02
"""A cost is near the best one if it is at most ``COST_FACTOR_NEAR`` times as high, or ``COST_NEAR_S`` higher."""

COST_FACTOR_SAFE = 1.05
"""Timeouts whose average cost is at most this many times the least are preferred to those near the best more often."""

NEAR_MIN = 0.95
"""A timeout is trusted if its cost is near the best one in this share of the draws."""

NAIVE_MIN = 0.975
COST_EQUAL_S = 0.001
"""The naive timeout is kept unless another one costs at most ``COST_EQUAL_S`` more in this share of the draws."""

RENEWAL_KNOWN = 0.10
"""The relative error of the period of renewals: consumers differ, and renew late."""

BY_EARLIER_MIN = 0.5
"""A single delete by an earlier receipt counts for a half-life: the server may have been set to ``fenced`` since."""

_LOWER, _UPPER = 0.025, 0.975
_ONE_SIDE = 0.05


def recommendations(
    found: Iterable[KeyCounts], *, options: TuneOptions, settings: Mapping[str, QueueSettings]
) -> Iterator[Recommendation]:
    """Yield the recommendation for each queue in ``found``, followed by those for its keys.

    ``found`` is sorted by queue; ``settings``, by the names in the event log, may lack queues.
    """
    for queue, keys in groupby(found, key=lambda each: each.queue):
        queue_keys = list(keys)
        whole, by_key = estimates(queue_keys, options=options)
        yield from queue_recommendations(queue_keys, whole, by_key, options, settings.get(queue))


def queue_recommendations(
    keys: list[KeyCounts],
    whole: Estimate,
    by_key: Mapping[str, Estimate],
    options: TuneOptions,
    settings: QueueSettings | None,
) -> Iterator[Recommendation]:
    """Yield the recommendation for the queue of ``keys``, then those for the keys."""
    options = options_for(keys, options, settings)
    yield _recommendation(whole_of(keys), None, whole, settings, options)
    for each in keys:
        yield _recommendation(each, each.key, by_key[each.key], settings, options)


def options_for(keys: Iterable[KeyCounts], options: TuneOptions, settings: QueueSettings | None) -> TuneOptions:
    """Return ``options`` for the queue of ``keys``: with its own maximum of receives, if it has one.

    Receipts are not fenced if the event log has deletes by earlier receipts. The setting of the server does not decide,
    because SMQ and FIFO queues are always fenced.
    """
    by_earlier = sum(float(each.all.by_bucket(HELD, Outcome.DELETED_BY_EARLIER)[0].sum()) for each in keys)
    receives_max = (settings.receives_max if settings else 0) or options.receives_max
    return replace(options, fenced=options.fenced and by_earlier < BY_EARLIER_MIN, receives_max=receives_max)


def explore_s(first: ReceiptCounts) -> int:
    """Return a longer timeout than all so far, to try if nothing can be recommended."""
    return min(math.ceil(EXPLORE_FACTOR * first.longest_s), VISIBILITY_TIMEOUT_S.maximum)


def _recommendation(
    found: KeyCounts, key: str | None, estimate: Estimate, settings: QueueSettings | None, options: TuneOptions
) -> Recommendation:
    current_s = settings.visibility_timeout_s if settings else max(round(found.all.usual_s), 1)
    crash_lower, crash_upper = (float(each) for each in np.quantile(estimate.crash, (_LOWER, _UPPER)))
    since = f"; the work changed: only receipts since {found.since} count" if found.since else ""
    undecided = Recommendation(
        queue=found.queue,
        key=key,
        receipts=found.all.receipts,
        first_receipts=found.first.receipts,
        quantile=estimate.quantile,
        rates=estimate.rates,
        renewal_s=estimate.renewal_s,
        longest_s=found.first.longest_s,
        current_s=current_s,
        crash_lower=crash_lower,
        crash_upper=crash_upper,
        reason=estimate.quantile.why_not + since,
    )
    if estimate.is_known or estimate.renewal_s is not None:
        return _chosen(undecided, estimate, options, since)
    explores = found.first.receipts >= options.receipts_min
    return replace(undecided, explore_s=explore_s(found.first) if explores else None)


def _chosen(undecided: Recommendation, estimate: Estimate, options: TuneOptions, since: str) -> Recommendation:
    """Recommend the timeout with about the least average cost over all draws, or keep the current one.

    The naive timeout is the quantile of the receipts deleted in time.
    """
    current_s, deleted, renewed_from_s = undecided.current_s, estimate.first.deleted, estimate.renewed_from_s
    left = 1.0 - np.cumsum(deleted) / max(float(deleted.sum()), 1e-9)
    found_s = float(crossings_s(left[None], 1.0 - options.quantile)[0]) if deleted.any() else 1.0
    naive_s = int(min(max(math.ceil(found_s), VISIBILITY_TIMEOUT_S.minimum, 1), VISIBILITY_TIMEOUT_S.maximum))
    renewed = [] if estimate.renewal_s is None else [math.ceil(renewed_from_s)]
    timeouts_s = np.unique(np.concatenate([candidates_s(), [max(current_s, 1), naive_s], renewed]))
    costs = estimate.costs(timeouts_s, options)
    means = costs.mean(axis=0)
    at_current, at_naive = (int(np.searchsorted(timeouts_s, max(each, 1))) for each in (current_s, naive_s))
    # A small cost may be too low by half a receipt whose work is longer than all observed work.
    unseen = 0.5 * options.receives_max * options.work / (estimate.first.receipts + 1.0)
    unseen_costs = np.where(timeouts_s < renewed_from_s, unseen * timeouts_s, 0.0)
    least = costs.min(axis=1, keepdims=True)
    near = ((costs <= COST_FACTOR_NEAR * least) | (costs + unseen_costs - least <= COST_NEAR_S)).mean(axis=0)
    safe = means <= COST_FACTOR_SAFE * means.min()
    best = int(np.lexsort((means, -near * safe))[0])
    is_cheaper = best == at_naive or np.mean(costs[:, best] - costs[:, at_naive] <= COST_EQUAL_S) >= NAIVE_MIN
    if not is_cheaper and near[at_naive] >= NEAR_MIN:
        best, is_cheaper = at_naive, True
    lower, upper = (float(np.quantile(costs[:, at], p)) for at, p in ((at_current, _ONE_SIDE), (best, 1.0 - _ONE_SIDE)))
    timeout_s, cost_now, cost_best = int(timeouts_s[best]), float(means[at_current]), float(means[best])
    both_renewed = min(current_s, timeout_s) >= (1.0 - RENEWAL_KNOWN) * renewed_from_s
    as_good = both_renewed and current_s <= (1.0 + BOUNDS_CLOSE) * timeout_s
    keeps = best == at_current or as_good or upper >= lower or not is_cheaper
    reason = _reason(estimate, timeout_s, options)
    if keeps:
        a_message = f"({seconds(cost_best)} a message, now {seconds(cost_now)})"
        why = f"{seconds(timeout_s)} would not surely cost less {a_message}"
        why = "no other timeout costs less" if timeout_s == current_s else why
        reason = f"keep {seconds(current_s)}: {why}; {reason}"
    renewed_best = estimate.renews and timeout_s >= renewed_from_s
    return replace(
        undecided,
        recommended_s=None if keeps else timeout_s,
        cost_current=cost_now,
        cost_recommended=None if keeps else cost_best,
        cost_current_lower=lower,
        cost_recommended_upper=None if keeps else upper,
        confidence=_confidence(estimate, near[at_current if keeps else best], renewed=renewed_best),
        change=not keeps and cost_now - cost_best > options.gain_min * cost_now,
        reason=reason + since,
    )


def _reason(estimate: Estimate, timeout_s: int, options: TuneOptions) -> str:
    crashes = f"{share(float(estimate.crash[0]))} of the receipts wait for the timeout after a crash"
    renewals = ""
    if estimate.renewal_s is not None and timeout_s >= estimate.renewed_from_s:
        renewals = f"consumers renew about every {seconds(estimate.renewal_s)}"
        if estimate.renews:
            return f"{renewals}, so the timeout covers three renewals, not the work; {crashes}"
        renewals = f"{share(1.0 - float(np.mean(estimate.unrenewed)))} of the {renewals}; "
    name, point = f"p{100 * options.quantile:g}", estimate.quantile.point_s
    quantile = f"{name} is {seconds(point)}" if point is not None else estimate.quantile.why_not
    borrowed = f"; {estimate.lent:.0f} receipts are borrowed from the queue" if estimate.lent else ""
    outlived = share(float(estimate.tail.beyond(np.array([float(timeout_s)]))[0, 0]))
    outlives = f"{outlived} of the work takes longer than {seconds(timeout_s)}"
    return f"{renewals}{quantile}{borrowed}; {outlives}, and {crashes}"


def _confidence(estimate: Estimate, near: float, *, renewed: bool) -> Confidence:
    """Return the confidence; ``near`` is the share of draws with a cost close to the best.

    ``renewed`` means that renewals cover the work, not the timeout.
    """
    if estimate.lent or near < NEAR_MIN:
        return Confidence.LOW
    if renewed:
        return Confidence.HIGH
    quantile = estimate.quantile
    if estimate.is_plateau or quantile.point_s is None or quantile.lower_s is None or quantile.upper_s is None:
        return Confidence.MEDIUM
    close = max(quantile.upper_s / quantile.point_s - 1.0, 1.0 - quantile.lower_s / quantile.point_s) <= BOUNDS_CLOSE
    return Confidence.HIGH if close else Confidence.MEDIUM


SCHEMA = (
    "queue string, key string, receipts double, first_receipts double, p_s double, p_lower_s double, p_upper_s double, "
    "p_late_s double, not_identifiable string, duplicate_rate double, recovery_rate double, crash_rate double, "
    "nack_rate double, renewal_s double, longest_s double, current_s int, recommended_s int, explore_s int, "
    "cost_current double, cost_recommended double, cost_current_lower double, cost_recommended_upper double, "
    "crash_lower double, crash_upper double, confidence string, change boolean, reason string"
)
"""The columns and their Spark types; ``key`` is null for the queue as a whole."""

COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(", "))


_COLUMN_FIELDS = {
    "p_s": "quantile.point_s",
    "p_lower_s": "quantile.lower_s",
    "p_upper_s": "quantile.upper_s",
    "p_late_s": "quantile.late_s",
    "not_identifiable": "quantile.why_not",
    "duplicate_rate": "rates.duplicate",
    "recovery_rate": "rates.recovery",
    "crash_rate": "rates.crash",
    "nack_rate": "rates.nack",
    "confidence": "confidence.value",
}
"""The columns that differ in name from the field of a recommendation."""


def rows_of(found: Iterable[Recommendation]) -> list[dict[str, object]]:
    """Return the recommendations as rows with the names of ``COLUMNS``."""
    return [{name: attrgetter(_COLUMN_FIELDS.get(name, name))(each) for name in COLUMNS} for each in found]


DEFAULTS = TuneOptions()


def tune(
    spark: SparkSession,
    *,
    events: str,
    state: str,
    options: TuneOptions = DEFAULTS,
    settings: Mapping[str, QueueSettings] | None = None,
    map_tasks: int = TUNE_MAP_TASKS.default,
    at_ms: int | None = None,
) -> tuple[Recommendation, ...]:
    """Count the new files of ``events`` (the table ``receipt_closed``) into ``state``, and recommend timeouts.

    Both are folders or URLs of Spark. Returns the recommendations, each queue before its keys, and writes them to
    ``<state>/recommendations`` as Parquet. ``settings`` are those of the queues (``settings_of``); without them, the
    log determines the current timeouts. At most ``map_tasks`` tasks read the log. ``at_ms`` (default: now) determines
    the day; the first run of a day lists the whole log.
    """
    store = CellStore(spark, state)
    store.count(events, map_tasks=map_tasks, at_ms=at_ms)
    found = tuple(recommendations(current_counts(store.cells(), options), options=options, settings=settings or {}))
    rows = spark.createDataFrame([tuple(row.values()) for row in rows_of(found)], SCHEMA)
    rows.coalesce(1).write.mode("overwrite").parquet(f"{located(state)}/recommendations")
    return found


def current_counts(cells: DataFrame, options: TuneOptions) -> list[KeyCounts]:
    """Return the counts by queue and key in ``cells``, with older days decayed and days before a shift excluded."""
    since = shifts(cells)
    rows = [(queue, key, date.fromisoformat(day)) for (queue, key), day in since.items()]
    cut = cells.sparkSession.createDataFrame(rows, "queue string, key string, since date") if rows else None
    return list(counts_by_key(decayed(cells, half_life_days=options.half_life_days, since=cut).toPandas(), since))


STEP_FACTOR = 3
"""A run changes a timeout by at most this factor; the next run continues from there."""


class Change(Value):
    """One changed timeout, a line of the record. ``at_ms`` is since the epoch; costs are per message.

    ``undoes_ms`` is the ``at_ms`` of the change that this one reverts, or 0.
    """

    at_ms: int
    queue: str
    before_s: int
    after_s: int
    cost_before: float | None
    cost_after: float | None
    confidence: str
    reason: str
    undoes_ms: int = 0


def settings_of(client: QueueClient, queues: Iterable[str]) -> dict[str, QueueSettings]:
    """Return the settings of ``queues`` by their names in the event log, ``account/name``."""
    return {full_name(status.url): status.settings for status in map(client.show, queues)}


def apply(
    client: QueueClient,
    recommendations: Iterable[Recommendation],
    *,
    record: Path,
    at_ms: int,
    explore: bool = False,
    dry_run: bool = False,
) -> list[Change]:
    """Set the recommended timeouts of whole queues; return the changes, and append them to ``record`` (JSON lines).

    With ``explore``, a queue whose timeouts are too short for any recommendation gets a longer one. With ``dry_run``,
    nothing is set or recorded. Queues of other accounts and deleted queues are skipped.
    """
    changes = []
    existing = frozenset(client.list_queues())
    for each in recommendations:
        wanted_s = each.explore_s if explore else None
        if each.change and each.confidence in {Confidence.HIGH, Confidence.MEDIUM}:
            wanted_s = each.recommended_s
        if each.key is not None or wanted_s is None or plain_name(each.queue) not in existing:
            continue
        if _timeout_s(client, each.queue) != each.current_s:
            continue
        least_s, most_s = math.ceil(each.current_s / STEP_FACTOR), max(each.current_s, 1) * STEP_FACTOR
        target_s = min(max(wanted_s, least_s), most_s)
        change = Change(
            at_ms=at_ms,
            queue=each.queue,
            before_s=each.current_s,
            after_s=target_s,
            cost_before=each.cost_current,
            cost_after=each.cost_recommended if target_s == each.recommended_s else None,
            confidence=each.confidence.value,
            reason=each.reason,
        )
        changes.append(change)
        if not dry_run:
            _set(client, change, record)
    return changes


def undo(client: QueueClient, *, record: Path, at_ms: int) -> list[Change]:
    """Revert the last run in ``record`` that is not reverted yet; return the changes, and record them.

    A queue that was deleted, or whose timeout has changed since that run, is not changed.
    """
    changes: list[Change] = []
    recorded: list[Change] = []
    for line in record.read_bytes().splitlines() if record.exists() else []:
        with suppress(msgspec.DecodeError):  # a kill or a full disk tore the line, so its timeout was not set
            recorded.append(msgspec.json.decode(line, type=Change))
    reverted = {(each.queue, each.undoes_ms) for each in recorded}
    pending = [each for each in recorded if not each.undoes_ms and (each.queue, each.at_ms) not in reverted]
    last_ms = pending[-1].at_ms if pending else 0  # by its line: a clock may have been set back
    existing = frozenset(client.list_queues())
    for each in pending:
        if each.at_ms != last_ms or plain_name(each.queue) not in existing:
            continue
        if _timeout_s(client, each.queue) == each.after_s:
            undone = {"before_s": each.after_s, "after_s": each.before_s, "undoes_ms": each.at_ms, "reason": "undone"}
            costs = {"cost_before": each.cost_after, "cost_after": each.cost_before}
            changes.append(msgspec.structs.replace(each, at_ms=at_ms, **undone, **costs))
            _set(client, changes[-1], record)
    return changes


def _timeout_s(client: QueueClient, queue: str) -> int | None:
    """Return the timeout of ``queue``, a full name; ``None`` if it belongs to another account."""
    settings = settings_of(client, [plain_name(queue)]).get(queue)
    return None if settings is None else settings.visibility_timeout_s


def _set(client: QueueClient, change: Change, record: Path) -> None:
    """Record the change, then set the timeout, so that each change is recorded even if the process is killed."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a+b") as file:
        file.seek(max(0, record.stat().st_size - 1))
        is_torn = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_torn + msgspec.json.encode(change) + b"\n")
    client.set(plain_name(change.queue), {"visibility_timeout_s": change.after_s})
