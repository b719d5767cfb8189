"""An event log made by hand, in the files and entries of the exporter."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.pipeline.closed import NOON, row
from veilmq.core.receipts import EventRange, Outcome
from veilmq.events.exporter import Target, open_target
from veilmq.events.parquet import SCHEMA, encoded, entry, files


class ExportedLog:
    """What the exporters of some nodes have put into a folder or bucket."""

    def __init__(self, place: Path | str) -> None:
        """Nothing is exported yet."""
        self._target: Target = open_target(str(place))
        self._first: dict[str, int] = {}
        self.events = f"{place}/receipt_closed"

    def export(self, *, node: str = "a0000001", hours: tuple[int, ...] = (12,), entry_too: bool = True) -> list[str]:
        """Put a range with one receipt in each of `hours` of a day, and its entry; return the paths of its files."""
        first = self._first.get(node, 1)
        rows = [
            row(Outcome.DELETED, 1_000, received_at=NOON.replace(hour=hour), event=first + n, node=node)
            for n, hour in enumerate(hours)
        ]
        return self.export_rows(rows, node=node, entry_too=entry_too)

    def export_rows(self, rows: list[tuple[Any, ...]], *, node: str, entry_too: bool = True) -> list[str]:
        """Put a range of these rows, and its entry; return the paths of its files."""
        first = self._first.get(node, 1)
        planned = EventRange(node=node, first=first, last=first + len(rows) - 1)
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in rows], schema=SCHEMA)
        paths = self._put(table, planned)
        if entry_too:
            self._target.put(*entry(planned, paths))
            self._first[node] = planned.last + 1
        return [path.removeprefix("receipt_closed/") for path in paths]

    def _put(self, table: Any, planned: EventRange) -> list[str]:
        paths = []
        for folder, name, part in files([table], planned):
            self._target.put(folder, name, encoded(part))
            paths.append(f"{folder}/{name}")
        return paths
