"""Processing times, read back from the newest exported files, within limits."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from veilmq.core.receipts import EventRange, Outcome, ReceiptClosed, encode_events
from veilmq.events import ProcessingTimes, bin_begin_ms, bin_of, parquet
from veilmq.events.exporter import open_target
from veilmq.events.parquet import SCHEMA, encode_parquet, range_files, read_processing_times, to_table

HOUR_MS = 3_600_000


def closed(number: int, outcome: Outcome, held_ms: int, *, at_ms: int = HOUR_MS, **fields: Any) -> ReceiptClosed:
    given: dict[str, Any] = {"queue": "a/q", "message_id": number.to_bytes(16), "receipt": 1}
    return ReceiptClosed(
        key="",
        group_hash=None,
        size_bucket=1,
        sent_at_ms=0,
        received_at_ms=at_ms - held_ms,
        closed_at_ms=at_ms,
        held_ms=held_ms,
        outcome=outcome,
        visibility_ms=30_000,
        extensions=0,
        receive_count=1,
        batch_size=1,
        batch_position=0,
        **given | fields,
    )


def write(root: Path, first: int, *events: ReceiptClosed) -> None:
    target = open_target(str(root))
    planned = EventRange(node="n", first=first, last=first + len(events) - 1)
    table = to_table([(first, encode_events(list(events)))], "n")
    for folder, name, rows in range_files([table], planned):
        target.put(folder, name, encode_parquet(rows))


def test_rows_have_every_field_of_their_events() -> None:
    fields: dict[str, Any] = {name: number for number, name in enumerate(ReceiptClosed.__struct_fields__, start=1)}
    fields |= {"queue": "a/q", "key": "é", "message_id": bytes(range(16)), "outcome": Outcome.LATE_DELETED}
    events = [ReceiptClosed(**fields), ReceiptClosed(**fields | {"group_hash": None, "extensions": 0})]
    table = to_table([(7, encode_events(events[:1])), (9, encode_events(events[1:]))], "n")
    assert table.schema.equals(SCHEMA)
    assert SCHEMA.field("closed_at").type == pa.timestamp("ms", "UTC")
    shown = {name.replace("_at_ms", "_at"): value for name, value in fields.items()}
    shown |= {"message_id": bytes(range(16)).hex(), "outcome": "late_deleted", "node": "n", "event": 7}
    in_ms = pa.schema([(each.name, pa.int64() if pa.types.is_timestamp(each.type) else each.type) for each in SCHEMA])
    assert table.cast(in_ms).to_pylist() == [shown, shown | {"event": 9, "group_hash": None, "extensions": 0}]


def test_two_bins_per_doubling() -> None:
    assert [bin_of(ms) for ms in (0, 1, 2, 4, 1_000, 1_024)] == [0, 0, 2, 4, 19, 20]
    for held_ms in (1, 3, 999, 30_000, 43_200_000):
        assert bin_begin_ms(bin_of(held_ms)) <= held_ms < bin_begin_ms(bin_of(held_ms) + 1)


def test_receipts_are_counted_by_outcome(tmp_path: Path) -> None:
    """Without other queues, and without an expiry that a late delete corrects."""
    write(
        tmp_path,
        1,
        closed(1, Outcome.DELETED, 1_000, at_ms=HOUR_MS + 1),
        closed(2, Outcome.DELETED, 1_010),
        closed(3, Outcome.EXPIRED, 30_000),
        closed(4, Outcome.EXPIRED, 40_000, receipt=2),
        closed(4, Outcome.EXPIRED, 60_000, receipt=3),
        closed(4, Outcome.LATE_DELETED, 90_000, receipt=3),
        closed(5, Outcome.NACKED, 5),
        closed(6, Outcome.DELETED, 1_000, at_ms=HOUR_MS + 1),
        closed(7, Outcome.DELETED, 9, queue="a/other"),
    )
    found = read_processing_times(tmp_path, "a/q")
    assert found == ProcessingTimes(
        deleted={bin_of(1_000): 3},
        late={bin_of(90_000): 1},
        expired={bin_of(30_000): 1, bin_of(40_000): 1},
        receipts=6,
        since_ms=HOUR_MS,
        is_cut=False,
    )


def test_only_the_newest_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last day, of two; the last hour has two files, of which the first one is newer."""
    for number, hour in enumerate((1, 2, 3, 4, 5, 5)):
        write(tmp_path, number, closed(number, Outcome.DELETED, 1 << number, at_ms=hour * 7 * HOUR_MS))
    newer, older = sorted(tmp_path.rglob("*.parquet"))[-2:]
    os.utime(older, (0, newer.stat().st_mtime - 1))
    monkeypatch.setattr(parquet, "FILES_MAX", 3)
    found = read_processing_times(tmp_path, "a/q")
    assert (found.deleted, found.is_cut) == ({bin_of(8): 1, bin_of(16): 1, bin_of(32): 1}, True)
    assert found.since_ms == 4 * 7 * HOUR_MS
    monkeypatch.setattr(parquet, "BYTES_MAX", 1)
    assert read_processing_times(tmp_path, "a/q").deleted == {bin_of(16): 1}


def test_missing_and_foreign_files_have_no_receipts(tmp_path: Path) -> None:
    assert read_processing_times(tmp_path / "none", "a/q") == ProcessingTimes()
    write(tmp_path, 1, closed(1, Outcome.DELETED, 1))
    (path,) = tmp_path.rglob("*.parquet")
    (path.parent / "broken.parquet").write_bytes(b"no parquet")
    assert read_processing_times(tmp_path, "a/q").receipts == 1


def test_file_deleted_during_the_read_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, 1, closed(1, Outcome.DELETED, 1_000))
    (there,) = tmp_path.rglob("*.parquet")
    there.with_name("gone.parquet").symlink_to("nowhere")
    assert read_processing_times(tmp_path, "a/q").receipts == 1
