"""Reading a recommendation that ``veilmq pipeline tune`` has written (``pipeline/recommendation_table.py``)."""

from pathlib import Path

import msgspec
from pyarrow import ArrowException, parquet

from veilmq.console.advice import Advice
from veilmq.events.parquet import newest_first

_COLUMNS = list(Advice.__struct_fields__)


def read(folder: Path, queue: str) -> Advice | None:
    """Return what is recommended for ``queue`` (a full name) as a whole; ``None`` for nothing, whatever the reason."""
    for path, _ in newest_first(folder.glob("[!_.]*.parquet")):
        try:
            with path.open("rb") as file:
                table = parquet.read_table(file, columns=[*_COLUMNS, "key"], filters=[("queue", "==", queue)])
        except (ArrowException, OSError):
            continue  # a run that replaces them is under way
        for row in table.to_pylist():
            if row.pop("key") is None:
                return msgspec.convert(row, Advice)
    return None
