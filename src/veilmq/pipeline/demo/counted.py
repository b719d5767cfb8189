"""The figures of the demonstration, counted from what the server and the archive have written."""

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
"""The log is exported each second; what is not there after this long was never written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """What became of the receipts of some queues.

    ``repeated`` is how many were given beyond the first of each message. Of those that ``expired``, after ``wasted_s``
    in all, the work behind ``late`` ones was finished afterwards.
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
    """Return the exported event log, once it does not grow any more; raises ``PipelineFailed`` without one."""
    deadline_s = time.monotonic() + patience_s
    rows = _log(events)
    while True:
        time.sleep(_EXPORT_S)
        before, rows = rows, _log(events)
        if rows is not None and before is not None and rows.num_rows == before.num_rows:
            return rows
        if time.monotonic() > deadline_s:
            raise PipelineFailed(f"The event log of the demonstration does not come to rest in {events}.")


def _log(events: Path) -> pa.Table | None:
    if not any(events.rglob("*.parquet")):
        return None
    columns = ["queue", "outcome", "message_id", "held_ms"]
    return ds.dataset(events, format="parquet", partitioning="hive").to_table(columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What is in the archive of finished work: ``rows``, of so many ``messages``, about so many pieces of ``work``."""

    rows: int
    messages: int
    work: int


def archive(table: Path) -> Archive:
    """Count the archive as any reader of Delta tables sees it."""
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "body"])
    done = {msgspec.json.decode(body, type=Done).number for body in rows["body"].to_pylist()}
    return Archive(rows=rows.num_rows, messages=len(set(rows["id"].to_pylist())), work=len(done))
