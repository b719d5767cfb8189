"""Recommendations as a table and as JSON."""

from collections.abc import Iterable

import msgspec

from veilmq.pipeline.recommendation import Recommendation

SCHEMA = (
    "queue string, key string, receipts double, first_receipts double, p_s double, p_lower_s double, p_upper_s double, "
    "p_late_s double, not_identifiable string, duplicate_rate double, recovery_rate double, crash_rate double, "
    "nack_rate double, renewal_s double, longest_s double, current_s int, recommended_s int, explore_s int, "
    "cost_current double, cost_recommended double, cost_current_lower double, cost_recommended_upper double, "
    "crash_lower double, crash_upper double, confidence string, change boolean, reason string"
)
"""The columns and their Spark types; ``key`` is null for the queue as a whole."""

COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(", "))


def rows_of(found: Iterable[Recommendation]) -> list[tuple[object, ...]]:
    """Return a row for each recommendation, in the order of ``COLUMNS``."""
    return [tuple(_record(each)[name] for name in COLUMNS) for each in found]


def to_json(found: Iterable[Recommendation]) -> bytes:
    """Return the recommendations as a JSON list of objects with the names of ``COLUMNS``."""
    return msgspec.json.format(msgspec.json.encode([_record(each) for each in found]), indent=2)


def _record(each: Recommendation) -> dict[str, object]:
    return {
        "queue": each.queue,
        "key": each.key,
        "receipts": each.receipts,
        "first_receipts": each.first_receipts,
        "p_s": each.quantile.point_s,
        "p_lower_s": each.quantile.lower_s,
        "p_upper_s": each.quantile.upper_s,
        "p_late_s": each.quantile.late_s,
        "not_identifiable": each.quantile.why_not,
        "duplicate_rate": each.rates.duplicate,
        "recovery_rate": each.rates.recovery,
        "crash_rate": each.rates.crash,
        "nack_rate": each.rates.nack,
        "renewal_s": each.renewal_s,
        "longest_s": each.longest_s,
        "current_s": each.current_s,
        "recommended_s": each.recommended_s,
        "explore_s": each.explore_s,
        "cost_current": each.cost_current,
        "cost_recommended": each.cost_recommended,
        "cost_current_lower": each.cost_current_lower,
        "cost_recommended_upper": each.cost_recommended_upper,
        "crash_lower": each.crash_lower,
        "crash_upper": each.crash_upper,
        "confidence": each.confidence.value,
        "change": each.change,
        "reason": each.reason,
    }
