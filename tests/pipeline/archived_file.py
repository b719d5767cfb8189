"""A file of an archive, made without Spark."""

from collections.abc import Sequence
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from veilmq.pipeline.archive_table import CONTENT, ArchiveFile, ArchiveTable

DAY = date(2026, 1, 2)


def written(table: ArchiveTable, name: str, ids: Sequence[str], *, queue: str = "orders") -> ArchiveFile:
    """Write a file of messages with these `ids` into the folder of `table`."""
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    rows = [
        {
            "id": id_,
            "body": f"body of {id_}",
            "attributes": [("Type", "a")],
            "attribute_types": None,
            "group": None,
            "sent_at": at,
            "received_at": at,
            "receive_count": 1,
            "sequence_number": None,
        }
        for id_ in ids
    ]
    path = f"queue={queue}/date={DAY}/{name}.parquet"
    file = table.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=CONTENT), file)
    return ArchiveFile(path=path, queue=queue, day=DAY, rows=len(ids), size_bytes=file.stat().st_size)
