"""A disk that can lose power: an apsw VFS that records writes and syncs.

`RecordingVFS` delegates to the real file system and keeps a log, which also has the test's own notes in order (`Note`,
such as a command's result). From this log, `Disk` builds the folder as a power loss after any entry would leave it:
synced data is there; of other data, nothing or a random part, sector by sector.

A deletion becomes durable with the next sync of any file, as on file systems with a journal of their directories. The
creation of a file counts as durable with its first sync.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import apsw

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Write:
    """`data` was written to `file` at `offset`; durable after the next `Sync` of that file."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """`file` was truncated to `size`."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """All changes of `file` so far are durable."""

    file: str


@dataclass(frozen=True, slots=True)
class Delete:
    """`file` was deleted."""

    file: str


@dataclass(frozen=True, slots=True)
class Note:
    """An event of the test."""

    event: object


Change = Write | Truncate | Delete
Entry = Change | Sync | Note


class Log:
    """The entries in order, from the threads of the loop and the committer."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._lock = Lock()

    def add(self, entry: Entry) -> None:
        with self._lock:
            self.entries.append(entry)

    def changes(self) -> list[int]:
        return [index for index, entry in enumerate(self.entries) if isinstance(entry, Change)]


class RecordingVFS(apsw.VFS):
    """The default VFS with recording, registered under `name` until `unregister`."""

    def __init__(self, name: str, log: Log) -> None:
        super().__init__(name, "")
        self._log = log

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _RecordingFile(name, flags, self._log)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._log.add(Delete(Path(filename).name))


class _RecordingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], log: Log) -> None:
        super().__init__("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if path else "unnamed"
        self._log = log

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._log.add(Write(self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._log.add(Truncate(self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._log.add(Sync(self._name))  # after it has returned: earlier, nothing is durable


class Disk:
    """The files as a power loss after the played entries leaves them."""

    def __init__(self) -> None:
        self._durable: dict[str, bytearray] = {}
        self._pending: dict[str, list[Change]] = {}

    def play(self, entry: Entry) -> None:
        if isinstance(entry, Sync):
            for file in list(self._pending):
                if file == entry.file or any(isinstance(change, Delete) for change in self._pending[file]):
                    self._sync(file, whole=file == entry.file)
        elif isinstance(entry, Change):
            self._pending.setdefault(entry.file, []).append(entry)

    def _sync(self, file: str, *, whole: bool) -> None:
        changes = self._pending.pop(file)
        deletions = [index for index, change in enumerate(changes) if isinstance(change, Delete)]
        end = len(changes) if whole else deletions[-1] + 1
        for change in changes[:end]:
            _apply(self._durable, change)
        if changes[end:]:
            self._pending[file] = changes[end:]

    def lose_power(self, folder: Path, *, torn: random.Random | None) -> None:
        """Write the remaining files to the new `folder`; `torn` selects unsynced changes that survive, `None` none."""
        files = {name: bytearray(content) for name, content in self._durable.items()}
        if torn is not None:
            for changes in self._pending.values():
                for change in changes:
                    if isinstance(change, Delete) and torn.random() < 0.5:
                        break  # the directory still has the old file; later writes went to a new one
                    _apply_in_part(files, change, torn)
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)


def _apply(files: dict[str, bytearray], change: Change) -> None:
    if isinstance(change, Delete):
        files.pop(change.file, None)
        return
    content = files.setdefault(change.file, bytearray())
    if isinstance(change, Truncate):
        del content[change.size :]
    else:
        end = change.offset + len(change.data)
        content.extend(bytes(max(0, end - len(content))))
        content[change.offset : end] = change.data


def _apply_in_part(files: dict[str, bytearray], change: Change, torn: random.Random) -> None:
    if not isinstance(change, Write):
        if isinstance(change, Delete) or torn.random() < 0.5:
            _apply(files, change)
        return
    for start in range(0, len(change.data), SECTOR_BYTES):
        if torn.random() < 0.5:
            sector = change.data[start : start + SECTOR_BYTES]
            _apply(files, Write(change.file, change.offset + start, sector))
