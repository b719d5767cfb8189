"""Closed receipts made by hand, as the event log has them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from veilmq.core.receipts import Outcome
from veilmq.pipeline.event_log import SCHEMA

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATE = datetime(2026, 1, 1, 23, 59, 50, tzinfo=UTC)

USUAL: dict[str, Any] = {
    "queue": "1/jobs",
    "key": "a",
    "group_hash": None,
    "size_bucket": 8,
    "message_id": "0" * 32,
    "receipt": 1,
    "visibility_ms": 30_000,
    "extensions": 0,
    "receive_count": 1,
    "batch_size": 1,
    "batch_position": 0,
    "event": 1,
    "node": "one",
}


def row(outcome: Outcome, held_ms: int, *, received_at: datetime = NOON, **others: Any) -> tuple[Any, ...]:
    """Return a row of ``receipt_closed``: first receipts of one second's waiting, unless ``others`` say otherwise."""
    times = {
        "sent_at": received_at - timedelta(seconds=1),
        "received_at": received_at,
        "closed_at": received_at + timedelta(milliseconds=held_ms),
        "held_ms": held_ms,
        "outcome": outcome.value,
    }
    values = {**USUAL, **times, **others}
    return tuple(values[field.name] for field in SCHEMA.fields)


def table(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Return the rows as a DataFrame."""
    return spark.createDataFrame(list(rows), SCHEMA)
