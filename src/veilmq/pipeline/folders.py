"""Folders and URLs of Spark's files, and of small files that the jobs write themselves.

A place is a folder or a URL (``s3://bucket/folder``) that Spark, ``pyarrow.fs`` and deltalake all support. All three
take credentials from the usual environment variables (``AWS_ACCESS_KEY_ID`` …) or the machine's role.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_GLOB = re.compile(r"[\\{}\[\]*?]")


def is_url(place: str) -> bool:
    return _URL.match(place) is not None


def located(place: str) -> str:
    """Return ``place``, a folder or URL, as an absolute path or URL without a trailing slash.

    A relative folder is relative to the working directory of this process, not of a Spark Connect server.
    """
    return (place if is_url(place) else str(Path(place).absolute())).rstrip("/")


def read_parquet(reader: DataFrameReader, *places: str) -> DataFrame:
    """Return the Parquet files under ``places``, whose names are no patterns."""
    return reader.parquet(*(_GLOB.sub(r"\\\g<0>", each) for each in places))


def existing(reader: DataFrameReader, place: str) -> DataFrame | None:
    """Return the Parquet files under ``place``; ``None`` if it does not exist."""
    try:
        found = read_parquet(reader, place)
        found.schema  # noqa: B018 - Spark Connect resolves the path only on first use
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or a prefix of a bucket; ``location`` is its path or URL for Spark and deltalake."""

    location: str

    @classmethod
    def at(cls, place: str | Path) -> "Place":
        return cls(located(str(place)))

    def __truediv__(self, name: str) -> "Place":
        return Place(f"{self.location}/{name}")

    @property
    def files(self) -> fs.FileSystem:
        """A file system whose root is this place."""
        filesystem, path = _opened(self.location)
        return fs.SubTreeFileSystem(path, filesystem)

    def prepare(self, path: str) -> None:
        """Create the folder of the file at ``path``; buckets have only keys."""
        if _opened(self.location)[0].type_name in {"local", "hdfs"}:
            self.files.create_dir(str(Path(path).parent), recursive=True)

    def names(self) -> list[str]:
        """Return the names of the files and folders in this place; none if it does not exist."""
        return [found.base_name for found in self.files.get_file_info(fs.FileSelector("", allow_not_found=True))]

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; ``None`` if it does not exist."""
        if self.files.get_file_info(path).type is not fs.FileType.File:
            return None
        with self.files.open_input_file(path) as file:
            content: bytes = file.read()
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically and durably, replacing an existing one."""
        from veilmq.events.exporter import Target  # noqa: PLC0415 - has many imports

        filesystem, root = _opened(self.location)
        folder, _, name = path.rpartition("/")
        Target(filesystem, root, local=isinstance(filesystem, fs.LocalFileSystem)).put(folder, name, content)

    def sync(self, *paths: str) -> None:
        """Sync local files and folders to disk; other file systems acknowledge only durable writes."""
        from veilmq.events.exporter import sync  # noqa: PLC0415 - has many imports

        filesystem, root = _opened(self.location)
        for path in paths if isinstance(filesystem, fs.LocalFileSystem) else ():
            sync(Path(root) / path)


@lru_cache(maxsize=64)
def _opened(location: str) -> tuple[fs.FileSystem, str]:
    scheme = urlsplit(location).scheme if is_url(location) else ""
    if scheme in {"", "file"}:
        return fs.LocalFileSystem(), urlsplit(location).path if scheme else location
    filesystem, path = fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", location))  # s3a is Hadoop's name of S3
    return filesystem, path
