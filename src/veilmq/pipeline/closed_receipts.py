"""The event log as Spark reads it: one row for each receipt that ended (``docs/events.md`` has the columns).

What is new in it is found without a look at what is old. The exporter leaves an entry for each range of events, named
after its first event (``events.parquet``), and ranges of a node follow each other without a gap: a reader that has read
up to an event asks for the one entry that begins with the next. So a file is found in whatever hour it lies. Files
without an entry (of earlier versions, or made by others) are found by a list of all (decision 27).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from veilmq.events import parquet
from veilmq.events.parquet import RANGES, RangeEntry, entry_name
from veilmq.pipeline.folders import existing, is_url, located, opened

log = logging.getLogger(__name__)

SCHEMA = from_arrow_schema(parquet.SCHEMA)
"""The columns of ``receipt_closed``; its partitions, ``date`` and ``hour``, are not read."""

_HIDDEN = ("_", ".")
_entry = msgspec.json.Decoder(RangeEntry).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Files, by their paths below the log, and ``positions``: of each node, the first event that was not read yet.

    ``ahead`` are those of the files whose entries are still to come.
    """

    files: tuple[str, ...]
    positions: Mapping[str, int]
    ahead: tuple[str, ...]


class EventLog:
    """The table ``receipt_closed`` in one place, a folder or a URL."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        """Read nothing yet."""
        self._spark = spark
        self.root = located(place)
        self._files: Any
        self._files, self._path = opened(place) or (None, "")
        try:
            if self._files and self._files.get_file_info(self._path).type == fs.FileType.NotFound:
                self._files = None  # where Spark works there may be one
        except OSError as error:
            log.warning("%s: Spark lists all files, as pyarrow does not reach them: %s", place, error)
            self._files = None

    def after(self, positions: Mapping[str, int]) -> Found | None:
        """Return what was exported after ``positions``; ``None`` where that is not known and all must be listed."""
        nodes = self._nodes()
        return self._follow(nodes, positions) if nodes else None

    def listed(self) -> Found:
        """Return all files. What comes while they are listed is of an entry that is read afterwards, or of the next."""
        before = {node: self._entries(node)[-1:] for node in self._nodes()}
        names = self._names()
        found = self._follow(self._nodes(), {node: first for node, newest in before.items() for first in newest})
        names |= set(found.files)
        newest = dict(sorted(map(_range_of, names)))
        ahead = [name for name in names if _is_ahead(name, found.positions, newest)]
        return Found(files=tuple(sorted(names)), positions=found.positions, ahead=tuple(sorted(ahead)))

    def read(self, files: Sequence[str], *, tasks_max: int) -> DataFrame:
        """Return the rows of these ``files``, read by at most ``tasks_max`` tasks; none is opened for its schema.

        Spark's own number of tasks grows with the bytes. Each task hands on all cells that it has met, so what is
        shuffled would grow with it.
        """
        if not files:
            return self._spark.createDataFrame([], SCHEMA)
        paths = [f"{self.root}/{name}" for name in files]
        return self._spark.read.schema(SCHEMA).parquet(*paths).coalesce(tasks_max)

    def _follow(self, nodes: Sequence[str], positions: Mapping[str, int]) -> Found:
        """Read the entries of ``nodes`` from ``positions`` on, those of a node without one from its oldest on."""
        names: list[str] = []
        reached = dict(positions)
        for node in nodes:
            first = positions.get(node) or next(iter(self._entries(node)), 0)
            while (entry := self._read(node, first)) is not None:
                names += entry.files
                first = reached[node] = entry.last + 1
        there = self._files.get_file_info([f"{self._path}/{name}" for name in names]) if self._files else []
        kept = [name for name, info in zip(names, there, strict=True) if info.is_file]  # others were removed since
        return Found(files=tuple(kept), positions=reached, ahead=())

    def _read(self, node: str, first: int) -> RangeEntry | None:
        try:
            with self._files.open_input_stream(f"{self._path}/{RANGES}/{node}/{entry_name(first)}") as stream:
                return _entry(stream.read())
        except FileNotFoundError:
            return None

    def _nodes(self) -> list[str]:
        return [info.base_name for info in self._inside(RANGES) if not info.is_file]

    def _entries(self, node: str) -> list[int]:
        """Return the first events of the ranges of ``node`` that have entries, in order."""
        names = [info.base_name for info in self._inside(f"{RANGES}/{node}")]
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def _inside(self, folder: str) -> Any:
        if self._files is None:
            return []
        return self._files.get_file_info(fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True))

    def _names(self) -> set[str]:
        """Return all data files; Spark lists them where the place is known to it alone."""
        if self._files is None:
            found = existing(self._spark.read.schema(SCHEMA), self.root)
            return set() if found is None else {self.below(unquote(name)) for name in found.inputFiles()}
        every = self._files.get_file_info(fs.FileSelector(self._path, recursive=True, allow_not_found=True))
        names = {info.path[len(self._path) + 1 :] for info in every if info.is_file}
        return {name for name in names if not any(part.startswith(_HIDDEN) for part in name.split("/"))}

    def below(self, name: str) -> str:
        """Return the path below the log of a file whose URL is ``name``; ``name`` if it is not one of the log."""
        root = self.root.partition(":")[2] if is_url(self.root) else self.root
        return name.partition(f"{root}/")[2] or name


def _range_of(name: str) -> tuple[str, int]:
    """Return the node and the first event of a file that the exporter has named; no node where it has not."""
    node, *events = name.rpartition("/")[2].removesuffix(".parquet").split("-")
    return (node, int(events[0])) if len(events) == 2 and all(each.isdecimal() for each in events) else ("", 0)


def _is_ahead(name: str, positions: Mapping[str, int], newest: Mapping[str, int]) -> bool:
    """Tell whether the entry of a file may still come: a node exports one range after the other."""
    node, first = _range_of(name)
    return bool(node) and first >= positions.get(node, newest[node])
