"""The figures of the demonstration, counted from the event log and the archive."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from veilmq.pipeline.demo.kinds import Done
from veilmq.pipeline.failures import PipelineFailed

_EXPORT_S = 2.5
"""The log is exported each second; an event that is missing after this long was never written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """The ends of the receipts of some queues.

    ``repeated`` counts the receipts after the first of each message. Of those that ``expired``, after ``wasted_s``
    seconds in total, the work of ``late`` ones was finished afterwards.
    """

    repeated: int = 0
    expired: int = 0
    late: int = 0
    wasted_s: float = 0.0


def receipts(logged: pa.Table, queues: Sequence[str]) -> Receipts:
    """Count the receipts of ``queues`` in the event log."""
    names = pc.replace_substring_regex(logged["queue"], pattern="^.*/", replacement="")  # the log has account/name
    rows = logged.filter(pc.is_in(names, pa.array(queues)))
    ended = rows.filter(pc.is_in(rows["outcome"], pa.array(["deleted", "deleted_by_earlier", "expired", "nacked"])))
    expired = rows.filter(pc.equal(rows["outcome"], "expired"))
    return Receipts(
        repeated=ended.num_rows - pc.count_distinct(ended["message_id"]).as_py(),
        expired=expired.num_rows,
        late=rows.filter(pc.equal(rows["outcome"], "late_deleted")).num_rows,
        wasted_s=(pc.sum(expired["held_ms"]).as_py() or 0) / 1000,
    )


def settled(events: Path, *, patience_s: float) -> pa.Table:
    """Return the exported event log once it has stopped growing; raises ``PipelineFailed`` after ``patience_s``."""
    deadline_s = time.monotonic() + patience_s
    rows = _log(events)
    while True:
        time.sleep(_EXPORT_S)
        before, rows = rows, _log(events)
        if rows is not None and before is not None and rows.num_rows == before.num_rows:
            return rows
        if time.monotonic() > deadline_s:
            raise PipelineFailed(f"The event log of the demonstration in {events} does not stop growing.")


def _log(events: Path) -> pa.Table | None:
    if not any(events.rglob("*.parquet")):
        return None
    columns = ["queue", "outcome", "message_id", "held_ms"]
    return ds.dataset(events, format="parquet", partitioning="hive").to_table(columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The archive of finished work: its ``rows``, and the different ``messages`` and pieces of ``work`` in them."""

    rows: int
    messages: int
    work: int


def archive(table: Path) -> Archive:
    """Count the archive as any reader of Delta tables sees it."""
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "body"])
    done = {msgspec.json.decode(body, type=Done).number for body in rows["body"].to_pylist()}
    return Archive(rows=rows.num_rows, messages=len(set(rows["id"].to_pylist())), work=len(done))
