"""A file of an archive, made without Spark."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from veilmq.pipeline.archive_table import CONTENT, ArchiveFile, ArchiveTable, FileWriter

DAY = date(2026, 1, 2)
AT = datetime(2026, 1, 2, 3, 0, 0, 1_500, UTC)


def rows(ids: Sequence[str], *, day: date = DAY) -> list[dict[str, object]]:
    """Return messages with these `ids`, sent a second after each other."""
    start = AT + (day - DAY)
    return [
        {
            "id": id_,
            "body": f"body of {id_}",
            "attributes": [("Type", "a")],
            "attribute_types": None,
            "group": None,
            "sent_at": start + timedelta(seconds=place),
            "received_at": start + timedelta(seconds=place),
            "receive_count": 1,
            "sequence_number": None,
        }
        for place, id_ in enumerate(ids)
    ]


def written(
    table: ArchiveTable, ids: Sequence[str], *, queue: str = "orders", day: date = DAY, content: pa.Schema = CONTENT
) -> ArchiveFile:
    """Write a file of messages with these `ids` into the place of `table`."""
    file = FileWriter(table.place, queue=queue, day=day, content=content)
    file.add(pa.Table.from_pylist(rows(ids, day=day), schema=CONTENT))
    return file.finish()
