"""Closed receipts as rows of the event log."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from veilmq.core.receipts import EventRange, Outcome
from veilmq.events.exporter import Target, open_target
from veilmq.events.parquet import SCHEMA as FILE_SCHEMA
from veilmq.events.parquet import encode_parquet, range_entry, range_files
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
    """Return a row of ``receipt_closed``; by default a first receipt that waited one second."""
    times = {
        "sent_at": received_at - timedelta(seconds=1),
        "received_at": received_at,
        "closed_at": received_at + timedelta(milliseconds=held_ms),
        "held_ms": held_ms,
        "outcome": outcome.value,
    }
    values = {**USUAL, **times, **others}
    return tuple(values[field.name] for field in SCHEMA.fields)


HELD_MS = {"fast": range(100, 2_100, 5), "slow": range(10_000, 26_000, 40)}  # key → holding times


def worked(**others: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a fast and a slow key of one queue."""
    return [row(Outcome.DELETED, ms, key=key, **others) for key, times in HELD_MS.items() for ms in times]


def table(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


class ExportedLog:
    """A folder or bucket with ranges as nodes export them."""

    def __init__(self, place: Path | str) -> None:
        self._target: Target = open_target(str(place))
        self._first: dict[str, int] = {}
        self.events = f"{place}/receipt_closed"

    def export(self, *, node: str = "a0000001", hours: tuple[int, ...] = (12,), entry_too: bool = True) -> list[str]:
        """Export a range with one receipt in each of `hours` of a day, and its entry; return the paths of its files."""
        first = self._first.get(node, 1)
        rows = [
            row(Outcome.DELETED, 1_000, received_at=NOON.replace(hour=hour), event=first + n, node=node)
            for n, hour in enumerate(hours)
        ]
        return self.export_rows(rows, node=node, entry_too=entry_too)

    def export_rows(self, rows: list[tuple[Any, ...]], *, node: str, entry_too: bool = True) -> list[str]:
        first = self._first.get(node, 1)
        planned = EventRange(node=node, first=first, last=first + len(rows) - 1)
        table = pa.Table.from_pylist(
            [dict(zip(FILE_SCHEMA.names, each, strict=True)) for each in rows], schema=FILE_SCHEMA
        )
        paths = self._put(table, planned)
        if entry_too:
            self._target.put(*range_entry(planned, paths))
            self._first[node] = planned.last + 1
        return [path.removeprefix("receipt_closed/") for path in paths]

    def _put(self, table: Any, planned: EventRange) -> list[str]:
        paths = []
        for folder, name, part in range_files([table], planned):
            self._target.put(folder, name, encode_parquet(part))
            paths.append(f"{folder}/{name}")
        return paths


# Run commands until one fails; each has its own session, but Java starts once.
IN_SEQUENCE = (
    "import json, sys; from veilmq.cli import main; sys.exit(any(main(job) for job in json.loads(sys.argv[1])))"
)


def run_jobs(folder: Path, jobs: Iterable[Sequence[str]]) -> str:
    commands = [["pipeline", *words] for words in jobs]
    done = subprocess.run(
        [sys.executable, "-c", IN_SEQUENCE, json.dumps(commands)],
        cwd=folder, env=os.environ | {"PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout
