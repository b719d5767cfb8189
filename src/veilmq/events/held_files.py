"""Reading how long receipts were held from the exported event log: the newest files, so many rows and no more.

A late deletion corrects the expiry of the same receipt, which is then not counted: the work did end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from os import stat_result
from pathlib import Path

from pyarrow import ArrowException, parquet

from veilmq.events.held_times import HeldTimes, bin_of
from veilmq.events.parquet import DATA_SET

ROWS_MAX = 100_000
FILES_MAX = 64
BYTES_MAX = 64 << 20

_COLUMNS = ["outcome", "held_ms", "closed_at", "message_id", "receipt"]


def read(root: Path, queue: str) -> HeldTimes:
    """Return the newest receipts of ``queue`` (a full name) in the files below ``root``; takes a while."""
    rows: list[tuple[str, int, int, tuple[str, int]]] = []
    size_bytes = 0
    for files, (path, told) in enumerate(_newest(root)):
        if files >= FILES_MAX or size_bytes >= BYTES_MAX or len(rows) >= ROWS_MAX:
            return _counted(rows, is_cut=True)
        size_bytes += told.st_size
        rows += _rows(path, queue)
    return _counted(rows, is_cut=False)


def newest_first(paths: Iterable[Path]) -> list[tuple[Path, stat_result]]:
    """Return the files that are still there, those written last first: others remove and replace them meanwhile."""
    found: list[tuple[Path, stat_result]] = []
    for path in paths:
        with suppress(OSError):
            found.append((path, path.stat()))
    return sorted(found, key=lambda each: each[1].st_mtime, reverse=True)


def _newest(root: Path) -> Iterator[tuple[Path, stat_result]]:
    """Yield the files, those of the latest hour first, and of an hour those written last."""
    for date in sorted((root / DATA_SET).glob("date=*"), reverse=True):
        for hour in sorted(date.glob("hour=*"), reverse=True):
            yield from newest_first(hour.glob("[!_]*.parquet"))


def _rows(path: Path, queue: str) -> list[tuple[str, int, int, tuple[str, int]]]:
    try:
        with path.open("rb") as file:
            table = parquet.read_table(file, columns=_COLUMNS, filters=[("queue", "==", queue)])
    except (ArrowException, OSError):
        return []  # it was removed, or is not one of ours
    columns = [table[name].to_pylist() for name in ("outcome", "held_ms")]
    closed_ms = table["closed_at"].cast("int64").to_pylist()
    receipts = zip(table["message_id"].to_pylist(), table["receipt"].to_pylist(), strict=True)
    return list(zip(*columns, closed_ms, receipts, strict=True))


def _counted(rows: list[tuple[str, int, int, tuple[str, int]]], *, is_cut: bool) -> HeldTimes:
    corrected = {receipt for outcome, _, _, receipt in rows if outcome == "late_deleted"}
    deleted, late, expired = Counter[int](), Counter[int](), Counter[int]()
    since_ms = None
    for outcome, held_ms, closed_ms, receipt in rows:
        if outcome == "deleted":
            deleted[bin_of(held_ms)] += 1
        elif outcome == "late_deleted":
            late[bin_of(held_ms)] += 1
        elif outcome == "expired" and receipt not in corrected:
            expired[bin_of(held_ms)] += 1
        else:
            continue
        since_ms = closed_ms if since_ms is None else min(since_ms, closed_ms)
    return HeldTimes(
        deleted=dict(deleted),
        late=dict(late),
        expired=dict(expired),
        receipts=deleted.total() + late.total() + expired.total(),
        since_ms=since_ms,
        is_cut=is_cut,
    )
