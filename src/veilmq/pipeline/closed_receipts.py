"""The event log in Spark: one row for each receipt that ended (``docs/events.md`` has the columns).

New files are found without listing old ones. The exporter writes an entry for each range of events, named after the
first event of the range (``events.parquet``), and the ranges of a node have no gaps: a reader that has read up to an
event opens the entry that starts with the next event. The entry names its files, whatever their hour. Files without an
entry (of earlier versions, or copied by hand) are found by listing the whole log (decision 27).
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
"""The columns of ``receipt_closed`` without its partition columns ``date`` and ``hour``."""

_HIDDEN = ("_", ".")
_entry = msgspec.json.Decoder(RangeEntry).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Files, by their paths relative to the log, and ``positions``: the first unread event of each node.

    ``ahead`` are the files whose entries do not exist yet.
    """

    files: tuple[str, ...]
    positions: Mapping[str, int]
    ahead: tuple[str, ...]


class EventLog:
    """The table ``receipt_closed`` in a folder or at a URL."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        """Read nothing."""
        self._spark = spark
        self.root = located(place)
        self._files: Any
        self._files, self._path = opened(place) or (None, "")
        try:
            if self._files and self._files.get_file_info(self._path).type == fs.FileType.NotFound:
                self._files = None  # the path may exist where Spark runs
        except OSError as error:
            log.warning("%s: pyarrow cannot read it, so Spark lists all files: %s", place, error)
            self._files = None

    def after(self, positions: Mapping[str, int]) -> Found | None:
        """Return the files exported after ``positions``; ``None`` if the log has no entries and must be listed."""
        nodes = self._nodes()
        return self._follow(nodes, positions) if nodes else None

    def listed(self) -> Found:
        """Return all files. A file that appears during the listing belongs to an entry that is read afterwards."""
        before = {node: self._entries(node)[-1:] for node in self._nodes()}
        names = self._names()
        found = self._follow(self._nodes(), {node: first for node, newest in before.items() for first in newest})
        names |= set(found.files)
        newest = dict(sorted(map(_range_of, names)))
        ahead = [name for name in names if _is_ahead(name, found.positions, newest)]
        return Found(files=tuple(sorted(names)), positions=found.positions, ahead=tuple(sorted(ahead)))

    def read(self, files: Sequence[str], *, tasks_max: int) -> DataFrame:
        """Return the rows of ``files``, read by at most ``tasks_max`` tasks; no file is opened for its schema.

        By default the number of tasks grows with the bytes. Each task shuffles all of its cells, so the shuffled bytes
        would grow with the number of tasks.
        """
        if not files:
            return self._spark.createDataFrame([], SCHEMA)
        paths = [f"{self.root}/{name}" for name in files]
        return self._spark.read.schema(SCHEMA).parquet(*paths).coalesce(tasks_max)

    def _follow(self, nodes: Sequence[str], positions: Mapping[str, int]) -> Found:
        """Read the entries of ``nodes`` from ``positions`` on; those of a node without position from its oldest on."""
        names: list[str] = []
        reached = dict(positions)
        for node in nodes:
            first = positions.get(node) or next(iter(self._entries(node)), 0)
            while (entry := self._read(node, first)) is not None:
                names += entry.files
                first = reached[node] = entry.last + 1
        infos = self._files.get_file_info([f"{self._path}/{name}" for name in names]) if self._files else []
        existing_names = [name for name, info in zip(names, infos, strict=True) if info.is_file]  # others are deleted
        return Found(files=tuple(existing_names), positions=reached, ahead=())

    def _read(self, node: str, first: int) -> RangeEntry | None:
        try:
            with self._files.open_input_stream(f"{self._path}/{RANGES}/{node}/{entry_name(first)}") as stream:
                return _entry(stream.read())
        except FileNotFoundError:
            return None

    def _nodes(self) -> list[str]:
        return [info.base_name for info in self._listed(RANGES) if not info.is_file]

    def _entries(self, node: str) -> list[int]:
        """Return the first events of the entries of ``node``, in order."""
        names = [info.base_name for info in self._listed(f"{RANGES}/{node}")]
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def _listed(self, folder: str) -> Any:
        if self._files is None:
            return []
        return self._files.get_file_info(fs.FileSelector(f"{self._path}/{folder}", allow_not_found=True))

    def _names(self) -> set[str]:
        """Return all data files; Spark lists them if pyarrow cannot."""
        if self._files is None:
            found = existing(self._spark.read.schema(SCHEMA), self.root)
            return set() if found is None else {self.below(unquote(name)) for name in found.inputFiles()}
        every = self._files.get_file_info(fs.FileSelector(self._path, recursive=True, allow_not_found=True))
        names = {info.path[len(self._path) + 1 :] for info in every if info.is_file}
        return {name for name in names if not any(part.startswith(_HIDDEN) for part in name.split("/"))}

    def below(self, name: str) -> str:
        """Return the path relative to the log of the file at the URL ``name``; ``name`` if it is not in the log."""
        root = self.root.partition(":")[2] if is_url(self.root) else self.root
        return name.partition(f"{root}/")[2] or name


def _range_of(name: str) -> tuple[str, int]:
    """Return the node and the first event in the name of an exported file; an empty node for other files."""
    node, *events = name.rpartition("/")[2].removesuffix(".parquet").split("-")
    return (node, int(events[0])) if len(events) == 2 and all(each.isdecimal() for each in events) else ("", 0)


def _is_ahead(name: str, positions: Mapping[str, int], newest: Mapping[str, int]) -> bool:
    """Return whether the entry of a file may not exist yet: a node exports its ranges in order."""
    node, first = _range_of(name)
    return bool(node) and first >= positions.get(node, newest[node])
