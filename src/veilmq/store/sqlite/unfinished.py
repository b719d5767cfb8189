"""A data folder in the making, under another name: it takes its own when it is whole, checked and on the disk."""

import os
import shutil
from pathlib import Path

from veilmq.store.sqlite.doctor import examine
from veilmq.store.sqlite.folder import DATABASE_NAME, FolderError


class Unfinished:
    """The folder ``PLACE.unfinished`` that becomes ``PLACE``."""

    def __init__(self, place: Path) -> None:
        """Make the folder, without what an attempt that was killed left; raises ``FolderError`` if ``place`` exists.

        A ``place`` that ends in ``.db`` becomes the database alone.
        """
        if place.exists() or place.is_symlink():
            raise FolderError(f"{place} exists, and nothing is replaced: name a new one with --to.")
        self._place = place
        self.folder = place.with_name(f"{place.name}.unfinished")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise FolderError(f"{self.folder} cannot be made: {error}. Check the disk and the rights.") from error

    @property
    def database(self) -> Path:
        """The path of the database in it."""
        return self.folder / DATABASE_NAME

    def check(self) -> dict[str, str | int]:
        """Return what it holds, by name; raises ``FolderError`` when it breaks an invariant."""
        report = examine(self.folder)
        broken = [finding.check for finding in report.findings if not finding.ok]
        if broken:
            raise FolderError(
                f"The copy was not kept, because it breaks this: {'; '.join(broken)}. See what `veilmq doctor` says of "
                "the store that it is of."
            )
        return report.facts

    def name(self) -> None:
        """Make it durable, and give it its name."""
        for left in ("-wal", "-shm"):  # of the reader that checked it
            self.database.with_name(f"{DATABASE_NAME}{left}").unlink(missing_ok=True)
        for each in (*self.folder.iterdir(), self.folder):
            sync(each)
        (self.database if self._place.suffix == ".db" else self.folder).rename(self._place)
        sync(self._place.parent)

    def remove(self) -> None:
        """Remove what has not taken its name."""
        shutil.rmtree(self.folder, ignore_errors=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
