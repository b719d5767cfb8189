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

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """What became of the receipts of some queues; ``wasted_s`` is the time that those had which expired."""

    deleted: int = 0
    expired: int = 0
    late: int = 0
    dead: int = 0
    redelivered: int = 0
    wasted_s: float = 0.0


def receipts(events: Path, queues: Sequence[str]) -> Receipts:
    """Count the receipts of ``queues`` in the exported event log; those of redeliveries are second ones or later."""
    if not any(events.rglob("*.parquet")):
        return Receipts()
    columns = ["queue", "outcome", "receive_count", "held_ms"]
    logged = ds.dataset(events, format="parquet", partitioning="hive").to_table(columns=columns)
    names = pc.replace_substring_regex(logged["queue"], pattern="^.*/", replacement="")  # the log has account/name
    rows = logged.filter(pc.is_in(names, pa.array(queues)))
    outcomes = rows.group_by("outcome").aggregate([([], "count_all")]).to_pydict()
    counts = dict(zip(outcomes["outcome"], outcomes["count_all"], strict=True))
    expired = rows.filter(pc.equal(rows["outcome"], "expired"))
    ended = rows.filter(pc.is_in(rows["outcome"], pa.array(["deleted", "expired", "nacked"])))
    return Receipts(
        deleted=counts.get("deleted", 0),
        expired=counts.get("expired", 0),
        late=counts.get("late_deleted", 0),
        dead=counts.get("dead_lettered", 0),
        redelivered=ended.filter(pc.greater(ended["receive_count"], 1)).num_rows,
        wasted_s=(pc.sum(expired["held_ms"]).as_py() or 0) / 1000,
    )


def receipts_of(events: Path, queues: Sequence[str], *, messages: int, patience_s: float) -> Receipts:
    """Count once all of ``messages`` are seen to have left, or nothing more is to be expected."""
    deadline_s = time.monotonic() + patience_s
    while True:
        found = receipts(events, queues)
        if found.deleted + found.dead >= messages or time.monotonic() > deadline_s:
            return found
        time.sleep(_LOOK_S)


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
